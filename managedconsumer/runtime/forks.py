"""After a fork the child has the consumer objects and no worker threads: their next call raises ForkedProcessError."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Disowned(Protocol):
    """What a fork leaves unusable in the child."""

    def disown(self) -> None:
        """Called in the child, before anything else runs there."""


_watched: weakref.WeakSet[Disowned] = weakref.WeakSet()


def watch(item: Disowned) -> None:
    """Tell ``item`` when it finds itself in a child."""
    _watched.add(item)


def _in_child() -> None:
    for item in list(_watched):
        item.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
