"""What librdkafka has fetched of one partition, with the interface of ``wire.records.RecordChunk``.

The messages are the package confluent-kafka's; each becomes one of ours when it is handed out. They are decoded and
their checksums are right, so a chunk of these is never damaged.
"""

from __future__ import annotations

from typing import Any, Sequence

from managedconsumer.wire.records import Message, PartitionContext

# What a record takes besides its value: key, headers, numbers; roughly.
_RECORD_BYTES = 64


class RdkafkaChunk:
    """Consecutive messages of one partition; see ``managedconsumer.wire.records`` for what the names mean.

    Belongs to one thread at a time, but for ``active``.
    """

    __slots__ = (
        *("_index", "_messages", "active", "context", "corrupt", "epochs", "exhausted", "fetch_offset"),
        *("last_leader_epoch", "nbytes", "needs_bytes", "next_fetch_offset", "position", "record_count"),
    )

    def __init__(
        self, context: PartitionContext, messages: Sequence[Any], fetch_offset: int, end_offset: int = -1
    ) -> None:
        """``messages`` follow ``fetch_offset`` in order; ``end_offset``: there is nothing up to there besides them."""
        self.context = context
        self.active = True
        self.exhausted = self.corrupt = False
        self.needs_bytes = 0
        self.fetch_offset = self.position = fetch_offset
        self._messages = messages
        self._index = 0
        self.record_count = len(messages)
        self.nbytes = sum(map(len, messages)) + _RECORD_BYTES * len(messages)
        last = messages[-1] if messages else None
        self.next_fetch_offset = max(fetch_offset, end_offset, last.offset() + 1 if last is not None else -1)
        self.last_leader_epoch = -1 if last is None else _epoch(last)
        self.epochs = _epochs(messages) if messages else []

    def __iter__(self) -> RdkafkaChunk:
        return self

    def __next__(self) -> Message:
        if self._index >= len(self._messages):
            self._finish()
            raise StopIteration
        message = self._convert(self._messages[self._index])
        if not self.active:
            raise StopIteration
        self._index += 1
        self.position = message.offset + 1
        return message

    def take(self, n: int, stop_offset: int | None = None, max_bytes: int | None = None) -> list[Message]:
        """Up to ``n`` messages (below ``stop_offset``); fewer at the end, or when they hold ``max_bytes``."""
        lot = self._messages[self._index : self._index + max(n, 0)]
        if max_bytes is not None:
            lot = _within(lot, max_bytes)
        stopped = stop_offset is not None and bool(lot) and lot[-1].offset() >= stop_offset
        if stopped:
            lot = [message for message in lot if message.offset() < (stop_offset or 0)]
        # A signal in here leaves everything as it was: nothing was handed out.
        taken = [self._convert(message) for message in lot]
        if not self.active:
            return []
        self._index += len(taken)
        if stopped:
            self.position = max(self.position, stop_offset or 0)
        elif taken:
            self.position = taken[-1].offset + 1
        elif n > 0:
            self._finish()
        return taken

    def abandon(self, position: int) -> None:
        """End the chunk, which hands out nothing more, with ``position`` where it was before what got lost."""
        self.active = False
        self.position = position

    def skip_corrupt(self) -> int:
        """There is no damage to skip; the position."""
        return self.position

    def _finish(self) -> None:
        if self.active:
            self.position = max(self.position, self.next_fetch_offset)
            self.exhausted = True
            self._messages = ()

    def _convert(self, theirs: Any) -> Message:
        kind, timestamp = theirs.timestamp()
        context = self.context
        return Message(
            theirs.value(),
            theirs.key(),
            offset=theirs.offset(),
            timestamp=timestamp if kind else 0,
            headers=theirs.headers() or (),
            topic=context.topic,
            partition_id=context.partition_id,
            partition=context.partition,
            timestamp_type=kind - 1,  # theirs: 0 none, 1 the producer's clock, 2 the broker's
            leader_epoch=_epoch(theirs),
        )


def _epoch(message: Any) -> int:
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch


def _epochs(messages: Sequence[Any]) -> list[tuple[int, int]]:
    """Where the epoch changes: as good as never, so that two looks are all it takes."""
    first, last = _epoch(messages[0]), _epoch(messages[-1])
    found = [(messages[0].offset(), first)] if first >= 0 else []
    for message in messages if first != last else ():
        epoch = _epoch(message)
        if epoch >= 0 and (not found or epoch != found[-1][1]):
            found.append((message.offset(), epoch))
    return found


def _within(messages: Sequence[Any], limit: int) -> Sequence[Any]:
    """As many as come before ``limit`` bytes are reached, and the one that reaches them."""
    size = 0
    for count, message in enumerate(messages, 1):
        size += len(message) + _RECORD_BYTES
        if size >= limit:
            return messages[:count]
    return messages
