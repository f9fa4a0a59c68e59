"""Large receive buffers, used again: a fresh one of megabytes costs more in page faults than the copy into it."""

from __future__ import annotations

import mmap
from contextlib import suppress

_SMALL = 64 * 1024
_STEP = 1024 * 1024
# The size of a large page of memory, where there are such.
_LARGE_PAGE = 2 * 1024 * 1024


class BufferPool:
    """Buffers of one fetch worker; used by that worker only.

    A buffer is free again when nobody has a view of it: the chunks of an answer hold views until they are read to their
    end, in any thread. The buffer itself counts its views. The reference count must not be used: what a local variable
    or an argument adds to it differs between versions of Python.
    """

    def __init__(self, most: int = 4) -> None:
        """Keep at most ``most`` buffers."""
        self._most = most
        self._buffers: list[bytearray | mmap.mmap] = []

    def take(self, size: int) -> bytearray | mmap.mmap:
        """A buffer of at least ``size`` bytes, with anything in it. Take a view of it before the next call."""
        if size < _SMALL:
            return bytearray(size)
        for buffer in self._buffers:
            if len(buffer) >= size and _unseen(buffer):
                return buffer
        fresh = _fresh(size)
        self._buffers.append(fresh)
        if len(self._buffers) > self._most:
            del self._buffers[0]
        return fresh


def _unseen(buffer: bytearray | mmap.mmap) -> bool:
    """True if ``buffer`` has no view: only then does Python let its size change. Here it stays the same."""
    try:
        if isinstance(buffer, bytearray):
            buffer.append(buffer.pop())  # within the memory that it has: nothing is copied
        else:
            buffer.resize(len(buffer))
    except BufferError:
        return False
    return True


def _fresh(size: int) -> bytearray | mmap.mmap:
    """New memory of at least ``size`` bytes, in large pages if the system has them: a fifth of the faults' time."""
    if size < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(-(-size // _STEP) * _STEP)
    whole = -(-size // _LARGE_PAGE) * _LARGE_PAGE
    memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
