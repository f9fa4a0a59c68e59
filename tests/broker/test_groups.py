"""Groups of our own members on real brokers: who owns what, that nothing is lost or doubled, and what tools see."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from managedconsumer import KafkaClient
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.groupkit import MARGIN_S, SESSION_S, Fleet, Load, all_seen, in_other_thread, pairs, write

PARTITIONS = 8
Make = Callable[..., Fleet]

# A member hears of a rebalance by its next heartbeat.
HEARTBEAT_S = 0.3


@pytest.mark.parametrize("size", [1, 5])
def test_members_share_the_partitions(kafka: DevBroker, fleet: Make, size: int) -> None:
    group = fleet(kafka, PARTITIONS)
    for _ in range(size):
        group.join(auto_commit_enable=True)
    group.wait_balanced(PARTITIONS)
    expected = write(kafka, group.topic, PARTITIONS, 40)
    group.wait_received(expected)
    group.check()
    assert group.duplicates() == 0
    assert all({p for p, _ in member.got} == member.owned for member in group.members)


@pairs
def test_joins_and_leaves_under_load(kafka: DevBroker, fleet: Make) -> None:
    """Everybody ends cleanly and commits automatically: nothing is lost, and nothing comes twice."""
    group = fleet(kafka, PARTITIONS)
    with Load(kafka, group.topic, PARTITIONS) as load:
        first = group.join(auto_commit_enable=True)
        group.until(lambda: first.got, SESSION_S, "the first message")
        for step in ("join", "join", "leave", "join", "leave", "leave"):
            started = time.monotonic()
            if step == "join":
                group.join(auto_commit_enable=True)
            else:
                group.leave(group.members[0])
            group.wait_balanced(PARTITIONS)
            assert time.monotonic() - started < HEARTBEAT_S + 2.0 + MARGIN_S
            seen = len(load.acked)
            group.until(lambda seen=seen: len(load.acked) > seen + 100, 10, "load goes on")  # type: ignore[misc]
        acked = load.stop()
    all_seen(group, acked)
    group.check()
    assert max(group.values().values()) == 1, f"{group.duplicates()} duplicates"


def test_spare_members_idle_cheaply(kafka44: DevBroker, fleet: Make) -> None:
    group = fleet(kafka44, 2)
    for _ in range(5):
        group.join(consumer_timeout_ms=-1)
    group.wait_balanced(2)
    spare = [member for member in group.members if not member.owned]
    assert len(spare) == 3
    # Who has just lost its share still waits for the answer to its last fetch.
    group.until(lambda: [m.consumer.health()["fetchers"] for m in spare] == [0, 0, 0], 15, "no fetchers")
    before = time.process_time()
    group.handler.sleep(1.5)
    assert time.process_time() - before < 0.5, "five idle members use more than a third of a processor"
    expected = write(kafka44, group.topic, 2, 20)
    group.wait_received(expected)
    group.leave(next(member for member in group.members if member.owned))
    group.wait_balanced(2)  # a spare one takes over
    group.check()


@pairs
def test_an_idle_consume_never_delays_a_join(kafka: DevBroker, fleet: Make) -> None:
    """pykafka's blocked consume() held the join of the second member for 19 s."""
    group = fleet(kafka, 4)
    group.join(consumer_timeout_ms=-1)
    group.wait_balanced(4)
    started = time.monotonic()
    group.join(consumer_timeout_ms=60_000)
    group.wait_balanced(4)
    assert time.monotonic() - started < HEARTBEAT_S + 1.0 + MARGIN_S
    group.check()


@pairs
def test_two_topics_in_one_process(kafka: DevBroker, fleet: Make) -> None:
    """Two consumers of two groups do not get into each other's way."""
    groups = [fleet(kafka, 2), fleet(kafka, 3)]
    for group, partitions in zip(groups, (2, 3), strict=True):
        for _ in range(2):
            group.join()
        group.wait_balanced(partitions)
        expected = write(kafka, group.topic, partitions, 30)
        group.wait_received(expected)
        assert group.received().keys() == expected
        group.check()


@pairs
def test_one_group_two_topics(kafka: DevBroker, fleet: Make) -> None:
    """Consumers of different topics in the same group each get all of their own topic."""
    one, other = fleet(kafka, 4), fleet(kafka, 4)
    other.group = one.group
    for group in (one, other):
        group.join()
    for group in (one, other):
        group.until(lambda group=group: group.balanced(4), SESSION_S + MARGIN_S, "each owns its own topic")  # type: ignore[misc]
    for group in (one, other):
        expected = write(kafka, group.topic, 4, 25)
        group.wait_received(expected)
        assert group.received().keys() == expected
        group.check()


