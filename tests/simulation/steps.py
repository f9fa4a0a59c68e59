"""Something that happens in the middle of a worker's own code: a signal's handler runs, or an exception comes up.

Python runs signal handlers (and raises what they raise) between two steps of the main thread, wherever that is. Here a
step is a line, and a trace function does it: at the n-th line of the chosen modules that the worker executes. Compiled
code has no lines, so the accelerator is one step, as it is to a real signal.
"""

from __future__ import annotations

import linecache
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Callable

from managedconsumer import errors
from tests.simulation.kernel import Task

#: Between the consumer's buffer and its caller, decoder and lease included: an exception meets a message on its way.
TAKING = (
    "fetch/collect.py",
    "fetch/buffer.py",
    "fetch/pushed.py",
    "runtime/lease.py",
    "wire/records/_lane_py.py",
    "wire/records/_records_py.py",
    "wire/records/_recordparse_py.py",
)
#: Between a connection that a worker has lent and the consumer's buffer: the same thread receives the answer first.
RECEIVING = (
    "fetch/buffer.py",
    "fetch/leader.py",
    "fetch/plan.py",
    "fetch/budget.py",
    "fetch/request.py",
    "runtime/engine/fetching/inline.py",
)
#: Everything of the package but its brokers for tests.
ANYWHERE = (f"{Path(errors.__file__).parent.as_posix()}/",)
_NEVER = ("managedconsumer/testing/", "managedconsumer/errors.py")


@cache
def _comes_at_once(file: str, line: int) -> bool:
    """True for a line that the interpreter goes to without a look at signals.

    It is the first one of a ``finally`` or ``except``, a ``yield`` of what is there already, or a ``with``: to that the
    interpreter comes back at the end of its block, and nothing happens between that and the release of a lock.
    """
    clean_up = linecache.getline(file, line - 1).strip().startswith(("finally:", "except"))
    return clean_up or linecache.getline(file, line).strip().startswith(("yield ", "with "))


class Steps:
    """Counts the lines of one worker in ``modules`` and calls ``act(where)`` at the ``number``-th, once.

    ``with Steps(...)``: only what the worker does inside of the block counts.
    """

    def __init__(self, task: Task, modules: tuple[str, ...], number: int, act: Callable[[str], None]) -> None:
        self._task = task
        self._modules = modules
        self._left = number
        self._act = act
        self._codes: dict[CodeType, bool] = {}
        self._before: Any = None

    def __enter__(self) -> Steps:
        task = self._task
        self._before = sys.gettrace()
        task.on_leave, task.on_return = self._rest, self._go_on
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()

    def _rest(self) -> None:
        sys.settrace(self._before)

    def _go_on(self) -> None:
        sys.settrace(self._called)

    def _disarm(self) -> None:
        self._task.on_leave = self._task.on_return = None
        sys.settrace(self._before)

    def _counts(self, code: CodeType) -> bool:
        known = self._codes.get(code)
        if known is None:
            name = code.co_filename.replace("\\", "/")
            known = any(part in name for part in self._modules) and not any(part in name for part in _NEVER)
            self._codes[code] = known
        return known

    def _called(self, frame: FrameType, event: str, _arg: Any) -> Any:
        return self._stepped if event == "call" and self._counts(frame.f_code) else None

    def _stepped(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line" and self._left > 0:
            if self._left > 1 or not _comes_at_once(frame.f_code.co_filename, frame.f_lineno):
                self._left -= 1
            if not self._left:
                self._disarm()
                self._act(f"{frame.f_code.co_name}, line {frame.f_lineno}")  # what it raises comes up in the frame
                return None
        return self._stepped
