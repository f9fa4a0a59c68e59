"""How much a fetch may bring, so that the memory of one consumer stays below ``queued_max_bytes``; who waits its turn.

What counts: answers that are still needed, whole (a chunk holds the memory of the answer that it came in), what the
requests that are under way may bring, and what the largest batch takes while it is unpacked.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from typing import Hashable, Protocol

#: The size of an answer besides its records: headers, and the rest of its last piece of memory.
_FRAME_BYTES = 64 * 1024


class Memory(Protocol):
    """Where answers are received (:class:`managedconsumer.runtime.net.buffers.BufferPool`). Thread-safe."""

    #: How much it may have, in bytes; what is needed goes beyond it if it must.
    limit: int

    def at_most(self) -> int:
        """An upper bound of :meth:`in_use` that costs nothing."""

    def in_use(self) -> int:
        """Bytes of the answers that are still referenced."""


class Queued(Protocol):
    """Chunks that wait to be handed out."""

    @property
    def nbytes(self) -> int:
        """Their size in bytes."""


class Room:
    """The memory budget of fetching; all sizes in bytes."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.memory: Memory | None = None
        #: How many workers share the bound.
        self.workers = 1
        #: Bytes that the requests in flight may bring.
        self.reserved = 0
        #: True when a consuming thread has found nothing to take, so that waiting for room would be waiting for ever.
        self.hungry = False
        self._unpacking = 0
        self._line: dict[Hashable, None] = {}
        #: How many workers wait for their turn.
        self.waiting = 0
        self._overhead = min(_FRAME_BYTES, bound // 64)

    def note_chunk(self, unpack_bytes: int) -> None:
        """A chunk came whose largest batch takes ``unpack_bytes`` when it is unpacked."""
        self._unpacking = max(unpack_bytes, self._unpacking)
        self.hungry = False

    def note_end(self, unpack_bytes: int) -> None:
        """A chunk was read to its end and has taken that much. One large batch is forgotten after a while."""
        self._unpacking = max(unpack_bytes, self._unpacking * 7 // 8)

    def wish(self, most: int, least: int) -> int:
        """Return a worker's share (bytes) of free room: while one answer is read, each worker receives the next."""
        return max(least, min(most, self.bound // (self.workers + 1)))

    def ask(self, who: Hashable, most: int, least: int, queued: int) -> int:
        """Reserve up to ``most`` bytes for the worker ``who``; 0: it has to wait for its turn.

        Less than ``least`` is of no use to it. ``queued``: bytes of the chunks that wait. The first in the line comes
        first, however little the others need. One worker alone gets ``least`` whatever the bound is, when nothing is
        held or nothing that is held can be handed out: a batch larger than the bound passes, and a paused partition
        keeps no other one waiting.
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
        """True while what is there and what the requests under way may bring is within the bound."""
        # The memory holds all that is queued.
        held = queued.nbytes if self.memory is None else self.memory.at_most()
        return held <= self.bound - self._unpacking - self.reserved - self._overhead

    def _left(self) -> int:
        """Return how much (bytes) chunks may take beside the requests in flight."""
        return self.bound - self._unpacking - self.reserved - self._overhead

    def give_back(self, granted: int) -> None:
        """The answer to a request for that many bytes is here, or will not come."""
        if granted:
            self.reserved -= granted + self._overhead

    def leave(self, who: Hashable) -> None:
        """Take ``who`` out of the line: it needs no room now."""
        self._line.pop(who, None)
        self.waiting = len(self._line)
