"""What stands between the decoder and the user is never passed by."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from managedconsumer import Message, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker


class Countdown(SimpleConsumer):
    """A user's subclass with a ``consume()`` of its own."""

    left = 3

    def consume(self, block: bool = True, unblock_event: Any = None) -> Message | None:
        del block, unblock_event
        self.left -= 1
        return Message(b"%d" % self.left) if self.left >= 0 else None


def test_iterating_goes_through_a_subclass_consume() -> None:
    consumer = Countdown("orders", "127.0.0.1:1", auto_start=False)
    assert [message.value for message in consumer] == [b"2", b"1", b"0"]


def by_one(consumer: SimpleConsumer) -> None:
    assert consumer.consume().value == b"m0"  # type: ignore[union-attr]
    consumer.consume()


def in_batches(consumer: SimpleConsumer) -> None:
    assert [message.value for message in consumer.consume_batch()] == [b"m0"]
    consumer.consume_batch()


def on_a_loop(consumer: SimpleConsumer) -> None:
    async def run() -> None:
        async for message in consumer:
            assert message.value == b"m0"

    asyncio.run(run())


WAYS = [by_one, in_batches, on_a_loop]
PLACE = "orders-0 at offset 1"


def said(error: BaseException, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """The place is in a line of the log, and where Python has notes, in the error's."""
    text = f"raised by {what} for {PLACE}"
    if sys.version_info >= (3, 11):
        assert error.__notes__ == [text]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(line.startswith(text) and str(error) in line for line in lines), lines


@pytest.mark.parametrize("way", WAYS)
def test_what_a_deserializer_raises_names_the_record(
    way: Callable[[SimpleConsumer], None], caplog: pytest.LogCaptureFixture
) -> None:
    refused = LookupError("no such schema")

    def deserializer(value: bytes, key: bytes | None) -> tuple[bytes, bytes | None]:
        if value == b"m1":
            raise refused
        return value, key

    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"m0", b"m1", b"m2"])
        with SimpleConsumer(
            "orders", broker.bootstrap, deserializer=deserializer, consumer_timeout_ms=2000
        ) as consumer:
            with pytest.raises(LookupError) as caught:
                way(consumer)
            assert caught.value is refused
            said(refused, caplog, "the deserializer")
            with pytest.raises(LookupError):
                consumer.consume()  # the same message again
            said(refused, caplog, "the deserializer")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", ["ignore", None, ValueError("a bug")])
def test_what_on_error_may_return_is_said_where_it_returns_something_else(
    way: Callable[[SimpleConsumer], None], answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def deserializer(value: bytes, key: bytes | None) -> tuple[bytes, bytes | None]:
        if value == b"m1":
            raise LookupError("no such schema")
        return value, key

    def on_error(_error: Exception, _message: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    options: dict[str, Any] = {"deserializer": deserializer, "on_error": on_error, "consumer_timeout_ms": 2000}
    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"m0", b"m1", b"m2"])
        with SimpleConsumer("orders", broker.bootstrap, **options) as consumer:
            with pytest.raises(
                ValueError, match="a bug" if isinstance(answer, Exception) else "'raise' or 'skip'"
            ) as it:
                way(consumer)
            said(it.value, caplog, "on_error")
            assert isinstance(it.value, err.ConfigurationError) or it.value is answer
            assert consumer.position(0) == 1


@pytest.mark.parametrize("way", ["consume", "consume_batch"])
def test_a_message_that_is_handed_out_again_is_deserialized_once(way: str) -> None:
    """Ctrl-C when the deserializer is through, and before anybody has got the message."""

    def change(value: Any, key: Any) -> tuple[Any, Any]:
        return b"changed " + value, key

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "return" and frame.f_code is change.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"m0"])
        options: dict[str, Any] = {"deserializer": change, "consumer_timeout_ms": 2000}
        with SimpleConsumer("orders", broker.bootstrap, **options) as consumer:
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                with pytest.raises(KeyboardInterrupt):
                    getattr(consumer, way)()
            finally:
                sys.settrace(before)
            message = consumer.consume()
            assert message is not None
            assert message.value == b"changed m0"
