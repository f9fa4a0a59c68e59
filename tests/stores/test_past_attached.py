"""A consumer whose store has lost its last transactions: it reads them again, by itself, however it consumes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import SimpleConsumer, TopicPartition
from managedconsumer.errors import IllegalStateError, MessageFailedError
from managedconsumer.stores import FencedStoreError, SQLStore, StoreWentBackError
from managedconsumer.testing import MemoryBroker
from tests.processing.test_running import Going
from tests.stores.pasts import keep
from tests.stores.test_attached import COUNT, consumer_of, insert, values
from tests.stores.test_attached import broker as broker
from tests.stores.test_attached import open_store as open_store
from tests.stores.test_moved_on import begin_run
from tests.waiting import until

Opener = Callable[[], SQLStore]
MORE = 20


def fill(broker: MemoryBroker, first: int) -> None:
    broker.produce("orders", [b"%d" % n for n in range(first, first + MORE)])


def consume(consumer: Any, store: SQLStore, database: Path, count: int, *, how: str) -> list[Exception]:
    """A loop that goes on after errors, until so many results are there."""
    met: list[Exception] = []

    def done() -> bool:
        batch = consumer.consume_batch(7, 50)
        try:
            if batch and how == "save":
                store.save(batch, insert)
            elif batch:
                with store.transaction(batch) as handle:
                    insert(handle, batch)
        except FencedStoreError as error:
            met.append(error)
        return len(values(database)) >= count

    until(done, 60)
    return met


@pytest.mark.parametrize("how", ["save", "transaction"])
@pytest.mark.parametrize("lost", ["transactions", "the claims, too", "all"])
def test_a_loop_goes_on_where_the_store_is(
    broker: MemoryBroker, open_store: Opener, database: Path, how: str, lost: str
) -> None:
    store = open_store()
    store.load("billing", [TopicPartition("orders", 0)])
    back = keep("sqlite", str(database))
    with consumer_of(broker) as consumer:
        store.attach(consumer)
        if lost != "all":
            consume(consumer, store, database, COUNT, how=how)
            back = keep("sqlite", str(database))
            if lost == "the claims, too":
                generation = consumer.generation_id
                store.claim("billing", list(store.claimed("billing")), generation, consumer.consumer_id.decode())
        fill(broker, COUNT)
        consume(consumer, store, database, COUNT + MORE, how=how)
        back()
        fill(broker, COUNT + MORE)
        met = consume(consumer, store, database, COUNT + 2 * MORE, how=how)
    assert {type(error) for error in met} == {StoreWentBackError}
    assert values(database) == list(range(COUNT + 2 * MORE))


@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_run_goes_on_where_the_store_is(
    broker: MemoryBroker,
    open_store: Opener,
    database: Path,
    tasks: bool,
    protocol: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store()
    consumer = consumer_of(broker, auto_start=False, group_protocol=protocol)
    store.attach(consumer)
    consumer.start()

    going = begin_run(consumer, lambda batch: store.save(batch, insert), tasks, batch=(7, 10), workers=2)
    try:
        until(lambda: going.error or len(values(database)) >= COUNT, 60)
        back = keep("sqlite", str(database))
        fill(broker, COUNT)
        until(lambda: going.error or len(values(database)) >= COUNT + MORE, 60)
        with caplog.at_level(logging.WARNING):
            back()
            fill(broker, COUNT + MORE)
            until(lambda: going.error or len(values(database)) >= COUNT + 2 * MORE, 60)
    finally:
        going.stop()
    assert going.error is None
    assert values(database) == list(range(COUNT + 2 * MORE))
    assert "claimed again, and read on from there: group billing: the store went back" in caplog.text


def test_a_consumer_without_a_group(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    store = open_store()
    with SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=50) as consumer:
        store.attach(consumer, group="report")
        consume(consumer, store, database, COUNT, how="save")
        back = keep("sqlite", str(database))
        fill(broker, COUNT)
        consume(consumer, store, database, COUNT + MORE, how="save")
        back()
        fill(broker, COUNT + MORE)
        consume(consumer, store, database, COUNT + 2 * MORE, how="save")
    assert values(database) == list(range(COUNT + 2 * MORE))


def test_a_run_without_a_group(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    store = open_store()
    consumer = SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=50)
    store.attach(consumer, group="report")
    going = Going(consumer, lambda batch: store.save(batch, insert), order="partition", batch=(7, 10))
    until(lambda: going.error or len(values(database)) >= COUNT, 60)
    back = keep("sqlite", str(database))
    fill(broker, COUNT)
    until(lambda: going.error or len(values(database)) >= COUNT + MORE, 60)
    back()
    fill(broker, COUNT + MORE)
    until(lambda: going.error or len(values(database)) >= COUNT + 2 * MORE, 60)
    going.stop()
    assert (going.error, values(database)) == (None, list(range(COUNT + 2 * MORE)))


def test_a_batch_of_which_one_partition_went_back(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    """All of it was undone, so the other partition's messages are handed out again as well."""
    store = open_store()
    with consumer_of(broker) as consumer:
        store.attach(consumer)
        consume(consumer, store, database, COUNT, how="save")
        back = keep("sqlite", str(database))
        broker.produce("orders", [b"%d" % n for n in range(COUNT, COUNT + MORE)], partition=0)
        consume(consumer, store, database, COUNT + MORE, how="save")
        back()
        fill(broker, COUNT + MORE)
        batch: list[Any] = []
        until(lambda: batch.extend(consumer.consume_batch(MORE, 50)) or len(batch) == MORE)
        assert {message.partition_id for message in batch} == {0, 1}
        with pytest.raises(StoreWentBackError) as raised:
            store.save(batch, insert)
        assert list(raised.value.next_offsets) == [TopicPartition("orders", 0)]
        consume(consumer, store, database, COUNT + 2 * MORE, how="save")
    assert values(database) == list(range(COUNT + 2 * MORE))


