"""What real logs hold besides plain records: transactions, compaction, huge records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer

from managedconsumer import SimpleConsumer
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.groupkit import Fleet, committed, pairs, until, write

Make = Callable[..., Fleet]


def drain(group: Fleet, count: int, **options: Any) -> tuple[Any, list[Any]]:
    """A consumer and the next ``count`` messages of it; there is nothing after them."""
    consumer = group.member(consumer_timeout_ms=10_000, **options).consumer
    consumer.start()
    messages = [consumer.consume() for _ in range(count)]
    assert None not in messages, f"{messages.index(None)} of {count} came: {consumer.health()}"
    until(group.handler, lambda: consumer.consume(block=False) is None, 15, "the end")
    return consumer, messages


def transactions(broker: DevBroker, topic: str, unique: Callable[[str], str], *ends: str) -> None:
    """One transaction of five records for each of ``ends``: ``"commit"`` or ``"abort"``."""
    producer = ConfluentProducer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": unique("tx"), "transaction.timeout.ms": 20_000}
    )
    producer.init_transactions(30)
    for number, end in enumerate(ends):
        producer.begin_transaction()
        for n in range(5):
            producer.produce(topic, value=f"{end}-{number}-{n}".encode(), partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if end == "commit" else producer.abort_transaction(30)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pairs
def test_transactions(kafka: DevBroker, fleet: Make, unique: Callable[[str], str], isolation: str) -> None:
    """pykafka stalls at the first gap, or hands out what was aborted and is one behind for ever."""
    group = fleet(kafka, 1)
    ends = ("commit", "abort", "commit", "abort")
    transactions(kafka, group.topic, unique, *ends)
    wanted = [
        f"{end}-{number}-{n}".encode()
        for number, end in enumerate(ends)
        for n in range(5)
        if end == "commit" or isolation == "read_uncommitted"
    ]
    consumer, messages = drain(group, len(wanted), isolation_level=isolation, auto_commit_enable=True)
    assert [message.value for message in messages] == wanted
    assert consumer.lag() == {0: 0}
    consumer.stop()
    # 20 records and 4 markers; the marker at the end was passed and is committed, so that tools show no lag.
    assert committed(kafka, group.group, group.topic, 1) == {0: 24}


@pairs
def test_an_open_transaction_is_waited_for(kafka: DevBroker, fleet: Make, unique: Callable[[str], str]) -> None:
    group = fleet(kafka, 1)
    producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique("tx")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(group.topic, value=b"pending", partition=0)
    producer.flush(30)
    write(kafka, group.topic, 1, 3, value="behind")
    patient, eager = fleet(kafka, 1), fleet(kafka, 1)
    patient.topic = eager.topic = group.topic
    _, messages = drain(eager, 4)
    assert messages[0].value == b"pending"
    consumer, _ = drain(patient, 0, isolation_level="read_committed")
    assert consumer.lag() == {0: 0}, "what lies behind an open transaction cannot be read yet"
    producer.commit_transaction(30)
    assert [consumer.consume().value for _ in range(4)] == [b"pending", *(f"0-{n}behind".encode() for n in range(3))]
    assert consumer.consume(block=False) is None
    assert consumer.lag() == {0: 0}


@pytest.mark.since("2.3")
@pairs
def test_a_compacted_topic(kafka: DevBroker, fleet: Make) -> None:
    """Offsets with holes; tombstones; the final lag is 0."""
    config = {
        "cleanup.policy": "compact",
        "segment.ms": 100,
        "min.cleanable.dirty.ratio": 0.01,
        "max.compaction.lag.ms": 200,
        "delete.retention.ms": 600_000,
    }
    group = fleet(kafka, 1, configs=config)
    topic = group.topic
    with Producer(kafka.bootstrap) as producer:
        write(kafka, topic, 1, 1)  # until the leader is there
        now = int(time.time() * 1000)
        producer.produce(topic, [Record(b"%d" % n, b"key-%d" % (n % 10), now) for n in range(200)], partition=0)
        producer.produce(topic, [Record(None, b"key-3", now)], partition=0)

        def compacted() -> bool:
            # The active segment is never compacted: a later record makes it roll.
            producer.produce(topic, [Record(b"last", b"roll", int(time.time() * 1000))], partition=0)
            group.handler.sleep(0.3)
            reader = SimpleConsumer(topic, kafka.bootstrap, consumer_timeout_ms=300)
            try:
                return len(list(reader)) < 100
            finally:
                reader.stop()

        until(group.handler, compacted, 40, "the cleaner has run")
    consumer = group.member(consumer_timeout_ms=20_000).consumer
    consumer.start()
    messages = [consumer.consume()]
    while messages[-1] is not None and consumer.lag() != {0: 0}:
        messages.append(consumer.consume())
    offsets = [message.offset for message in messages]
    assert offsets == sorted(offsets) and len(offsets) < 100 and offsets[-1] > 200
    newest = {message.key: message.value for message in messages}
    assert newest[b"key-3"] is None
    assert {key: value for key, value in newest.items() if key and key.startswith(b"key-") and value} == {
        b"key-%d" % n: b"%d" % (190 + n) for n in range(10) if n != 3
    }
    assert consumer.lag() == {0: 0}


@pairs
def test_records_larger_than_the_fetch_size(kafka: DevBroker, fleet: Make) -> None:
    """In every partition, also beside one that is never empty; memory for one of them at a time."""
    group = fleet(kafka, 3)
    write(kafka, group.topic, 3, 1)
    big = bytes(range(256)) * 3000
    with Producer(kafka.bootstrap) as producer:
        for partition in range(3):
            for n in range(3):
                producer.produce(group.topic, [Record(big + b"%d" % n, b"k")], partition=partition)
    _, messages = drain(group, 12, fetch_message_max_bytes=1000, queued_max_messages=1)
    large = [message for message in messages if len(message.value) > 1000]
    assert sorted((m.partition_id, m.value[-1:]) for m in large) == [(p, b"%d" % n) for p in range(3) for n in range(3)]


@pairs
def test_large_records_beside_a_partition_that_is_never_empty(kafka: DevBroker, fleet: Make) -> None:
    """A broker sends more than the fetch size only for the first partition that has anything; they take turns."""
    group = fleet(kafka, 3)
    write(kafka, group.topic, 3, 1)
    with Producer(kafka.bootstrap) as producer:
        for partition, count in ((0, 300), (1, 1), (2, 1)):
            for _ in range(count):
                producer.produce(group.topic, [Record(b"x" * 2000, b"k")], partition=partition)
    _, messages = drain(group, 305, fetch_message_max_bytes=1000)
    places = [n for n, message in enumerate(messages) if message.partition_id and message.offset]
    assert len(places) == 2 and max(places) < 60, f"after {places} messages"


@pairs
def test_codecs_of_another_producer(kafka: DevBroker, fleet: Make) -> None:
    group = fleet(kafka, 2)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "linger.ms": 20})
        for n in range(500 * number, 500 * number + 500):
            producer.produce(group.topic, value=b"v" * 50 + b"%d" % n, key=b"%d" % n, headers={"n": b"%d" % n})
        producer.flush(30)
    _, messages = drain(group, 2500)
    assert {message.value for message in messages} == {b"v" * 50 + b"%d" % n for n in range(2500)}
    assert all(list(message.headers) == [("n", message.key)] for message in messages)
