"""What a group's members read, and what a broker says of its logs: the same in memory and on Kafka 4.4."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import TopicPartition
from managedconsumer.testing.kafka.producer import Producer, Record
from managedconsumer.testing.memory.transactions import Transaction
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records.encode import encode_batch
from tests.testing.sameworld import World, numbers, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),  # kafka-python's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class RealTransaction:
    """The face of MemoryBroker.transaction(), of a transactional producer (librdkafka's) on Kafka."""

    def __init__(self, world: World, name: str) -> None:
        import confluent_kafka

        self._topic = world.topic
        self._producer = confluent_kafka.Producer({"bootstrap.servers": world.bootstrap, "transactional.id": name})
        self._producer.init_transactions(30)
        self._producer.begin_transaction()

    def produce(self, _topic: str, values: list[bytes], *, partition: int) -> None:
        for value in values:
            self._producer.produce(self._topic, value, partition=partition)
        assert self._producer.flush(30) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        self._producer.abort_transaction(30)


def begin(world: World, name: str) -> Transaction | RealTransaction:
    """A transaction on either broker."""
    made: Transaction | RealTransaction
    made = world.broker.transaction() if world.in_memory else RealTransaction(world, f"{world.group}-{name}")
    return made


def offset_at(world: World, timestamp: int, *, partition: int = 0, isolation: int = 0, epoch: int = -1) -> Any:
    """ListOffsets: the code, the offset, the timestamp."""
    part = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
    body = {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": world.topic, "partitions": [part]}]}
    (found,) = world.ask(schemas.LIST_OFFSETS, body)["topics"][0]["partitions"]
    return found["error_code"], found["offset"], found["timestamp"]


def fetched(world: World, topic: str, *, offset: int = 0, epoch: int = -1, version: int = 12) -> tuple[int, int]:
    """Fetch: the code and the high watermark."""
    part = {"partition": 0, "current_leader_epoch": epoch, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    body = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "forgotten_topics_data": []}
    asked = {**body, "session_id": 0, "session_epoch": -1, "topics": [{"topic": topic, "partitions": [part]}]}
    (found,) = world.ask(schemas.FETCH, asked, version)["responses"][0]["partitions"]
    return found["error_code"], found["high_watermark"]


def produced(world: World, batch: bytes, topic: str | None = None, acks: int = -1) -> tuple[int, int]:
    """Produce: the code and the offset."""
    data = [{"name": topic or world.topic, "partition_data": [{"index": 0, "records": batch}]}]
    body = {"transactional_id": None, "acks": acks, "timeout_ms": 10_000, "topic_data": data}
    (found,) = world.ask(schemas.PRODUCE, body)["responses"][0]["partition_responses"]
    return found["error_code"], found["base_offset"]


def new_producer(world: World) -> int:
    """InitProducerId: a number."""
    answer = world.ask(schemas.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 60_000})
    assert (answer["error_code"], answer["producer_epoch"]) == (0, 0)
    return int(answer["producer_id"])


@same()
def test_a_message_comes_as_it_was_written(world: World) -> None:
    headers = [("trace", b"1"), ("trace", b""), ("none", None)]
    world.joined()
    world.write(
        [Record(b"v", b"k", 1_700_000_000_123, headers), Record(None, b"", 5), Record(b"", None, 6)], partition=1
    )
    world.until(lambda: len(world.got) == 3)
    full, empty, bare = world.got
    assert full == (world.topic, 1, 0, b"v", b"k", headers, 1_700_000_000_123)
    assert (empty.value, empty.key, empty.headers, empty.timestamp) == (None, b"", [], 5)
    assert (bare.value, bare.key, bare.offset) == (b"", None, 2)


@same("lz4")
def test_every_codec(world: World) -> None:
    for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        with Producer(world.bootstrap, codec=codec) as producer:
            producer.produce(world.topic, [Record(each) for each in numbers(50, 50 * number)], partition=number)
    world.joined()
    assert world.read(200) == numbers(200)


@same()
def test_offsets_by_time(world: World) -> None:
    world.write([Record(b"%d" % each, None, each) for each in (1000, 2000, 2000, 3000)], partition=2)
    member = world.joined()
    tp = world.tp(2)
    assert [member.at_time(tp, ms) for ms in (0, 1000, 1001, 2000, 2500, 3000, 3001)] == [0, 0, 1, 1, 3, 3, 4]
    assert offset_at(world, 1001, partition=2) == (0, 1, 2000)
    assert offset_at(world, 3001, partition=2) == (0, -1, -1)
    assert offset_at(world, 0, partition=0) == (0, -1, -1)


@same()
def test_where_a_log_begins_and_ends(world: World) -> None:
    world.joined()
    assert [offset_at(world, each)[:2] for each in (-2, -1)] == [(0, 0), (0, 0)]
    assert offset_at(world, -3) == (0, -1, -1)
    world.write([Record(b"%d" % each, None, each) for each in (1000, 3000, 2000)], partition=0)
    assert [offset_at(world, each) for each in (-2, -1, -3)] == [(0, 0, -1), (0, 3, -1), (0, 1, 3000)]
    world.delete_before(0, 2)
    assert [offset_at(world, each)[1] for each in (-2, -1)] == [2, 3]
    assert offset_at(world, 0) == (0, 2, 2000)


@same()
def test_a_reader_goes_back_and_pauses(world: World) -> None:
    world.write(numbers(3), partition=0)
    member = world.joined()
    assert world.read(3) == numbers(3)
    member.seek(world.tp(0), 1)
    assert world.read(5) == sorted([*numbers(3), *numbers(2, 1)])
    assert member.position(world.tp(0)) == 3
    member.pause(world.tp(0))
    world.write(numbers(1, 3), partition=0)
    world.write(numbers(1, 4), partition=1)
    world.until(lambda: len(world.got) == 6)
    assert world.got[-1].value == b"004"
    member.resume(world.tp(0))
    world.until(lambda: world.got[-1].value == b"003")


@same()
def test_records_are_deleted_in_front_of_a_reader(world: World) -> None:
    world.write(numbers(5), partition=0)
    world.delete_before(0, 3)
    member = world.joined()
    assert world.read(2) == numbers(2, 3)
    world.write(numbers(4, 5), partition=0)
    assert world.read(6) == numbers(6, 3)
    world.delete_before(0, 9)
    member.seek(world.tp(0), 4)  # is not there any more: the reader goes to where the log begins
    world.write(numbers(1, 9), partition=0)
    assert world.read(7) == numbers(7, 3)


@same()
def test_what_was_aborted_is_not_read(world: World) -> None:
    world.write([b"before"], partition=0)
    for name, commits in (("paid", True), ("never", False)):
        transaction = begin(world, name)
        transaction.produce(world.topic, [name.encode()], partition=0)
        if commits:
            transaction.commit()
        else:
            transaction.abort()
    world.write([b"after"], partition=0)
    member = world.joined(committed_only=True)
    world.until(lambda: len(world.got) == 3)
    assert [(got.offset, got.value) for got in world.got] == [(0, b"before"), (1, b"paid"), (5, b"after")]
    assert member.position(world.tp(0)) == 6  # and not at one of the markers
    member.commit()
    assert world.tools.lag(world.group).lag == 0


@same()
def test_who_reads_everything_reads_what_was_aborted(world: World) -> None:
    transaction = begin(world, "never")
    transaction.produce(world.topic, [b"never"], partition=0)
    world.joined()
    assert world.read(1) == [b"never"]
    transaction.abort()
    world.write([b"after"], partition=0)
    assert world.read(2) == [b"after", b"never"]


@same()
def test_an_open_transaction_holds_readers_back(world: World) -> None:
    transaction = begin(world, "open")
    transaction.produce(world.topic, [b"held"], partition=0)
    world.write([b"behind"], partition=0)
    world.write([b"elsewhere"], partition=1)
    world.joined(committed_only=True)
    assert world.read(1) == [b"elsewhere"]
    assert [offset_at(world, -1, isolation=each)[1] for each in (0, 1)] == [2, 0]
    transaction.commit()
    world.until(lambda: len(world.got) == 3)
    assert [got.value for got in world.got[1:]] == [b"held", b"behind"]


@same()
def test_a_topic_that_does_not_exist(world: World) -> None:
    world.joined()
    missing = f"{world.topic}-missing"
    for name, code in ((missing, 3), ("no such name", 17)):
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        (topic,) = world.ask(schemas.METADATA, body)["topics"]
        assert (topic["error_code"], topic["name"], topic["partitions"]) == (code, name, [])
    (topic,) = world.ask(schemas.METADATA, {"topics": [{"topic_id": b"x" * 16, "name": None}]}, 12)["topics"]
    assert topic["error_code"] == 100
    assert fetched(world, missing) == (3, -1)
    batch = encode_batch([Record(b"x")])
    assert produced(world, batch, missing) == (3, -1)
    assert offset_at(world, -1, partition=99)[0] == 3


@same()
def test_offsets_and_epochs_that_do_not_exist(world: World) -> None:
    world.joined()
    world.write(numbers(2), partition=0)
    assert fetched(world, world.topic, offset=2) == (0, 2)
    assert fetched(world, world.topic, offset=3) == (1, -1)
    assert fetched(world, world.topic, epoch=99)[0] == 75
    assert offset_at(world, -1, epoch=99)[0] == 75


@same()
def test_a_batch_that_is_damaged(world: World) -> None:
    world.joined()
    batch = bytearray(encode_batch([Record(b"whole")]))
    batch[-3] ^= 1
    assert produced(world, bytes(batch)) == (2, -1)
    assert produced(world, encode_batch([Record(b"whole")])) == (0, 0)
    assert world.read(1) == [b"whole"]


@same()
def test_a_batch_that_comes_twice_is_written_once(world: World) -> None:
    world.joined()
    who = {"producer_id": new_producer(world), "producer_epoch": 0}
    assert new_producer(world) != who["producer_id"]
    batches = [
        encode_batch([Record(each) for each in numbers(2, 2 * number)], base_sequence=2 * number, **who)
        for number in range(7)
    ]
    assert [produced(world, batch) for batch in batches[:3]] == [(0, 0), (0, 2), (0, 4)]
    assert [produced(world, batch) for batch in batches[:3]] == [(0, 0), (0, 2), (0, 4)]
    assert produced(world, batches[4]) == (45, -1)  # one is missing
    assert [produced(world, batch)[0] for batch in batches[3:]] == [0, 0, 0, 0]
    assert produced(world, batches[2]) == (0, 4)  # the fifth from the end is still known
    assert produced(world, batches[1]) == (45, -1)
    assert world.read(14) == numbers(14)


@same()
def test_a_producer_with_a_new_epoch(world: World) -> None:
    world.joined()
    number = new_producer(world)

    def send(epoch: int, sequence: int) -> tuple[int, int]:
        record = Record(b"%d" % epoch)
        return produced(world, encode_batch([record], producer_id=number, producer_epoch=epoch, base_sequence=sequence))

    assert [send(0, 0), send(0, 1)] == [(0, 0), (0, 1)]
    assert send(1, 2) == (45, -1)
    assert send(1, 0) == (0, 2)
    assert send(0, 2) == (47, -1)
    assert world.read(3) == [b"0", b"0", b"1"]


@same()
def test_topics_that_are_made_and_deleted_by_request(world: World) -> None:
    def made(name: str, partitions: int, **more: Any) -> int:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        answer = world.ask(schemas.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 10_000, **more})
        return int(answer["topics"][0]["error_code"])

    def gone(name: str) -> int:
        answer = world.ask(schemas.DELETE_TOPICS, {"topic_names": [name], "timeout_ms": 10_000})
        return int(answer["responses"][0]["error_code"])

    name = f"{world.topic}-made"
    assert made(name, 2, validate_only=True) == 0
    assert made(name, 2) == 0
    assert [made(name, 2), made(f"{name}-0", 0), made("no such name", 1)] == [36, 37, 17]
    world.until(lambda: fetched(world, name) == (0, 0))
    member = world.member(topics=[name])
    world.until(lambda: member.assigned() == {TopicPartition(name, 0), TopicPartition(name, 1)})
    world.close(member)
    assert [gone(name), gone(f"{name}-0")] == [0, 3]
