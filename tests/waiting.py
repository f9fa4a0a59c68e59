"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

What = str | Callable[[], str]


def until(
    condition: Callable[[], Any],
    seconds: float = 30.0,
    what: What = "",
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> Any:
    """What ``condition()`` gives as soon as it is true; the test fails after ``seconds``, and says ``what``.

    The text is the one by which a test with the mark ``busy`` is tried again. ``sleep``: a handler's, for greenlets.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, (
            f"not within {seconds:g} s: {(what() if callable(what) else what) or condition}"
        )
        sleep(0.005)
    return found
