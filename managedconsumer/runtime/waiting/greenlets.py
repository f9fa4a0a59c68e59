"""A condition for greenlets, their turns, and a pool of native threads for long calls."""

from __future__ import annotations

import sys
from typing import Any, Callable, Final, TypeVar

T = TypeVar("T")

# How long (seconds) a greenlet may run before the others get a turn.
_TURN: Final = 0.01


class GreenCondition:
    """``threading.Condition`` for greenlets; the standard one would wait on a native lock and stop the hub."""

    __slots__ = ("__weakref__", "_lock", "_waiters", "acquire", "release")

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._waiters: list[Any] = []
        self.acquire: Callable[..., bool] = lock.acquire
        self.release: Callable[[], None] = lock.release

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *details: Any) -> Any:
        return self._lock.__exit__(*details)

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back, wait for a notification, take the lock again; False when the time ran out."""
        from gevent.event import Event

        waiter = Event()
        self._waiters.append(waiter)
        # Release a reentrant lock completely, however often its owner took it.
        release, restore = getattr(self._lock, "_release_save", None), getattr(self._lock, "_acquire_restore", None)
        depth = release() if release is not None else self._lock.release()
        notified = False
        try:
            notified = bool(waiter.wait(timeout))
        finally:
            if restore is not None:
                restore(depth)
            else:
                self._lock.acquire()
            if not notified:
                # A notification between the time-out and the lock counts.
                notified = waiter.is_set()
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return notified

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` waiters; call it with the lock held."""
        woken, self._waiters = self._waiters[:n], self._waiters[n:]
        for waiter in woken:
            waiter.set()

    def notify_all(self) -> None:
        """Wake every waiter; call it with the lock held."""
        self.notify(len(self._waiters))


def hub_threadpool() -> Any:
    """The gevent hub's pool of native threads when this process is monkey-patched, else None."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return None
    return sys.modules["gevent"].get_hub().threadpool


def in_hub() -> bool:
    import gevent

    return gevent.getcurrent() is gevent.get_hub()


class Turn:
    """Measures how long greenlets have run without a turn for the others of their hub. ``now``: a clock (seconds)."""

    __slots__ = ("_began", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.begin()

    def begin(self) -> None:
        """Start the measurement again: the other greenlets have just had a turn."""
        self._began = self._now()

    def over(self) -> bool:
        """True when the other greenlets should have a turn."""
        return self._now() - self._began > _TURN

    def give(self) -> None:
        """Let the hub's timers, sockets and other greenlets run, if it is time. Hold no lock that they may need."""
        if self.over():
            from gevent import get_hub

            # Not gevent.sleep(0): it lets ready greenlets run up to fifty times before timers and sockets.
            hub = get_hub()
            # The loop's time is from before this turn: timers that became due meanwhile would run after this one.
            hub.loop.update_now()
            hub.wait(hub.loop.timer(0))
            self.begin()


def in_pool(pool: Any, fn: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Run ``fn(*args)`` in one of gevent's native threads, which would print exceptions: they travel as results."""

    def quiet() -> tuple[T | None, Exception | None]:
        try:
            return fn(*args), None
        except Exception as error:  # raised again below, in the caller
            return None, error

    result, error = pool.apply(quiet)
    if error is not None:
        raise error
    answer: T = result
    return answer


def in_hub_pool(fn: Callable[..., T], args: tuple[Any, ...]) -> T:
    """``fn(*args)`` in a native thread of this hub's pool, while other greenlets run."""
    import gevent

    return in_pool(gevent.get_hub().threadpool, fn, args)
