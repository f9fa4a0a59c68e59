"""Messages of one partition that librdkafka has fetched, as a ``wire.records.RecordChunk``.

The messages come from the package confluent-kafka. They are converted at once, which frees its objects while they are
still in the processor's cache. They are decoded and their checksums are right, so such a chunk is never damaged.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from managedconsumer.wire.records import Message, PartitionContext, messages_of
from managedconsumer.wire.records._records_py import RecordChunk

# The rough size of a record besides its value: key, headers, numbers.
_RECORD_BYTES = 64


class RdkafkaChunk(RecordChunk):
    """A chunk without bytes: all its messages are ready, and it does not keep those that were taken."""

    __slots__ = ()

    def __init__(self, context: PartitionContext, messages: list[Any], fetch_offset: int, end_offset: int = -1) -> None:
        """``messages`` follow ``fetch_offset`` in order; ``end_offset``: the log has no others up to there."""
        super().__init__(context, b"", fetch_offset)
        self.ready, size = messages_of(context, messages)
        self.record_count = len(self.ready)
        self.nbytes = size + _RECORD_BYTES * len(self.ready)
        self.next_fetch_offset = max([fetch_offset, end_offset, *(message.offset + 1 for message in self.ready[:1])])
        self.epochs = _epochs(self.ready)
        self.last_leader_epoch = self.ready[0].leader_epoch if self.ready else -1

    def take(self, n: int, stop_offset: int | None = None, max_bytes: int | None = None) -> list[Message]:
        """Up to ``n`` messages (below ``stop_offset``); fewer at the end, or when they hold ``max_bytes``."""
        return super().take(n if max_bytes is None else _within(self.ready, n, max_bytes), stop_offset)

    def rewind(self, position: int) -> None:
        """Go back to ``position``: what follows has to be fetched again."""
        self.active = False
        self.position = position

    def again(self, offset: int) -> RdkafkaChunk | None:
        """Return a fresh chunk of the remaining messages, if these are all from ``offset`` on; otherwise None."""
        if self.exhausted or not self.active or offset < self.position:
            return None
        fresh = RdkafkaChunk(self.context, [], offset, self.next_fetch_offset)
        fresh.ready = [message for message in list(self.ready) if message.offset >= offset]
        return fresh


def _epochs(ready: list[Message]) -> list[tuple[int, int]]:
    """Where the epoch changes: almost never, so the first and the last record are compared."""
    found: list[tuple[int, int]] = []
    same = bool(ready) and ready[0].leader_epoch == ready[-1].leader_epoch
    for message in ready[-1:] if same else reversed(ready):
        if message.leader_epoch >= 0 and (not found or message.leader_epoch != found[-1][1]):
            found.append((message.offset, message.leader_epoch))
    return found


def _within(ready: list[Message], n: int, limit: int) -> int:
    """Return how many of the next ``n`` messages there are up to the one that reaches ``limit`` bytes."""
    size = 0
    for count, message in enumerate(islice(reversed(ready), max(n, 0)), 1):
        size += len(message.value or b"") + _RECORD_BYTES
        if size >= limit:
            return count
    return n
