"""Conditions of threads: one at which nearly always nobody waits, and one that wakes a thread in ``poll()``, too."""

from __future__ import annotations

import os
import select
import threading
from typing import Any, Callable

#: Whether this system can wait for a descriptor of its own beside sockets.
AVAILABLE = hasattr(select, "poll")


class Bell:
    """A descriptor ``ear`` that can be read after something was written to ``button``. Both are closed with it."""

    #: -1: there is none, as it could not be made, or a signal's handler raised meanwhile.
    ear = button = -1

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.ear = self.button = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.ear, self.button = os.pipe()
            os.set_blocking(self.ear, False)
            os.set_blocking(self.button, False)

    def __del__(self, close: Callable[[int], object] = os.close) -> None:
        for number in {self.ear, self.button} - {-1}:
            close(number)


class CheapCondition(threading.Condition):
    """A condition of threads at which nearly always nobody waits when it is notified."""

    _waiters: Any

    def notify_all(self) -> None:
        """Wake all threads that wait; the lock is held."""
        if self._waiters:
            self.notify(len(self._waiters))


class WakingCondition(CheapCondition):
    """A condition whose notifications call ``wake``, too: for a thread that waits for something else."""

    def __init__(self, lock: Any, wake: Callable[[], object]) -> None:
        super().__init__(lock)
        self._wake = wake

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` threads that wait, and the one that waits elsewhere."""
        if self._waiters:
            super().notify(n)
        self._wake()

    def notify_all(self) -> None:
        """Wake all threads that wait, and the one that waits elsewhere."""
        self.notify(len(self._waiters))
