"""A consumer with a store whose topic is deleted and created again: nothing of the new one is passed over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import SimpleConsumer, TopicPartition
from managedconsumer.errors import OffsetOutOfRangeError
from managedconsumer.stores import FencedStoreError, SQLStore
from managedconsumer.stores.rows import spans_of, topic_text
from managedconsumer.testing import MemoryBroker
from tests.stores import test_made_anew as plain
from tests.stores.test_attached import COUNT, Losing, consumer_of, insert, store_all, values
from tests.stores.test_attached import broker as broker
from tests.stores.test_attached import open_store as open_store
from tests.stores.test_moved_on import begin_run
from tests.waiting import until

Opener = Callable[[], SQLStore]
#: What the new topic has: less than the store has of the old one.
NEW = list(range(1000, 1020))
ALL = [*range(COUNT), *NEW]


def id_of(broker: MemoryBroker) -> str:
    with SimpleConsumer("orders", broker.bootstrap) as consumer:
        return topic_text(consumer.topic_ids.of([TopicPartition("orders", 0)])[TopicPartition("orders", 0)])


def make_anew(broker: MemoryBroker, numbers: list[int]) -> None:
    broker._do(lambda: (broker._delete("orders"), broker._topics.create("orders", 2)))
    broker.produce("orders", [b"%d" % n for n in numbers])


def store_until(consumer: Any, store: SQLStore, database: Path, wanted: list[int]) -> None:
    def done() -> bool:
        batch = consumer.consume_batch(7, 50)
        if batch:
            store.save(batch, insert)
        return len(values(database)) >= len(wanted)

    until(done, 60, lambda: f"{len(values(database))} of {len(wanted)}")
    assert values(database) == wanted


def fill(broker: MemoryBroker, store: SQLStore, database: Path) -> None:
    """The store has all of the first topic."""
    with consumer_of(broker) as consumer:
        store.attach(consumer)
        store_all(consumer, store, database)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("auto_start", [True, False])
def test_a_process_that_starts_afterwards(
    broker: MemoryBroker,
    open_store: Opener,
    database: Path,
    protocol: str,
    auto_start: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(broker, open_store(), database)
    old = id_of(broker)
    make_anew(broker, NEW)
    store = open_store()
    with (
        caplog.at_level(logging.WARNING),
        consumer_of(broker, auto_start=auto_start, group_protocol=protocol, auto_offset_reset="earliest") as consumer,
    ):
        store.attach(consumer)
        consumer.start()
        store_until(consumer, store, database, ALL)
    (line,) = [text for text in caplog.messages if "of orders-0, of the topic" in text]
    assert f"of the topic with id {old}" in line
    assert f"has id {id_of(broker)} now" in line
    assert line.endswith("these offsets do not count. It is read from where auto_offset_reset says")
    # The next one goes on behind them.
    store, more = open_store(), list(range(2000, 2005))
    broker.produce("orders", [b"%d" % n for n in more])
    with consumer_of(broker, auto_offset_reset="earliest") as consumer:
        store.attach(consumer)
        store_until(consumer, store, database, [*ALL, *more])


def test_a_process_that_dies_before_it_stores_something(
    broker: MemoryBroker, open_store: Opener, database: Path
) -> None:
    fill(broker, open_store(), database)
    make_anew(broker, NEW)
    for _ in range(2):
        with consumer_of(broker, auto_offset_reset="earliest") as consumer:
            open_store().attach(consumer)
            assert until(lambda: consumer.consume_batch(5, 50))
    store = open_store()
    with consumer_of(broker, auto_offset_reset="earliest") as consumer:
        store.attach(consumer)
        store_until(consumer, store, database, ALL)


def test_the_user_is_asked_where_that_is_wanted(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    fill(broker, open_store(), database)
    make_anew(broker, NEW)
    store = open_store()
    with consumer_of(broker, auto_offset_reset="none") as consumer:
        store.attach(consumer)
        with pytest.raises(OffsetOutOfRangeError, match=r"these offsets do not count, and auto_offset_reset is 'none'"):
            until(lambda: consumer.consume_batch(5, 50))
        for number in (0, 1):
            consumer.seek(number, 0)
        store_until(consumer, store, database, ALL)


def test_where_latest_is_wanted(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    fill(broker, open_store(), database)
    make_anew(broker, NEW)
    store, more = open_store(), list(range(2000, 2010))
    with consumer_of(broker, auto_offset_reset="latest") as consumer:
        store.attach(consumer)
        assert consumer.position(0) + consumer.position(1) == len(NEW)
        broker.produce("orders", [b"%d" % n for n in more])
        store_until(consumer, store, database, [*range(COUNT), *more])


def test_a_consumer_without_a_group(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    options: Any = {"consumer_timeout_ms": 50, "auto_offset_reset": "earliest"}
    with SimpleConsumer("orders", broker.bootstrap, **options) as consumer:
        store = open_store()
        store.attach(consumer, group="report")
        store_until(consumer, store, database, list(range(COUNT)))
    make_anew(broker, NEW)
    with SimpleConsumer("orders", broker.bootstrap, **options) as consumer:
        store = open_store()
        store.attach(consumer, group="report")
        store_until(consumer, store, database, ALL)


def anew_and_noticed(broker: MemoryBroker, consumer: Any) -> None:
    engine = consumer._session.engine
    before = {tp: queue.topic_id for tp, queue in engine.buffer.queues.items()}
    make_anew(broker, NEW)
    engine.assignment.refresh_metadata()
    until(lambda: all(queue.topic_id not in (None, before[tp]) for tp, queue in engine.buffer.queues.items()), 60)


@pytest.mark.parametrize("how", ["messages", "arrow", "spans"])
def test_a_loop_that_has_messages_in_flight(broker: MemoryBroker, open_store: Opener, database: Path, how: str) -> None:
    """They are stored as what they are, messages of the old topic, and the new one's from its beginning on."""
    if how == "arrow":
        pytest.importorskip("pyarrow")
    store = open_store()

    def take(consumer: Any) -> Any:
        return consumer.consume_arrow(50) if how == "arrow" else consumer.consume_batch(10, 50) or None

    def keep(batch: Any) -> None:
        found = batch.column("value").to_pylist() if how == "arrow" else [m.value for m in batch]
        with store.transaction(spans_of(batch) if how == "spans" else batch) as handle:
            handle.executemany("insert into results values (?)", [(int(value),) for value in found])

    with consumer_of(broker, auto_offset_reset="earliest", fetch_min_bytes=1) as consumer:
        store.attach(consumer)
        in_flight = until(lambda: take(consumer), 60)
        anew_and_noticed(broker, consumer)
        keep(in_flight)
        old = values(database)
        assert old
        assert set(old) <= set(range(COUNT))

        def done() -> bool:
            batch = take(consumer)
            if batch is not None:
                keep(batch)
            return len(values(database)) >= len(old) + len(NEW)

        until(done, 60)
    assert values(database) == [*old, *NEW]


