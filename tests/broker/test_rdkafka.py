"""``use_rdkafka=True`` on Kafka 4.4: librdkafka fetches, and everything else is as without it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.consumerkit import offsets, take
from tests.broker.groupkit import Fleet, Load, all_seen, committed, until, write

Topic = Callable[..., str]
Unique = Callable[[str], str]
Make = Callable[..., Fleet]
GREENLETS = "GEventHandler"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def simple(kafka44: DevBroker, mode: Handler) -> Iterator[Callable[..., SimpleConsumer]]:
    """``simple(topic, group)``: a consumer of all of a topic's partitions, started; stopped at the end."""
    made: list[SimpleConsumer] = []

    def make(topic: str, group: str | None = None, **options: Any) -> SimpleConsumer:
        defaults = {"consumer_timeout_ms": 15_000, "use_greenlets": type(mode).__name__ == GREENLETS}
        made.append(SimpleConsumer(topic, kafka44.bootstrap, group, **{"use_rdkafka": True, **defaults, **options}))
        return made[-1]

    yield make
    for consumer in made:
        consumer.stop()


def consume_until_it_ends(consumer: Any, ended: list[BaseException]) -> None:
    try:
        consumer.consume()
    except BaseException as error:  # noqa: BLE001 - shown by the test
        ended.append(error)


# -- what comes -----------------------------------------------------------------------------------------------------


def test_everything_of_a_record_comes_in_order(
    kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]
) -> None:
    name = topic(kafka44, 2)
    batches: list[list[Record]] = []
    for partition in range(2):
        for codec in CODECS:
            records = [
                Record(None if n == 3 else b"v%d" % n, None if n == 4 else b"", 1_600_000_000_000 + n)
                if n % 2
                else Record(b"", b"k%d" % n, 1_600_000_000_000 + n, [("first", b"x" * n), ("none", None)])
                for n in range(50)
            ]
            with Producer(kafka44.bootstrap, codec=codec) as producer:
                producer.produce(name, records, partition=partition, batch_records=7)
            batches.append(records)
    expected = [record for records in batches[:5] for record in records]
    ours = take(simple(name, use_rdkafka=False), 500)
    theirs = take(simple(name), 500)
    for partition in range(2):
        plain, through = ([m for m in taken if m.partition_id == partition] for taken in (ours, theirs))
        assert offsets(through, partition) == list(range(250))
        for one, other, record in zip(plain, through, expected, strict=True):
            assert (other.value, other.key, other.headers) == (record.value, record.key, list(record.headers))
            for attribute in ("offset", "timestamp", "timestamp_type", "leader_epoch", "protocol_version", "topic"):
                assert getattr(one, attribute) == getattr(other, attribute), attribute
            assert one.timestamp_dt == other.timestamp_dt
            assert len(one) == len(other)
            assert (one.partition.id, one.partition.topic) == (other.partition.id, other.partition.topic)


def test_batches_and_arrow(kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]) -> None:
    name = topic(kafka44, 3)
    expected = write(kafka44, name, 3, 3000)
    consumer = simple(name)
    seen: list[tuple[int, int]] = []
    while len(seen) < 4500:
        batch = consumer.consume_batch(700, 15_000)
        assert 0 < len(batch) <= 700
        seen += [(message.partition_id, message.offset) for message in batch]
    while len(seen) < 9000:
        columns = consumer.consume_arrow(15_000)
        seen += zip(columns["partition"].to_pylist(), columns["offset"].to_pylist(), strict=True)
    assert set(seen) == expected
    for partition in range(3):
        assert [offset for number, offset in seen if number == partition] == list(range(3000))
    assert [consumer.position(number) for number in range(3)] == [3000] * 3


def test_large_messages_and_small_bounds(
    kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]
) -> None:
    name = topic(kafka44, 2)
    with Producer(kafka44.bootstrap) as producer:
        for partition in range(2):
            for n in range(40):
                producer.produce(name, [Record(bytes([n]) * 300_000)], partition=partition)
    consumer = simple(name, queued_max_bytes=2_000_000, queued_max_messages=3, fetch_message_max_bytes=1000)
    highest, seen = 0, []
    for _ in range(80):
        message = consumer.consume()
        assert message is not None
        assert message.value == bytes([message.offset]) * 300_000
        seen.append((message.partition_id, message.offset))
        highest = max(highest, consumer.health()["queued_bytes"])
    assert len(set(seen)) == 80
    assert highest < 12_000_000  # the bound, and one lot


