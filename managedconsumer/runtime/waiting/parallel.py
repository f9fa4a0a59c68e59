"""Several calls in parallel, each in its own worker: none waits for another."""

from __future__ import annotations

from typing import Any, Callable

from managedconsumer.runtime.waiting.handlers import Handler

# How soon (seconds) the waiting thread notices that the results are not wanted any more.
_LOOK_EVERY = 0.1


class Parallel:
    """Parallel calls, and one thread that waits for them, for a limited time."""

    def __init__(self, handler: Handler, name: str) -> None:
        self._handler = handler
        self._name = name
        self._changed = handler.Condition()
        self._running = 0
        self._error: Exception | None = None

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        """Run ``fn(*args)`` in a worker; :meth:`wait` raises its exception."""
        with self._changed:
            self._running += 1
        self._handler.spawn(self._name, self._run, fn, args)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        error = None
        try:
            fn(*args)
        except Exception as raised:  # raised in the waiting thread
            error = raised
        with self._changed:
            self._running -= 1
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        """Wait for all calls, for at most ``seconds``, or until ``interrupted()``; unfinished calls continue."""
        until = self._handler.now() + seconds
        while not interrupted():
            with self._changed:
                left = until - self._handler.now()
                if self._running and self._error is None and left > 0:
                    self._changed.wait(min(left, _LOOK_EVERY))
                if self._error is not None:
                    raise self._error
                if not self._running or self._handler.now() >= until:
                    return
