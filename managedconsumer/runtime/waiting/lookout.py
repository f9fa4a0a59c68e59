"""Waiting for a notification and for sockets at the same time: a condition with a bell."""

from __future__ import annotations

import os
import select
import threading
from typing import Any, Callable, Sequence

from managedconsumer.runtime.waiting.primitives import Watched

#: Whether this system has what it takes.
AVAILABLE = hasattr(select, "poll")


class _Bell:
    """A descriptor that is readable from :meth:`ring` until :meth:`mute`."""

    #: -1: there is none, as it could not be made, or a signal's handler raised meanwhile.
    ear = _button = -1

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.ear = self._button = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.ear, self._button = os.pipe()
            os.set_blocking(self.ear, False)
            os.set_blocking(self._button, False)

    def ring(self) -> None:
        """Make it readable."""
        os.write(self._button, (1).to_bytes(8, "little"))

    def mute(self) -> None:
        """Make it quiet again."""
        try:
            os.read(self.ear, 4096)
        except BlockingIOError:
            pass  # it has not been rung

    def __del__(self, close: Callable[[int], object] = os.close) -> None:
        for number in {self.ear, self._button} - {-1}:
            close(number)


class CheapCondition(threading.Condition):
    """A condition of threads at which nearly always nobody waits when it is notified."""

    _waiters: Any

    def notify_all(self) -> None:
        """Wake all threads that wait; the lock is held."""
        if self._waiters:
            self.notify(len(self._waiters))


class LookoutCondition(CheapCondition):
    """A condition of threads, one of which may wait for connections, too. What a condition guards guards this."""

    # Of threading.Condition; its type does not tell them.
    _release_save: Callable[[], Any]
    _acquire_restore: Callable[[Any], None]

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self._bell: _Bell | None = None
        self._watching = self._rung = False
        self._numbers: list[int] = []
        self._poll: Any = None

    def watch(self, connections: Sequence[Watched], timeout: float) -> list[int]:
        """Wait until notified, until one of ``connections`` can be read, or for ``timeout`` seconds.

        Gives the places in ``connections`` of those that can be read or are broken. One thread at a time; it holds the
        lock, which is released meanwhile. A signal's handler may raise out of it, as out of every wait.
        """
        numbers = [connection.fileno() for connection in connections]
        if numbers != self._numbers:
            self._prepare(numbers)
        self._watching = True
        saved = self._release_save()
        try:
            found = self._poll.poll(max(0.0, timeout) * 1000)
        finally:
            self._acquire_restore(saved)
            self._watching = False
            if self._rung:
                self._rung = False
                self._mute()
        return [numbers.index(number) for number, _ in found if number in numbers] if found else []

    def _prepare(self, numbers: list[int]) -> None:
        if self._bell is None:
            self._bell = _Bell()
        self._poll, self._numbers = select.poll(), numbers
        for number in (self._bell.ear, *numbers):
            self._poll.register(number, select.POLLIN)

    def _mute(self) -> None:
        if self._bell is not None:
            self._bell.mute()

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` threads that wait, and the one that watches."""
        if self._waiters:
            super().notify(n)
        if self._watching and not self._rung:
            self._rung = True
            if self._bell is not None:
                self._bell.ring()

    def notify_all(self) -> None:
        """Wake all threads that wait, and the one that watches."""
        if self._waiters or (self._watching and not self._rung):
            self.notify(len(self._waiters))