def test_only_committed_transactions(kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]) -> None:
    """Markers and aborted records are passed, also where nothing comes behind them."""
    import confluent_kafka

    name = topic(kafka44, 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka44.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    for kind in ("good", "bad", "good", "bad"):
        producer.begin_transaction()
        for n in range(20):
            producer.produce(name, f"{kind}{n}".encode())
        producer.flush(30)
        (producer.commit_transaction if kind == "good" else producer.abort_transaction)(30)
    consumer = simple(name, isolation_level="read_committed")
    values = [message.value for message in take(consumer, 40)]
    assert values == [b"good%d" % n for n in range(20)] * 2
    assert consumer.consume(block=False) is None
    # Four times twenty records and a marker.
    until(
        consumer._session.engine.handler, lambda: consumer.consume(False) or consumer.position(0) == 84, 15, "the end"
    )
    everything = simple(name)
    assert len({message.value for message in take(everything, 80)}) == 40


def test_deserializer_and_a_message_that_cannot_be_used(
    kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]
) -> None:
    name = topic(kafka44, 1)
    write(kafka44, name, 1, 10)
    failing = {5}

    def deserialize(value: bytes, key: bytes) -> tuple[Any, Any]:
        number = int(value.split(b"-")[1])
        if number in failing:
            failing.discard(number)
            raise ValueError(f"not {number}")
        return number, key.decode()

    consumer = simple(name, deserializer=deserialize)
    assert [(m.value, m.key) for m in take(consumer, 5)] == [(n, "k") for n in range(5)]
    with pytest.raises(ValueError, match="not 5"):
        consumer.consume()
    assert consumer.position(0) == 5
    assert [m.value for m in take(consumer, 5)] == [5, 6, 7, 8, 9]


# -- positions ------------------------------------------------------------------------------------------------------


def test_seek_and_reset(kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]) -> None:
    name = topic(kafka44, 2)
    write(kafka44, name, 2, 5000)
    consumer = simple(name)
    take(consumer, 10)
    for target in (4000, 10, 4990, 0):
        consumer.seek(0, target)
        consumer.pause(1)
        assert offsets(take(consumer, 5)) == list(range(target, target + 5))
        assert consumer.position(0) == target + 5
    consumer.reset_offsets([(0, -2)])  # the beginning
    assert offsets(take(consumer, 3)) == [0, 1, 2]
    consumer.reset_offsets([(0, 99)])  # pykafka's: the last one consumed
    assert offsets(take(consumer, 3)) == [100, 101, 102]
    consumer.seek(0, 5000)
    assert consumer.consume(block=False) is None
    write(kafka44, name, 1, 3, start=5000)
    assert offsets(take(consumer, 3)) == [5000, 5001, 5002]
    consumer.resume(1)
    assert take(consumer, 1)[0].partition_id == 1


def test_pause_and_resume(kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]) -> None:
    name = topic(kafka44, 2)
    write(kafka44, name, 2, 3000)
    consumer = simple(name, queued_max_messages=50)
    taken = take(consumer, 100)
    for number in (0, 1, 0):
        consumer.pause(number)
        more = take(consumer, 300)
        assert offsets(more, number) == []
        taken += more
        consumer.resume(number)
    taken += take(consumer, 6000 - len(taken))
    assert [offsets(taken, number) for number in (0, 1)] == [list(range(3000))] * 2


def test_an_offset_that_is_not_in_the_log(
    kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]
) -> None:
    name = topic(kafka44, 1)
    write(kafka44, name, 1, 100)
    consumer = simple(name, auto_offset_reset="earliest")
    take(consumer, 100)
    consumer.seek(0, 1_000_000)
    assert offsets(take(consumer, 3)) == [0, 1, 2]


