"""A process that ends without ``stop()``: its member leaves the group, and the end does not hang."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import GroupAuthorizationFailed
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.runtime.silent_proxy import SilentProxyBroker

# Most of these start a program of their own, or wait for the end of a session.
pytestmark = pytest.mark.slow

TOPIC, GROUP = "orders", "billing"

_PROGRAM = """
import sys
from managedconsumer import ManagedBalancedConsumer
consumer = ManagedBalancedConsumer(
    "orders", sys.argv[1], "billing", auto_offset_reset="earliest", consumer_timeout_ms=5000, **eval(sys.argv[2])
)
values = [consumer.consume().value for _ in range(2)]
print(values, flush=True)
"""
_ENDS = {
    "the end of the script": "",
    "an exception": "raise ValueError",
    "sys.exit": "sys.exit(3)",
    "a daemon thread consumes": """
import threading
threading.Thread(target=lambda: [None for _ in consumer], daemon=True).start()
""",
}


broker = memory_broker({TOPIC: 1}, [b"a", b"b"])


def _run(broker: MemoryBroker, end: str, options: str = "{}") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PROGRAM + end, broker.bootstrap, options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
def test_the_member_leaves(broker: MemoryBroker, end: str) -> None:
    done = _run(broker, end)
    assert "[b'a', b'b']" in done.stdout, done.stderr
    assert broker.members(GROUP) == []
    assert broker.committed(GROUP) == {}  # nobody has asked for a commit


def test_a_member_that_a_refusal_has_ended_leaves(broker: MemoryBroker) -> None:
    beats = itertools.count()
    broker.fail_next("Heartbeat", GroupAuthorizationFailed, when=lambda _body: next(beats) > 2)
    done = _run(broker, "while True:\n    consumer.consume()", "{'heartbeat_interval_ms': 100}")
    assert "GroupAuthorizationFailed" in done.stderr
    assert broker.members(GROUP) == []


@pytest.mark.gevent
def test_the_member_leaves_under_gevent(broker: MemoryBroker) -> None:
    assert "[b'a', b'b']" in _run(broker, "", "{'use_greenlets': True}").stdout
    assert broker.members(GROUP) == []


def test_what_is_finished_is_committed_where_commits_are_automatic(broker: MemoryBroker) -> None:
    done = _run(broker, "", "{'auto_commit_enable': True}")
    assert "[b'a', b'b']" in done.stdout, done.stderr
    assert broker.committed(GROUP) == {TopicPartition(TOPIC, 0): 1}  # b was in flight
    assert broker.members(GROUP) == []


def test_stop_works_where_no_thread_can_be_started_any_more(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 refuses new threads while the interpreter ends: a program that stops its consumer in ``atexit``."""
    options = {"auto_commit_enable": True, "auto_offset_reset": "earliest", "consumer_timeout_ms": 5000}
    consumer = ManagedBalancedConsumer(TOPIC, broker.bootstrap, GROUP, **options)
    assert [consumer.consume().value for _ in range(2)] == [b"a", b"b"]

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    consumer.stop()
    monkeypatch.undo()
    assert broker.members(GROUP) == []
    assert broker.committed(GROUP) == {TopicPartition(TOPIC, 0): 1}


def test_a_static_member_keeps_its_place(broker: MemoryBroker) -> None:
    _run(broker, "", "{'group_instance_id': 'till-1'}")
    assert len(broker.members(GROUP)) == 1


def test_a_forked_child_leaves_its_parents_place_alone(broker: MemoryBroker) -> None:
    end = """
import os
if os.fork() == 0:
    sys.exit()
os.wait()
print(consumer.health()["state"], flush=True)
os._exit(0)
"""
    done = _run(broker, end)
    assert "stable" in done.stdout, done.stderr
    assert len(broker.members(GROUP)) == 1


@pytest.mark.parametrize("auto_commit", [True, False])
def test_the_end_does_not_wait_for_a_silent_coordinator(auto_commit: bool) -> None:
    broker = SilentProxyBroker({TOPIC: 1})
    broker.start()
    try:
        broker.produce(TOPIC, [b"a", b"b"])
        end = "\nimport time\n"
        end += "import managedconsumer.runtime.waiting.process as process\n"
        end += "print('silence', flush=True)\nsys.stdin.readline()\nbegan = time.monotonic()\n"
        end += "process._at_exit()\nprint(time.monotonic() - began, flush=True)\n"
        command = [sys.executable, "-c", _PROGRAM + end, broker.bootstrap, f"{{'auto_commit_enable': {auto_commit}}}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "[b'a', b'b']\n"
            assert process.stdout.readline() == "silence\n"
            broker.silence_all()
            broker.choose = lambda _wire, _name: True
            process.stdin.write("\n")
            process.stdin.flush()
            took = float(process.stdout.readline())
            since = time.monotonic()
            process.wait(20)
        assert took < 4.0
        assert time.monotonic() - since < 4.0
    finally:
        broker.close()
