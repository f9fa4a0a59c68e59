"""Deadlines and back-off as arithmetic on a given ``now`` (monotonic seconds)."""

from __future__ import annotations

import time
from typing import Callable


class Deadline:
    """A point in time that may be infinitely far away."""

    __slots__ = ("at",)

    def __init__(self, now: float, timeout: float | None) -> None:
        """``timeout`` in seconds from ``now``; None or a negative number means: never."""
        self.at: float | None = None if timeout is None or timeout < 0 else now + timeout

    def remaining(self, now: float) -> float | None:
        """Seconds left (never negative), or None when there is no limit."""
        return None if self.at is None else max(0.0, self.at - now)

    def expired(self, now: float) -> bool:
        """Return True once the deadline has passed."""
        return self.at is not None and now >= self.at


class Backoff:
    """Exponential, capped, jittered pauses; ``random`` returns numbers in [0, 1)."""

    __slots__ = ("_base", "_cap", "_random", "failures", "retry_at")

    def __init__(self, base: float, cap: float, random: Callable[[], float]) -> None:
        """``base`` and ``cap`` in seconds."""
        self._base = base
        self._cap = cap
        self._random = random
        self.failures = 0
        self.retry_at = 0.0

    def fail(self, now: float) -> float:
        """Note a failure; return the pause in seconds until :meth:`ready` is True again."""
        delay: float = min(self._cap, self._base * (2 ** min(self.failures, 30)))
        delay *= 0.8 + 0.4 * self._random()
        self.failures += 1
        self.retry_at = now + delay
        return delay

    def succeed(self) -> None:
        """Forget past failures."""
        self.failures = 0
        self.retry_at = 0.0

    def ready(self, now: float) -> bool:
        """Return True when the pause after the last failure is over."""
        return now >= self.retry_at


# The one place outside ``runtime`` that names the real clock, as a default.
monotonic = time.monotonic
