"""Large receive buffers, used again: a fresh one of megabytes costs more in page faults than the copy into it."""

from __future__ import annotations

import sys

_SMALL = 64 * 1024
_STEP = 1024 * 1024
# References to a buffer that nobody uses: the pool's list, the loop's variable, the call's argument.
_UNUSED = 3


class BufferPool:
    """Buffers of one fetch worker; used by that worker only.

    A buffer is free again when nothing refers to it any more: the chunks of an answer hold views of it until they are
    read to their end, wherever that happens.
    """

    def __init__(self, most: int = 4) -> None:
        """At the ``most`` so many buffers are kept."""
        self._most = most
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """A buffer of at least ``size`` bytes, with anything in it."""
        if size < _SMALL:
            return bytearray(size)
        for buffer in self._buffers:
            if len(buffer) >= size and sys.getrefcount(buffer) == _UNUSED:
                return buffer
        fresh = bytearray(-(-size // _STEP) * _STEP)
        self._buffers.append(fresh)
        if len(self._buffers) > self._most:
            del self._buffers[0]
        return fresh
