"""A number for each thread, greenlet or asyncio task with messages in flight; no later one gets the same number.

The system uses the numbers of its threads again as soon as they have ended (``threading.get_ident()``), and so does
``id()``. A message in flight of a dead thread must not count as one of the next thread.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from contextvars import ContextVar
from typing import Any, Callable

_numbers = itertools.count(1)
_alive: dict[int, weakref.ref[_Owner]] = {}

#: The number of the task that made the call, also in a thread of ``asyncio.to_thread``; 0: none.
acting: ContextVar[int] = ContextVar("managedconsumer.acting", default=0)


class _Owner:
    """Lives as long as its thread, greenlet or task."""

    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        number = self.number = next(_numbers)
        # No lock: this runs in the thread that ends, or in the garbage collector.
        _alive[number] = weakref.ref(self, lambda _: _alive.pop(number, None))


class _Here(threading.local):
    """``here.number`` costs as much as ``get_ident()``."""

    def __init__(self) -> None:
        self._owner = _Owner()
        self.number = self._owner.number


#: The calling thread's number is its attribute ``number``.
here = _Here()
_green: dict[str, Any] = {}
#: By ``id()``: an entry is removed with its task, before that number can be used again.
_tasks: dict[int, tuple[weakref.ref[Any], _Owner]] = {}


def of_greenlet() -> int:
    """The calling greenlet's number."""
    green = _green.get("here")
    if green is None:
        from gevent.local import local

        green = _green.setdefault("here", local())
    owner: _Owner | None = getattr(green, "owner", None)
    if owner is None:
        owner = green.owner = _Owner()
    return owner.number


def of_task(task: Any) -> int:
    """The number of an asyncio task; it counts as ended when the task is done. Call it on the task's loop."""
    found = _tasks.get(id(task))
    if found is None:
        key = id(task)
        found = _tasks[key] = weakref.ref(task, lambda _: _tasks.pop(key, None)), _Owner()
        task.add_done_callback(_forget_task)
    return found[1].number


def _forget_task(task: Any) -> None:
    _tasks.pop(id(task), None)


def is_alive(number: int) -> bool:
    """False when the thread, greenlet or task of that number has ended."""
    return number in _alive


def at_end(number: int, call: Callable[[], object]) -> None:
    """Call ``call()`` when the live thread, greenlet or task of that number has ended; a thread calls it itself."""
    owner = _alive[number]()
    if owner is not None:
        weakref.finalize(owner, call).atexit = False
