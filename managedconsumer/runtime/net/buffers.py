"""The memory for one consumer's responses: reused where it fits, and never more than the bound.

A fresh buffer of megabytes costs more in page faults than the copy into it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.values import NamedTuple

_SMALL = 64 * 1024
#: From this size on a buffer is a mapping of its own, which returns to the system at once when it is dropped.
_LARGE = 256 * 1024
# The size of a large page of memory, on systems that have them.
_LARGE_PAGE = 2 * 1024 * 1024
# The pool searches for unused small buffers at so many bytes (or twice those that were in use).
_SMALL_UNSEEN = 1024 * 1024

_Buffer = bytearray | mmap.mmap


class _Piece(NamedTuple):
    """``memory`` of which the first ``size`` bytes are used; a mapping's length is one of large pages."""

    memory: _Buffer
    size: int

    def view(self) -> memoryview:
        """The usable bytes."""
        return memoryview(self.memory)[: self.size]


class BufferPool:
    """Buffers of all fetch workers of one consumer. Thread-safe.

    A buffer is free again when no view of it is left: the chunks of a response hold views until they are read to their
    end, in any thread. The buffer itself counts its views. The reference count is no substitute: the part of a local
    variable or an argument in it differs between versions of Python.
    """

    def __init__(self, handler: Handler, limit: int = 64 * 1024 * 1024, spare: int = 4) -> None:
        """Keep at most ``spare`` free buffers, and none that would bring all of them above ``limit`` bytes."""
        self.limit = limit
        self._lock = handler.Lock()
        self._spare = spare
        self._pieces: list[_Piece] = []
        self._bytes = 0
        self._small: list[bytearray] = []
        self._small_bytes = 0
        self._small_most = _SMALL_UNSEEN

    def take(self, size: int) -> memoryview:
        """Return a view of a buffer of at least ``size`` bytes with arbitrary content. Never fails at the bound."""
        with self._lock:
            if size < _SMALL:
                return self._take_small(size)
            free = [piece for piece in self._pieces if _unseen(piece.memory)]
            fitting = [piece for piece in free if size <= piece.size <= self._most_for(size)]
            if fitting:
                return min(fitting, key=lambda piece: piece.size).view()
            whole = -(-size // _SMALL) * _SMALL
            self._drop(free, whole)
            fresh = _Piece(_fresh(whole), whole)
            self._pieces.append(fresh)
            self._bytes += whole
            return fresh.view()

    def _most_for(self, size: int) -> int:
        """The largest buffer to use for ``size`` bytes: a much larger one wastes memory."""
        return self.limit if 2 * self._bytes <= self.limit else size + size // 4

    def _drop(self, free: list[_Piece], coming: int) -> None:
        """Drop free buffers, the oldest first."""
        while free and (len(free) >= self._spare or self._bytes + self._small_bytes + coming > self.limit):
            oldest = free.pop(0)
            self._pieces = [piece for piece in self._pieces if piece is not oldest]
            self._bytes -= oldest.size

    def _take_small(self, size: int) -> memoryview:
        if self._small_bytes > self._small_most:
            self._forget_small()
        fresh = bytearray(size)
        if size:
            self._small.append(fresh)
            self._small_bytes += size
        return memoryview(fresh)

    def _forget_small(self) -> None:
        self._small = [buffer for buffer in self._small if not _unseen(buffer)]
        self._small_bytes = sum(map(len, self._small))
        self._small_most = _SMALL_UNSEEN + 2 * self._small_bytes

    def at_most(self) -> int:
        """An upper bound of :meth:`in_use`, in bytes, that costs nothing."""
        return self._bytes + self._small_bytes

    def in_use(self) -> int:
        """Bytes of the buffers with views."""
        with self._lock:
            self._forget_small()
            return self._small_bytes + sum(piece.size for piece in self._pieces if not _unseen(piece.memory))


def _unseen(buffer: _Buffer) -> bool:
    """True if ``buffer`` has no view: only then does Python let its size change. Here it stays the same."""
    try:
        if isinstance(buffer, bytearray):
            buffer.append(buffer.pop())  # within the memory that it has: nothing is copied
        else:
            buffer.resize(len(buffer))
    except BufferError:
        return False
    return True


def _fresh(size: int) -> _Buffer:
    """New memory of ``size`` bytes, in large pages if the system has them: half of the faults' time.

    Linux aligns a mapping for large pages only if its length is a multiple of theirs. The rest behind the last whole
    one is left to small pages, so that no more becomes resident than is used.
    """
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(size)
    large = size // _LARGE_PAGE * _LARGE_PAGE
    whole = size if not large else -(-size // _LARGE_PAGE) * _LARGE_PAGE
    memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large:
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE, 0, large)
    return memory
