"""Stands for a batch that was not received because it is larger than a response may be.

It is a chunk that begins with damage: the consumer delivers the messages before it, raises the error in the
partition's turn and keeps the position before it; ``on_error`` decides, and the other partitions continue.
"""

from __future__ import annotations

from typing import Any

from managedconsumer.errors import FrameTooLargeError, RecordTooLargeError
from managedconsumer.wire.records import Message, PartitionContext
from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records._batches_py import Batch
from managedconsumer.wire.records._records_py import RecordChunk


class RefusedBatch(RecordChunk):
    """A chunk of one damaged batch, whose damage is the error. Belongs to one thread at a time."""

    __slots__ = ("_next_offset", "error")

    def __init__(
        self, context: PartitionContext, fetch_offset: int, next_offset: int, error: RecordTooLargeError
    ) -> None:
        """``error`` has the batch's first offset; ``next_offset``: the position after the batch is skipped."""
        super().__init__(context, b"", fetch_offset)
        self._next_offset, self.error = next_offset, error
        refused = Batch(0, 0, error.offset, 2)
        refused.bad = str(error)
        self._batches.append(refused)
        self.corrupt = True

    def take(self, n: int, stop_offset: int | None = None, max_bytes: int | None = None) -> list[Message]:
        """Raises RecordTooLargeError, unless the batch was skipped or is beyond ``stop_offset``."""
        beyond = stop_offset is not None and self.error.offset >= stop_offset
        return super().take(0 if beyond else n, stop_offset, max_bytes)

    def again(self, offset: int) -> None:
        """None: there are no bytes to look at."""

    def _corrupt_error(self, reason: str) -> RecordTooLargeError:
        self._raised = True
        return self.error.with_traceback(None)  # else the traceback would grow with every call

    def _after_corrupt(self, batch: Batch) -> int:
        return self._next_offset


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
