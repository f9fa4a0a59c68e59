"""The bodies of the requests of this room, as a whole, and answers that leave out what old versions do not have."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from managedconsumer.errors import CorruptRecordError, UnknownTopicOrPartition
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch import resets
from managedconsumer.fetch.request import FetchSession
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition
from managedconsumer.subscription_state import TopicPartitionState
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.fetch.kit import TOPIC, Kit, batch, damaged, tp

TOPIC_ID = bytes(range(16))


def _cluster(topic_id: bytes | None = TOPIC_ID, epoch: int = 7) -> ClusterSnapshot:
    parts = {number: PartitionInfo(TOPIC, number, 1, epoch) for number in (0, 1)}
    topics = {TOPIC: TopicInfo(TOPIC, topic_id, MappingProxyType(parts))}
    brokers = {0: BrokerInfo(0, "host0", 9092), 1: BrokerInfo(1, "host1", 9092)}
    return ClusterSnapshot(MappingProxyType(brokers), MappingProxyType(topics))


def _plan(kit: Kit, cluster: ClusterSnapshot | None = None, now: float = 0.0, **limits: Any) -> fp.FetchPlan:
    made = fp.plan_fetch(kit.buffer, list(kit.buffer), cluster or _cluster(), fp.FetchLimits(**limits), now)
    assert made is not None
    return made


def _part(number: int, offset: int = 0, **more: int) -> dict[str, Any]:
    return {
        "partition": number,
        "current_leader_epoch": 7,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1048576,
        **more,
    }


class TestFetch:
    def test_by_id(self) -> None:
        kit = Kit(2)
        made = _plan(kit, max_wait_ms=70, isolation_level=1, rack="r1")
        assert made.body == {
            "max_wait_ms": 70,
            "min_bytes": 1,
            "max_bytes": 1048576,
            "isolation_level": 1,
            "topics": [{"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": [_part(0), _part(1)]}],
            "rack_id": "r1",
        }
        assert made.by_id is True
        lines = [(line.queue, line.version, line.offset) for line in made.lines]
        assert lines == [(kit.queue(number), kit.queue(number).version, 0) for number in (0, 1)]
        assert {key: line.queue for key, line in made.tickets.items()} == {
            (topic, number): kit.queue(number) for topic in (TOPIC, TOPIC_ID) for number in (0, 1)
        }
        assert [kit.queue(number).in_flight for number in (0, 1)] == [True, True]

    @pytest.mark.parametrize("cluster", [_cluster(topic_id=None), ClusterSnapshot()], ids=["old", "unknown"])
    def test_by_name(self, cluster: ClusterSnapshot) -> None:
        kit = Kit()
        made = _plan(kit, cluster)
        (topic,) = made.body["topics"]
        assert (topic["topic"], topic["topic_id"], made.by_id) == (TOPIC, bytes(16), False)
        assert set(made.tickets) == {(TOPIC, 0)}
        assert topic["partitions"][0]["current_leader_epoch"] == (7 if cluster.topics else -1)

    @pytest.mark.parametrize(
        ("room", "partition", "most", "asked"),
        [(1 << 20, 500, 1 << 30, 500), (1000, 5000, 1 << 30, 1000), (1 << 20, 5000, 2000, 2000)],
    )
    def test_how_much_is_asked_for(self, room: int, partition: int, most: int, asked: int) -> None:
        kit = Kit(max_bytes=room)
        made = _plan(kit, partition_max_bytes=partition, max_bytes=most, min_bytes=9)
        assert (made.body["max_bytes"], made.body["min_bytes"]) == (asked, 9)
        assert made.body["topics"][0]["partitions"][0]["partition_max_bytes"] == partition

    @pytest.mark.parametrize(("replica", "told"), [(-1, 3), (0, -1), (1, -1)])
    def test_only_the_leader_is_told_our_last_epoch(self, replica: int, told: int) -> None:
        kit = Kit()
        kit.queue().last_epoch = 3
        kit.queue().read_replica = replica
        assert _plan(kit).body["topics"][0]["partitions"] == [_part(0, last_fetched_epoch=told)]

    def test_a_follower_that_failed_is_left_for_a_while_and_the_leader_asked_at_once(self) -> None:
        kit = Kit(2, max_bytes=1 << 26)
        kit.queue(0).read_replica = 0
        made = _plan(kit, rack="r1")
        assert made.body["rack_id"] == "r1"
        made.failed(5.0, 99.0)
        assert [(q.read_replica, q.leader_until, q.retry_at, q.in_flight) for q in kit.buffer] == [
            (-1, 15.0, 0.0, False),
            (-1, 0.0, 99.0, False),
        ]
        assert _plan(kit, now=5.0, rack="r1").body["rack_id"] == ""  # told a rack, the leader would send us back
        kit.buffer.restart(tp(0))
        assert _plan(kit, now=15.0, rack="r1").body["rack_id"] == "r1"

    def test_a_new_queue_is_at_the_leader_and_asks_for_nothing(self) -> None:
        kit = Kit()
        queue = kit.buffer.add(tp(0), kit.states[0], "partition 0")
        assert (queue.fetch_offset, queue.records, queue.nbytes, queue.version) == (-1, 0, 0, 0)
        assert (queue.in_flight, queue.retry_at, queue.alone) == (False, 0.0, False)
        assert (queue.read_replica, queue.replica_until, queue.leader_until) == (-1, 0.0, 0.0)
        assert (queue.last_epoch, queue.topic_id, queue.undecided) == (-1, None, None)
        assert queue.context.partition == "partition 0"


def _read(
    kit: Kit, code: int = 0, records: Any = None, limits: fp.FetchLimits | None = None, **fields: Any
) -> fp.PartitionResult:
    made = _plan(kit)
    part = {"partition_index": 0, "error_code": code, "records": records, **fields}
    answer = {"responses": [{"topic_id": TOPIC_ID, "topic": "", "partitions": [part]}]}
    (result,) = fp.read_answer(made, answer, limits or fp.FetchLimits())
    made.release()
    assert (result.queue, result.version) == (kit.queue(), kit.queue().version)
    assert result.answer is part
    return result


def _found(data: bytes, **limits: Any) -> list[int]:
    """The offsets of the records in an answer."""
    chunk = _read(Kit(), records=data, limits=fp.FetchLimits(**limits)).chunk
    assert chunk is not None
    return [message.offset for message in chunk]


class TestFetchAnswers:
    @pytest.mark.parametrize(("code", "error"), [(1, True), (6, True), (0, False)])
    def test_what_came_is_kept_with_its_ticket(self, code: int, error: bool) -> None:
        result = _read(Kit(), code)
        assert (result.error is not None, result.chunk is None) == (error, error)

    @pytest.mark.parametrize(
        ("diverging", "outcome"),
        [
            ({}, fp.Outcome.DATA),
            ({"diverging_epoch": {}}, fp.Outcome.DATA),
            ({"diverging_epoch": {"epoch": -1, "end_offset": -1}}, fp.Outcome.DATA),
            ({"diverging_epoch": {"epoch": 3, "end_offset": 0}}, fp.Outcome.TRUNCATED),
            ({"diverging_epoch": {"epoch": 3, "end_offset": 9}}, fp.Outcome.TRUNCATED),
        ],
    )
    def test_a_log_that_diverges(self, diverging: dict[str, Any], outcome: fp.Outcome) -> None:
        result = _read(Kit(), **diverging)
        assert (result.outcome, result.error) == (outcome, None)
        assert (result.chunk is None) == (outcome is fp.Outcome.TRUNCATED)

    def test_under_read_uncommitted_aborted_transactions_are_delivered(self) -> None:
        data = batch(0, 2, producer_id=5, transactional=True)
        result = _read(Kit(), records=data, aborted_transactions=[{"producer_id": 5, "first_offset": 0}])
        assert result.chunk is not None
        assert [message.offset for message in result.chunk] == [0, 1]


class TestSessions:
    def test_a_request_as_a_whole(self) -> None:
        session = FetchSession()
        topic = {"topic": "t", "topic_id": TOPIC_ID, "partitions": [{"partition": 0}, {"partition": 1}]}
        assert session.body({"max_wait_ms": 5, "topics": [topic]}, 7) == {
            "max_wait_ms": 5,
            "session_id": 0,
            "session_epoch": 0,
            "topics": [topic],
            "forgotten_topics_data": [],
        }
        session.accept({"error_code": 0, "session_id": 9})
        assert session.body({"max_wait_ms": 5, "topics": []}, 7) == {
            "max_wait_ms": 5,
            "session_id": 9,
            "session_epoch": 1,
            "topics": [],
            "forgotten_topics_data": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": [0, 1]}],
        }

    def test_an_answer_that_names_no_session_has_none(self) -> None:
        session = FetchSession()
        session.body({"topics": []}, 12)
        assert session.accept({"error_code": 0})
        request = session.body({"topics": []}, 12)
        assert (request["session_id"], request["session_epoch"]) == (0, 0)


class TestListOffsets:
    def test_a_request_as_a_whole(self) -> None:
        assert resets.list_offsets_body({tp(0): -1, tp(1): 5000}, 1, 30000) == {
            "replica_id": -1,
            "isolation_level": 1,
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1},
                        {"partition_index": 1, "current_leader_epoch": -1, "timestamp": 5000},
                    ],
                }
            ],
            "timeout_ms": 30000,
        }

    def test_what_is_not_in_the_answer(self, caplog: pytest.LogCaptureFixture) -> None:
        old = {"partition_index": 0, "error_code": 0, "offset": 17, "timestamp": 5}
        new = {"partition_index": 1, "error_code": 0, "offset": 18, "timestamp": 6, "leader_epoch": 3}
        other = {"partition_index": 9, "error_code": 0, "offset": 1, "timestamp": 5}
        unknown = TopicPartition("u", 2)
        answer = {"topics": [{"name": TOPIC, "partitions": [other, old, new]}]}
        found = resets.read_list_offsets(answer, [tp(0), tp(1), unknown])
        assert set(found) == {tp(0), tp(1), unknown}
        assert (found[tp(0)], found[tp(1)]) == ((17, 5, -1, None), (18, 6, 3, None))
        assert found[unknown][:3] == (-1, -1, -1)
        assert found[unknown].may_change
        assert isinstance(found[unknown].error, UnknownTopicOrPartition)
        assert [record.getMessage() for record in caplog.records] == [
            "ignoring orders-9 in an answer about offsets: it was not asked for"
        ]


class TestEpochs:
    @pytest.mark.parametrize(
        ("epoch", "known", "outdated"),
        [(-1, False, False), (0, True, True), (6, True, True), (7, True, False), (8, False, False)],
    )
    def test_which_committed_epochs_are_compared(self, epoch: int, known: bool, outdated: bool) -> None:
        expected = {tp(0): epoch}
        assert resets.checked_epochs(expected, _cluster()) == (expected if known else {}, expected if outdated else {})

    @pytest.mark.parametrize("epoch", [-1, 0, 1])
    def test_of_an_unknown_partition_none_is(self, epoch: int) -> None:
        assert resets.checked_epochs({TopicPartition("u", 0): epoch}, _cluster()) == ({}, {})

    def test_epoch_zero_of_a_leader_in_its_first_epoch_is_known(self) -> None:
        assert resets.checked_epochs({tp(0): 0}, _cluster(epoch=0)) == ({tp(0): 0}, {})

    def test_a_request_as_a_whole(self) -> None:
        wanted = {tp(0): 3, tp(1): 4, TopicPartition("u", 0): 5}
        assert resets.epoch_ends_body(wanted, _cluster()) == {
            "replica_id": -1,
            "topics": [
                {
                    "topic": TOPIC,
                    "partitions": [
                        {"partition": 0, "current_leader_epoch": 7, "leader_epoch": 3},
                        {"partition": 1, "current_leader_epoch": 7, "leader_epoch": 4},
                    ],
                },
                {"topic": "u", "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 5}]},
            ],
        }

    @pytest.mark.parametrize(("code", "end", "known"), [(0, 0, True), (0, 9, True), (0, -1, False), (74, 9, False)])
    def test_where_an_epoch_ends(self, code: int, end: int, known: bool, caplog: pytest.LogCaptureFixture) -> None:
        part = {"partition": 0, "error_code": code, "leader_epoch": 3, "end_offset": end}
        other = {**part, "partition": 9, "error_code": 0, "end_offset": 1}
        found = resets.read_epoch_ends({"topics": [{"topic": TOPIC, "partitions": [other, part]}]}, [tp(0)])
        assert found == ({tp(0): resets.EpochEnd(3, end)} if known else {})
        assert [record.getMessage() for record in caplog.records] == [
            "ignoring orders-9 in an answer about leader epochs: it was not asked for"
        ]


class TestAnotherLeader:
    def _resting(self, kit: Kit) -> fp.FetchPlan:
        made = _plan(kit)
        made.release(50.0)
        return made

    @pytest.mark.parametrize(("node", "moved"), [(0, True), (1, False)])  # broker 1 leads
    def test_only_where_the_same_broker_leads_its_recovery_is_waited_for(self, node: int, moved: bool) -> None:
        kit = Kit()
        assert bool(self._resting(kit).ask_new_leaders(node, _cluster())) is moved
        assert kit.queue().retry_at == (0.0 if moved else 50.0)

    def test_a_partition_that_has_moved_on_is_left_alone(self) -> None:
        kit = Kit()
        made = self._resting(kit)
        kit.buffer.restart(tp(0))
        kit.queue().retry_at = 60.0
        assert not made.ask_new_leaders(0, _cluster())
        assert kit.queue().retry_at == 60.0


def test_a_damaged_batch_is_found_or_not_as_configured() -> None:
    assert _found(damaged(0, 2), check_crcs=False) == [0, 1]
    with pytest.raises(CorruptRecordError):
        _found(damaged(0, 2), check_crcs=True)


def test_a_batch_that_decompresses_to_too_much_is_damage() -> None:
    data = encode_batch([Record(bytes(5000))], codec="gzip")
    assert _found(data, max_batch_bytes=6000) == [0]
    with pytest.raises(CorruptRecordError):
        _found(data, max_batch_bytes=4000)


def test_two_topics_are_asked_for_under_their_own_names() -> None:
    kit = Kit()
    other, state = TopicPartition("users", 1), TopicPartitionState()
    state.seek(9)
    kit.buffer.add(other, state, "partition 1")
    kit.buffer.restart(other)
    named = [(t["topic"], [p["partition"] for p in t["partitions"]]) for t in _plan(kit).body["topics"]]
    assert named == [(TOPIC, [0]), ("users", [1])]


@pytest.mark.parametrize(("code", "ours"), [(29, True), (6, False), (2, False)])
def test_only_a_refused_topic_has_the_remedy_in_its_text(code: int, ours: bool) -> None:
    text = str(_read(Kit(), code).error)
    assert (f"may not read topic {TOPIC!r}: READ on the topic must be allowed" in text) is ours
    assert ("kafka-acls.sh" in text and f"--operation Read --topic {TOPIC}" in text) is ours


def test_an_answer_without_records_takes_no_room() -> None:
    chunk = _read(Kit()).chunk
    assert chunk is not None
    assert list(chunk) == []
    assert (chunk.nbytes, chunk.record_count, chunk.next_fetch_offset) == (0, 0, 0)
