"""Which calls interrupt our own work, and which come from where nothing of ours can be held."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from managedconsumer.runtime.engine import life
from managedconsumer.runtime.waiting import greenlets, handlers
from managedconsumer.runtime.waiting.reentry import in_our_work
from managedconsumer.wire.records import _lane_py


def _in(module: ModuleType, call: Callable[[], bool]) -> bool:
    """``call()`` from a function of ``module``."""
    names: dict[str, object] = {"__name__": module.__name__}
    exec("def function(call): return call()", names)
    result: bool = names["function"](call)  # type: ignore[operator]
    return result


def _handler_of_a_signal() -> bool:
    return in_our_work()


def test_a_call_that_interrupts_the_engine_is_in_our_work() -> None:
    assert _in(life, _handler_of_a_signal)


@pytest.mark.parametrize("module", [handlers, greenlets, _lane_py], ids=lambda module: module.__name__)
def test_a_call_from_where_no_lock_is_held_is_not(module: ModuleType) -> None:
    """Where a worker's function begins, and the fast path without the accelerator: a stop() is done at once."""
    assert not _in(module, _handler_of_a_signal)