def test_no_reset_is_wanted(
    kafka44: DevBroker, topic: Topic, unique: Unique, simple: Callable[..., SimpleConsumer]
) -> None:
    name, group = topic(kafka44, 1), unique("group")
    write(kafka44, name, 1, 10)
    first = simple(name, group)
    take(first, 3)
    first.commit_offsets()
    first.stop()
    consumer = simple(name, group, auto_offset_reset="none")
    assert offsets(take(consumer, 7)) == list(range(3, 10))
    consumer.seek(0, 1_000_000)
    with pytest.raises(err.OffsetOutOfRangeError, match="1000000"):
        consumer.consume()


def test_what_was_deleted_is_passed(kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]) -> None:
    """DeleteRecords moves the log's start: the consumer goes to it, and never backwards."""
    from confluent_kafka import TopicPartition as Theirs
    from confluent_kafka.admin import AdminClient

    name = topic(kafka44, 1)
    write(kafka44, name, 1, 50)
    consumer = simple(name)
    take(consumer, 10)
    consumer.pause(0)
    admin = AdminClient({"bootstrap.servers": kafka44.bootstrap})
    for future in admin.delete_records([Theirs(name, 0, 30)]).values():
        future.result(30)
    consumer.resume(0)
    assert offsets(take(consumer, 20)) == list(range(30, 50))


def test_commit_and_resume(
    kafka44: DevBroker, topic: Topic, unique: Unique, simple: Callable[..., SimpleConsumer]
) -> None:
    name, group = topic(kafka44, 2), unique("group")
    write(kafka44, name, 2, 2000)
    first = simple(name, group)
    taken = take(first, 1500)
    held = {number: first.position(number) for number in (0, 1)}
    first.commit_offsets()
    assert committed(kafka44, group, name, 2) == held
    first.stop()
    second = simple(name, group, auto_commit_enable=True)
    taken += take(second, 1000)
    assert second.consume() is not None  # is in flight, not finished, and comes again
    second.stop()
    taken += take(simple(name, group), 1500)
    assert [offsets(taken, number) for number in (0, 1)] == [list(range(2000))] * 2


# -- life -----------------------------------------------------------------------------------------------------------


def test_stop_is_quick_and_leaves_nothing(
    kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer], mode: Handler
) -> None:
    name = topic(kafka44, 1)
    write(kafka44, name, 1, 10)
    consumer = simple(name, consumer_timeout_ms=-1)
    before = threading.active_count()
    for _ in range(3):
        assert offsets(take(consumer, 10)) == list(range(10))
        ended: list[BaseException] = []
        waiting = mode.spawn("test.waiting", consume_until_it_ends, consumer, ended)
        mode.sleep(0.2)
        started = time.monotonic()
        consumer.stop()
        assert time.monotonic() - started < 5
        waiting.join(5)
        assert [type(error) for error in ended] == [err.ConsumerStoppedException]
        assert consumer.health()["fetchers"] == 0
        consumer.start()
    consumer.stop()
    until(mode, lambda: threading.active_count() <= before, 5, f"threads end: {threading.enumerate()}")


def test_nobody_joins_or_makes_a_group_for_it(
    kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer]
) -> None:
    from confluent_kafka.admin import AdminClient

    name = topic(kafka44, 1)
    write(kafka44, name, 1, 10)
    take(simple(name), 10)
    admin = AdminClient({"bootstrap.servers": kafka44.bootstrap})  # a client that is gone may drop the answer
    groups = admin.list_consumer_groups().result(30)
    assert [group.group_id for group in groups.valid if group.group_id.startswith("managedconsumer-")] == []


def test_several_threads(
    kafka44: DevBroker, topic: Topic, simple: Callable[..., SimpleConsumer], mode: Handler
) -> None:
    name = topic(kafka44, 4)
    expected = write(kafka44, name, 4, 2000)
    consumer = simple(name, consumer_timeout_ms=3000)
    taken: list[tuple[int, int]] = []

    def work() -> None:
        taken.extend((message.partition_id, message.offset) for message in consumer)

    workers = [mode.spawn(f"test.{n}", work) for n in range(3)]
    for worker in workers:
        worker.join(60)
    assert sorted(taken) == sorted(expected)


