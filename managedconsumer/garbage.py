"""Switches the garbage collector off for a while."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator


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
