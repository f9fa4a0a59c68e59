"""The rules that tests/conftest.py enforces: marks and second tries. Each test runs pytest on a file of tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


def run(directory: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What pytest says of a file of tests under this project's conftest and settings."""
    (directory / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "--rootdir", str(ROOT)]
    return subprocess.run(
        [*command, "-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(directory / "test_it.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


STARTS = """
import pytest, subprocess, sys
from managedconsumer.testing import DevBroker

def test_unmarked():
    DevBroker().start()

def test_unmarked_in_a_child():
    code = "from managedconsumer.testing import DevBroker; DevBroker().start()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "a-test-that-starts-a-broker-is-marked-broker" in done.stderr

@pytest.mark.broker
def test_marked():
    pass

def test_asks(kafka44):
    pass
"""


def test_a_broker_is_started_by_marked_tests_only(tmp_path: Path) -> None:
    # Whatever is refused first, Java or the cache: no test that is not marked comes as far as a process of Kafka's.
    done = run(tmp_path, STARTS, "-k", "not asks")
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "a-test-that-starts-a-broker-is-marked-broker" in done.stdout
    listed = run(tmp_path, STARTS, "--collect-only", "-m", "broker").stdout
    assert "test_marked" in listed
    assert "test_asks" in listed
    assert "test_unmarked" not in listed


LAUNCHES = """
import pytest
from managedconsumer.testing.kafka._kafka_config import NodeConfig
from managedconsumer.testing.kafka._node import Node

def start(path):
    (path / "node").mkdir()
    node = Node(NodeConfig(1, path / "node"))
    node.launch(["true"])
    node.reap(5.0, lambda: None)

def test_unmarked(tmp_path):
    start(tmp_path)

@pytest.mark.broker
def test_marked(tmp_path):
    start(tmp_path)
"""


def test_a_process_of_kafka_fails_a_test_that_is_not_marked(tmp_path: Path) -> None:
    done = run(tmp_path, LAUNCHES)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "test_unmarked starts a broker and is not marked so: @pytest.mark.broker" in done.stdout


AGAIN = """
import pytest

tries = []

@pytest.mark.busy
def test_slow_machine():
    tries.append(1)
    assert len(tries) > 1, "not within 3.0 s: somebody"

@pytest.mark.busy
def test_wrong():
    assert False, "a message came twice"

@pytest.mark.broker
def test_not_busy():
    assert False, "not within 3.0 s: somebody"
"""


def test_only_a_time_on_a_busy_machine_is_tried_again(tmp_path: Path) -> None:
    done = run(tmp_path, AGAIN)
    assert "2 failed, 1 passed, 1 rerun" in done.stdout, done.stdout
    assert "::test_slow_machine: 1 time(s) too slow" in done.stdout
    assert "1 second tries; at most 5 are accepted" in done.stdout
    assert "3 failed" in run(tmp_path, AGAIN, "-p", "no:rerunfailures").stdout


HANGS = """
import ctypes, threading
import pytest

@pytest.mark.timeout(1)
def test_in_python():
    threading.Event().wait(60)

def test_fine():
    pass

@pytest.mark.timeout(1)
def test_in_c():
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""


def test_a_test_that_hangs_ends(tmp_path: Path) -> None:
    """Where no JVM may start, a signal ends it, and the process only where C code keeps the signal away."""
    done = run(tmp_path, HANGS, "-m", "fast", "-k", "not in_c")
    assert "Failed: Timeout (>1.0s) from pytest-timeout" in done.stdout, done.stdout
    assert "1 failed, 1 passed" in done.stdout, "the next test runs"
    done = run(tmp_path, HANGS, "-m", "fast", "-k", "in_c")
    assert done.returncode == 1
    assert "in_c" not in done.stdout, "no report: the process has ended"


MANY = """
import pytest

tries = dict.fromkeys(range(3), 0)

@pytest.mark.busy
@pytest.mark.parametrize("number", tries)
def test_slow_machine(number):
    tries[number] += 1
    assert tries[number] > 2, "not within 3.0 s: somebody"
"""


def test_a_run_with_many_second_tries_fails(tmp_path: Path) -> None:
    done = run(tmp_path, MANY)
    assert "3 passed, 6 rerun" in done.stdout, done.stdout
    assert "6 second tries; too many: the run fails" in done.stdout
    assert done.returncode == 1
