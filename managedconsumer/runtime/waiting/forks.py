"""After a fork the child has the consumer objects and no worker threads: their next call raises ForkedProcessError."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from managedconsumer.errors import ForkedProcessError


class Disowned(Protocol):
    """An object that a fork makes unusable in the child."""

    def disown(self) -> None:
        """Called in the child, before any other code of ours runs there."""


_watched: weakref.WeakSet[Disowned] = weakref.WeakSet()


def watch(item: Disowned) -> None:
    """Call ``item.disown()`` in every child of a fork."""
    _watched.add(item)


def _in_child() -> None:
    for item in list(_watched):
        item.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class OwnProcess:
    """Knows the process that made it; a child of that process must not use it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def in_own_process(self) -> bool:
        """False in a child of the process that made this consumer."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raise ForkedProcessError in a child of the process that made this consumer."""
        if os.getpid() != self._pid:
            raise self._forked()

    def _forked(self) -> ForkedProcessError:
        return ForkedProcessError(
            f"this consumer was created in process {self._pid} and is used in its child {os.getpid()}: threads and "
            "sockets do not survive a fork. Create the consumer in the process that uses it"
        )
