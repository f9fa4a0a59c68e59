"""``run()`` with librdkafka, in a process that stands still or forks, and on a log that is not the one of before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import Message
from managedconsumer.processing import offset_map
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing import MemoryBroker
from tests import stopkit
from tests.processing.test_running import LONG, TOPIC, Going, committed, fill
from tests.processing.test_running import broker as broker
from tests.processing.test_running import member as member
from tests.waiting import until

ROOT = Path(__file__).parents[2]


def test_librdkafka_fetches_and_the_promises_are_the_same(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    """Keys in order, a map for what is finished behind a stuck message, nothing done twice by the next member."""
    pytest.importorskip("confluent_kafka")
    fill(broker, ["stuck"] + ["a", "b"] * 20)
    release, seen = threading.Event(), []  # type: ignore[var-annotated]

    def handle(message: Message) -> None:
        if message.offset == 0:
            release.wait(LONG)
            return
        seen.append(message.offset)

    going = Going(member(use_rdkafka=True), handle, grace_ms=0)
    until(lambda: len(seen) == 40, LONG)
    assert going.stop().unfinished == 1
    release.set()
    for parity in range(2):
        offsets = [offset for offset in seen if offset % 2 == parity]
        assert offsets == sorted(offsets)
    assert committed(broker) == 0
    again: list[int] = []
    going = Going(member(use_rdkafka=True), lambda message: again.append(message.offset))
    until(lambda: again, LONG)
    going.stop()
    assert (again, committed(broker)) == ([0], 41)


@pytest.mark.slow
def test_a_process_that_stands_still_loses_its_partitions_and_nothing_else(
    broker: MemoryBroker, member: Callable[..., Any]
) -> None:
    """SIGSTOP beyond the session, another member does the work, SIGCONT: what was in flight does not count any more."""
    fill(broker, [None] * 200)
    options = {"auto_offset_reset": "earliest", "session_timeout_ms": 400, "heartbeat_interval_ms": 50}
    given = {"topic": TOPIC, "bootstrap": broker.bootstrap, "group": "billing", "hold": 0.02, "options": options}
    command = [sys.executable, "-m", "tests.broker.runner", json.dumps({**given, "run": {"workers": 4}})]
    frozen = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert frozen.stdout is not None
    lines = frozen.stdout
    try:
        done = [json.loads(lines.readline()) for _ in range(40)]
        frozen.send_signal(signal.SIGSTOP)
        until(lambda: not broker.members("billing"), LONG)
        before, seen = committed(broker), []  # type: ignore[var-annotated]
        heir = Going(member(group_protocol="classic"), lambda message: seen.append(message.offset))
        until(lambda: committed(broker) == 200, LONG)
        frozen.send_signal(signal.SIGCONT)
        until(lambda: len(broker.members("billing")) == 2, LONG)
        heir.stop()
        assert committed(broker) == 200, "a commit of the one that stood still took the group back"
        for partition in range(2):
            fill(broker, [None] * 10, partition)
        until(lambda: committed(broker) == 210 and committed(broker, 1) == 10, LONG)
        frozen.send_signal(signal.SIGTERM)
        said = [json.loads(line) for line in lines]
    finally:
        frozen.kill()
        frozen.wait(LONG)
        lines.close()
    finished = {event[2] for event in done + said if event[0] == "done" and event[1] == 0}
    assert finished | set(seen) == set(range(210))
    assert min(seen) >= before
    assert said[-1][0] == "summary"


@pytest.mark.slow
@pytest.mark.parametrize("on", ["threads", pytest.param("greenlets", marks=pytest.mark.gevent)])
def test_a_fork_in_a_handler(on: str) -> None:
    """The parent goes on. The child is told that the messages are not its own, and gets no other one."""
    said = stopkit.run(
        """
greenlets, parent, seen, children = sys.argv[1] == "greenlets", os.getpid(), [], []
broker = MemoryBroker({"orders": 1}).start()
broker.produce("orders", [b"x"] * 300)
consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", use_greenlets=greenlets)

def handle(message):
    assert os.getpid() == parent, "a message for the child"
    seen.append(message.offset)
    if message.offset == 100:
        pid = os.fork()
        if pid:
            children.append(pid)
        else:
            assert message.fenced
    if len(seen) == 300:
        consumer.end_soon()

try:
    summary = consumer.run(handle, workers=4, on=sys.argv[1])
except err.ForkedProcessError:
    os._exit(0)
_, status = os.waitpid(children[0], 0)
print(summary.done, sorted(seen) == list(range(300)), os.waitstatus_to_exitcode(status))
print(*broker.committed("g").values())

consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", use_greenlets=greenlets)
pid = os.fork()
if not pid:
    try:
        consumer.run(handle)
    except err.ForkedProcessError:
        os._exit(5)
    os._exit(6)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
consumer.stop()
""",
        on,
    )
    assert said.split() == ["300", "True", "0", "300", "5"]


@pytest.mark.parametrize(
    ("known", "begins"),
    [
        (OffsetMap((2,), 6, 0), [2, 6, 7, 8, 9]),  # of this log: 3, 4 and 5 are finished
        (OffsetMap((2,), 6, 3), list(range(2, 10))),  # of a leader epoch that this log has not come to
        (OffsetMap((2,), 60, 0), list(range(2, 10))),  # up to an offset that this log does not have
    ],
)
def test_a_map_of_another_log_passes_nothing_over(
    broker: MemoryBroker, member: Callable[..., Any], known: OffsetMap, begins: list[int]
) -> None:
    """The topic was deleted and made anew, and a commit of before is still there."""
    fill(broker, [None] * 10)
    text = offset_map.with_map('{"hostname": "h"}', offset_map.encode(known, 2))
    first = member()
    first.commit_offsets({TopicPartition(TOPIC, 0): OffsetAndMetadata(2, text)})
    first.stop()
    seen: list[int] = []
    going = Going(member(), lambda message: seen.append(message.offset))
    until(lambda: set(begins) <= set(seen), LONG)
    going.stop()
    assert sorted(seen) == begins
    assert committed(broker) == 10