def test_pykafkas_ways_to_ask_for_it(kafka44: DevBroker, topic: Topic, unique: Unique) -> None:
    name = topic(kafka44, 1)
    write(kafka44, name, 1, 10)
    clicks = KafkaClient(hosts=kafka44.bootstrap).topics[name]
    for consumer in (
        clicks.get_simple_consumer(use_rdkafka=True, consumer_timeout_ms=15_000),
        clicks.get_balanced_consumer(unique("group"), managed=True, use_rdkafka=True, consumer_timeout_ms=15_000),
    ):
        with contextlib.closing(consumer):
            assert offsets(take(consumer, 10)) == list(range(10))
            assert "rdkafka" in consumer._session.engine.fetchers._workers[-1, 0].name


# -- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "mode"),
    [("range", "threads"), ("cooperative-sticky", "gevent"), ("consumer", "threads"), ("consumer", "gevent")],
    indirect=["mode"],
)
def test_members_come_and_go_under_load(kafka44: DevBroker, fleet: Make, protocol: str) -> None:
    """Half of the members fetch by themselves: nothing is lost, nothing comes twice, order holds."""
    options: dict[str, Any] = {"auto_commit_enable": True}
    options["group_protocol" if protocol == "consumer" else "membership_protocol"] = protocol
    group = fleet(kafka44, 8)
    with Load(kafka44, group.topic, 8) as load:
        first = group.join(use_rdkafka=True, **options)
        group.until(lambda: first.got, 20, "the first message")
        for step in ("theirs", "ours", "leave", "theirs", "leave"):
            if step == "leave":
                group.leave(group.members[0])
            else:
                group.join(use_rdkafka=step == "theirs", **options)
            group.wait_balanced(8, 20)
            seen = len(load.acked)
            group.until(lambda seen=seen: len(load.acked) > seen + 100, 20, "load goes on")  # type: ignore[misc]
        acked = load.stop()
    all_seen(group, acked)
    group.check()
    assert max(group.values().values()) == 1, f"{group.duplicates()} duplicates"


def test_a_kept_partition_goes_on_without_a_refetch(kafka44: DevBroker, fleet: Make) -> None:
    """An eager rebalance that gives everything back: what librdkafka reads is not even touched."""
    group = fleet(kafka44, 2)
    member = group.join(use_rdkafka=True, auto_commit_enable=True)
    group.wait_balanced(2)
    expected = write(kafka44, group.topic, 2, 50)
    group.wait_received(expected)
    queues = dict(member.consumer._session.engine.buffer.queues)
    versions = {tp: queue.version for tp, queue in queues.items()}
    generation = member.consumer.generation_id
    member.consumer._member.request_rejoin("the test wants it")
    group.until(lambda: member.consumer.generation_id > generation and member.stable, 20, "another generation")
    assert {tp: queue.version for tp, queue in member.consumer._session.engine.buffer.queues.items()} == versions
    more = write(kafka44, group.topic, 2, 50, start=50)
    group.wait_received(expected | more)
    group.check()
    assert group.duplicates() == 0


@pytest.fixture(scope="module")
def mortal() -> Iterator[DevBroker]:
    """A broker that may be killed."""
    with DevBroker("4.4.0") as broker:
        yield broker


def test_a_broker_goes_away_and_comes_back(mortal: DevBroker, topic: Topic, mode: Handler) -> None:
    broker, name = mortal, topic(mortal, 2)
    write(broker, name, 2, 100)
    greenlets = type(mode).__name__ == GREENLETS
    consumer = SimpleConsumer(
        name, broker.bootstrap, use_rdkafka=True, use_greenlets=greenlets, consumer_timeout_ms=60_000
    )
    with contextlib.closing(consumer):
        taken = take(consumer, 200)
        broker.kill()
        until(mode, lambda: consumer.health()["trouble"], 20, "health() tells of it")
        broker.restart()
        write(broker, name, 2, 100, start=100)
        taken += take(consumer, 200)
        assert {(m.partition_id, m.offset) for m in taken} == {(p, n) for p in range(2) for n in range(200)}
        until(mode, lambda: consumer.health()["trouble"] is None, 30, lambda: f"all is well: {consumer.health()}")
        assert consumer.held_offsets == {0: 199, 1: 199}
        assert consumer.position(TopicPartition(name, 0)) == 200
