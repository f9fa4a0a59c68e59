"""``Lane`` in Python, the twin of the accelerator's class: the way of a message past the consumer's lock.

A lane is attached to the chunk that is being read and to the one thread that reads it. While it is, that thread takes
messages from it without the consumer's lock; coming back for the next message is what finishes the last one. Whoever
holds the lock detaches the lane before it looks at positions or takes partitions away: ``count`` says how many messages
went this way in all, ``last_offset`` which was the last, the chunk's own ``position`` where it stands.

The accelerator's ``take`` is one step under the GIL. Here that step is ``list.pop`` on the messages that the chunk has
ready; how many were taken, and so which was the last, follows from how many are left when somebody looks.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Callable, Iterator

from managedconsumer.errors import CorruptRecordError
from managedconsumer.wire._message_py import Message


def _nothing() -> Message:
    raise IndexError


class Lane:
    """See above. ``current`` names the calling thread or greenlet; without a ``lock`` there is no short way."""

    def __init__(self, current: Callable[[], Any] | None = None, native: bool = True, lock: Any = None) -> None:
        self._current = current
        self._lock = None if current is None else lock
        self._chunk: Any = None
        self._owner: Any = None
        self._pop: Callable[[], Message] = _nothing
        self._rest: list[Message] = []  # gets what nobody has taken
        # What was ready when somebody last looked: how many, the offset of the next, and all of them if there are gaps.
        self._left = 0
        self._next = 0
        self._offsets: list[int] | None = None
        self.native = native
        self.count = 0
        self.last_offset = -1

    def attach(self, chunk: Any) -> None:
        """Let the calling thread take from ``chunk``, whose last message it has in hand."""
        if self._lock is not None and self._current is not None:
            if not hasattr(chunk, "_ready"):
                return  # the accelerator's: under use_rdkafka both kinds come
            self._note_ready(chunk)
            self._rest = []
            self._chunk = chunk
            self._owner = self._current()

    def _note_ready(self, chunk: Any) -> None:
        ready: list[Message] = chunk._ready  # noqa: SLF001 (the next message is the last one)
        self._left = len(ready)
        self._offsets = None
        if ready:
            self._next = ready[-1].offset
            if ready[0].offset - self._next != self._left - 1:
                self._offsets = [message.offset for message in ready]
        self._pop = ready.pop

    def _note_taken(self, chunk: Any, left: int) -> None:
        """``left`` messages of those that were ready are still there."""
        taken = self._left - left
        if taken > 0:  # below 0: a signal came in between when there were new ones
            self.last_offset = self._next + taken - 1 if self._offsets is None else self._offsets[left]
            chunk.position = self.last_offset + 1
            self.count, self._left = self.count + taken, left

    def detach(self) -> None:
        """From here on nothing is taken. A signal may interrupt it at any line: the next call goes on with it."""
        if self._lock is None:
            return
        with self._lock:
            chunk = self._chunk
            if chunk is None:
                return
            self._owner, self._pop = None, _nothing
            ready, rest = chunk._ready, self._rest  # noqa: SLF001
            if ready is not rest:
                # The thread may be about to take one more: from the other end, one by one, what is left has no holes.
                # One call, so that no signal comes in while a message is in neither list.
                with suppress(IndexError):
                    rest.extend(iter(partial(ready.pop, 0), None))
                self._note_taken(chunk, len(rest))
                chunk._ready = rest  # noqa: SLF001
            self._chunk = self._offsets = None

    def cut(self) -> None:
        """:meth:`detach` in the child of a fork, where the lock may be held by a thread that does not exist."""
        self._chunk = self._owner = None
        self._pop = _nothing

    @property
    def attached(self) -> bool:
        """True while a thread may take messages without the lock."""
        return self._chunk is not None

    def take(self) -> Message | None:
        """The next message, or None where the long way has to be gone."""
        if self._owner is None or self._current is None or self._current() != self._owner:
            return None
        try:
            return self._pop()
        except IndexError:
            return self._take_more()

    def _take_more(self) -> Message | None:
        """All that was ready is taken: read on in the chunk."""
        if self._lock is None:
            return None
        with self._lock:
            chunk = self._chunk
            if chunk is None:
                return None
            self._note_taken(chunk, 0)
            before = self.count, self.last_offset, chunk.position
            try:
                message: Message | None = next(chunk, None)
                if message is not None:
                    self.last_offset = message.offset
                    self._note_ready(chunk)
                    self.count += 1
                return message
            except BaseException as error:
                self.count, self.last_offset, self._left = *before[:2], 0
                if isinstance(error, CorruptRecordError):
                    return None  # the long way meets it again, and raises it
                chunk.rewind(before[2])  # nobody has got anything
                raise

    def iterate(self, slow: Callable[[], Message | None]) -> Iterator[Message]:
        """An iterator that calls ``slow`` where the short way ends, and ends where that gives None."""
        current = self._current
        while (message := self.take() or slow()) is not None:
            yield message
            if current is None:
                continue
            # What somebody detaches in between is emptied, so this pop finds nothing.
            pop = self._pop
            while current() == self._owner:
                try:
                    message = pop()
                except IndexError:
                    break
                yield message

    def caller(self, slow: Callable[..., Message | None]) -> Callable[..., Message | None] | None:
        """``consume()`` as one call: the short way, or what ``slow(block, unblock_event)`` gives."""
        take = self.take

        def consume(block: bool = True, unblock_event: Any = None) -> Message | None:
            return take() or slow(block, unblock_event)

        return consume
