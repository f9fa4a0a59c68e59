"""A data directory has one broker, whatever became of the process that started it. No Kafka is needed to show it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from managedconsumer.testing import DataDirError
from managedconsumer.testing.kafka._data_lock import DataLock
from managedconsumer.testing.kafka._processes import launch
from tests.waiting import until

# Takes the lock, starts a "node" that inherits it, tells its process id, and waits.
OWNER = """
import sys
from pathlib import Path
from managedconsumer.testing.kafka._data_lock import DataLock
from managedconsumer.testing.kafka._processes import launch
home = Path(sys.argv[1])
lock = DataLock.take(home)
node = launch(["sleep", "60"], home / "log", home, [lock.descriptor])
lock.tell([node.pid])
print(node.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is held is not waited for."""
    monkeypatch.setattr("managedconsumer.testing.kafka._data_lock._PATIENCE", 0.1)


def test_the_second_is_told_who_was_first(tmp_path: Path) -> None:
    lock = DataLock.take(tmp_path)
    with pytest.raises(DataDirError) as caught:
        DataLock.take(tmp_path)
    assert f"{tmp_path} is in use by another broker: started by process {os.getpid()} (" in str(caught.value)
    lock.release()
    lock.release()
    DataLock.take(tmp_path).release()


@pytest.mark.slow
def test_the_node_keeps_the_directory_when_its_starter_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        node = int(owner.stdout.readline())
        try:
            owner.send_signal(signal.SIGKILL)
            owner.wait(10)
            with pytest.raises(DataDirError) as caught:
                DataLock.take(tmp_path)
            said = (
                f"in use by another broker: Kafka process {node}, started by process {owner.pid} (-c, which has ended)"
            )
            assert said in str(caught.value)
        finally:
            os.kill(node, signal.SIGKILL)
    wait_for_the_end_of(node)
    DataLock.take(tmp_path).release()  # it waits until the kernel has closed the dead process's files


def wait_for_the_end_of(process: int) -> None:
    """A killed process needs a turn of the processor to die, which may take a while on a busy machine."""
    until(lambda: not psutil.pid_exists(process), 60)


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    lock = DataLock.take(tmp_path)
    told, tell = os.pipe()
    heard, ready = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.close(tell)
        os.write(ready, b"!")
        os.read(told, 1)  # lives until the parent lets go
        os._exit(0)
    os.close(ready)
    try:
        os.read(heard, 1)  # on a busy machine it may take long until the child runs at all
        lock.leave()  # as if this process had died without a word
        DataLock.take(tmp_path).release()
    finally:
        for descriptor in (tell, told, heard):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_what_is_released_is_free_although_a_process_inherited_it(tmp_path: Path) -> None:
    lock = DataLock.take(tmp_path)
    node = launch(["sleep", "60"], tmp_path / "log", tmp_path, [lock.descriptor])
    try:
        lock.release()
        DataLock.take(tmp_path).release()
    finally:
        node.kill()
        node.wait(10)


def test_a_file_that_says_nothing_is_no_obstacle(tmp_path: Path) -> None:
    lock = DataLock.take(tmp_path)
    (tmp_path / "devbroker.lock").write_text("rubbish")
    with pytest.raises(DataDirError, match=r"devbroker.lock does not say which"):
        DataLock.take(tmp_path)
    lock.release()
