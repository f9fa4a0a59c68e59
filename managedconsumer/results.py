"""Detects that a user's function returned a coroutine or a generator, which means that it has not run. Pure.

Every call of a user's function whose result is not used is checked: otherwise the message would count as processed.
"""

from __future__ import annotations

from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Mapping

# Types that do nothing before they are iterated over, and their names in the text.
_LAZY: Mapping[type, str] = {
    GeneratorType: "a generator, over which nobody iterates",
    AsyncGeneratorType: "an asynchronous generator, over which nobody iterates",
    map: "a map object, over which nobody iterates",
    filter: "a filter object, over which nobody iterates",
}
_AWAITABLE = "which nobody awaits"
# The flags of generators, coroutines and asynchronous generators (``inspect.CO_GENERATOR`` and others).
_NOT_PLAIN = 0x20 | 0x80 | 0x100 | 0x200


class UnusedResultError(TypeError):
    """A user's function returned something to await or to iterate over: neither a retry nor other input helps."""


def check_result(what: str, result: Any) -> None:
    """Raise UnusedResultError if ``result``, which the user's ``what`` returned, has to be awaited or iterated over.

    (A future of a thread pool cannot be told from a value.)
    """
    if result is None:
        return
    kind = type(result)
    found = _LAZY.get(kind)
    if found is None and hasattr(kind, "__await__"):
        name = "a coroutine" if kind is CoroutineType else f"an awaitable ({kind.__name__})"
        found = f"{name}, {_AWAITABLE}"
    if found is None:
        return
    if isinstance(result, (CoroutineType, GeneratorType)):
        result.close()  # or Python warns, some time later, of a coroutine that was never awaited
    raise UnusedResultError(
        f"{what} has returned {found}: what it was to do has not been done. A plain function is expected"
    )


def check_plain(what: str, function: Any) -> None:
    """Raise UnusedResultError if ``function``, the user's ``what``, is a coroutine function or a generator function."""
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & _NOT_PLAIN:
        raise UnusedResultError(f"{what} is a coroutine function or a generator function. A plain function is expected")
