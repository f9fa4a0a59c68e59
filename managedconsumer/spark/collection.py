"""Garbage collection in the processes that Spark starts: not where it looks at much and finds nothing."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator

_frozen = False


def freeze_modules() -> None:
    """Once in a process: a collection, which Spark makes after every task, would look at all modules for 25 ms."""
    global _frozen
    if not _frozen:
        _frozen = True
        gc.freeze()


@contextmanager
def no_collection() -> Iterator[None]:
    """What planning makes lives until the next batch: collections would look at all of it several times, in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
