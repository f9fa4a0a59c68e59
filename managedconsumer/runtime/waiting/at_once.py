"""Code that is the same for threads and tasks is written once, as a coroutine: in a thread nothing in it is awaited."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Coroutine, TypeVar

T = TypeVar("T")


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``call``, a coroutine that does its waiting in calls that block."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError(f"{call} waits for an event loop")


def awaited(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """Return ``function``, which blocks, as a coroutine function for :func:`at_once`."""

    async def call(*args: Any) -> T:
        return function(*args)

    return call
