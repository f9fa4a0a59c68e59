"""Who keeps a consumer alive: an iterator over it, its bound ``consume``. Nobody else; then it goes without a trace."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

# Most of these start a program of their own, or wait for the end of a session.
pytestmark = pytest.mark.slow

COUNT = 40
broker = memory_broker({"orders": 1}, [b"%d" % n for n in range(COUNT)])


def simple(broker: MemoryBroker, **more: Any) -> Any:
    return SimpleConsumer("orders", broker.bootstrap, **{"consumer_timeout_ms": 5000, **more})


def managed(broker: MemoryBroker, **more: Any) -> Any:
    return ManagedBalancedConsumer("orders", broker.bootstrap, "g", **{"consumer_timeout_ms": 5000, **more})


def of_a_client(broker: MemoryBroker, **more: Any) -> Any:
    return KafkaClient(hosts=broker.bootstrap).topics["orders"].get_simple_consumer(consumer_timeout_ms=5000, **more)


def first_of_bound(consumer: Any) -> Iterator[Any]:
    return iter(consumer.consume, None)


def calls_of_bound(consumer: Any) -> Iterator[Any]:
    consume = consumer.consume
    del consumer
    while True:
        yield consume()


@pytest.mark.parametrize("make", [simple, managed, of_a_client])
@pytest.mark.parametrize("read", [iter, first_of_bound, calls_of_bound])
@pytest.mark.parametrize("deserializer", [None, lambda value, key: (value, key)], ids=["plain", "deserializer"])
def test_what_reads_keeps_the_consumer(
    broker: MemoryBroker, make: Callable[..., Any], read: Callable[[Any], Iterator[Any]], deserializer: Any
) -> None:
    messages = read(make(broker, deserializer=deserializer))
    got = []
    for _ in range(COUNT):
        got.append(next(messages).offset)
        if len(got) in (1, 20):
            gc.collect()
    assert got == list(range(COUNT))


@pytest.mark.parametrize("make", [simple, managed])
def test_a_loop_over_a_temporary_goes_on_while_messages_come(broker: MemoryBroker, make: Callable[..., Any]) -> None:
    got = []
    for message in make(broker, consumer_timeout_ms=-1):
        got.append(message.offset)
        if len(got) % COUNT == 0:
            gc.collect()
            if len(got) == 3 * COUNT:
                break
            broker.produce("orders", [b""] * COUNT)
    assert got == list(range(3 * COUNT))


def test_async_for_over_a_temporary(broker: MemoryBroker) -> None:
    async def main() -> list[int]:
        got = []
        async for message in simple(broker):
            got.append(message.offset)
            gc.collect()
            if len(got) == COUNT:
                break
        return got

    assert asyncio.run(main()) == list(range(COUNT))


@pytest.mark.parametrize("make", [simple, managed])
def test_the_last_reference_is_the_end_without_a_garbage_collection(
    broker: MemoryBroker, make: Callable[..., Any]
) -> None:
    """In an idle program the collector may not run for hours, and the member would keep its partitions."""
    gc.disable()
    try:
        consumer = make(broker)
        gone, messages = weakref.ref(consumer), iter(consumer)
        next(messages), consumer.consume()
        del consumer
        assert gone() is not None
        del messages
        until(lambda: gone() is None)  # the membership worker has it for a moment, now and then
        until(lambda: broker.members("g") == [])
    finally:
        gc.enable()


def belongings() -> tuple[int, int]:
    gc.collect()
    engines = sum(isinstance(each, Engine) for each in gc.get_objects())
    return engines, sum(thread.name.startswith("managedconsumer.") for thread in threading.enumerate())


def forget(broker: MemoryBroker, count: int) -> None:
    before = belongings()
    for n in range(count):
        consumer = [simple, managed][n % 2](broker)
        assert next(iter(consumer)).offset >= 0
        del consumer
        if n % 20 == 19:
            until(lambda: belongings()[1] <= before[1] + 10)
    until(lambda: all(now <= then for now, then in zip(belongings(), before, strict=True)))
    until(lambda: broker.members("g") == [])


def test_forgotten_consumers_leave_nothing(broker: MemoryBroker) -> None:
    forget(broker, 6)


@pytest.mark.soak
def test_a_thousand_forgotten_consumers_leave_nothing(broker: MemoryBroker) -> None:
    forget(broker, 1000)


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
@pytest.mark.parametrize("method", ["__enter__", "__aenter__"])
def test_with_keeps_the_type(kind: Any, method: str) -> None:
    """What ``as`` names has the methods of the consumer for a type checker, too."""
    entered = getattr(kind, method).__annotations__
    assert entered["self"] == entered["return"] == "Me"