def test_what_was_in_flight_comes_too_late(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    """Another thread has stored of the new topic meanwhile."""
    store = open_store()
    with consumer_of(broker, auto_offset_reset="earliest") as consumer:
        store.attach(consumer)
        late = until(lambda: consumer.consume_batch(10, 50), 60)
        anew_and_noticed(broker, consumer)
        store_until(consumer, store, database, NEW)
        with pytest.raises(FencedStoreError, match="which was deleted"):
            store.save(late, insert)
    assert values(database) == NEW


@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_run_goes_on(broker: MemoryBroker, open_store: Opener, database: Path, tasks: bool, protocol: str) -> None:
    store = open_store()
    consumer = consumer_of(broker, auto_start=False, group_protocol=protocol, auto_offset_reset="earliest")
    store.attach(consumer)
    consumer.start()

    going = begin_run(consumer, lambda batch: store.save(batch, insert), tasks, batch=(7, 10), workers=2)
    try:
        until(lambda: going.error or len(values(database)) >= COUNT, 60)
        anew_and_noticed(broker, consumer)
        until(lambda: going.error or len(values(database)) >= len(ALL), 60)
    finally:
        going.stop()
    assert going.error is None
    assert values(database) == ALL


class Outdated(Losing):
    """A consumer whose metadata is old: it learns of the new topic when it asks again."""

    def __init__(self, old: bytes, new: bytes) -> None:
        super().__init__()
        self.old, self.new = old, new
        self.sought: dict[TopicPartition, int] = {}
        self.anew: list[TopicPartition] = []

    @property
    def topic_ids(self) -> Any:
        return self

    def of(self, tps: Any) -> dict[TopicPartition, bytes | None]:
        return dict.fromkeys(tps, self.old)

    def look_again(self, tps: Any) -> dict[TopicPartition, bytes | None]:
        self.old = self.new
        return self.of(tps)

    def begin_anew(self, tp: TopicPartition, _why: str) -> None:
        self.anew.append(tp)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.sought[tp] = offset


@pytest.mark.parametrize("knows", [True, False])
def test_old_metadata_do_not_make_the_stores_offset_old(open_store: Opener, knows: bool) -> None:
    before, tp = open_store(), TopicPartition("orders", 0)
    before.tell_topics("billing", {tp: plain.NEW})
    before.claim("billing", [tp], 0, "m0")
    before.save(plain.messages(0, 5, plain.NEW), lambda *_: None)
    consumer, store = Outdated(plain.OLD, plain.NEW if knows else plain.OLD), open_store()
    store.attach(consumer)
    assert consumer.sought == ({tp: 5} if knows else {})
    assert consumer.anew == ([] if knows else [tp])
    # Its messages say which topic it is.
    consumer.old = plain.NEW
    store.save(plain.messages(3, 7, plain.NEW), lambda *_: None)
    assert store.claimed("billing") == {tp: 7}


# A classic leader learns of the new topic with its next look at the metadata.
@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.slow), "consumer"])
def test_a_topic_that_was_gone_for_a_while(
    broker: MemoryBroker, open_store: Opener, database: Path, protocol: str
) -> None:
    """Its partitions went, and come back as those of another topic."""
    store = open_store()
    options: Any = {"group_protocol": protocol, "heartbeat_interval_ms": 50, "auto_offset_reset": "earliest"}
    with consumer_of(broker, **options) as consumer:
        store.attach(consumer)
        store_until(consumer, store, database, list(range(COUNT)))
        broker.delete_topic("orders")
        consumer._session.engine.assignment.refresh_metadata()
        until(lambda: not consumer.consume_batch(7, 20) and not consumer.partitions, 60)
        broker.create_topic("orders", 2)
        broker.produce("orders", [b"%d" % n for n in NEW])
        consumer._session.engine.assignment.refresh_metadata()
        store_until(consumer, store, database, ALL)
