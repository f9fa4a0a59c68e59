"""Where greenlets share a thread, none may keep the others waiting: large batches are decompressed beside the hub.

A consuming greenlet also lets the others run now and then, as messages that are there come without any waiting.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from managedconsumer.runtime.handlers import Handler, in_hub_pool
from managedconsumer.wire import compression

T = TypeVar("T")

# How long (seconds) a greenlet consumes before the others get a turn.
_TURN = 0.01

# The greenlets that hold no lock but their own consumer's, and so may wait in the middle of a decompression.
_waiting_allowed: set[int] = set()


def _offload(fn: Callable[..., T], *args: Any) -> T:
    """``fn(*args)`` in the hub's thread pool, if the calling greenlet is one of those; otherwise here."""
    import gevent

    return in_hub_pool(fn, args) if id(gevent.getcurrent()) in _waiting_allowed else fn(*args)


class Patience:
    """One consumer's; used by all of its consuming greenlets."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._last_turn = handler.now()
        compression.offload = _offload

    def give_turn(self) -> None:
        """Let others run, if they have not for a while. Call it without a lock."""
        if self._handler.now() - self._last_turn > _TURN:
            from gevent import get_hub

            # Not gevent.sleep(0), which gives way to what is ready but, fifty times over, not to timers and sockets.
            hub = get_hub()
            hub.wait(hub.loop.timer(0))
            self._last_turn = self._handler.now()

    def call(self, fn: Callable[[int], T], who: int) -> T:
        """``fn(who)``; large batches are decompressed beside the hub, with the consumer's lock held on."""
        import gevent

        me = id(gevent.getcurrent())
        _waiting_allowed.add(me)
        try:
            return fn(who)
        finally:
            _waiting_allowed.discard(me)
