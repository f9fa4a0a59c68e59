"""The test producer: what it writes is what others read, and its partitioner is Java's."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest

from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record, encode_plain, murmur2, partition_for
from managedconsumer.wire.records.encode import encode_batch


def test_the_fast_encoder_makes_the_same_bytes() -> None:
    rows = [(b"k%d" % n if n % 3 else None, b"v" * n if n % 5 else None, 10**12 - n * n) for n in range(300)]
    records = [Record(value, key, timestamp) for key, value, timestamp in rows]
    assert encode_plain(rows) == encode_batch(records)
    assert encode_plain(rows, "zstd", 7) == encode_batch(records, codec="zstd", base_offset=7)


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_another_client_reads_what_was_written(kafka: DevBroker, topic: Callable[..., str], codec: str) -> None:
    name = topic(kafka, 3)
    records = [Record(b"v%d" % n, b"k%d" % (n % 7), 1_700_000_000_000 + n, [("h", b"%d" % n)]) for n in range(200)]
    with Producer(kafka.bootstrap, codec=codec) as producer:
        assert producer.produce(name, records, batch_records=20) == 200
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(name, p, 0) for p in range(3)])
    found = []
    while len(found) < 200:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        assert message.partition() == partition_for(message.key(), 3)
        found.append(Record(message.value(), message.key(), message.timestamp()[1], message.headers()))
    consumer.close()
    assert sorted(found) == sorted(records)


def test_a_topic_that_is_not_there_is_named(kafka44: DevBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.testing.kafka.producer._TRIES", 1)
    with Producer(kafka44.bootstrap) as producer, pytest.raises(err.UnknownTopicOrPartition, match="nobody-made"):
        producer.produce("nobody-made-this", [Record(b"v")])
