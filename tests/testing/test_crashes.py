"""A crash that a test plants comes out of the code that it is planted in."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from managedconsumer.testing._crashes import Crash, count_lines, crash_at


def work() -> list[list[Any]]:
    made = []
    for _ in range(20):
        circle: list[Any] = []
        circle.append(circle)
        made.append(circle)
    return made


def test_the_garbage_collector_runs_no_line_of_it() -> None:
    """What is raised in a callback of the collector does not come out, and would be lost."""

    def collected(_phase: str, _info: dict[str, int]) -> None:
        del _info

    lines, thresholds = count_lines(work), gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        assert count_lines(work) == lines
        for line in range(1, lines + 1):
            with pytest.raises(Crash):
                crash_at(line, work)
        assert gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)
