"""After a fork the child has the consumer objects and no worker threads: their next call raises ForkedProcessError."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


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
