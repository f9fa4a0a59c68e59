"""Keeps consuming greenlets from blocking the others of their thread: native threads decompress large batches.

A consuming greenlet also lets the others run now and then, as buffered messages come without any wait.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from managedconsumer.runtime.waiting.greenlets import Turn, in_hub_pool
from managedconsumer.runtime.waiting.handlers import Handler

T = TypeVar("T")


class GreenletYield:
    """Used by all consuming greenlets of one consumer."""

    def __init__(self, handler: Handler) -> None:
        self._turn = Turn(handler.now)
        # The greenlets that hold no lock but this consumer's, and so may wait during a decompression.
        self._may_wait: set[int] = set()

    def between(self, leave: Callable[[], None], fn: Callable[..., T]) -> Callable[..., T]:
        """Wrap ``fn``, which may take long: it first calls ``leave`` when other greenlets have waited for a while."""

        def call(*args: Any) -> T:
            if self._turn.over():
                leave()
            return fn(*args)

        return call

    def give_turn(self) -> None:
        """Let other greenlets run, if they have not for a while. Call it without a lock."""
        self._turn.give()

    def call(self, fn: Callable[[int], T], who: int) -> T:
        """Call ``fn(who)``; native threads decompress large batches, while this holds the consumer's lock."""
        import gevent

        me = id(gevent.getcurrent())
        self._may_wait.add(me)
        try:
            return fn(who)
        finally:
            self._may_wait.discard(me)

    def beside(self, fn: Callable[..., T], *args: Any) -> T:
        """``fn(*args)`` in the hub's thread pool, if the calling greenlet is inside :meth:`call`; otherwise here."""
        import gevent

        return in_hub_pool(fn, args) if id(gevent.getcurrent()) in self._may_wait else fn(*args)