def test_one_consumer_of_several_topics(kafka44: DevBroker, fleet: Make, topic: Callable[..., str]) -> None:
    group = fleet(kafka44, 2)
    names = [group.topic, topic(kafka44, 3)]
    members = [group.join(topic=names), group.join(topic=names)]
    group.until(
        lambda: sum(len(member.owned) for member in members) == 5 and all(member.stable for member in members),
        SESSION_S + MARGIN_S,
        "five partitions of two topics are owned",
    )
    assert {(tp.topic, tp.partition) for member in members for tp in member.owned} == {
        *((names[0], p) for p in range(2)),
        *((names[1], p) for p in range(3)),
    }
    for name, partitions in zip(names, (2, 3), strict=True):
        write(kafka44, name, partitions, 10)
    group.until(lambda: group.received().total() == 50, 15, "all messages of both topics")
    assert group.errors() == []


@pairs
def test_partitions_added(kafka: DevBroker, fleet: Make) -> None:
    """pykafka never sees them. They are read from their first message."""
    group = fleet(kafka, 2)
    client = KafkaClient(kafka.bootstrap, metadata_max_age_ms=1000)
    for _ in range(2):
        group.join(cluster=client)
    group.wait_balanced(2)
    kafka.create_partitions(group.topic, 5)
    expected = write(kafka, group.topic, 5, 20)
    group.wait_balanced(5, 1.0 + 2 * HEARTBEAT_S + 2.0 + MARGIN_S)
    group.wait_received(expected)
    group.check()


@pytest.mark.since("2.4")
@pairs
def test_kafkas_own_tool_reads_the_living_group(kafka: DevBroker, fleet: Make) -> None:
    """kafka-consumer-groups crashes on a living pykafka group."""
    group = fleet(kafka, 4)
    expected = write(kafka, group.topic, 4, 10)
    members = [group.join(auto_commit_enable=True, auto_commit_interval_ms=200) for _ in range(2)]
    group.wait_balanced(4)
    group.wait_received(expected)
    group.until(
        lambda: sum(member.consumer.committed(p) or 0 for member in members for p in member.owned) == 40,
        10,
        "everything committed",
    )

    def tool(*arguments: str) -> list[list[str]]:
        command = ("kafka-consumer-groups", "--group", group.group, *arguments)
        printed = in_other_thread(group.handler, lambda: kafka.run_tool(*command))
        return [line.split() for line in printed.splitlines() if line.startswith(group.group)]

    rows = tool("--describe")
    assert {(row[1], row[2], row[3], row[4], row[5]) for row in rows} == {
        (group.topic, str(p), "10", "10", "0") for p in range(4)
    }
    ids = {member.consumer.consumer_id.decode() for member in members}
    assert {row[6] for row in rows} == ids
    shown = tool("--describe", "--members", "--verbose")
    assert {row[1] for row in shown} == ids
    assert all("/127.0.0.1" in row and "managedconsumer" in row for row in shown)
    shares = [found for row in shown for found in re.findall(r"[(:]([\d,]+)", " ".join(row))]  # (0,1) or topic:0,1
    assert {part for share in shares for part in share.split(",")} == set("0123"), shown
    (state,) = tool("--describe", "--state")
    assert "range" in state and "Stable" in state and state[-1] == "2"


def test_a_slow_member_does_not_hold_up_the_others(kafka44: DevBroker, fleet: Make) -> None:
    """And the order of a key's messages is kept."""
    group = fleet(kafka44, 4)
    group.join(work=lambda _: group.handler.sleep(0.02), auto_commit_enable=True)
    group.join(auto_commit_enable=True)
    group.wait_balanced(4)
    with Producer(kafka44.bootstrap, codec="lz4") as producer:
        producer.produce(group.topic, [Record(b"%d" % n, b"%d" % (n % 16)) for n in range(400)])
    group.until(lambda: group.values().total() == 400, 20, "400 messages")
    group.check()
    for member in group.members:
        by_partition: dict[int, list[int]] = {}
        for event in member.events:
            if event[0] == "got":
                by_partition.setdefault(event[1], []).append(int(event[3]))
        assert all(values == sorted(values) for values in by_partition.values())
