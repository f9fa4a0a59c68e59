"""Reading a range of offsets: all of it, nothing else, whatever happens to leaders, connections and records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters, shared_cluster
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from managedconsumer.wire.protocol import schemas
from tests.conftest import Ended

MakeTopic = Callable[..., str]


@pytest.fixture
def cluster_of(ended: Ended) -> Callable[[DevBroker], Cluster]:
    def make(broker: DevBroker) -> Cluster:
        return ended(Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler()))

    return make


def fill(broker: DevBroker, topic: str, count: int, codec: str = "none", batch: int = 100) -> None:
    with Producer(broker.bootstrap, codec=codec) as producer:
        producer.produce(
            topic, (Record(b"v%d" % n, b"k", 1000 + n) for n in range(count)), partition=0, batch_records=batch
        )


def offsets(source: Any, topic: str, start: int, stop: int, **limits: Any) -> list[int]:
    found: list[int] = []
    for chunk in fetch_range(source, topic, 0, start, stop, RangeLimits(**limits)):
        while lot := chunk.take(1000, stop):
            found += [message.offset for message in lot]
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_exactly_the_range_is_read(
    kafka: DevBroker, topic: MakeTopic, cluster_of: Callable[[DevBroker], Cluster], codec: str
) -> None:
    name = topic(kafka)
    fill(kafka, name, 2000, codec)
    cluster = cluster_of(kafka)
    # 4 kB a fetch: many requests, and ranges that begin and end within a batch.
    assert offsets(cluster, name, 0, 2000, partition_max_bytes=4096) == list(range(2000))
    assert offsets(cluster, name, 150, 1777, partition_max_bytes=4096) == list(range(150, 1777))
    assert offsets(cluster, name, 99, 100) == [99]
    assert offsets(cluster, name, 50, 50) == []


def test_ranges_share_a_connection_and_metadata(
    kafka44: DevBroker, topic: MakeTopic, cluster_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(kafka44)
    fill(kafka44, name, 300)
    dialled: list[str] = []
    connect = Connection.connect
    monkeypatch.setattr(Connection, "connect", lambda self, *a: (dialled.append(self.address), connect(self, *a))[1])
    cluster = cluster_of(kafka44)
    for start in range(0, 300, 10):
        assert offsets(cluster, name, start, start + 10) == list(range(start, start + 10))
    assert len(dialled) == 1, "one for the metadata and for all the ranges"


def test_the_next_request_is_sent_before_a_chunk_is_handed_over(
    kafka44: DevBroker, topic: MakeTopic, cluster_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(kafka44)
    fill(kafka44, name, 1000)
    sent: list[int] = []
    send = Connection.send

    def spy(self: Connection, api: Any, body: Any, version: Any = None) -> int:
        if api is schemas.FETCH:
            sent.append(body["topics"][0]["partitions"][0]["fetch_offset"])
        return send(self, api, body, version)

    monkeypatch.setattr(Connection, "send", spy)
    chunks = fetch_range(cluster_of(kafka44), name, 0, 0, 1000, RangeLimits(partition_max_bytes=2000))
    first = next(chunks)
    assert sent == [0, first.next_fetch_offset]
    rest = [next(chunks)]
    rest += list(chunks)
    assert sent == [0, *[chunk.fetch_offset for chunk in rest]], "and nothing beyond the range is asked for"


def test_a_range_that_is_not_read_to_its_end_leaves_no_answer_for_the_next(
    kafka44: DevBroker, topic: MakeTopic, cluster_of: Any
) -> None:
    name = topic(kafka44)
    fill(kafka44, name, 1000)
    cluster = cluster_of(kafka44)
    chunks = fetch_range(cluster, name, 0, 0, 1000, RangeLimits(partition_max_bytes=2000))
    next(chunks)
    chunks.close()
    assert offsets(cluster, name, 700, 1000) == list(range(700, 1000))


def test_a_batch_larger_than_a_fetch_is_read(kafka: DevBroker, topic: MakeTopic, cluster_of: Any) -> None:
    name = topic(kafka)
    with Producer(kafka.bootstrap) as producer:
        producer.produce(name, [Record(bytes(300_000), None, 1), Record(b"x", None, 2)], partition=0, batch_records=1)
    assert offsets(cluster_of(kafka), name, 0, 2, partition_max_bytes=1000) == [0, 1]


def test_markers_and_aborted_transactions_are_passed_at_the_end_of_a_range(
    kafka: DevBroker, topic: MakeTopic, cluster_of: Any, unique: Callable[[str], str]
) -> None:
    name = topic(kafka)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique("tx")})
    producer.init_transactions(30)
    for commits in (True, False, True, False):
        producer.begin_transaction()
        for n in range(5):
            producer.produce(name, b"%d" % n, partition=0)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    # 5 records and a marker each: 0-4 5, (6-10) 11, 12-16 17, (18-22) 23
    cluster = cluster_of(kafka)
    committed = [*range(5), *range(12, 17)]
    assert offsets(cluster, name, 0, 24, isolation_level=1) == committed
    assert offsets(cluster, name, 0, 6, isolation_level=1) == list(range(5))
    assert offsets(cluster, name, 3, 9, isolation_level=1) == [3, 4]
    assert offsets(cluster, name, 18, 24, isolation_level=1) == []
    assert offsets(cluster, name, 0, 24) == [*range(5), *range(6, 11), *range(12, 17), *range(18, 23)]


def delete_records(broker: DevBroker, topic: str, before: int) -> None:
    cluster = Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler())
    body = {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": before}]}], "timeout_ms": 10_000}
    answer = cluster.request(schemas.DELETE_RECORDS, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0
    cluster.close()


def test_deleted_records_are_reported_never_passed_in_silence(
    kafka: DevBroker, topic: MakeTopic, cluster_of: Any
) -> None:
    name = topic(kafka)
    fill(kafka, name, 500)
    delete_records(kafka, name, 120)
    cluster = cluster_of(kafka)
    with pytest.raises(err.OffsetOutOfRangeError, match=r"offsets 100 to 119 .* begins at 120"):
        offsets(cluster, name, 100, 300)
    lost: list[tuple[int, int]] = []
    found = [
        message.offset
        for chunk in fetch_range(cluster, name, 0, 100, 300, on_lost=lambda a, b: lost.append((a, b)))
        for message in chunk.take(1000, 300)
    ]
    assert (lost, found[0], found[-1]) == ([(100, 120)], 120, 299)
    lost.clear()
    assert not list(fetch_range(cluster, name, 0, 10, 90, on_lost=lambda a, b: lost.append((a, b))))
    assert lost == [(10, 90)]


def test_a_range_beyond_the_end_of_the_log(kafka44: DevBroker, topic: MakeTopic, cluster_of: Any) -> None:
    name = topic(kafka44)
    fill(kafka44, name, 10)
    with pytest.raises(err.OffsetNotAvailable, match="ends at offset 10, and the range at 20"):
        offsets(cluster_of(kafka44), name, 0, 20, patience=0.5, max_wait_ms=50)
    with pytest.raises(err.OffsetOutOfRangeError, match="made anew"):
        offsets(cluster_of(kafka44), name, 15, 20, patience=0.5)


def test_unknown_topics_and_partitions_are_named(kafka44: DevBroker, topic: MakeTopic, cluster_of: Any) -> None:
    name = topic(kafka44)
    with pytest.raises(err.UnknownTopicOrPartition, match="no-such-topic"):
        offsets(cluster_of(kafka44), "no-such-topic", 0, 1, patience=0.3)
    with pytest.raises(err.UnknownTopicOrPartition, match="no partition 7"):
        list(fetch_range(cluster_of(kafka44), name, 7, 0, 1, RangeLimits(patience=0.3)))


def test_a_range_goes_on_when_its_leader_dies(kafka44x3: DevBroker, topic: MakeTopic, cluster_of: Any) -> None:
    name = topic(kafka44x3, configs={"min.insync.replicas": 1})
    fill(kafka44x3, name, 4000)
    cluster = cluster_of(kafka44x3)
    chunks = fetch_range(cluster, name, 0, 0, 4000, RangeLimits(partition_max_bytes=2000))
    found = [message.offset for message in next(chunks).take(10_000, 4000)]
    leader = cluster.snapshot.topics[name].partitions[0].leader
    kafka44x3.kill(leader)
    try:
        for chunk in chunks:
            found += [message.offset for message in chunk.take(10_000, 4000)]
    finally:
        kafka44x3.start_node(leader)
        kafka44x3.wait_in_sync()
    assert found == list(range(4000))


def test_a_process_has_one_pool_for_each_key() -> None:
    made: list[Cluster] = []

    def make() -> Cluster:
        made.append(Cluster([("localhost", 1)], ThreadingHandler()))
        return made[-1]

    first = shared_cluster(("a", "b"), make)
    assert shared_cluster(("a", "b"), make) is first
    assert shared_cluster(("c",), make) is not first
    assert len(made) == 2
    close_shared_clusters()
    assert shared_cluster(("a", "b"), make) is not first
    close_shared_clusters()
