"""Our member and another client's in one group at the same time, each leading it once; nothing is lost in total."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer.testing import DevBroker
from tests.broker.groupkit import SESSION_S, Fleet, Load, Member, ProcessMember

# Other programs have to start and to be balanced in time, on a machine that runs other tests as well.
pytestmark = pytest.mark.busy

PARTITIONS = 4
PATIENCE_S = 4 * SESSION_S
START_S = 60.0  # another client starts as a process of its own, on a machine that runs other tests, too
Make = Callable[..., Fleet]
Strange = Callable[..., ProcessMember]

GEVENT = pytest.mark.gevent
# Every client leads once, every assignor is used once with every client that has it.
PAIRS = [
    pytest.param("4.4.0", "threads", "confluent", "range"),
    pytest.param("4.4.0", "gevent", "confluent", "roundrobin", marks=GEVENT),
    pytest.param("4.4.0", "threads", "confluent", "cooperative-sticky"),
    pytest.param("4.4.0", "gevent", "kafka-python", "range", marks=GEVENT),
    pytest.param("4.4.0", "threads", "kafka-python", "roundrobin"),
    pytest.param("4.4.0", "threads", "kafka-python", "sticky"),
    pytest.param("4.4.0", "gevent", "kafka-python", "cooperative-sticky", marks=GEVENT),
    pytest.param("4.4.0", "threads", "aiokafka", "range"),
    pytest.param("4.4.0", "gevent", "aiokafka", "roundrobin", marks=GEVENT),
    pytest.param("4.4.0", "threads", "aiokafka", "sticky"),
    pytest.param("3.9.2", "threads", "pykafka", "range"),
    pytest.param("3.9.2", "gevent", "pykafka", "roundrobin", marks=GEVENT),
    pytest.param("3.9.2", "gevent", "confluent", "range", marks=GEVENT),
    pytest.param("4.4.0", "threads", "java", "range"),
    pytest.param("4.4.0", "gevent", "java", "roundrobin", marks=GEVENT),
    pytest.param("4.4.0", "gevent", "java", "sticky", marks=GEVENT),
    pytest.param("4.4.0", "threads", "java", "cooperative-sticky"),
]


def everything(group: Fleet, acked: list[bytes], others: list[ProcessMember]) -> Counter[bytes]:
    """Wait until all of ``acked`` has come to somebody; how often each did."""

    def seen() -> Counter[bytes]:
        return group.values() + Counter(value for other in others for value in other.values)

    group.until(lambda: not set(acked) - seen().keys(), PATIENCE_S, f"all of {len(acked)} messages")
    return seen()


def shared(group: Fleet, ours: Member, theirs: ProcessMember, size: int = 2) -> None:
    """Wait until each owns its half and gets messages."""
    group.until(
        lambda: len(ours.owned) == len(theirs.owned) == PARTITIONS // size and not ours.owned & theirs.owned,
        START_S,
        lambda: f"each owns its half: exit code {theirs.process.poll()}, {theirs.events[-5:]}",
    )
    before = len(ours.got), len(theirs.of("got"))
    group.until(
        lambda: len(ours.got) > before[0] + 10 and len(theirs.of("got")) > before[1] + 10, PATIENCE_S, "both consume"
    )
    assert {event[1] for event in theirs.events[-5:] if event[0] == "got"} <= theirs.owned


def leads(member: Member) -> bool:
    machine: Any = member.consumer._member.machine  # type: ignore[union-attr]
    return bool(machine.is_leader)


@pytest.mark.parametrize(("kafka", "mode", "client", "assignor"), PAIRS, indirect=["kafka", "mode"])
def test_each_leads_once(kafka: DevBroker, fleet: Make, stranger: Strange, client: str, assignor: str) -> None:
    group = fleet(kafka, PARTITIONS)
    with Load(kafka, group.topic, PARTITIONS) as load:
        leader = stranger(group, client, assignor)
        group.until(
            lambda: len(leader.owned) == PARTITIONS and leader.of("got"),
            START_S,
            lambda: f"it consumes alone: exit code {leader.process.poll()}, {leader.events[-5:]}",
        )
        ours = group.join(auto_commit_enable=True, auto_commit_interval_ms=200, membership_protocol=assignor)
        shared(group, ours, leader)
        assert not leads(ours)

        leader.signal(signal.SIGTERM)
        group.until(lambda: len(ours.owned) == PARTITIONS, PATIENCE_S, "we have it all")
        follower = stranger(group, client, assignor)
        shared(group, ours, follower)
        assert leads(ours)

        follower.signal(signal.SIGTERM)
        group.until(lambda: len(ours.owned) == PARTITIONS, PATIENCE_S, "we have it all again")
        acked = load.stop()
    counts = everything(group, acked, [leader, follower])
    group.check()
    print(f"{client} {assignor}: {len(acked)} messages, {sum(counts.values()) - len(counts)} duplicates")
