"""Where partitions start, what a range's gaps look like, and batches that are too large: as real brokers answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, OffsetAndMetadata, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.coordinator.commits import commit_body
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.structs import NO_GENERATION
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from managedconsumer.wire.protocol import schemas
from tests.runtime.test_fetch_range import delete_records
from tests.waiting import until

LATEST = -1
MakeTopic = Callable[..., str]


def write(broker: DevBroker, topic: str, *values: bytes, key: bytes | None = None, batch: int = 100) -> None:
    with Producer(broker.bootstrap) as producer:
        producer.produce(
            topic, [Record(value, key, int(time.time() * 1000)) for value in values], partition=0, batch_records=batch
        )


@pytest.mark.parametrize("kind", ["simple", "classic", "consumer"])
def test_begin_here(kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], kind: str) -> None:
    """What is written once the constructor has returned is delivered, to this consumer and to the group's next one."""
    name = topic(kafka44, partitions=2)
    write(kafka44, name, *[b"old"] * 30)

    def opened(group: str) -> Any:
        options = {"auto_offset_reset": LATEST, "consumer_timeout_ms": 5000, "consumer_group": group}
        if kind == "simple":
            return SimpleConsumer(name, kafka44.bootstrap, **options)
        return ManagedBalancedConsumer(name, kafka44.bootstrap, group_protocol=kind, **options)

    for number in range(3):
        group = unique("group")
        with opened(group) as first:
            assert first.held_offsets == {0: 29 + 2 * number, 1: -2}
            write(kafka44, name, b"new")
            assert first.consume().value == b"new"
        group = unique("group")
        with opened(group) as first:
            first.commit_offsets()
        write(kafka44, name, b"newer")
        with opened(group) as second:
            assert second.consume().value == b"newer"


def _has_coordinator(cluster: Cluster, group: str) -> bool:
    try:
        cluster.find_coordinator(group)
    except err.GroupCoordinatorNotAvailable:  # the topic of all committed offsets is being made
        return False
    return True


def expire(broker: DevBroker, name: str, group: str) -> None:
    """Commit an offset with a retention of a millisecond (OffsetCommit version 4), and wait until the group is gone."""
    handler = ThreadingHandler()
    cluster = Cluster(parse_bootstrap(broker.bootstrap), handler)
    try:
        cluster.refresh(())
        until(lambda: _has_coordinator(cluster, group), 30, "the group has a coordinator")
        link = CoordinatorLink(cluster, group)
        body = commit_body(group, {TopicPartition(name, 0): OffsetAndMetadata(3)}, NO_GENERATION, None)
        link.request("commit", schemas.OFFSET_COMMIT, {**body, "retention_time_ms": 1}, 10_000, 4)
    finally:
        cluster.close()
    with KafkaClient(broker.bootstrap) as client:
        until(lambda: group not in {each.name for each in client.groups()}, 30, "the offset expires")


@pytest.fixture(scope="module")
def forgetful() -> Iterator[DevBroker]:
    """A broker that looks for offsets that have expired three times a second."""
    with DevBroker("4.4.0", properties={"offsets.retention.check.interval.ms": 300}) as broker:
        yield broker


@pytest.mark.parametrize("gone", ["offset", "messages"])
def test_an_expired_offset_is_reset_by_a_duration(forgetful: DevBroker, gone: str) -> None:
    """KIP-1106, where the group's retention has taken the offset, and where the topic's has taken its messages."""
    broker, name = forgetful, forgetful.create_topic(f"without-{gone}", 1)
    now = int(time.time() * 1000)
    with Producer(broker.bootstrap) as producer:
        for days in (2, 1):
            stamp = now - (days * 86_400 - 3_600) * 1000
            producer.produce(name, [Record(b"%d" % days, None, stamp)] * 5, partition=0, batch_records=5)

    def begin(kind: str, reset: Any) -> Any:
        group, options = f"{name}-{kind}-{reset}", {"auto_offset_reset": reset, "consumer_timeout_ms": 10_000}
        if gone == "offset":
            expire(broker, name, group)
        else:
            with SimpleConsumer(name, broker.bootstrap, group, auto_offset_reset="earliest") as before:
                before.commit_offsets([(before.topic.partitions[0], 1)])
        if kind == "simple":
            return SimpleConsumer(name, broker.bootstrap, group, auto_start=False, **options)
        return ManagedBalancedConsumer(name, broker.bootstrap, group, group_protocol=kind, auto_start=False, **options)

    made = [begin("simple", timedelta(days=1)), begin("classic", "by_duration:P1D"), begin("auto", timedelta(hours=24))]
    late = begin("simple", "by_duration:PT1H")
    if gone == "messages":
        delete_records(broker, name, 3)
    for consumer in made:
        with consumer:
            assert (consumer.consume().offset, consumer.consume().value) == (5, b"1")
            consumer.reset_offsets()
            assert consumer.consume().offset == 5
    with late:  # all are older: what comes from here on
        until(lambda: late.position(0) == 10, 20, "the log's end")
        write(broker, name, b"new")
        assert late.consume().value == b"new"


@pytest.fixture
def reader(kafka44: DevBroker) -> Iterator[Callable[..., list[int]]]:
    cluster = Cluster(parse_bootstrap(kafka44.bootstrap), ThreadingHandler())

    def read(name: str, start: int, stop: int, **limits: Any) -> list[int]:
        chunks = fetch_range(cluster, name, 0, start, stop, RangeLimits(patience=20.0, **limits))
        return [message.offset for chunk in chunks for message in chunk.take(100_000, stop)]

    yield read
    cluster.close()


@pytest.mark.since("2.3")
def test_a_range_whose_end_was_compacted_away(
    kafka44: DevBroker, topic: MakeTopic, reader: Callable[..., list[int]]
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
    name = topic(kafka44, configs=configs)
    write(kafka44, name, *[b"v%d" % n for n in range(100)], key=b"the only one", batch=10)
    deadline = time.monotonic() + 60
    while len(reader(name, 0, 100)) > 5:
        assert time.monotonic() < deadline, "the cleaner does not run"
        time.sleep(0.3)
        write(kafka44, name, b"v", key=b"the only one")
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