def test_what_is_in_another_thread_s_hand_is_refused(broker: MemoryBroker, open_store: Opener, database: Path) -> None:
    store, single = open_store(), TopicPartition("orders", 0)
    with consumer_of(broker) as consumer:
        store.attach(consumer)
        consume(consumer, store, database, COUNT, how="save")
        back = keep("sqlite", str(database))
        broker.produce("orders", [b"%d" % n for n in range(COUNT, COUNT + MORE)], partition=0)
        consume(consumer, store, database, COUNT + MORE, how="save")
        back()
        broker.produce("orders", [b"%d" % n for n in range(COUNT + MORE, COUNT + 2 * MORE)], partition=0)
        in_flight = until(lambda: consumer.consume_batch(5, 50))
        theirs = until(lambda: consumer.consume_batch(5, 50))
        with pytest.raises(StoreWentBackError) as raised:
            store.save(in_flight, insert)
        assert list(raised.value.next_offsets) == [single]
        with pytest.raises(IllegalStateError, match="would be lost"):
            store.save(theirs, insert)
        consume(consumer, store, database, COUNT + 2 * MORE, how="save")
    assert values(database) == list(range(COUNT + 2 * MORE))


def test_messages_that_kafka_does_not_have_any_more_end_the_run(
    broker: MemoryBroker, open_store: Opener, database: Path
) -> None:
    """They are neither in the store nor in Kafka: to go on behind them is the user's decision."""
    store = open_store()
    consumer = consumer_of(broker, auto_start=False)
    store.attach(consumer)
    consumer.start()
    going = Going(consumer, lambda batch: store.save(batch, insert), order="partition", batch=(50, 10))
    until(lambda: len(values(database)) >= COUNT, 60)
    back = keep("sqlite", str(database))
    fill(broker, COUNT)
    until(lambda: len(values(database)) >= COUNT + MORE, 60)
    back()
    for number in range(2):
        broker.delete_records("orders", number, store.claimed("billing")[TopicPartition("orders", number)])
    fill(broker, COUNT + MORE)
    going.join()
    assert isinstance(going.error, MessageFailedError)
    assert isinstance(going.error.__cause__, IllegalStateError)
    assert "a new store object goes on behind them" in str(going.error)
    fresh = open_store()
    with consumer_of(broker) as again:
        fresh.attach(again)
        consume(again, fresh, database, COUNT + MORE, how="save")
    assert values(database) == [*range(COUNT), *range(COUNT + MORE, COUNT + 2 * MORE)]


def test_a_query_of_spark_is_told(open_store: Opener, database: Path) -> None:
    """It plans its batches by its own checkpoint: nobody can send it back."""
    import pyarrow as pa

    class Frame:
        def __init__(self, first: int, end: int) -> None:
            count = end - first
            self.data = {"topic": ["orders"] * count, "partition": [0] * count, "offset": list(range(first, end))}

        def toArrow(self) -> Any:
            return pa.table(self.data)

    store = open_store()
    store_batch = store.foreach_batch(
        lambda handle, table: handle.executemany(
            "insert into results values (?)", [(n,) for n in table.column("offset").to_pylist()]
        ),
        group="query",
    )
    store_batch(Frame(0, 10), 0)
    back = keep("sqlite", str(database))
    store_batch(Frame(10, 20), 1)
    back()
    for _ in range(2):  # Spark tries again
        with pytest.raises(IllegalStateError, match="of a Spark query put the checkpoint back"):
            store_batch(Frame(20, 30), 2)
    store_batch(Frame(10, 20), 1)
    store_batch(Frame(20, 30), 2)
    assert values(database) == list(range(30))
