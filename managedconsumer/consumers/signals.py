"""``stop_on_signals``: SIGTERM and SIGINT end the loop after the present message, instead of in its middle."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from types import FrameType
from typing import Any, Iterator, Protocol

from managedconsumer.errors import IllegalStateError

__all__ = ["stop_on_signals"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending(Protocol):
    """A consumer."""

    def end_soon(self) -> None:
        """End reading; takes no lock and does not wait."""


@contextmanager
def stop_on_signals(*consumers: Ending) -> Iterator[None]:
    """On SIGTERM or SIGINT let each thread finish its message in flight, then end iteration without an exception.

    ::

        with ManagedBalancedConsumer(topic, hosts, group, auto_commit_enable=True) as consumer:
            with stop_on_signals(consumer):
                for message in consumer:
                    process(message)

    After the signal, a thread (greenlet, task) that calls for its next message has finished its last one, and gets None
    (from ``consume()`` and ``consume_arrow()``), an empty list (``consume_batch()``) or the end of its iteration; one
    that waits for a message gets that at once. ``stop()``, here at the end of the outer ``with``, then commits the
    finished messages, if commits are automatic. The consumer stays in its group until then.

    A start may take long (after ``kill -9`` the group waits for the dead member's session). To end that by a signal,
    too, make the consumer with ``auto_start=False`` and start it inside: ``with stop_on_signals(consumer), consumer:``.
    Then ``start()`` returns soon after a signal, and consuming threads get no messages.

    The second signal, and every signal after the block, has the handler from before the block. Raises
    IllegalStateError outside of the main thread, the only one to which Python delivers signals.
    """
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number in list(before):
            handler = before.pop(number, None)
            # None: it was not set from Python, and Python cannot set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def end(_number: int, _frame: FrameType | None) -> None:
        restore()
        for consumer in consumers:
            consumer.end_soon()

    try:
        for number in _SIGNALS:
            before[number] = signal.signal(number, end)
    except ValueError:
        raise IllegalStateError(
            "stop_on_signals() was called outside of the main thread, the only one where Python handles signals: call "
            "it in the main thread, around the code that waits for the consuming threads"
        ) from None
    try:
        yield
    finally:
        restore()
