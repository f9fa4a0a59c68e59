"""Garbage collection in the processes that Spark starts: not where it looks at much and finds nothing."""

from __future__ import annotations

import gc

_frozen = False


def freeze_modules() -> None:
    """Once in a process: a collection, which Spark makes after every task, would look at all modules for 25 ms."""
    global _frozen
    if not _frozen:
        _frozen = True
        gc.freeze()
