"""Stands for a batch that was not received because it is larger than a response may be.

It behaves as a chunk that begins with damage: the consumer delivers the messages before it, raises the error in the
partition's turn and keeps the position before it; ``on_error`` decides, and the other partitions continue.
"""

from __future__ import annotations

from typing import Any

from managedconsumer.errors import FrameTooLargeError, RecordTooLargeError
from managedconsumer.wire.records import Message, PartitionContext
from managedconsumer.wire.records import format as fmt


class RefusedBatch:
    """See ``managedconsumer.wire.records`` for the meaning of the names. Belongs to one thread at a time."""

    __slots__ = (
        *("_next_offset", "_raised", "active", "context", "corrupt", "epochs", "error", "exhausted", "fetch_offset"),
        *("last_leader_epoch", "nbytes", "needs_bytes", "next_fetch_offset", "position", "record_count"),
        *("batch_bytes", "unpack_bytes"),
    )

    def __init__(
        self, context: PartitionContext, fetch_offset: int, next_offset: int, error: RecordTooLargeError
    ) -> None:
        """``error`` has the batch's first offset; ``next_offset``: the position after the batch is skipped."""
        self.context = context
        self.fetch_offset = self.position = self.next_fetch_offset = fetch_offset
        self._next_offset = next_offset
        self.error = error
        self._raised = self.exhausted = False
        self.active = self.corrupt = True
        self.record_count = self.nbytes = self.needs_bytes = self.batch_bytes = self.unpack_bytes = 0
        self.last_leader_epoch = -1
        self.epochs: list[tuple[int, int]] = []

    def __iter__(self) -> RefusedBatch:
        return self

    def __next__(self) -> Message:
        self._raise()
        raise StopIteration

    def take(self, n: int, stop_offset: int | None = None, _max_bytes: int | None = None) -> list[Message]:
        """Raises RecordTooLargeError, unless the batch was skipped or is beyond ``stop_offset``."""
        if n > 0 and (stop_offset is None or self.error.offset < stop_offset):
            self._raise()
        return []

    def _raise(self) -> None:
        if self.active and not self.exhausted:
            self._raised = True
            raise self.error.with_traceback(None)  # else the traceback would grow with every call

    def again(self, _offset: int) -> None:
        """None: there are no bytes to look at."""

    def skip_corrupt(self) -> int:
        """Move past the batch once it has raised; returns the new position."""
        if self._raised:
            self.exhausted = True
            self.position = self.next_fetch_offset = max(self.position, self._next_offset)
        return self.position

    def abandon(self, position: int) -> None:
        """End the chunk; the position stays before the batch."""
        self.active = False
        self.position = position


def refused_batch(
    context: PartitionContext, offset: int, error: FrameTooLargeError, option: str
) -> RefusedBatch | None:
    """Return the too large batch at ``offset`` of a request for one partition; ``option``: name of the user's limit.

    None: the bytes are no response with such a batch, so the stream was broken.
    """
    header = _first_header(context.partition_id, error.answer)
    if len(header) < fmt.HEADER_BYTES:
        return None
    first, size = int.from_bytes(header[:8], "big", signed=True), int.from_bytes(header[8 : fmt.PREFIX_BYTES], "big")
    size += fmt.PREFIX_BYTES
    # Formats 0 and 1 have the offset of the last message.
    last = first + fmt.HEADER.unpack(header)[6] if header[fmt.MAGIC_AT] == 2 else first
    if header[fmt.MAGIC_AT] > 2 or not offset <= last or not fmt.HEADER_BYTES <= size <= error.size:
        return None
    cause = RecordTooLargeError(context.topic, context.partition_id, max(first, offset), size, error.limit, option)
    return RefusedBatch(context, offset, last + 1, cause)


def _first_header(partition: int, answer: dict[str, Any] | None) -> bytes:
    for topic in (answer or {}).get("responses", ()):
        for part in topic["partitions"]:
            if part["partition_index"] == partition and part["records"]:
                return bytes(part["records"][: fmt.HEADER_BYTES])
    return b""
