"""What stands between the decoder and the user is never passed by."""

from __future__ import annotations

from typing import Any

from managedconsumer import Message, SimpleConsumer


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
