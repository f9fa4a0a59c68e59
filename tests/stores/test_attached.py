"""A consumer with a store: it goes on where the store says, and a zombie's transaction is refused."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Message, SimpleConsumer, TopicPartition
from managedconsumer.errors import CommitFailedError, ConfigurationError, FencedInstanceId
from managedconsumer.stores import FencedStoreError, SQLStore
from managedconsumer.testing import MemoryBroker
from tests.waiting import until

COUNT = 60


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 2}) as made:
        made.produce("orders", [b"%d" % n for n in range(COUNT)])
        yield made


@pytest.fixture
def open_store(database: Path) -> Iterator[Callable[[], SQLStore]]:
    with sqlite3.connect(database) as connection:
        connection.execute("create table results (value integer)")
    connection.close()
    made = []

    def make() -> SQLStore:
        made.append(SQLStore(lambda: sqlite3.connect(database)))
        return made[-1]

    yield make
    for store in made:
        store.close()


def values(database: Path) -> list[int]:
    connection = sqlite3.connect(database)
    found = [value for (value,) in connection.execute("select value from results order by value")]
    connection.close()
    return found


def consumer_of(broker: MemoryBroker, **more: Any) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer("orders", broker.bootstrap, "billing", **{"consumer_timeout_ms": 50, **more})


def insert(handle: Any, messages: list[Any]) -> None:
    handle.executemany("insert into results values (?)", [(int(m.value),) for m in messages])


def store_some(consumer: Any, store: SQLStore, most: int = 10) -> int:
    """Read a batch and store it; how many messages that were."""
    batch = consumer.consume_batch(most, 50)
    if batch:
        with store.transaction(batch) as handle:
            insert(handle, batch)
    return len(batch)


def go_on(consumer: Any, store: SQLStore, most: int = 10) -> None:
    """:func:`store_some`, as a program does it: the store may know of an eviction before the consumer does."""
    try:
        store_some(consumer, store, most)
    except FencedStoreError:
        pass


def store_all(consumer: Any, store: SQLStore, database: Path) -> None:
    def done() -> bool:
        go_on(consumer, store)
        return len(values(database)) >= COUNT

    until(done, 60)


@pytest.mark.parametrize("auto_start", [True, False])
def test_a_restart_goes_on_where_the_store_says(
    broker: MemoryBroker, open_store: Callable[[], SQLStore], database: Path, auto_start: bool
) -> None:
    store = open_store()
    with consumer_of(broker, auto_start=auto_start) as consumer:
        store.attach(consumer)
        consumer.start()
        until(lambda: store_some(consumer, store))
        consumer.consume_batch(10, 50)  # read, and not stored
    assert broker.committed("billing") == {}
    store = open_store()
    with consumer_of(broker) as consumer:
        store.attach(consumer)
        store_all(consumer, store, database)
    assert values(database) == list(range(COUNT))


@pytest.mark.parametrize("lone", [False, True])
def test_what_a_refused_transaction_had_of_other_partitions_is_handed_out_again(
    broker: MemoryBroker, open_store: Callable[[], SQLStore], database: Path, lone: bool
) -> None:
    """Another owner claims one of the partitions before the consumer knows of it."""
    store, first = open_store(), TopicPartition("orders", 0)
    consumer: Any = SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=50) if lone else consumer_of(broker)
    with consumer:
        until(lambda: len(consumer.partitions) == 2)
        store.attach(consumer, group="billing")
        batch: list[Message] = []
        until(lambda: batch.extend(consumer.consume_batch(10, 50)) or len({m.partition_id for m in batch}) == 2)
        open_store().claim("billing", [first], 1000, "the next owner")
        with pytest.raises(FencedStoreError) as raised, store.transaction(batch) as handle:
            insert(handle, batch)
        assert raised.value.partitions == (first,)
        begin = until(lambda: next((m for m in consumer.consume_batch(1, 50) if m.partition_id == 1), None))
        assert begin.offset == 0
        store.save([begin], insert)
    assert values(database) == [int(begin.value)]


class Worker:
    """A member in a thread of its own."""

    def __init__(self, broker: MemoryBroker, store: SQLStore) -> None:
        self.consumer = consumer_of(broker, auto_start=False, heartbeat_interval_ms=100)
        self.store = store
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        with self.consumer:
            self.store.attach(self.consumer)
            self.consumer.start()
            while not self.over.is_set():
                go_on(self.consumer, self.store, 2)

    def leave(self) -> None:
        self.over.set()
        self.thread.join(60)


@pytest.mark.parametrize("evicted", [False, True])
def test_members_that_come_and_go(
    broker: MemoryBroker, open_store: Callable[[], SQLStore], database: Path, evicted: bool
) -> None:
    """Also where the group evicts both at work, as it does with a process that is starved for its session time-out."""
    first, second = Worker(broker, open_store()), Worker(broker, open_store())
    try:
        until(lambda: len(first.store.claimed("billing")) == len(second.store.claimed("billing")) == 1, 60)
        broker.produce("orders", [b"%d" % n for n in range(COUNT, 2 * COUNT)])
        if evicted:
            broker.evict("billing")
        second.leave()
        assert second.store.claimed("billing") == {}
        until(lambda: len(values(database)) >= 2 * COUNT, 60)
    finally:
        first.leave()
        second.leave()
    assert values(database) == list(range(2 * COUNT))


class Losing:
    """A member that loses a partition while the store looks where it is."""

    group, generation_id = "billing", 1
    listener: Any = None

    def __init__(self) -> None:
        self.keys = [TopicPartition("orders", 0), TopicPartition("orders", 1)]

    @property
    def partitions(self) -> dict[int, Any]:
        return {key.partition: SimpleNamespace(key=key, id=key.partition) for key in self.keys}

    @property
    def consumer_id(self) -> bytes:
        del self.keys[1:]
        return b"m1"

    def keep_order(self, _why: str, _moved_on: Any = None) -> None:
        """It does not run."""

    def seek(self, _tp: TopicPartition, _offset: int) -> None:
        """It reads on from there."""


def test_what_is_taken_away_while_a_store_is_attached_is_not_claimed(open_store: Callable[[], SQLStore]) -> None:
    """The listener was not there when the partition went."""
    store, consumer = open_store(), Losing()
    store.attach(consumer)
    assert list(store.claimed("billing")) == [TopicPartition("orders", 0)]
    consumer.keys = [TopicPartition("orders", 5)]  # the next assignment
    consumer.listener.on_partitions_assigned(consumer.keys)
    assert list(store.claimed("billing")) == [TopicPartition("orders", 5)]


class Evicted(Losing):
    """A member of which its group knows nothing any more."""

    def position(self, _tp: TopicPartition) -> int:
        return 0

    def commit_offsets(self, _offsets: Any) -> None:
        raise CommitFailedError("this consumer is not a member of the group at present")


def test_a_zombie_that_claims_is_fenced(open_store: Callable[[], SQLStore]) -> None:
    """It was told of an assignment, stood still, and somebody else has claimed since."""
    heir, tp = open_store(), TopicPartition("orders", 0)
    heir.claim("billing", [tp], 2, "heir")
    with pytest.raises(FencedStoreError, match="Kafka does not confirm generation 1: this consumer is not") as raised:
        open_store().attach(Evicted())
    assert tp in raised.value.partitions
    heir.save([Message(b"0", offset=0, topic="orders", partition_id=0)], insert)


def test_a_zombies_transaction_is_refused(
    broker: MemoryBroker, open_store: Callable[[], SQLStore], database: Path
) -> None:
    zombies, heirs = open_store(), open_store()
    with consumer_of(broker) as zombie:
        zombies.attach(zombie)
        batch = until(lambda: zombie.consume_batch(20, 50))
        broker.evict("billing")
        with consumer_of(broker, auto_start=False, consumer_timeout_ms=500) as heir:
            heirs.attach(heir)
            heir.start()
            until(lambda: store_some(heir, heirs))
        with pytest.raises(FencedStoreError) as raised, zombies.transaction(batch) as handle:
            insert(handle, batch)
        assert {tp.topic for tp in raised.value.partitions} == {"orders"}
        store_all(zombie, zombies, database)  # it is a member again
    assert values(database) == list(range(COUNT))


def test_without_the_fence_it_would_count_twice(broker: MemoryBroker, database: Path) -> None:
    """The control: the same zombie with offsets in Kafka."""
    connection = sqlite3.connect(database)
    connection.execute("create table results (value integer)")
    with consumer_of(broker) as zombie:
        batch = until(lambda: zombie.consume_batch(20, 50))
        broker.evict("billing")
        zombie.stop()  # else it may have joined again, and be the owner, before its heir has read anything
        again: list[Any] = []
        with consumer_of(broker) as heir:
            until(lambda: again.extend(heir.consume_batch(20, 50)) or len(again) == COUNT)
        for messages in (again, batch):
            insert(connection, messages)
    connection.commit()
    connection.close()
    assert values(database) == sorted([*range(COUNT), *(int(message.value) for message in batch)])


class Listener:
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.told.append("assigned")

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.told.append("revoked")


def test_the_users_own_listener_is_called(broker: MemoryBroker, open_store: Callable[[], SQLStore]) -> None:
    listener = Listener()
    with consumer_of(broker, listener=listener, auto_start=False) as consumer:
        open_store().attach(consumer)
        consumer.start()
        until(lambda: consumer.consume() is not None)
    assert listener.told == ["assigned", "revoked"]


def test_a_listener_with_coroutines_is_awaited(broker: MemoryBroker, open_store: Callable[[], SQLStore]) -> None:
    import asyncio

    told = []

    class Coroutines:
        async def on_partitions_assigned(self, assigned: Any) -> None:
            await asyncio.sleep(0)
            told.append("assigned")

        async def on_partitions_revoked(self, revoked: Any) -> None:
            told.append("revoked")

    store = open_store()

    async def main() -> None:
        with consumer_of(broker, listener=Coroutines(), auto_start=False) as consumer:
            store.attach(consumer)
            consumer.start()
            async for message in consumer:
                store.save([message], insert)
                break

    asyncio.run(main())
    assert told == ["assigned", "revoked"]


def test_a_group_that_was_deleted(open_store: Callable[[], SQLStore], database: Path) -> None:
    """Its generations begin at 1 again: Kafka is asked who the member is."""
    store = open_store()
    tps = [TopicPartition("orders", n) for n in range(2)]
    store.claim("billing", tps, 57, "a member of the group before")
    store.save([], insert)
    with MemoryBroker({"orders": 2}) as broker:
        broker.produce("orders", [b"%d" % n for n in range(COUNT)])
        fresh = open_store()
        with consumer_of(broker) as consumer:
            fresh.attach(consumer)
            store_all(consumer, fresh, database)
    assert values(database) == list(range(COUNT))


def test_a_static_member_that_starts_again(
    broker: MemoryBroker, open_store: Callable[[], SQLStore], database: Path
) -> None:
    """It is given its partitions in the same generation, under a new member id; the one before is fenced."""
    old, new = open_store(), open_store()
    with consumer_of(broker, group_instance_id="one") as before:
        old.attach(before)
        until(lambda: store_some(before, old))
        in_flight = until(lambda: before.consume_batch(10, 50))
        generation = before.generation_id
        with consumer_of(broker, group_instance_id="one") as after:
            new.attach(after)
            assert after.generation_id == generation and after.consumer_id != before.consumer_id
            with pytest.raises(FencedStoreError), old.transaction(in_flight) as handle:
                insert(handle, in_flight)
            store_all(after, new, database)
        with pytest.raises(FencedInstanceId):
            until(lambda: before.consume() and False, 60.0)  # it hears of it with its next heartbeat
    assert values(database) == list(range(COUNT))


def test_a_simple_consumer(broker: MemoryBroker, open_store: Callable[[], SQLStore], database: Path) -> None:
    stores = [open_store(), open_store()]
    with SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=50) as first:
        with pytest.raises(ConfigurationError, match="group="):
            stores[0].attach(first)
        stores[0].attach(first, group="report")
        until(lambda: store_some(first, stores[0]))
        in_flight = until(lambda: first.consume_batch(10, 50))
        with SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=50) as second:
            stores[1].attach(second, group="report")
            with pytest.raises(FencedStoreError), stores[0].transaction(in_flight) as handle:
                insert(handle, in_flight)
            store_all(second, stores[1], database)
    assert values(database) == list(range(COUNT))


def test_a_loop_that_goes_on_after_an_error(
    broker: MemoryBroker, open_store: Callable[[], SQLStore], database: Path
) -> None:
    store = open_store()
    with consumer_of(broker) as consumer:
        store.attach(consumer)
        batch = until(lambda: consumer.consume_batch(20, 50))
        with pytest.raises(ZeroDivisionError), store.transaction(batch) as handle:
            insert(handle, batch)
            1 / 0  # noqa: B018
        store.rewind(consumer)
        store_all(consumer, store, database)
    assert values(database) == list(range(COUNT))
