"""A store fences a member: run() goes on where the group has moved the partitions, and ends where a stranger claims."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.errors import MessageFailedError
from managedconsumer.stores import FencedStoreError, SQLStore
from managedconsumer.testing import MemoryBroker
from tests.processing.test_running import Going
from tests.stores.test_attached import COUNT, consumer_of, insert, store_some, values
from tests.stores.test_attached import broker as broker
from tests.stores.test_attached import open_store as open_store
from tests.waiting import until

# Members wait for each other.
pytestmark = pytest.mark.slow

Opener = Callable[[], SQLStore]


class Heir:
    """Another member of the group, which stores until it is told to leave."""

    def __init__(self, broker: MemoryBroker, store: SQLStore) -> None:
        self.store = store
        self.consumer = consumer_of(broker, auto_start=False, heartbeat_interval_ms=50)
        self.over, self.begun = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Returns when it has stored something."""
        self.thread.start()
        assert self.begun.wait(60)

    def _work(self) -> None:
        self.store.attach(self.consumer)
        with self.consumer:
            while not self.over.is_set():
                try:
                    if store_some(self.consumer, self.store, 2):
                        self.begun.set()
                except FencedStoreError:  # the one that was evicted is back
                    pass

    def leave(self) -> None:
        self.over.set()
        if self.thread.ident is not None:
            self.thread.join(60)


@pytest.fixture
def heir(broker: MemoryBroker, open_store: Opener) -> Iterator[Heir]:
    made = Heir(broker, open_store())
    yield made
    made.leave()


def begin_run(consumer: Any, handler: Callable[[Any], Any], tasks: bool, **options: Any) -> Going:
    """A run by partition in a thread of its own, whose handler works there, or as a task for another thread."""
    if not tasks:
        return Going(consumer, handler, order="partition", **options)

    async def handle(messages: Any) -> None:
        await asyncio.to_thread(handler, messages)

    return Going(consumer, handle, order="partition", on="asyncio", **options)


def goes_on(going: Going, heir: Heir, broker: MemoryBroker, database: Path) -> None:
    """The heir stores what is there and leaves; the run stores what comes after that. Each message counts once."""
    until(lambda: going.error or len(values(database)) >= COUNT, 60)
    heir.leave()
    broker.produce("orders", [b"%d" % n for n in range(COUNT, 2 * COUNT)])
    until(lambda: going.error or len(values(database)) >= 2 * COUNT, 60)
    going.stop()
    assert going.error is None
    assert values(database) == list(range(2 * COUNT))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
def test_a_zombie_s_run_goes_on(
    broker: MemoryBroker, open_store: Opener, database: Path, heir: Heir, protocol: str, tasks: bool
) -> None:
    """It is evicted while its handler works, and the heir has stored those messages before it hears of it."""
    store, met = open_store(), []
    consumer = consumer_of(broker, auto_start=False, group_protocol=protocol, heartbeat_interval_ms=30_000)
    heir.consumer = consumer_of(broker, auto_start=False, group_protocol=protocol, heartbeat_interval_ms=50)
    store.attach(consumer)
    consumer.start()

    def handle(batch: list[Message]) -> None:
        if not met:
            met.append(batch)
            broker.evict("billing")
            heir.start()
        store.save(batch, insert)

    dead: list[Message] = []
    going = begin_run(
        consumer, handle, tasks, batch=(3, 5), workers=1, on_dead=lambda message, _error: dead.append(message)
    )
    goes_on(going, heir, broker, database)
    assert dead == []


@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
def test_a_claim_that_comes_too_late_ends_no_run(
    broker: MemoryBroker, open_store: Opener, database: Path, heir: Heir, tasks: bool
) -> None:
    """The member stands still between its assignment and its claim."""
    store, met = open_store(), []
    claim = store.claim

    def late(*args: Any, **options: Any) -> None:
        if not met:
            met.append(args)
            broker.evict("billing")
            heir.start()
        claim(*args, **options)

    store.claim = late  # type: ignore[method-assign]
    consumer = consumer_of(broker, auto_start=False, heartbeat_interval_ms=50)
    store.attach(consumer)
    going = _starting(consumer, lambda batch: store.save(batch, insert), tasks)
    goes_on(going, heir, broker, database)


def _starting(consumer: Any, handler: Callable[[Any], Any], tasks: bool) -> Going:
    consumer.start()
    return begin_run(consumer, handler, tasks, batch=(3, 5), workers=2)


@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
def test_a_stranger_s_claim_ends_the_run(broker: MemoryBroker, open_store: Opener, database: Path, tasks: bool) -> None:
    """Kafka says that the member has its partitions: somebody outside of the group uses its rows."""
    store, stranger = open_store(), open_store()
    consumer = consumer_of(broker, auto_start=False)
    store.attach(consumer)
    consumer.start()

    def handle(batch: list[Message]) -> None:
        stranger.claim("billing", [TopicPartition("orders", n) for n in range(2)], 1000, "stranger")
        store.save(batch, insert)

    going = begin_run(consumer, handle, tasks, batch=(3, 5), workers=1)
    going.join()
    assert isinstance(going.error, MessageFailedError)
    assert isinstance(going.error.__cause__, FencedStoreError)
    assert "were claimed by stranger" in str(going.error)
    assert values(database) == []


def test_a_handler_that_fails_after_its_partition_was_given_up_ends_nothing(
    broker: MemoryBroker, open_store: Opener, database: Path, heir: Heir
) -> None:
    """It takes longer than the group waits for it."""
    store, first = open_store(), threading.Barrier(2)
    consumer = consumer_of(broker, auto_start=False, revoke_drain_ms=10, heartbeat_interval_ms=20)
    store.attach(consumer)
    consumer.start()
    met: set[int] = set()

    def handle(batch: list[Message]) -> None:
        number = batch[0].partition_id
        if number not in met:
            met.add(number)
            if first.wait(60) == 0:  # both partitions are worked on, and the heir gets one of them
                heir.start()
            assert heir.begun.wait(60)
        store.save(batch, insert)

    dead: list[Message] = []
    going = begin_run(
        consumer, handle, False, batch=(3, 5), workers=2, on_dead=lambda message, _error: dead.append(message)
    )
    until(lambda: going.error or len(values(database)) >= COUNT, 60)
    going.stop()
    assert (going.error, dead) == (None, [])
    assert values(database) == list(range(COUNT))


@pytest.mark.parametrize("why", ["another object", "another listener"])
def test_a_handler_whose_store_has_claimed_nothing_is_not_called_for_ever(
    broker: MemoryBroker, open_store: Opener, why: str
) -> None:
    attached = open_store()
    store = attached if why == "another listener" else open_store()
    consumer = consumer_of(broker, auto_start=False)
    attached.attach(consumer)
    if why == "another listener":
        consumer.listener = None
    consumer.start()
    going = begin_run(consumer, lambda batch: store.save(batch, insert), False, batch=(3, 5))
    going.join()
    assert isinstance(going.error, MessageFailedError)
    assert "nothing is claimed by this store object" in str(going.error)
