"""Messages of one partition that librdkafka has fetched, with the interface of ``wire.records.RecordChunk``.

The messages come from the package confluent-kafka. They are converted at once, which frees its objects while they are
still in the processor's cache. They are decoded and their checksums are right, so such a chunk is never damaged.
"""

from __future__ import annotations

from typing import Any

from managedconsumer.wire.records import Message, PartitionContext, messages_of

# The rough size of a record besides its value: key, headers, numbers.
_RECORD_BYTES = 64


class RdkafkaChunk:
    """Consecutive messages of one partition; see ``managedconsumer.wire.records`` for the meaning of the names.

    Belongs to one thread at a time, but for ``active``. It does not keep taken messages: a chunk that is rewound
    becomes inactive, and its partition is fetched again from there.
    """

    __slots__ = (
        *("active", "context", "corrupt", "epochs", "exhausted", "fetch_offset", "last_leader_epoch", "ready"),
        *("nbytes", "needs_bytes", "next_fetch_offset", "position", "record_count", "batch_bytes", "unpack_bytes"),
    )

    def __init__(self, context: PartitionContext, messages: list[Any], fetch_offset: int, end_offset: int = -1) -> None:
        """``messages`` follow ``fetch_offset`` in order; ``end_offset``: the log has no others up to there."""
        self.context = context
        self.active = True
        self.exhausted = self.corrupt = False
        self.needs_bytes = self.batch_bytes = self.unpack_bytes = 0
        self.fetch_offset = self.position = fetch_offset
        # The next message is the last one: a Lane takes from here.
        self.ready, size = messages_of(context, messages)
        self.record_count = len(self.ready)
        self.nbytes = size + _RECORD_BYTES * len(self.ready)
        self.next_fetch_offset = max([fetch_offset, end_offset, *(message.offset + 1 for message in self.ready[:1])])
        self.epochs = _epochs(self.ready)
        self.last_leader_epoch = self.ready[0].leader_epoch if self.ready else -1

    def __iter__(self) -> RdkafkaChunk:
        return self

    def __next__(self) -> Message:
        ready = self.ready
        if not ready or not self.active:
            self._finish()
            raise StopIteration
        # In this order, here and in take(): an interruption in between repeats messages, and never skips any.
        self.position = ready[-1].offset + 1
        return ready.pop()

    def take(self, n: int, stop_offset: int | None = None, max_bytes: int | None = None) -> list[Message]:
        """Up to ``n`` messages (below ``stop_offset``); fewer at the end, or when they hold ``max_bytes``."""
        before = self.position
        try:
            return self._take(n, stop_offset, max_bytes)
        except BaseException:  # a signal, too little memory: no message was delivered
            self.rewind(before)
            raise

    def _take(self, n: int, stop_offset: int | None, max_bytes: int | None) -> list[Message]:
        ready = self.ready
        left = len(ready) - min(max(n, 0), len(ready))
        taken = ready[left:]
        taken.reverse()
        if max_bytes is not None:
            taken = _within(taken, max_bytes)
        stopped = stop_offset is not None and bool(taken) and taken[-1].offset >= stop_offset
        if stopped:
            taken = [message for message in taken if message.offset < (stop_offset or 0)]
        if not self.active:
            return []
        if stopped:
            self.position = max(self.position, stop_offset or 0)
        elif taken:
            self.position = taken[-1].offset + 1
        elif n > 0:
            self._finish()
        del ready[len(ready) - len(taken) :]  # the list itself stays: a Lane takes from it
        return taken

    def rewind(self, position: int) -> None:
        """Go back to ``position``, see ``managedconsumer.wire.records``: taken messages have to be fetched again."""
        if position != self.position:
            self.active = False
        self.position = position

    def again(self, offset: int) -> RdkafkaChunk | None:
        """Return a fresh chunk of the remaining messages, if these are all from ``offset`` on; otherwise None."""
        if self.exhausted or not self.active or offset < self.position:
            return None
        fresh = RdkafkaChunk(self.context, [], offset, self.next_fetch_offset)
        fresh.ready = [message for message in list(self.ready) if message.offset >= offset]
        return fresh

    def skip_corrupt(self) -> int:
        """There is no damage to skip; the position."""
        return self.position

    def _finish(self) -> None:
        if self.active:
            self.position = max(self.position, self.next_fetch_offset)
            self.exhausted = True


def _epochs(ready: list[Message]) -> list[tuple[int, int]]:
    """Where the epoch changes: almost never, so the first and the last record are compared."""
    found: list[tuple[int, int]] = []
    same = bool(ready) and ready[0].leader_epoch == ready[-1].leader_epoch
    for message in ready[-1:] if same else reversed(ready):
        if message.leader_epoch >= 0 and (not found or message.leader_epoch != found[-1][1]):
            found.append((message.offset, message.leader_epoch))
    return found


def _within(messages: list[Message], limit: int) -> list[Message]:
    """Return the first messages up to the one that reaches ``limit`` bytes."""
    size = 0
    for count, message in enumerate(messages, 1):
        size += len(message.value or b"") + _RECORD_BYTES
        if size >= limit:
            return messages[:count]
    return messages
