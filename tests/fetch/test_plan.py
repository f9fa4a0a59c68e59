"""Whom to ask for what, and what each kind of answer leads to."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from managedconsumer.fetch import plan as fp
from managedconsumer.fetch import resets
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition
from tests.fetch.kit import TOPIC, Kit, batch, tp

TOPIC_ID = bytes(range(16))
LIMITS = fp.FetchLimits(partition_max_bytes=5000, max_wait_ms=70, isolation_level=1, rack="r1")


def cluster(leaders: dict[int, int], topic_id: bytes | None = TOPIC_ID) -> ClusterSnapshot:
    brokers = {n: BrokerInfo(n, f"host{n}", 9092) for n in (1, 2)}
    parts = {p: PartitionInfo(TOPIC, p, leader, 7, (1, 2), (1, 2), 0) for p, leader in leaders.items()}
    return ClusterSnapshot(
        MappingProxyType(brokers), MappingProxyType({TOPIC: TopicInfo(TOPIC, topic_id, MappingProxyType(parts), 0)})
    )


def plan(kit: Kit, snapshot: ClusterSnapshot | None = None, now: float = 0.0) -> fp.FetchPlan | None:
    snapshot = snapshot or cluster(dict.fromkeys(kit.states, 1))
    return fp.plan_fetch(kit.buffer, list(kit.buffer), snapshot, LIMITS, now)


def planned(kit: Kit, snapshot: ClusterSnapshot | None = None, now: float = 0.0) -> fp.FetchPlan:
    made = plan(kit, snapshot, now)
    assert made is not None
    return made


def asked(made: fp.FetchPlan | None) -> list[int]:
    assert made is not None
    return [part["partition"] for topic in made.body["topics"] for part in topic["partitions"]]


class TestPlanning:
    def test_every_partition_that_wants_data_is_asked_for_once(self) -> None:
        kit = Kit(3)
        kit.seek(1, 42)
        made = plan(kit)
        assert asked(made) == [0, 1, 2]
        assert made is not None
        assert [p["fetch_offset"] for p in made.body["topics"][0]["partitions"]] == [0, 42, 0]
        assert plan(kit) is None  # all are on their way

    @pytest.mark.parametrize("obstacle", ["paused", "suspended"])
    def test_paused_and_held_partitions_are_left_out(self, obstacle: str) -> None:
        kit = Kit(2)
        setattr(kit.states[0], obstacle, True)
        assert asked(plan(kit)) == [1]

    def test_partitions_without_a_position_are_left_out(self) -> None:
        kit = Kit(2)
        kit.states[0].await_reset(-1)
        kit.buffer.restart(tp(0))
        assert asked(plan(kit)) == [1]

    def test_a_full_partition_is_left_out_until_it_is_emptier(self) -> None:
        kit = Kit(2, max_messages=5)
        kit.fetched(0, batch(0, 5))
        assert asked(plan(kit)) == [1]
        kit.buffer.pop()
        assert asked(plan(kit)) == [0]

    def test_nothing_is_asked_for_while_the_byte_bound_is_reached(self) -> None:
        data = batch(0, 5)
        kit = Kit(2, max_bytes=len(data))
        kit.fetched(0, data)
        assert plan(kit) is None
        kit.buffer.pop()
        assert sorted(asked(plan(kit))) == [0, 1]

    def test_who_has_just_had_data_comes_last(self) -> None:
        """A broker sends more than the fetch size for the first partition only, and rotates only within a session."""
        kit = Kit(3)
        assert asked(plan(kit)) == [0, 1, 2]
        for number in range(3):
            kit.buffer.restart(tp(number))
        kit.fetched(0, batch(0, 5))
        assert asked(plan(kit)) == [1, 2, 0]

    def test_after_a_failure_partitions_rest(self) -> None:
        kit = Kit()
        made = planned(kit)
        made.release(10.0)
        assert plan(kit, now=9.9) is None
        assert asked(plan(kit, now=10.0)) == [0]

    def test_after_an_answer_that_was_too_large_each_is_asked_alone(self) -> None:
        """A broker sends the first batch whole, however large (KIP-74): this finds the partition that it is of."""
        kit = Kit(3)
        made = planned(kit)
        assert made.separate() is None
        for number in range(2):
            alone = plan(kit)
            assert asked(alone) == [number]
            assert alone is not None
            assert alone.body["max_wait_ms"] == 0, "the others are waiting"
            alone.release()
            alone.answered()
        alone = planned(kit)
        line = alone.separate()
        assert line is not None
        assert line.queue.tp == tp(2)
        assert asked(plan(kit)) == [0, 1, 2]

    def test_a_failure_says_nothing_about_a_partition_that_has_moved_on(self) -> None:
        kit = Kit()
        made = plan(kit)
        kit.seek(0, 7)
        assert made is not None
        made.release(10.0)
        assert asked(plan(kit)) == [0]

    def test_the_leader_is_asked_unless_it_named_a_nearer_replica(self) -> None:
        kit = Kit()
        snapshot = cluster({0: 1})
        assert fp.source_node(kit.queue(), snapshot) == 1
        kit.queue().read_replica = 2
        assert fp.source_node(kit.queue(), snapshot) == 2
        kit.queue().read_replica = 9  # not in the cluster any more
        assert fp.source_node(kit.queue(), snapshot) == 1
        assert fp.source_node(kit.queue(), ClusterSnapshot()) == -1


def read(kit: Kit, code: int = 0, records: Any = None, partition: int = 0, **fields: Any) -> list[fp.PartitionResult]:
    made = planned(kit)
    part = {"partition_index": partition, "error_code": code, "records": records, **fields}
    return fp.read_answer(made, {"responses": [{"topic_id": TOPIC_ID, "topic": "", "partitions": [part]}]}, LIMITS)


class TestAnswers:
    def test_data_becomes_a_chunk_under_the_ticket_it_was_asked_for(self) -> None:
        kit = Kit()
        version = kit.queue().version
        (result,) = read(kit, records=batch(0, 4))
        assert (result.outcome, result.version, result.error) == (fp.Outcome.DATA, version, None)
        assert result.chunk is not None
        assert [m.value for m in result.chunk] == [b"v0", b"v1", b"v2", b"v3"]

    def test_aborted_transactions_are_left_out_under_read_committed(self) -> None:
        data = batch(0, 2, producer_id=5, transactional=True) + batch(2, 2)
        (result,) = read(Kit(), records=data, aborted_transactions=[{"producer_id": 5, "first_offset": 0}])
        assert result.chunk is not None
        assert [m.offset for m in result.chunk] == [2, 3]


class TestOffsetLookUps:
    def test_requests_go_to_the_leaders(self) -> None:
        wanted = {tp(0): -1, tp(1): -2, tp(2): -1, TopicPartition("unknown", 0): -1}
        grouped, homeless = resets.by_leader(wanted, cluster({0: 1, 1: 2, 2: -1}))
        assert grouped == {1: {tp(0): -1}, 2: {tp(1): -2}}
        assert homeless == [tp(2), TopicPartition("unknown", 0)]


def test_an_answer_by_name_to_a_request_by_id() -> None:
    """Kafka 2.8 to 3.0 tell topic ids in their metadata, and know a Fetch by names only."""
    kit = Kit()
    made = planned(kit)
    part = {"partition_index": 0, "error_code": 0, "records": batch(0, 1)}
    answer = {"responses": [{"topic": TOPIC, "topic_id": bytes(16), "partitions": [part]}]}
    (result,) = fp.read_answer(made, answer, LIMITS)
    assert result.outcome is fp.Outcome.DATA
