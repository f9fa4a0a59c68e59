"""Switches the garbage collector off for a while, and spares it what stays for ever."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator

_frozen = False


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected in this block, in any thread; after it the collector is as it was before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def freeze_modules() -> None:
    """Exempt all loaded modules, once in a process: Spark collects after every task, which took 25 ms for them."""
    global _frozen
    if not _frozen:
        _frozen = True
        gc.freeze()
