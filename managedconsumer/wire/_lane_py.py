"""``Lane`` in Python: it has no short way, so every message goes the long one. The twin of the accelerator's class.

A lane is attached to the chunk that is being read and to the one thread that reads it. While it is, that thread takes
messages from it without the consumer's lock; coming back for the next message is what finishes the last one. Whoever
holds the lock detaches the lane before it looks at positions or takes partitions away: ``count`` says how many messages
went this way in all, ``last_offset`` which was the last, the chunk's own ``position`` where it stands.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

from managedconsumer.wire._message_py import Message


class Lane:
    """See above."""

    def __init__(self, ident: Callable[[], int] | None = None) -> None:
        self._ident = ident
        self.count = 0
        self.last_offset = -1

    def attach(self, chunk: Any, who: int) -> None:
        """Let the calling thread take from ``chunk``; here: nothing."""

    def detach(self) -> None:
        """From here on nothing is taken."""

    @property
    def attached(self) -> bool:
        """True while a thread may take messages without the lock."""
        return False

    def take(self) -> Message | None:
        """The next message, or None where the long way has to be gone."""
        return None

    def iterate(self, slow: Callable[[], Message | None]) -> Iterator[Message]:
        """An iterator that calls ``slow`` where the short way ends, and ends where that gives None."""
        return _iterate(slow)

    def caller(self, _slow: Callable[..., Message | None]) -> Callable[..., Message | None] | None:
        """``consume()`` as one call: the short way, or what ``slow(block, unblock_event)`` gives; None: not here."""
        return None


def _iterate(slow: Callable[[], Message | None]) -> Iterator[Message]:
    while (message := slow()) is not None:
        yield message
