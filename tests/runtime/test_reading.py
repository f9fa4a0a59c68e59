"""What stands between the decoder and the user is never passed by."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from managedconsumer import Message, SimpleConsumer
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
