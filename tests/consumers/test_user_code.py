"""What the user's own code raises comes out as itself, and says where it comes from."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import (
    AsyncConsumerRebalanceListener,
    ConsumerRebalanceListener,
    ManagedBalancedConsumer,
    SimpleConsumer,
)
from managedconsumer.errors import ConfigurationError
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker

broker = memory_broker({"orders": 2}, [b"good", b"bad", b"good"], [1])


class Mistake(Exception):
    """The user's own."""


def refuse_bad(value: bytes, key: Any) -> tuple[bytes, Any]:
    if value == b"bad":
        raise Mistake("what is this?")
    return value, key


def check(error: BaseException, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    """``expected`` is in the exception's notes, and in the log with the exception's text."""
    if sys.version_info >= (3, 11):
        assert expected in error.__notes__
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{expected}: {type(error).__name__}: {error}" in lines


def by_consume(consumer: Any) -> None:
    while consumer.consume() is not None:
        pass


def by_iteration(consumer: Any) -> None:
    list(consumer)


def by_batches(consumer: Any) -> None:
    while consumer.consume_batch(10, 1000):
        pass


def by_async_for(consumer: Any) -> None:
    async def read() -> None:
        async for _ in consumer:
            pass

    asyncio.run(read())


@pytest.mark.parametrize("read", [by_consume, by_iteration, by_batches, by_async_for])
@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_deserializer(
    kind: Any, read: Callable[[Any], None], broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with kind("orders", broker.bootstrap, "g", deserializer=refuse_bad, consumer_timeout_ms=1000) as consumer:
        with pytest.raises(Mistake) as caught:
            read(consumer)
        check(caught.value, "raised by the deserializer for orders-1 at offset 1", caplog)
        with pytest.raises(Mistake):
            consumer.consume()  # the same message again


@pytest.mark.parametrize("read", [by_consume, by_batches, by_async_for])
@pytest.mark.parametrize("answer", ["ignore", None, True, "SKIP", Mistake("a bug")])
def test_an_answer_of_on_error_that_means_nothing(
    answer: Any, read: Callable[[Any], None], broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def on_error(_error: Exception, _message: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    options: Any = {"deserializer": refuse_bad, "on_error": on_error, "consumer_timeout_ms": 1000}
    with SimpleConsumer("orders", broker.bootstrap, **options) as consumer:
        with pytest.raises((ConfigurationError, Mistake)) as caught:
            read(consumer)
        if isinstance(answer, Exception):
            assert caught.value is answer
        else:
            assert str(caught.value) == f"what on_error returns must be 'raise' or 'skip', not {answer!r}"
            assert isinstance(caught.value.__cause__, Mistake)
        check(caught.value, "raised by on_error for orders-1 at offset 1", caplog)
        assert consumer.position(1) == 1  # nothing was skipped


class Failing(ConsumerRebalanceListener):
    """Cannot set up what it needs."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to do."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        raise Mistake("no database")


class FailingAsync(AsyncConsumerRebalanceListener):
    """The same."""

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to do."""

    async def on_partitions_assigned(self, assigned: Any) -> None:
        await asyncio.sleep(0)
        raise Mistake("no database")


@pytest.mark.parametrize("listener", [Failing, FailingAsync])
@pytest.mark.parametrize("read", [by_consume, by_async_for])
def test_a_listener(
    listener: Any, read: Callable[[Any], None], broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    options: Any = {"listener": listener(), "consumer_timeout_ms": 1000, "auto_start": False}
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", **options)
    with consumer, pytest.raises(Mistake) as caught:
        read(consumer)
    check(caught.value, "raised by the listener's on_partitions_assigned(orders-0, orders-1)", caplog)


def test_a_post_rebalance_callback(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    def callback(consumer: Any, old: Any, new: Any) -> None:
        raise Mistake("no database")

    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", post_rebalance_callback=callback)
    with consumer, pytest.raises(Mistake) as caught:
        consumer.consume()
    check(caught.value, "raised by post_rebalance_callback, old={}, new={0: -2, 1: -2}", caplog)
