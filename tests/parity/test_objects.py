"""Our client's objects beside pykafka 2.8's, on the same Kafka 3.9: same types, same values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient
from managedconsumer.compat.accept import accept_cluster, accept_partition, accept_topic
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pykafka
    import pykafka.exceptions

Unique = Callable[[str], str]


class Both:
    """A pykafka client and ours, and a topic with 5 messages in partition 0 and 2 in partition 2."""

    def __init__(self, broker: DevBroker, topic: str) -> None:
        self.broker = broker
        self.name = topic
        self.theirs = pykafka.KafkaClient(broker.bootstrap)
        self.ours = KafkaClient(broker.bootstrap)

    @property
    def topics(self) -> tuple[Any, Any]:
        return self.theirs.topics[self.name], self.ours.topics[self.name]


@pytest.fixture
def tidy_pykafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pykafka drops connections without closing them; here they are closed after each test."""
    made: list[Any] = []
    connect = pykafka.connection.BrokerConnection.connect

    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        connect(self, *args, **kwargs)

    monkeypatch.setattr(pykafka.connection.BrokerConnection, "connect", recorded)
    yield
    for connection in made:
        connection.disconnect()


@pytest.fixture
def both(kafka39: DevBroker, unique: Unique, tidy_pykafka: None) -> Iterator[Both]:
    topic = kafka39.create_topic(unique("topic"), partitions=3)
    both = Both(kafka39, topic)
    both.ours.topics[topic].latest_available_offsets()  # waits until the leaders have taken office
    with Producer(kafka39.bootstrap) as producer:
        producer.produce(topic, [Record(b"v") for _ in range(5)], partition=0)
        producer.produce(topic, [Record(b"v") for _ in range(2)], partition=2)
    yield both
    both.ours.close()


def same(theirs: Any, ours: Any) -> None:
    assert type(theirs) is type(ours)
    assert theirs == ours


def test_brokers(both: Both) -> None:
    assert list(both.theirs.brokers) == list(both.ours.brokers)
    for node, theirs in both.theirs.brokers.items():
        for attribute in ("id", "host", "port"):
            same(getattr(theirs, attribute), getattr(both.ours.brokers[node], attribute))


def test_topics(both: Both) -> None:
    same(sorted(both.theirs.topics), sorted(both.ours.topics))
    same(len(both.theirs.topics), len(both.ours.topics))
    same(sorted(both.theirs.topics.keys()), sorted(both.ours.topics.keys()))
    key = both.name.encode()
    same(key in both.theirs.topics, key in both.ours.topics)
    same(type(both.theirs.topics.values()), type(both.ours.topics.values()))
    same(both.theirs.topics[key].name, both.ours.topics[key].name)
    for missing in (b"__consumer_offsets", "__consumer_offsets"):
        for topics in (both.theirs.topics, both.ours.topics):
            with pytest.raises(KeyError):
                topics[missing]


def test_topics_that_cannot_be_had_raise_what_pykafkas_users_catch(both: Both) -> None:
    for topics in (both.theirs.topics, both.ours.topics):
        with pytest.raises(pykafka.exceptions.InvalidTopic):
            topics["a b"]


def test_topic_and_partitions(both: Both) -> None:
    theirs, ours = both.topics
    same(theirs.name, ours.name)
    same(type(theirs.partitions), type(ours.partitions))
    same(sorted(theirs.partitions), sorted(ours.partitions))
    assert repr(theirs).split("(")[1] == repr(ours).split("(")[1]
    for number, part in theirs.partitions.items():
        mine = ours.partitions[number]
        same(part.id, mine.id)
        same(part.leader.id, mine.leader.id)
        same([b.id for b in part.replicas], [b.id for b in mine.replicas])
        same([b.id for b in part.isr], [b.id for b in mine.isr])
        same(part.topic.name, mine.topic.name)
        assert mine == part
        assert mine.topic == part.topic
    same([p.id for p in sorted(theirs.partitions.values())], [p.id for p in sorted(ours.partitions.values())])


@pytest.mark.parametrize("method", ["latest_available_offsets", "earliest_available_offsets"])
def test_available_offsets(both: Both, method: str) -> None:
    theirs, ours = (getattr(topic, method)() for topic in both.topics)
    same(type(theirs), type(ours))
    assert sorted(theirs) == sorted(ours) == [0, 1, 2]
    for number, answer in theirs.items():
        assert answer._fields == ours[number]._fields
        same(answer.offset, ours[number].offset)
        same(answer.err, ours[number].err)
        assert type(answer).__name__ == type(ours[number]).__name__


@pytest.mark.parametrize("method", ["latest_available_offset", "earliest_available_offset"])
def test_available_offset(both: Both, method: str) -> None:
    theirs, ours = both.topics
    for number in range(3):
        same(getattr(theirs.partitions[number], method)(), getattr(ours.partitions[number], method)())


@pytest.mark.parametrize("when", [-1, -2])
def test_fetch_offset_limit(both: Both, when: int) -> None:
    theirs, ours = both.topics
    same(theirs.partitions[0].fetch_offset_limit(when), ours.partitions[0].fetch_offset_limit(when))
    same(theirs.fetch_offset_limits(when)[2].offset, ours.fetch_offset_limits(when)[2].offset)


def test_partitions_added_later(both: Both) -> None:
    theirs, ours = both.topics
    both.broker.create_partitions(both.name, 5)
    same(sorted(theirs.partitions), sorted(ours.partitions))
    both.theirs.update_cluster()
    both.ours.update_cluster()
    same(sorted(theirs.partitions), sorted(ours.partitions))
    assert len(ours.partitions) == 5


def test_pykafkas_objects_are_accepted(both: Both) -> None:
    theirs, _ = both.topics
    for given in (both.theirs, both.theirs.cluster):
        cluster = accept_cluster(given)
        try:
            snapshot = cluster.refresh([both.name])
            assert snapshot.partitions_for_topic(both.name) == {0, 1, 2}
        finally:
            cluster.close()
    assert accept_topic(theirs).names == [both.name]
    assert accept_partition(theirs.partitions[2], [both.name]) == TopicPartition(both.name, 2)


def test_group_descriptions(both: Both, unique: Unique) -> None:
    theirs, _ = both.topics
    group = unique("group").encode()
    member = theirs.get_balanced_consumer(group, managed=True, consumer_timeout_ms=100)
    try:
        expected = both.theirs.cluster.get_managed_group_descriptions()[group]
        found = both.ours.cluster.get_managed_group_descriptions()[group]
        assert found._fields == expected._fields
        for field in ("error_code", "group_id", "state", "protocol_type", "protocol"):
            same(getattr(expected, field), getattr(found, field))
        same(list(expected.members), list(found.members))
        for member_id, one in expected.members.items():
            mine = found.members[member_id]
            assert mine._fields == one._fields
            for field in ("member_id", "client_id", "client_host"):
                same(getattr(one, field), getattr(mine, field))
            for field in ("version", "topic_names", "user_data"):
                same(getattr(one.member_metadata, field), getattr(mine.member_metadata, field))
            same(one.member_assignment.version, mine.member_assignment.version)
            same(one.member_assignment.partition_assignment, mine.member_assignment.partition_assignment)
        same(both.theirs.cluster.get_group_coordinator(group).id, both.ours.cluster.get_group_coordinator(group).id)
    finally:
        member.stop()
