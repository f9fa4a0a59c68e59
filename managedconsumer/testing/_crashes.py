"""Simulates a process that dies between two lines of Python."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Callable, Iterator

from managedconsumer.garbage import no_collection


class Crash(BaseException):
    """The simulated death of the process."""


def count_lines(call: Callable[[], object]) -> int:
    """Return the number of lines of Python that ``call`` runs."""
    counted = 0

    def tracer(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal counted
        counted += event == "line"
        return tracer

    _traced(call, tracer)
    return counted


def crash_at(line: int, call: Callable[[], object]) -> None:
    """Raise Crash out of ``call`` before its line number ``line``; never, if it has fewer lines."""
    left = line

    def tracer(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 1:
            raise Crash
        return tracer

    _traced(call, tracer)


def _traced(call: Callable[[], object], tracer: Any) -> None:
    before = sys.gettrace()
    # The collector's callbacks are lines of Python, too, and what is raised there does not come out of ``call``.
    with no_collection():
        sys.settrace(tracer)
        try:
            for _ in _apart(call):
                pass
        finally:
            sys.settrace(before)


def _apart(call: Callable[[], object]) -> Iterator[None]:
    """Run ``call`` in a generator: the exceptions that it handles are forgotten when it ends.

    CPython does not do that where a trace function raises at the first line of an ``except`` block: every later
    exception of the thread would have that one as its ``__context__``.
    """
    call()
    yield
