"""Makes members leave when a process ends without ``stop()``, so that their groups need not wait for the time-out."""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import Protocol

log = logging.getLogger(__name__)


class Leaving(Protocol):
    """A member that leaves its group at the interpreter's end."""

    def leave_at_exit(self) -> None:
        """Called when the interpreter ends, in its main thread; must not take long."""


_watched: weakref.WeakSet[Leaving] = weakref.WeakSet()


def watch(item: Leaving) -> None:
    """Notify ``item`` when the interpreter ends."""
    _watched.add(item)


def _at_exit() -> None:
    for item in list(_watched):
        try:
            item.leave_at_exit()
        except Exception as error:  # no caller is left to raise it to
            log.debug("leaving at the interpreter's end failed: %s", error)


# Workers are daemon threads: they still run during this.
atexit.register(_at_exit)
