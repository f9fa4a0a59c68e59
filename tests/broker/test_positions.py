"""Where partitions start, what a range's gaps look like, and batches that are too large: as real brokers answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record

LATEST = -1
MakeTopic = Callable[..., str]


def write(broker: DevBroker, topic: str, *values: bytes, key: bytes | None = None, batch: int = 100) -> None:
    with Producer(broker.bootstrap) as producer:
        producer.produce(
            topic, [Record(value, key, int(time.time() * 1000)) for value in values], partition=0, batch_records=batch
        )


@pytest.mark.parametrize("kind", ["simple", "classic", "consumer"])
def test_begin_here(kafka43: DevBroker, topic: MakeTopic, unique: Callable[[str], str], kind: str) -> None:
    """What is written once the constructor has returned is delivered, to this consumer and to the group's next one."""
    name = topic(kafka43, partitions=2)
    write(kafka43, name, *[b"old"] * 30)

    def opened(group: str) -> Any:
        options = {"auto_offset_reset": LATEST, "consumer_timeout_ms": 5000, "consumer_group": group}
        if kind == "simple":
            return SimpleConsumer(name, kafka43.bootstrap, **options)
        return ManagedBalancedConsumer(name, kafka43.bootstrap, group_protocol=kind, **options)

    for number in range(3):
        group = unique("group")
        with opened(group) as first:
            assert first.held_offsets == {0: 29 + 2 * number, 1: -2}
            write(kafka43, name, b"new")
            assert first.consume().value == b"new"
        group = unique("group")
        with opened(group) as first:
            first.commit_offsets()
        write(kafka43, name, b"newer")
        with opened(group) as second:
            assert second.consume().value == b"newer"


@pytest.fixture
def reader(kafka43: DevBroker) -> Iterator[Callable[..., list[int]]]:
    cluster = Cluster(parse_bootstrap(kafka43.bootstrap), ThreadingHandler())

    def read(name: str, start: int, stop: int, **limits: Any) -> list[int]:
        chunks = fetch_range(cluster, name, 0, start, stop, RangeLimits(patience=20.0, **limits))
        return [message.offset for chunk in chunks for message in chunk.take(100_000, stop)]

    yield read
    cluster.close()


def test_a_range_whose_end_was_compacted_away(
    kafka43: DevBroker, topic: MakeTopic, reader: Callable[..., list[int]]
) -> None:
    """Nothing is waited for: what the cleaner has left behind the range moves the reader on."""
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "100",
    }
    name = topic(kafka43, configs=configs)
    write(kafka43, name, *[b"v%d" % n for n in range(100)], key=b"the only one", batch=10)
    deadline = time.monotonic() + 60
    while len(reader(name, 0, 100)) > 5:
        assert time.monotonic() < deadline, "the cleaner does not run"
        time.sleep(0.3)
        write(kafka43, name, b"v", key=b"the only one")
    for start, stop in [(0, 50), (0, 100), (90, 99), (50, 100)]:
        began = time.monotonic()
        reader(name, start, stop, max_wait_ms=5000)
        assert time.monotonic() - began < 4


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("managed", [False, True])
def test_a_batch_that_is_too_large(
    kafka: DevBroker, topic: MakeTopic, unique: Any, isolation: str, managed: bool
) -> None:
    name = topic(kafka, partitions=2, configs={"max.message.bytes": "2000000"})
    write(kafka, name, b"small")
    write(kafka, name, *[bytes(100_000)] * 10, batch=10)
    write(kafka, name, b"after")
    with Producer(kafka.bootstrap) as producer:
        producer.produce(name, [Record(b"other", None, 1)], partition=1)
    make = ManagedBalancedConsumer if managed else SimpleConsumer
    consumer = make(
        name,
        kafka.bootstrap,
        consumer_group=unique("group"),
        isolation_level=isolation,
        fetch_message_max_bytes=10_000,
        consumer_timeout_ms=15_000,
        auto_start=False,
        on_error=lambda error, message: seen.append(error) or "skip",
    )
    seen: list[Any] = []
    cluster = consumer._session.engine.cluster
    cluster.settings = cluster.settings.replace(max_frame_bytes=500_000)
    with consumer:
        got = {(m.partition_id, m.offset) for m in (consumer.consume() for _ in range(3))}
    assert got == {(0, 0), (0, 11), (1, 0)}
    assert [(type(e), e.partition, e.offset) for e in seen] == [(err.RecordTooLargeError, 0, 1)]
    assert 1_000_000 < seen[0].size < 1_001_000
