"""Results of the user's code that mean that it has not run: coroutines nobody awaits, generators nobody iterates. Pure.

A handler that returns one has done nothing. Wherever code of the user's is called whose result is not used, this says
so: otherwise the message would count as done.
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
    """A function of the user's has returned what nobody awaits or iterates over: the function is wrong, not its input.

    No retry heals that, and no other input does. Users see a TypeError.
    """


def check_result(what: str, result: Any) -> None:
    """Raise UnusedResultError if ``result``, which ``what`` of the user's has returned, is to be awaited or iterated.

    Any other result is of no interest. (A future of a thread pool cannot be told from a value.)
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
