"""Tells objects that they are in the child of a fork, or that their process ends without ``stop()``.

After a fork the child has the consumer objects and no worker threads: their next call raises ForkedProcessError. When a
process ends its members leave, so that their groups need not wait for the time-out.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

log = logging.getLogger(__name__)


class Disowned(Protocol):
    """An object that a fork makes unusable in the child."""

    def disown(self) -> None:
        """Called in the child, before any other code of ours runs there."""


class Leaving(Protocol):
    """A member that leaves its group at the interpreter's end."""

    def leave_at_exit(self) -> None:
        """Called when the interpreter ends, in its main thread; must not take long."""


#: Add an object to be called in every child of a fork, and one to be called when the interpreter ends.
in_children: weakref.WeakSet[Disowned] = weakref.WeakSet()
at_exit: weakref.WeakSet[Leaving] = weakref.WeakSet()


def _in_child() -> None:
    for item in list(in_children):
        item.disown()


def _at_exit() -> None:
    for item in list(at_exit):
        try:
            item.leave_at_exit()
        except Exception as error:  # no caller is left to raise it to
            log.debug("leaving at the interpreter's end failed: %s", error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
# Workers are daemon threads: they still run during this.
atexit.register(_at_exit)
