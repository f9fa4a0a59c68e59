"""What both consumers promise besides offsets, on a real broker: waiting, batches, threads, errors, lifecycle, lag."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as TransactionalProducer

from managedconsumer import KafkaClient, OffsetType, TopicPartition
from managedconsumer import errors as err
from managedconsumer.runtime.waiting.handlers import GEventHandler, ThreadingHandler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.consumerkit import FIRST_MS, SOON, Opener, fill, offsets, places, take
from tests.broker.groupkit import committed

KINDS = ["simple", "managed"]
both = pytest.mark.parametrize("kind", KINDS)
NewTopic = Callable[..., str]


@pytest.fixture
def filled(kafka44: DevBroker, topic: NewTopic) -> str:
    """One partition with offsets 0 to 99."""
    name = topic(kafka44)
    fill(kafka44, name)
    return name


class TestMessages:
    @both
    def test_what_a_message_carries(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled)
        message = take(consumer, 8)[7]
        assert (message.value, message.partition_key, message.key) == (b"v7", b"k7", b"k7")
        assert (message.offset, message.partition_id, message.topic) == (7, 0, filled)
        assert message.timestamp == FIRST_MS + 7000
        assert message.headers == [("n", b"7")]
        assert message.partition is consumer.partitions[0]
        assert message.partition.topic.name == filled.encode()
        assert len(message) > 0
        assert message.protocol_version == 2

    @both
    def test_every_codec(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        name = topic(opener.broker)
        for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
            fill(opener.broker, name, 50, start=50 * number, codec=codec)
        assert [m.value for m in take(opener(kind, name), 200)] == [b"v%d" % n for n in range(200)]

    def test_empty_and_missing_values_are_messages(self, opener: Opener, topic: NewTopic) -> None:
        name = topic(opener.broker)
        with Producer(opener.broker.bootstrap) as producer:
            producer.produce(name, [Record(None, b"k"), Record(b"", None), Record(None, None)])
        messages = take(opener("simple", name), 3)
        assert [(m.value, m.partition_key) for m in messages] == [(None, b"k"), (b"", None), (None, None)]
        assert all(messages)

    def test_a_message_larger_than_the_fetch_size(self, opener: Opener, topic: NewTopic) -> None:
        """pykafka delivers nothing and says nothing."""
        name = topic(opener.broker)
        with Producer(opener.broker.bootstrap) as producer:
            producer.produce(name, [Record(b"x" * 900_000), Record(b"y")], batch_records=1)
        consumer = opener("simple", name, fetch_message_max_bytes=1000)
        assert [len(m.value) for m in take(consumer, 2)] == [900_000, 1]

    def test_transactions(self, opener: Opener, topic: NewTopic) -> None:
        """Gaps (the markers) never stall, aborted records are left out where asked for, and the lag comes to 0."""
        name = topic(opener.broker)
        producer = TransactionalProducer({"bootstrap.servers": opener.broker.bootstrap, "transactional.id": name})
        producer.init_transactions(30)
        for number, end in enumerate(("commit", "abort", "commit")):
            producer.begin_transaction()
            for _ in range(5):
                producer.produce(name, f"{end}-{number}".encode())
            producer.flush(30)
            producer.commit_transaction(30) if end == "commit" else producer.abort_transaction(30)
        for level, visible in {"read_uncommitted": 15, "read_committed": 10}.items():
            consumer = opener("simple", name, isolation_level=level)
            values = [m.value for m in take(consumer, visible)]
            assert (b"abort-1" in values) == (level == "read_uncommitted")
            more = list[Any]()
            behind = lambda each=consumer, more=more: more.append(each.consume()) or each.position(0) == 18  # noqa: E731
            opener.until(behind, "the position behind the last marker")
            assert set(more) == {None}
            assert consumer.lag() == {0: 0}


class TestWaiting:
    @both
    def test_a_timeout(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        consumer = opener(kind, topic(opener.broker), consumer_timeout_ms=300)
        consumer.consume()
        start = time.monotonic()
        assert consumer.consume() is None
        assert 0.29 <= time.monotonic() - start < SOON

    @both
    def test_a_timeout_of_zero_does_not_wait(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled, consumer_timeout_ms=0)
        got: list[int] = []

        def everything() -> bool:
            start = time.monotonic()
            for _ in range(50):
                message = consumer.consume()
                if message is not None:
                    got.append(message.offset)
            assert time.monotonic() - start < 5
            return len(got) >= 100

        opener.until(everything, "100 messages")
        assert got == list(range(100))

    @both
    def test_block_false_does_not_wait_either(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled, consumer_timeout_ms=-1)
        got: list[int] = []

        def everything() -> bool:
            start = time.monotonic()
            message = consumer.consume(block=False)
            assert time.monotonic() - start < 5
            if message is not None:
                got.append(message.offset)
            return len(got) == 100

        opener.until(everything, "100 messages")
        assert consumer.consume(block=False) is None

    @both
    def test_without_a_timeout_it_waits_for_the_message(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        name = topic(opener.broker)
        consumer = opener(kind, name, consumer_timeout_ms=-1)
        got: list[Any] = []
        worker = opener.mode.spawn("waiting", lambda: got.append(consumer.consume()))
        opener.mode.sleep(0.3)
        assert not got
        writer = threading.Thread(target=fill, args=(opener.broker, name, 1))
        writer.start()
        opener.until(lambda: got, "the message")
        writer.join()
        worker.join(SOON)
        assert got[0].value == b"v0"

    @both
    def test_an_event_ends_the_wait(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        consumer = opener(kind, topic(opener.broker), consumer_timeout_ms=-1)
        event = opener.mode.Event()
        back: list[Any] = []
        worker = opener.mode.spawn("waiting", lambda: back.append(consumer.consume(unblock_event=event)))
        opener.mode.sleep(0.1)
        assert not back
        event.set()
        opener.until(lambda: back, "consume() to come back")
        worker.join(SOON)
        assert back == [None]

    @both
    def test_iteration_ends_with_the_timeout_and_can_begin_again(self, opener: Opener, filled: str, kind: str) -> None:
        consumer, seen = opener(kind, filled), list[int]()
        opener.until(lambda: seen.extend(offsets(consumer)) or len(seen) >= 100, "100 messages")
        fill(opener.broker, filled, 3, start=100)
        opener.until(lambda: seen.extend(offsets(consumer)) or len(seen) >= 103, "three more")
        assert seen == list(range(103))
        consumer.stop()
        with pytest.raises(err.ConsumerStoppedException):
            next(iter(consumer))


class TestBatches:
    @both
    def test_what_is_there_comes_at_once(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled, queued_max_messages=30)
        seen: list[int] = []
        while len(seen) < 100:
            start = time.monotonic()
            batch = consumer.consume_batch(30, timeout_ms=10_000)
            assert time.monotonic() - start < SOON
            assert 1 <= len(batch) <= 30
            seen += offsets(batch)
        assert seen == list(range(100))
        assert consumer.consume_batch(30, timeout_ms=0) == []
        start = time.monotonic()
        assert consumer.consume_batch(30, timeout_ms=200) == []
        assert time.monotonic() - start >= 0.19

    def test_a_batch_is_finished_when_the_thread_comes_back(self, opener: Opener, filled: str) -> None:
        consumer = opener("managed", filled, auto_commit_enable=True, auto_commit_interval_ms=50)
        assert offsets(consumer.consume_batch(10, 5000)) == list(range(10))
        opener.mode.sleep(0.3)
        assert not consumer.committed(0)
        assert offsets(consumer.consume_batch(10, 5000)) == list(range(10, 20))
        opener.until(lambda: consumer.committed(0) == 10, "the first batch to be committed")

    def test_a_deserializer_that_fails_in_the_middle(self, opener: Opener, filled: str) -> None:
        def picky(value: bytes, key: bytes) -> Any:
            if value == b"v5":
                raise ValueError("five")
            return value.decode(), key

        consumer = opener("simple", filled, deserializer=picky, auto_commit_enable=True, auto_commit_interval_ms=50)
        opener.until(lambda: consumer.health()["queued_messages"] == 100, "everything to be fetched")
        assert [m.value for m in consumer.consume_batch(100)] == ["v0", "v1", "v2", "v3", "v4"]
        opener.mode.sleep(0.3)
        assert not consumer.committed(0)  # still in flight
        with pytest.raises(ValueError, match="five"):
            consumer.consume_batch(100)
        assert consumer.position(0) == 5
        opener.until(lambda: consumer.committed(0) == 5, "what came before to be committed")
        consumer.seek(0, 6)
        assert next(m.value for m in consumer.consume_batch(100, 5000)) == "v6"


class TestDeserializer:
    @both
    def test_it_makes_value_and_key(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled, deserializer=lambda value, key: (value.decode(), int(key[1:])))
        assert [(m.value, m.partition_key) for m in take(consumer, 2)] == [("v0", 0), ("v1", 1)]

    def test_tombstones_reach_it_as_none_and_timeouts_do_not_reach_it(self, opener: Opener, topic: NewTopic) -> None:
        name = topic(opener.broker)
        with Producer(opener.broker.bootstrap) as producer:
            producer.produce(name, [Record(None, b"k"), Record(b"v", None)])
        calls: list[Any] = []

        def note(value: Any, key: Any) -> Any:
            calls.append((value, key))
            return value, key

        consumer = opener("simple", name, deserializer=note)
        take(consumer, 2)
        assert consumer.consume() is None
        assert calls == [(None, b"k"), (b"v", None)]

    @both
    def test_what_it_raises_leaves_the_position_before_the_message(
        self, opener: Opener, filled: str, kind: str
    ) -> None:
        patience = [3]

        def picky(value: bytes, key: bytes) -> Any:
            if value == b"v2" and patience[0]:
                patience[0] -= 1
                raise AttributeError("not yet")  # pykafka swallows this one
            return value, key

        consumer = opener(kind, filled, deserializer=picky, auto_commit_enable=True)
        assert offsets(take(consumer, 2)) == [0, 1]
        for _ in range(3):
            with pytest.raises(AttributeError, match="not yet"):
                consumer.consume()
            assert consumer.position(0) == 2
            assert consumer.held_offsets == {0: 1}
        consumer.stop()
        assert committed(opener.broker, opener.group, filled, 1) == {0: 2}, "it is not finished"
        consumer.start()
        assert offsets(take(consumer, 98)) == list(range(2, 100))

    @both
    def test_skip(self, opener: Opener, filled: str, kind: str) -> None:
        def picky(value: bytes, key: bytes) -> Any:
            return int(value[1:]) // (int(value[1:]) % 10), key  # fails for every tenth

        consumer = opener(kind, filled, deserializer=picky, on_error="skip")
        assert offsets(take(consumer, 90)) == [n for n in range(100) if n % 10]
        assert consumer.consume() is None
        assert consumer.position(0) == 100

    @both
    def test_a_function_decides(self, opener: Opener, filled: str, kind: str) -> None:
        """A dead-letter queue."""
        dead: list[tuple[str, Any]] = []

        def decide(error: BaseException, message: Any) -> str:
            dead.append((str(error), message.value))
            return "skip" if message.offset < 50 else "raise"

        def picky(value: bytes, key: bytes) -> Any:
            if value.endswith(b"0"):
                raise ValueError(f"bad {value.decode()}")
            return value, key

        consumer = opener(kind, filled, deserializer=picky, on_error=decide)
        assert len(take(consumer, 45)) == 45
        with pytest.raises(ValueError, match="bad v50"):
            consumer.consume()
        assert dead == [(f"bad v{n}", b"v%d" % n) for n in (0, 10, 20, 30, 40, 50)]


class TestPausing:
    @both
    def test_a_paused_partition_rests_and_goes_on_where_it_was(
        self, opener: Opener, topic: NewTopic, kind: str
    ) -> None:
        name = topic(opener.broker, 2)
        for partition in range(2):
            fill(opener.broker, name, 50, partition)
        consumer = opener(kind, name)
        seen = take(consumer, 10)
        consumer.pause(0)
        rest = take(consumer, 50 - len(offsets(seen, 1)))
        assert consumer.consume() is None
        assert {m.partition_id for m in rest} == {1}
        consumer.resume(0)
        seen += rest
        seen += take(consumer, 100 - len(seen))
        assert places(seen) == Counter((p, n) for p in range(2) for n in range(50))

    @both
    def test_all_at_once(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled)
        take(consumer, 5)
        consumer.pause()
        assert consumer.consume() is None
        fill(opener.broker, filled, 1, start=100)
        assert consumer.consume() is None
        assert consumer.position(0) == 5
        consumer.resume()
        assert offsets(take(consumer, 96)) == list(range(5, 101))


class TestThreads:
    @both
    def test_several_consume_and_each_message_comes_once(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        name = topic(opener.broker, 2)
        for partition in range(2):
            fill(opener.broker, name, 500, partition)
        consumer = opener(kind, name, auto_commit_enable=True, consumer_timeout_ms=1000)
        got: list[tuple[int, int]] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                got.extend((message.partition_id, message.offset) for message in consumer)
            except BaseException as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        workers = [opener.mode.spawn(f"work{n}", work) for n in range(4)]
        for worker in workers:
            worker.join(30)
        assert errors == []
        assert Counter(got) == Counter((p, n) for p in range(2) for n in range(500))
        consumer.stop()
        assert committed(opener.broker, opener.group, name, 2) == {0: 500, 1: 500}


class TestAutoCommit:
    def test_finished_messages_are_committed_in_the_background(self, opener: Opener, filled: str) -> None:
        consumer = opener("simple", filled, auto_commit_enable=True, auto_commit_interval_ms=50)
        take(consumer, 10)
        opener.until(lambda: consumer.committed(0) == 9, "all but the one in flight to be committed")
        opener.mode.sleep(0.2)
        assert consumer.committed(0) == 9
        take(consumer, 1)
        opener.until(lambda: consumer.committed(0) == 10, "the tenth to be committed")

    @both
    def test_the_stop_commits_what_is_finished_and_the_rest_comes_again(
        self, opener: Opener, filled: str, kind: str
    ) -> None:
        consumer = opener(kind, filled, auto_commit_enable=True)
        take(consumer, 10)
        consumer.stop()
        assert committed(opener.broker, opener.group, filled, 1) == {0: 9}
        consumer.start()
        assert offsets(take(consumer, 91)) == list(range(9, 100))
        assert list(consumer) == []
        consumer.stop()
        assert committed(opener.broker, opener.group, filled, 1) == {0: 100}


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("managedconsumer.")]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestLifecycle:
    def test_start_and_stop_ten_times(self, opener: Opener, filled: str) -> None:
        consumer = opener("simple", filled, auto_commit_enable=True, auto_start=False)
        seen: list[int] = []
        files = threads = 0
        for round_ in range(10):
            consumer.start()
            got = offsets(take(consumer, 10))
            assert got == list(range(got[0], got[0] + 10))
            assert got[0] == (seen[-1] if seen else 0)  # the one in flight at the stop was not finished
            seen += got
            start = time.monotonic()
            consumer.stop()
            assert time.monotonic() - start < SOON
            if round_ == 0:
                files, threads = open_files(), len(our_threads())
        assert len(our_threads()) <= threads
        assert open_files() <= files + 1

    @both
    def test_a_with_statement(self, opener: Opener, filled: str, kind: str) -> None:
        with opener(kind, filled, auto_start=False) as consumer:
            assert consumer.health()["running"]
            take(consumer, 1)
        assert not consumer.health()["running"]

    @both
    def test_the_stop_may_come_from_any_thread(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        consumer = opener(kind, topic(opener.broker), consumer_timeout_ms=-1)
        ended: list[type] = []

        def work() -> None:
            try:
                consumer.consume()
            except err.ConsumerStoppedException as error:
                ended.append(type(error))

        worker = opener.mode.spawn("work", work)
        opener.mode.sleep(0.1)
        stoppers = [opener.mode.spawn(f"stop{n}", consumer.stop) for n in range(3)]
        for each in [*stoppers, worker]:
            each.join(SOON)
            assert not each.is_alive()
        assert ended == [err.ConsumerStoppedException]

    @both
    def test_held_offsets_and_the_group_survive_the_stop(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled)
        take(consumer, 4)
        consumer.stop()
        assert consumer.held_offsets == {0: 3}
        assert opener.group in repr(consumer)


class TestQueues:
    @both
    def test_no_more_is_fetched_than_may_be_queued(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        """At most one fetch beyond the bound, of each partition."""
        name = topic(opener.broker, 2)
        for partition in range(2):
            fill(opener.broker, name, 300, partition)
        # Batches hold ten records; the broker sends at least one of each partition, and not two of them.
        consumer = opener(kind, name, queued_max_messages=25, fetch_message_max_bytes=100)
        opener.until(lambda: consumer.health()["queued_messages"] >= 50, "the queues to be full")
        highest = 0
        for _ in range(600):
            highest = max(highest, consumer.health()["queued_messages"])
            assert consumer.consume() is not None
        assert 50 <= highest <= 2 * (24 + 10)

    @both
    def test_bytes_are_bounded_too(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        name = topic(opener.broker, 4)
        with Producer(opener.broker.bootstrap) as producer:
            for partition in range(4):
                producer.produce(name, [Record(b"x" * 10_000)] * 30, partition=partition, batch_records=1)
        consumer = opener(kind, name, queued_max_bytes=50_000, fetch_message_max_bytes=11_000)
        highest, got = 0, 0
        while got < 120:
            highest = max(highest, consumer.health()["queued_bytes"])
            got += consumer.consume() is not None
        # One answer for all partitions may come on top.
        assert highest <= 50_000 + 4 * 22_000


class TestLagAndHealth:
    @both
    def test_lag_is_what_is_left(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        name = topic(opener.broker, 2)
        fill(opener.broker, name, 30, 0)
        consumer = opener(kind, name)
        assert consumer.lag() == {0: 30, 1: 0}
        take(consumer, 12)
        assert consumer.lag() == {0: 18, 1: 0}
        fill(opener.broker, name, 5, 1)
        assert consumer.lag() == {0: 18, 1: 5}
        take(consumer, 23)
        assert consumer.lag() == {0: 0, 1: 0}

    def test_lag_of_who_starts_at_the_end(self, opener: Opener, filled: str) -> None:
        consumer = opener("managed", filled, auto_offset_reset=OffsetType.LATEST)
        assert consumer.lag() == {0: 0}

    @both
    def test_health_tells_where_it_is(self, opener: Opener, filled: str, kind: str) -> None:
        consumer = opener(kind, filled)
        take(consumer, 3)
        health = consumer.health()
        assert health["running"]
        assert health["error"] is None
        assert health["trouble"] is None
        assert health["partitions"] == {"0": 3}
        assert health["handed_out"] == 3
        assert health["fetchers"] == 1
        if kind == "managed":
            assert (health["group"], health["state"]) == (opener.group, "stable")
            assert health["coordinator"] == opener.broker.bootstrap
            assert health["member_id"].encode() == consumer.consumer_id
            assert health["generation"] == consumer.generation_id >= 1


class TestSimpleConsumer:
    def test_partitions_of_its_own_choice(self, opener: Opener, topic: NewTopic) -> None:
        name = topic(opener.broker, 3)
        for partition in range(3):
            fill(opener.broker, name, 5, partition)
        with KafkaClient(opener.broker.bootstrap) as client:
            theirs = client.topics[name].partitions
            for chosen in ([0, 2], [theirs[0], theirs[2]], (TopicPartition(name, 2), TopicPartition(name, 0))):
                consumer = opener("simple", name, partitions=chosen)
                assert sorted(consumer.partitions) == [0, 2]
                assert {m.partition_id for m in take(consumer, 10)} == {0, 2}
                assert consumer.consume() is None
                consumer.stop()

    def test_a_generator_of_partitions_and_none_at_all(self, opener: Opener, topic: NewTopic) -> None:
        name = topic(opener.broker, 3)
        assert sorted(opener("simple", name, partitions=(n for n in (1,))).partitions) == [1]
        idle = opener("simple", name, partitions=[])
        assert idle.partitions == {}
        assert idle.consume() is None

    def test_the_group_keeps_its_place_without_a_member(self, opener: Opener, filled: str) -> None:
        first = opener("simple", filled)
        take(first, 40)
        first.commit_offsets()
        first.stop()
        assert offsets(take(opener("simple", filled), 1)) == [40]

    def test_through_a_client(self, opener: Opener, filled: str) -> None:
        greenlets = isinstance(opener.mode, GEventHandler)
        with KafkaClient(opener.broker.bootstrap, use_greenlets=greenlets) as client:
            topic = client.topics[filled]
            consumer = topic.get_simple_consumer(consumer_group=opener.group, consumer_timeout_ms=2000)
            opener.made.append(consumer)
            assert consumer.topic is topic
            assert offsets(take(consumer, 2)) == [0, 1]
            balanced = topic.get_balanced_consumer(opener.group + "-b", managed=True, consumer_timeout_ms=2000)
            opener.made.append(balanced)
            assert balanced.topic is topic
            assert offsets(take(balanced, 2)) == [0, 1]


class TestSeveralTopics:
    @both
    def test_offsets_are_keyed_by_topic_and_partition(self, opener: Opener, topic: NewTopic, kind: str) -> None:
        names = [topic(opener.broker, 2), topic(opener.broker)]
        fill(opener.broker, names[0], 3, 1)
        fill(opener.broker, names[1], 4, 0)
        consumer = opener(kind, names)
        got = Counter((m.topic, m.partition_id, m.offset) for m in take(consumer, 7))
        assert consumer.consume() is None
        assert got == Counter([(names[0], 1, n) for n in range(3)] + [(names[1], 0, n) for n in range(4)])
        first, second, third = (TopicPartition(names[0], 0), TopicPartition(names[0], 1), TopicPartition(names[1], 0))
        assert consumer.held_offsets == {first: -2, second: 2, third: 3}
        assert sorted(consumer.partitions) == sorted([first, second, third])
        assert consumer.lag() == {first: 0, second: 0, third: 0}
        consumer.reset_offsets({second: 0})
        assert [(m.topic, m.offset) for m in take(consumer, 2)] == [(names[0], 1), (names[0], 2)]
        assert consumer.consume() is None
        with pytest.raises(TypeError, match="of which topic"):
            consumer.position(0)
        assert [t.name.decode() for t in consumer.topic] == names

    @both
    def test_a_pattern(self, opener: Opener, topic: NewTopic, kind: str, unique: Callable[[str], str]) -> None:
        names = [topic(opener.broker), topic(opener.broker)]
        for name in names:
            fill(opener.broker, name, 2)
        pattern = re.compile("|".join(map(re.escape, names)))
        consumer = opener(kind, pattern)
        assert Counter(m.topic for m in take(consumer, 4)) == Counter(dict.fromkeys(names, 2))
        assert consumer.consume() is None
        assert consumer.topic is pattern


class TestGreenlets:
    def test_the_hub_is_never_blocked(self, kafka44: DevBroker, filled: str, unique: Callable[[str], str]) -> None:
        """Without any monkey-patching: other greenlets run while the consumer starts, waits, commits and stops."""
        import gevent

        gaps: list[float] = []

        def tick() -> None:
            last = time.monotonic()
            while True:
                gevent.sleep(0.005)
                now = time.monotonic()
                gaps.append(now - last)
                last = now

        ticker = gevent.spawn(tick)
        opener = Opener(kafka44, unique("group"), GEventHandler())
        before = set(threading.enumerate())
        consumer = opener("managed", filled, auto_commit_enable=True, auto_commit_interval_ms=100)
        assert len(take(consumer, 100)) == 100
        assert consumer.consume() is None
        consumer.commit_offsets()
        consumer.lag()
        assert {t.name for t in set(threading.enumerate()) - before if t.name.startswith("managedconsumer.")} == set()
        consumer.stop()
        ticker.kill()
        assert len(gaps) > 20
        slow = sorted(gaps)[-3:]
        # This machine has two cores for many: now and then everybody waits.
        assert slow[0] < 0.25, slow


def test_the_default_is_threads(kafka44: DevBroker, filled: str) -> None:
    opener = Opener(kafka44, "threads", ThreadingHandler())
    with contextlib.closing(opener):
        consumer = opener("simple", filled, use_greenlets=None)
        take(consumer, 1)
        assert any("fetcher" in name for name in our_threads())
