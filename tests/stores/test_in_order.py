"""A store has one next offset for a partition: what would be stored out of order is refused, and never left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Message, Retry, SimpleConsumer
from managedconsumer.errors import ConfigurationError, IllegalStateError
from managedconsumer.processing import offset_map
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.stores import SQLStore
from managedconsumer.structs import OffsetAndMetadata
from managedconsumer.testing import MemoryBroker
from tests.processing.test_running import Going
from tests.stores.conftest import TP, messages
from tests.stores.test_attached import COUNT, consumer_of, insert, values
from tests.stores.test_attached import broker as broker
from tests.stores.test_attached import open_store as open_store
from tests.waiting import until

Opener = Callable[[], SQLStore]


@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("kind", [ManagedBalancedConsumer, SimpleConsumer])
def test_run_in_another_order_is_refused(broker: MemoryBroker, open_store: Opener, kind: Any, order: str) -> None:
    with kind("orders", broker.bootstrap, "billing") as consumer:
        open_store().attach(consumer)
        with pytest.raises(ConfigurationError, match=r'Use run\(order="partition"\)'):
            consumer.run(lambda _message: None, order=order)
        with pytest.raises(ConfigurationError, match="a store is attached"):
            consumer.run(_coroutine, order=order, on="asyncio")


async def _coroutine(_message: Message) -> None:
    """A handler."""


@pytest.mark.parametrize("order", ["partition", "time"])
def test_run_in_order_with_retries_and_dead_letters(
    order: str, broker: MemoryBroker, open_store: Opener, database: Path
) -> None:
    store = open_store()
    failures, dead = [], []  # type: ignore[var-annotated]

    def handle(batch: list[Message]) -> None:
        store.save(batch, write)

    def write(handle: Any, batch: list[Message]) -> None:
        insert(handle, batch)
        if any(m.value == b"7" for m in batch) or len(failures) < 3:
            failures.append(len(batch))
            raise ValueError("no luck")

    def bury(message: Message, error: BaseException) -> None:
        store.save([message], insert)
        dead.append(message.value)

    consumer = consumer_of(broker, auto_start=False)
    store.attach(consumer)
    consumer.start()
    going = Going(
        consumer,
        handle,
        order=order,
        batch=(5, 10),
        workers=2,
        retry=Retry(attempts=4, first_ms=1),
        on_dead=bury,
    )
    until(lambda: len(values(database)) >= COUNT, 60)
    summary = going.stop()
    assert going.error is None
    assert values(database) == list(range(COUNT))
    assert b"7" in dead and summary.dead == len(dead) <= 5


def test_what_comes_after_later_messages_is_not_left_out_silently(open_store: Opener, database: Path) -> None:
    """Two threads: the one with the later batch is faster."""
    store = open_store()
    store.claim("billing", [TP], 1, "member")
    store.save(messages(0, 5), insert)
    store.save(messages(10, 15), insert)
    with pytest.raises(IllegalStateError, match="offset 5 comes after later ones, and the store is at 15"):
        store.save(messages(5, 10), insert)
    with pytest.raises(IllegalStateError, match="was not stored"), store.transaction(messages(5, 10)):
        raise AssertionError("the block must not run")
    store.save(messages(10, 16), insert)  # those are stored
    assert values(database) == [*range(5), *range(10, 16)]


def test_what_an_earlier_run_without_the_store_has_finished_is_not_passed_over(
    broker: MemoryBroker, open_store: Opener, database: Path
) -> None:
    """Its map is about messages that are not in the store."""
    store = open_store()
    store.claim("billing", [TP], 1, "somebody")
    before = list(broker.messages("orders", 0))[:3]
    store.save(before, insert)
    with consumer_of(broker) as consumer:
        text = offset_map.encode(OffsetMap((3,), 10, 0), 3)
        metadata = offset_map.with_map('{"hostname": "h"}', text)
        consumer.commit_offsets({TP: OffsetAndMetadata(3, metadata)})
    store = open_store()
    consumer = consumer_of(broker, auto_start=False)
    store.attach(consumer)
    consumer.start()
    going = Going(consumer, lambda batch: store.save(batch, insert), order="partition", batch=(50, 5))
    until(lambda: len(values(database)) >= COUNT, 60)
    going.stop()
    assert values(database) == list(range(COUNT))
