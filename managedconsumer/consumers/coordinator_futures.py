"""A result to come, with the names of kafka-python's ``Future``. Pure: the event to wait for is an argument."""

from __future__ import annotations

import logging
from typing import Any, Callable

from managedconsumer.results import check_result
from managedconsumer.runtime.waiting.primitives import Event

log = logging.getLogger(__name__)


class Future:
    """Done once, with a value or an exception. Thread-safe."""

    def __init__(self, flag: Event) -> None:
        self._flag = flag
        self.is_done = False
        self.value: Any = None
        self.exception: BaseException | None = None
        self._callbacks: list[Callable[[Future], None]] = []

    def succeeded(self) -> bool:
        """True once it has a value."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """True once it has an exception."""
        return self.is_done and self.exception is not None

    def retriable(self) -> bool:
        """True if it has failed with a transient error."""
        return bool(getattr(self.exception, "retriable", False))

    def success(self, value: Any) -> Future:
        """Set the value; a second call has no effect."""
        return self._finish(value, None)

    def failure(self, error: BaseException) -> Future:
        """Set the exception; a second call has no effect."""
        return self._finish(None, error)

    def _finish(self, value: Any, error: BaseException | None) -> Future:
        if not self.is_done:
            self.value, self.exception = value, error
            self.is_done = True
            self._flag.set()
            self._call()
        return self

    def add_callback(self, call: Callable[..., Any], *args: Any) -> Future:
        """Call ``call(*args, value)`` when it succeeds; at once if it has."""
        return self._then(lambda future: call(*args, future.value) if future.succeeded() else None)

    def add_errback(self, call: Callable[..., Any], *args: Any) -> Future:
        """Call ``call(*args, exception)`` when it fails; at once if it has."""
        return self._then(lambda future: call(*args, future.exception) if future.failed() else None)

    def _then(self, call: Callable[[Future], None]) -> Future:
        self._callbacks.append(call)
        if self.is_done:
            self._call()
        return self

    def _call(self) -> None:
        while True:
            try:
                call = self._callbacks.pop(0)
            except IndexError:  # another thread has taken the last one
                return
            try:
                check_result("a callback of a future", call(self))
            except Exception:
                log.exception("a callback of a future raised")

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the value; raise the exception, or TimeoutError after ``timeout`` seconds."""
        if not self.is_done and not self._flag.wait(timeout):
            raise TimeoutError(f"no answer within {timeout} s")
        if self.exception is not None:
            raise self.exception
        return self.value
