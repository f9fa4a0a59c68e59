"""The interfaces of a handler's locks, events, queues, workers and sockets (typing only)."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol


class Lock(Protocol):
    """A mutex, reentrant or not."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any: ...


class Event(Protocol):
    """A flag to wait for."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Condition(Lock, Protocol):
    """A lock with waiting threads and notifications."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify(self, n: int = 1) -> None: ...

    def notify_all(self) -> None: ...


class Semaphore(Protocol):
    """A counter that never goes below zero; ``acquire`` waits for a unit."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool: ...

    def release(self) -> None: ...


class Queue(Protocol):
    """A bounded first-in-first-out queue; raises ``queue.Empty`` and ``queue.Full`` under either handler."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...


class Worker(Protocol):
    """A running thread or greenlet."""

    @property
    def name(self) -> str: ...

    @property
    def exception(self) -> BaseException | None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...
