"""A process that ends without ``stop()``: its members leave, so that nobody waits for the end of their sessions."""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import Protocol

log = logging.getLogger(__name__)


class Leaving(Protocol):
    """Something that has a place to give up."""

    def leave_at_exit(self) -> None:
        """Called when the interpreter ends, in its main thread; must not take long."""


_watched: weakref.WeakSet[Leaving] = weakref.WeakSet()


def watch(item: Leaving) -> None:
    """Tell ``item`` when the interpreter ends."""
    _watched.add(item)


def _at_exit() -> None:
    for item in list(_watched):
        try:
            item.leave_at_exit()
        except Exception as error:  # nobody is left to raise it to
            log.debug("leaving at the interpreter's end failed: %s", error)


# Workers are daemon threads: they run on while this does.
atexit.register(_at_exit)
