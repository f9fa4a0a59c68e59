"""Conditions for threads: one that is cheap without waiters, and one that also wakes a thread in ``poll()``."""

from __future__ import annotations

import os
import select
import threading
from typing import Any, Callable

from managedconsumer.clock import Deadline

# A missed wake-up can cost a waiting thread at most this much (seconds).
_LONGEST_NAP = 1.0
#: True if ``poll()`` on this system can wait for another descriptor beside sockets.
AVAILABLE = hasattr(select, "poll")


def wait_until(
    condition: Any, now: Callable[[], float], done: Callable[[], bool], seconds: float | None, nap: float = _LONGEST_NAP
) -> bool:
    """Wait until ``done()``, for at most ``seconds`` (None: as long as it takes); False: that was not enough.

    The condition's lock is held. ``now``: the clock (seconds); ``nap``: how often, at least, to ask.
    """
    deadline = Deadline(now(), seconds)
    while not done():
        left = deadline.remaining(now())
        if left is not None and left <= 0.0:
            return False
        condition.wait(nap if left is None else min(left, nap))
    return True


class WakeupFd:
    """A pair of descriptors: ``read_fd`` is readable after a write to ``write_fd``. Both are closed with it."""

    #: -1: it could not be made, or a signal handler raised meanwhile.
    read_fd = write_fd = -1

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.read_fd = self.write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.read_fd, self.write_fd = os.pipe()
            os.set_blocking(self.read_fd, False)
            os.set_blocking(self.write_fd, False)

    def __del__(self, close: Callable[[int], object] = os.close) -> None:
        for number in {self.read_fd, self.write_fd} - {-1}:
            close(number)


class CheapCondition(threading.Condition):
    """A condition for threads that is cheap to notify while no thread waits, which is nearly always so."""

    _waiters: Any

    def notify_all(self) -> None:
        """Wake all threads that wait; the lock is held."""
        if self._waiters:
            self.notify(len(self._waiters))


class WakingCondition(CheapCondition):
    """A condition whose notifications also call ``wake``, for a thread that waits elsewhere."""

    def __init__(self, lock: Any, wake: Callable[[], object]) -> None:
        super().__init__(lock)
        self._wake = wake

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` waiting threads, and the one that waits elsewhere."""
        if self._waiters:
            super().notify(n)
        self._wake()

    def notify_all(self) -> None:
        """Wake all waiting threads, and the one that waits elsewhere."""
        self.notify(len(self._waiters))
