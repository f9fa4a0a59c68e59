"""Topic, Partition and Broker over metadata that changes."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import pytest

from managedconsumer import errors as err
from managedconsumer.compat.parts import Broker, Partition, Topic, timestamp_of
from managedconsumer.structs import BrokerInfo, TopicPartition
from tests.compat.views import FakeView, partition, snapshot


def topic(name: str = "clicks", partitions: int = 3) -> Topic:
    return FakeView(snapshot(1, 2, **{name: partitions})).topic(name)


def theirs(name: bytes, number: int) -> SimpleNamespace:
    """What a pykafka Partition looks like from here."""
    return SimpleNamespace(id=number, topic=SimpleNamespace(name=name, partitions={}))


def test_names_are_bytes_and_numbers_are_keys() -> None:
    clicks = topic()
    assert clicks.name == b"clicks"
    assert list(clicks.partitions) == [0, 1, 2]
    assert [p.id for p in clicks.partitions.values()] == [0, 1, 2]
    assert clicks.partitions[1].topic is clicks
    assert clicks.partitions[1].key == TopicPartition("clicks", 1)


def test_partitions_follow_the_metadata_and_keep_their_identity() -> None:
    view = FakeView(snapshot(1, clicks=2))
    clicks = view.topic("clicks")
    before = clicks.partitions
    view.now = snapshot(1, clicks=4)
    assert list(clicks.partitions) == [0, 1, 2, 3]
    assert list(before) == [0, 1]  # what somebody iterates over never changes under him
    assert clicks.partitions[1] is before[1]
    assert clicks.partitions is clicks.partitions
    view.now = snapshot(1)
    assert clicks.partitions == {}
    assert before[0].leader is None
    assert before[0].replicas == before[0].isr == []


def test_leader_replicas_and_isr_are_brokers() -> None:
    view = FakeView(snapshot(1, 2, clicks=1))
    part = view.topic("clicks").partitions[0]
    assert part.leader == view.brokers[1]
    assert [b.id for b in part.replicas] == [1, 2]
    assert [b.id for b in part.isr] == [1]
    info = snapshot(1, 2, clicks=1).topics["clicks"]
    moved = {0: partition("clicks", 0, leader=2, replicas=(2, 9))}
    view.now = type(view.now)(view.now.brokers, {"clicks": type(info)("clicks", None, moved)})
    assert part.leader is not None
    assert part.leader.id == 2
    assert [b.id for b in part.replicas] == [2]  # broker 9 is not up


def test_no_leader_is_none() -> None:
    view = FakeView(snapshot(2, clicks=1))  # broker 1, the leader, is gone
    assert view.topic("clicks").partitions[0].leader is None


def test_brokers_are_kept_while_they_stay_the_same() -> None:
    view = FakeView(snapshot(1, 2))
    first = view.brokers
    assert (first[1].id, first[1].host, first[1].port, first[1].rack) == (1, b"kafka1", 9092, "rack-1")
    view.now = type(view.now)({1: view.now.brokers[1], 2: BrokerInfo(2, "elsewhere", 9092)})
    assert view.brokers[1] is first[1]
    assert view.brokers[2].host == b"elsewhere"
    assert view.brokers[2] != first[2]


def test_partitions_are_equal_by_topic_name_and_number() -> None:
    one, other = topic().partitions[1], topic().partitions[1]
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1
    assert one != topic().partitions[2]
    assert one != topic("views").partitions[1]
    assert one == theirs(b"clicks", 1)
    assert one != theirs(b"clicks", 2)
    assert one != theirs(b"views", 1)
    assert one != 1
    assert one != ("clicks", 1)


def test_partitions_sort_by_number() -> None:
    many = topic("clicks", 12).partitions
    assert [p.id for p in sorted([many[10], many[2], many[11], many[0]])] == [0, 2, 10, 11]
    assert many[2] < theirs(b"clicks", 10)
    with pytest.raises(TypeError):
        _ = many[2] < 10


def test_topics_are_equal_by_name() -> None:
    assert topic() == topic()
    assert hash(topic()) == hash(topic())
    assert topic() != topic("views")
    assert topic() == SimpleNamespace(name=b"clicks", partitions={})
    assert topic() != b"clicks"


def test_reprs_name_what_they_are() -> None:
    clicks = topic()
    assert "Topic at 0x" in repr(clicks)
    assert "(name=b'clicks')" in repr(clicks)
    assert "(topic=clicks, id=2)" in repr(clicks.partitions[2])
    assert "(host=b'h', port=9, id=3)" in repr(Broker(BrokerInfo(3, "h", 9)))


def test_a_topic_that_is_not_known_has_no_partitions() -> None:
    view = FakeView(snapshot(1))
    assert view.topic("clicks").partitions == {}
    assert isinstance(view.partition(TopicPartition("clicks", 5)), Partition)


@pytest.mark.parametrize("method", ["get_producer", "get_sync_producer"])
def test_producing_is_refused_with_what_to_use(method: str) -> None:
    with pytest.raises(err.KafkaException, match=r"clicks.*confluent-kafka.*kafka-python") as caught:
        getattr(topic(), method)(min_queued_messages=1)
    assert isinstance(caught.value, NotImplementedError)


def test_times_of_fetch_offset_limits() -> None:
    assert timestamp_of(dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)) == 1500
    aware = dt.datetime(1970, 1, 1, 2, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert timestamp_of(aware) == 1000
    assert [timestamp_of(n) for n in (-1, -2, 0, 17)] == [-1, -2, 0, 17]


@pytest.mark.parametrize("wrong", [None, "now", 1.5, True])
def test_wrong_times_are_type_errors(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"offsets_before.*datetime"):
        topic().fetch_offset_limits(wrong)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"offsets_before must be a datetime.*not -3"):
        topic().fetch_offset_limits(-3)
    with pytest.raises(ValueError, match=r"max_offsets must be .*not 0"):
        topic().partitions[0].fetch_offset_limit(-1, 0)
