"""The memory budget of fetches, which keeps one consumer below ``queued_max_bytes``, and its queue of workers.

These count: responses that are still referenced, whole (a chunk keeps the memory of its response), the bytes that
requests in flight may bring, and the memory of the largest batch while it is decompressed.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from typing import Hashable, Protocol

#: The size of a response besides its records: headers, and the unused rest of its last block of memory.
_FRAME_BYTES = 64 * 1024


class Memory(Protocol):
    """The memory for responses (:class:`managedconsumer.runtime.net.buffers.BufferPool`). Thread-safe."""

    #: Its bound in bytes; one response may exceed it if it must.
    limit: int

    def at_most(self) -> int:
        """An upper bound of :meth:`in_use` that costs nothing."""

    def in_use(self) -> int:
        """Bytes of the responses that are still referenced."""


class Queued(Protocol):
    """Buffered chunks."""

    @property
    def nbytes(self) -> int:
        """Their size in bytes."""


class FetchBudget:
    """The memory budget of fetching; all sizes in bytes."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.memory: Memory | None = None
        #: How many workers share the bound.
        self.workers = 1
        #: Bytes that the requests in flight may bring.
        self.reserved = 0
        #: True when a consuming thread found no message that it may take: to wait for memory would be to wait for ever.
        self.hungry = False
        self._unpacking = 0
        self._line: dict[Hashable, None] = {}
        #: How many workers wait for memory.
        self.waiting = 0
        self._overhead = min(_FRAME_BYTES, bound // 64)

    def note_chunk(self, unpack_bytes: int) -> None:
        """A chunk came whose largest batch takes ``unpack_bytes`` when it is decompressed."""
        self._unpacking = max(unpack_bytes, self._unpacking)
        self.hungry = False

    def note_end(self, unpack_bytes: int) -> None:
        """A chunk was read to its end and took that much. The estimate shrinks again after one large batch."""
        self._unpacking = max(unpack_bytes, self._unpacking * 7 // 8)

    def wish(self, most: int, least: int) -> int:
        """A worker's share (bytes) of free memory: while one response is read, each worker receives the next."""
        return max(least, min(most, self.bound // (self.workers + 1)))

    def ask(self, who: Hashable, most: int, least: int, queued: int) -> int:
        """Reserve up to ``most`` bytes for the worker ``who``; 0: it has to wait.

        It cannot use less than ``least``. ``queued``: bytes of the buffered chunks. Workers get memory in the order in
        which they asked, however little the later ones need. One worker gets ``least`` beyond the bound when nothing is
        buffered or no buffered message can be delivered: a batch larger than the bound passes, and a paused partition
        blocks no other one.
        """
        wanted = self.wish(most, least)
        granted = 0
        if next(iter(self._line), who) == who:
            granted = self._grant(wanted, least, queued)
        if granted:
            self._line.pop(who, None)
            self.reserved += granted + self._overhead
        else:
            self._line[who] = None
        self.waiting = len(self._line)
        return granted

    def _grant(self, wanted: int, least: int, queued: int) -> int:
        left, memory = self._left(), self.memory
        if memory is not None:
            memory.limit = self.bound - self._unpacking
            if max(queued, memory.at_most()) + wanted <= left:
                return wanted
            queued = max(queued, memory.in_use())
        if queued + wanted <= left:
            return wanted
        if queued + least <= left:
            return left - queued
        return least if not self.reserved and (self.hungry or not queued) else 0

    def holds(self, queued: Queued) -> bool:
        """True while the buffered bytes and those of the requests in flight are within the bound."""
        # The memory holds all that is queued.
        held = queued.nbytes if self.memory is None else self.memory.at_most()
        return held <= self.bound - self._unpacking - self.reserved - self._overhead

    def _left(self) -> int:
        """Return the bytes that chunks may take beside the requests in flight."""
        return self.bound - self._unpacking - self.reserved - self._overhead

    def give_back(self, granted: int) -> None:
        """Release the ``granted`` bytes of a request: its response came, or will not come."""
        if granted:
            self.reserved -= granted + self._overhead

    def leave(self, who: Hashable) -> None:
        """Remove ``who`` from the queue: it needs no memory now."""
        self._line.pop(who, None)
        self.waiting = len(self._line)
