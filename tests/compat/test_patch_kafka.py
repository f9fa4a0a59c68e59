"""A program written for pykafka, unchanged but for one line, on Kafka 4.4 (which pykafka cannot read) and 3.9."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer, patch_pykafka
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pykafka
    import pykafka.exceptions

Unique = Callable[[str], str]
VALUES = [b"%d" % n for n in range(30)]


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pykafka with our consumers, which also closes its connections after the test."""
    made: list[Any] = []
    connect = pykafka.connection.BrokerConnection.connect

    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        connect(self, *args, **kwargs)

    monkeypatch.setattr(pykafka.connection.BrokerConnection, "connect", recorded)
    undo = patch_pykafka()
    yield
    undo()
    for connection in made:
        connection.disconnect()


@pytest.fixture
def topic(kafka: DevBroker, unique: Unique) -> str:
    """Three partitions, thirty messages."""
    name = kafka.create_topic(unique("topic"), partitions=3)
    with KafkaClient(kafka.bootstrap) as client:
        client.topics[name].latest_available_offsets()  # waits until the leaders have taken office
    with Producer(kafka.bootstrap) as producer:
        for number, value in enumerate(VALUES):
            producer.produce(name, [Record(value)], partition=number % 3)
    return name


def test_a_simple_consumer(kafka: DevBroker, topic: str, patched: None) -> None:
    client = pykafka.KafkaClient(hosts=kafka.bootstrap)
    source = client.topics[topic]
    consumer = source.get_simple_consumer(consumer_timeout_ms=20_000)
    try:
        assert isinstance(consumer, SimpleConsumer)
        messages = [consumer.consume() for _ in VALUES]
        assert sorted(message.value for message in messages) == sorted(VALUES)
        assert consumer.topic is source
        assert consumer.partitions.keys() == source.partitions.keys()
        assert all(consumer.partitions[n] == source.partitions[n] for n in range(3))
        assert messages[0].partition == source.partitions[messages[0].partition_id]
    finally:
        consumer.stop()


def test_some_partitions_of_theirs(kafka: DevBroker, topic: str, patched: None) -> None:
    client = pykafka.KafkaClient(hosts=kafka.bootstrap)
    source = client.topics[topic]
    consumer = source.get_simple_consumer(partitions=[source.partitions[1]], consumer_timeout_ms=20_000)
    try:
        assert [consumer.consume().value for _ in range(10)] == VALUES[1::3]
    finally:
        consumer.stop()


def test_a_balanced_consumer(kafka: DevBroker, topic: str, unique: Unique, patched: None) -> None:
    group = unique("group")
    client = pykafka.KafkaClient(hosts=kafka.bootstrap, broker_version="0.10.2")
    source = client.topics[topic.encode()]
    consumer = source.get_balanced_consumer(
        group,
        managed=True,
        consumer_timeout_ms=20_000,
        membership_protocol=pykafka.RangeProtocol,
        reset_offset_on_start=False,
    )
    try:
        assert isinstance(consumer, ManagedBalancedConsumer)
        assert sorted(consumer.consume().value for _ in VALUES) == sorted(VALUES)
        assert consumer.held_offsets == {0: 9, 1: 9, 2: 9}
        consumer.commit_offsets([(source.partitions[0], 4), (source.partitions[1], 10), (source.partitions[2], 10)])
    finally:
        consumer.stop()
    again = source.get_balanced_consumer(group.encode(), managed=True, consumer_timeout_ms=20_000)
    try:
        assert [again.consume().value for _ in range(6)] == VALUES[12::3]
    finally:
        again.stop()


def test_their_exceptions_catch_ours(kafka: DevBroker, topic: str, patched: None) -> None:
    client = pykafka.KafkaClient(hosts=kafka.bootstrap)
    source = client.topics[topic]
    consumer = source.get_simple_consumer(auto_start=False)
    with pytest.raises(pykafka.exceptions.ConsumerStoppedException):
        consumer.consume()


def test_our_client_makes_the_same_consumers(kafka: DevBroker, topic: str, unique: Unique) -> None:
    with KafkaClient(kafka.bootstrap) as client:
        source = client.topics[topic]
        consumer = source.get_balanced_consumer(unique("group"), managed=True, consumer_timeout_ms=20_000)
        try:
            message = consumer.consume()
            assert message.partition == source.partitions[message.partition_id]
            assert message.partition.topic == source
            assert consumer.topic is source
            assert [p.latest_available_offset() for p in consumer.partitions.values()] == [10, 10, 10]
        finally:
            consumer.stop()
        assert message.partition.latest_available_offset() == 10
