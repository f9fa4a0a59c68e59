"""``Lane`` in Python, the twin of the accelerator's class: the way of a message past the consumer's lock.

A lane is attached to the chunk that is being read and to the one thread that reads it. While it is, that thread takes
messages from it without the consumer's lock; coming back for the next message is what finishes the last one. Whoever
holds the lock detaches the lane before it looks at positions or takes partitions away: ``count`` says how many messages
went this way in all, ``last_offset`` which was the last, the chunk's own ``position`` where it stands.

The accelerator's ``take`` is one step under the GIL; here a lock of the lane's own, held for one message, does that.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

from managedconsumer.errors import CorruptRecordError
from managedconsumer.wire._message_py import Message


class Lane:
    """See above. ``current`` names the calling thread or greenlet; without a ``lock`` there is no short way."""

    def __init__(self, current: Callable[[], Any] | None = None, native: bool = True, lock: Any = None) -> None:
        self._current = current
        self._lock = None if current is None else lock
        self._chunk: Any = None
        self._owner: Any = None
        self.native = native
        self.count = 0
        self.last_offset = -1

    def attach(self, chunk: Any) -> None:
        """Let the calling thread take from ``chunk``, whose last message it has in hand."""
        if self._lock is not None and self._current is not None:
            self._owner = self._current()
            self._chunk = chunk

    def detach(self) -> None:
        """From here on nothing is taken."""
        if self._lock is not None:
            with self._lock:
                self._chunk = self._owner = None

    def cut(self) -> None:
        """:meth:`detach` in the child of a fork, where the lock may be held by a thread that does not exist."""
        self._chunk = self._owner = None

    @property
    def attached(self) -> bool:
        """True while a thread may take messages without the lock."""
        return self._chunk is not None

    def take(self) -> Message | None:
        """The next message, or None where the long way has to be gone."""
        if self._chunk is None or self._lock is None or self._current is None or self._current() != self._owner:
            return None
        with self._lock:
            chunk = self._chunk
            if chunk is None:
                return None
            try:
                message: Message | None = next(chunk, None)
            except CorruptRecordError:
                return None  # the long way meets it again, and raises it
            if message is not None:
                self.last_offset = message.offset
                self.count += 1
            return message

    def iterate(self, slow: Callable[[], Message | None]) -> Iterator[Message]:
        """An iterator that calls ``slow`` where the short way ends, and ends where that gives None."""
        while (message := self.take() or slow()) is not None:
            yield message

    def caller(self, slow: Callable[..., Message | None]) -> Callable[..., Message | None] | None:
        """``consume()`` as one call: the short way, or what ``slow(block, unblock_event)`` gives."""
        take = self.take

        def consume(block: bool = True, unblock_event: Any = None) -> Message | None:
            return take() or slow(block, unblock_event)

        return consume
