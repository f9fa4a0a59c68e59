"""``RecordChunk`` in Python: the twin of the accelerator's class, and the one that a machine without a compiler runs.

Interface and meaning are described in ``managedconsumer.wire.records``.
"""

from __future__ import annotations

from typing import Sequence

from managedconsumer.errors import CorruptRecordError, MissingPackageError
from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records._batches_py import Aborts, Batch, Walk
from managedconsumer.wire.records._lane_py import FastPath as FastPath
from managedconsumer.wire.records._lane_py import Lane as Lane
from managedconsumer.wire.records._message_py import Message, Origin, PartitionContext
from managedconsumer.wire.records._message_py import extents_of as extents_of
from managedconsumer.wire.records._message_py import messages_of as messages_of
from managedconsumer.wire.records._message_py import runs_of as runs_of
from managedconsumer.wire.records._message_py import topic_ids_of as topic_ids_of
from managedconsumer.wire.records._recordparse_py import (
    ONE_BYTE,
    TWO_BYTES,
    BadRecordError,
    headers_of,
    load_tables,
    mend_timestamps,
    misplaced,
    read_field,
    timestamp_delta,
)
from managedconsumer.wire.records.compression import DEFAULT_MAX_BYTES, Beside, Buffer, DecompressionError, decompress
from managedconsumer.wire.records.format import read_varint
from managedconsumer.wire.records.legacy import BadMessageError, decode_entry

INTERFACE = 16
IMPLEMENTATION = "python"

_AHEAD_BYTES = 64 * 1024  # of small batches that are made ready together: few records do not pay for the slow path
_LOT = 256  # messages made ahead of the hand-out: enough to pay for the loop's set-up, little enough to be quick


class RecordChunk:
    """The records of one fetch response for one partition, see ``managedconsumer.wire.records``."""

    __slots__ = (
        *("_aborts", "_batch", "_batches", "_beside", "_data", "_failure", "_index", "_left", "_max_batch_bytes"),
        *("_origin", "_passed", "_payload", "_place", "_previous", "_raised", "_skipped", "_unpacked"),
        *("active", "context", "corrupt", "epochs", "exhausted", "fetch_offset", "last_leader_epoch", "nbytes"),
        *("batch_bytes", "needs_bytes", "next_fetch_offset", "position", "ready", "record_count", "unpack_bytes"),
    )

    def __init__(
        self,
        context: PartitionContext,
        data: Buffer,
        fetch_offset: int,
        *,
        aborted: Sequence[tuple[int, int]] = (),
        read_committed: bool = False,
        check_crcs: bool = True,
        max_batch_bytes: int = DEFAULT_MAX_BYTES,
        beside: Beside | None = None,
    ) -> None:
        if hasattr(self, "context"):
            raise TypeError("a RecordChunk cannot be initialised twice")
        self.context = context
        self.active, self.exhausted = True, False
        self.fetch_offset = self.position = self.next_fetch_offset = fetch_offset
        self.last_leader_epoch = -1
        self.epochs: list[tuple[int, int]] = []
        self._data = memoryview(data).cast("B")
        self.nbytes = len(self._data)
        self._max_batch_bytes = max_batch_bytes
        self._beside = beside
        self._aborts = Aborts(aborted, max_batch_bytes) if read_committed else None

        walk = Walk(self._data, check_crcs=check_crcs, max_batch_bytes=max_batch_bytes)
        self._batches = walk.batches
        self.needs_bytes = walk.needs_bytes
        self.batch_bytes, self.unpack_bytes = walk.largest()
        self.record_count = 0
        self.corrupt = False
        for batch in walk.batches:
            self._count(batch)

        self._index = -1
        self._skipped = -1  # batches up to this one were skipped or are sound
        self._batch: Batch | None = None
        self._failure: str | None = None
        self._raised = False
        self.ready: list[Message] = []  # the next message is the last one
        self._payload = b""
        self._unpacked = 0  # bytes of all batches opened so far
        self._passed = 0  # the position when everything that is ready has been taken
        self._place = self._left = 0  # in the payload; records not read yet
        self._previous = -1
        self._origin = Origin(context, 2, 0, -1)

    def _count(self, batch: Batch) -> None:
        if batch.bad is not None:
            self.corrupt = True
            return
        self.next_fetch_offset = max(self.next_fetch_offset, batch.last_offset + 1)
        if batch.magic >= 2:
            if batch.leader_epoch != self.last_leader_epoch:
                self.epochs.append((batch.base_offset, batch.leader_epoch))
            self.last_leader_epoch = batch.leader_epoch
        if not batch.is_control:
            self.record_count += batch.count

    def __iter__(self) -> RecordChunk:
        return self

    def __next__(self) -> Message:
        ready = self.ready
        if not ready:
            if not self._refill():
                raise StopIteration
            self._read_ahead()
        message = ready.pop()
        if self.active:
            # No call between the test and the return: no other thread can come in between, so a chunk that was
            # switched off hands out nothing more.
            self.position = message.offset + 1
            return message
        ready.append(message)
        raise StopIteration

    def take(self, n: int, stop_offset: int | None = None, max_bytes: int | None = None) -> list[Message]:
        """Up to ``n`` messages, see ``managedconsumer.wire.records``."""
        taken: list[Message] = []
        before = self.position
        limit = None if max_bytes is None else self._unpacked + max_bytes
        try:
            self._take(taken, n, stop_offset, limit)
        except CorruptRecordError:
            if not taken:
                raise
            self._raised = False  # what was read is delivered; the next call raises
        except (MissingPackageError, MemoryError):
            # What was read is delivered; the next call meets the same, or gets on. The error may have come between a
            # message and its position, so the position is that of the messages.
            self.rewind(taken[-1].offset + 1 if taken else self.position)
            if not taken:
                raise
        except BaseException:
            self.rewind(before)
            raise
        return taken

    def _take(self, taken: list[Message], n: int, stop_offset: int | None, limit: int | None) -> None:
        ready = self.ready
        while n > 0:
            if not ready:
                if taken and limit is not None and self._unpacked >= limit:
                    break
                if not self._refill():
                    break
            lot = ready[-n:]
            if stop_offset is not None and lot[0].offset >= stop_offset:
                lot = [message for message in lot if message.offset < stop_offset]
                n, position = len(lot), max(self.position, stop_offset)
            else:
                position = lot[0].offset + 1
            lot.reverse()
            count = len(lot)
            if not self.active:
                break
            taken += lot
            self.position = position
            del ready[len(ready) - count :]
            n -= count

    def again(self, offset: int) -> RecordChunk | None:
        """A fresh chunk over the same bytes, see ``managedconsumer.wire.records``."""
        if self.exhausted:
            return None
        return RecordChunk(
            self.context,
            self._data,
            offset,
            aborted=() if self._aborts is None else self._aborts.given,
            read_committed=self._aborts is not None,
            check_crcs=self.corrupt,
            max_batch_bytes=self._max_batch_bytes,
            beside=self._beside,
        )

    def rewind(self, position: int) -> None:
        """Go back to ``position``, see ``managedconsumer.wire.records``."""
        if self.exhausted:
            self.active = False  # its bytes are gone
        if self._aborts is not None:
            self._aborts.restart()
        self.position = position
        self._batch = None
        self._failure = None
        self._raised = False
        self._left = 0
        self._index = -1
        self._passed = 0
        del self.ready[:]  # the list itself stays: a Lane takes from it

    def skip_corrupt(self) -> int:
        """Move past the batch that has raised CorruptRecordError; the new position.  Else it does nothing."""
        if not self._raised or self._batch is None:
            return self.position
        self._raised = False
        self.position = max(self.position, self._after_corrupt(self._batch))
        self.next_fetch_offset = max(self.next_fetch_offset, self.position)
        self._skipped = self._index
        self._failure = None
        self._left = 0
        self._batch = None
        return self.position

    def _after_corrupt(self, batch: Batch) -> int:
        if batch.bad is None:
            return batch.last_offset + 1  # the header is sound, a record within is not
        following = self._batches[self._index + 1 : self._index + 2]
        if following and following[0].bad is None and following[0].base_offset >= self.position:
            return following[0].base_offset
        if batch.consistent and batch.last_offset >= self.position:
            return min(batch.last_offset + 1, fmt.MAX_OFFSET)
        # Its own words cannot be trusted, and jumping too far would lose records: one offset at a time.
        return min(self.position + 1, fmt.MAX_OFFSET)

    # --- filling: everything below runs once per batch or per lot of messages ---

    def _refill(self) -> bool:
        """Make the next messages ready; False at the end.  Raises CorruptRecordError when nothing is left before it."""
        self.position = max(self.position, self._passed)
        while self.active:
            if self._failure is not None:
                raise self._corrupt_error(self._failure)
            if not self._left and self._index + 1 >= len(self._batches):
                self._finish()
                return False
            self._make_ready()
            if self.ready:
                return True
        return False

    def _make_ready(self) -> None:
        """Read the next lot of the open batch, or open the next batch."""
        if self._left and self._batch is not None:
            self._read_lot(self._batch)
            return
        self._pass_batch()
        self._index += 1
        batch = self._batches[self._index]
        if self._index > self._skipped or batch.bad is None:
            self._open(batch)

    def _pass_batch(self) -> None:
        if self._batch is not None:
            self._passed = self._batch.last_offset + 1
            self._batch = None
            if not self.ready:
                self.position = max(self.position, self._passed)

    def _read_ahead(self) -> None:
        """Make the messages of small batches that follow ready, too. What goes wrong is met again by `_refill`."""
        most = self._unpacked + _AHEAD_BYTES
        while self._failure is None and self._unpacked < most and len(self.ready) < _LOT:
            if not self._left and not self._next_is_plain():
                return
            try:
                self._make_ready()
            except (MissingPackageError, MemoryError):
                return

    def _next_is_plain(self) -> bool:
        """The next batch is small, follows the last message, and has messages: no position in between is skipped."""
        last, following = self._batch, self._batches[self._index + 1 : self._index + 2]
        if last is None or not following or self.ready[0].offset != last.last_offset:
            return False
        batch = following[0]
        skipped = batch.is_control or (self._aborts is not None and batch.attributes & fmt.TRANSACTIONAL)
        return batch.bad is None and 0 < batch.count <= _LOT and not skipped

    def _finish(self) -> None:
        self.position = max(self.position, self.next_fetch_offset)
        self.exhausted = True
        self._payload = b""
        self._data = memoryview(b"")

    def _corrupt_error(self, reason: str) -> CorruptRecordError:
        self._raised = True
        offset = max(self.position, self._batch.base_offset if self._batch else -1)
        return CorruptRecordError(self.context.topic, self.context.partition_id, offset, reason)

    def _open(self, batch: Batch) -> None:
        """Get a batch ready to be read, or pass it over (a marker, an aborted transaction, nothing new in it)."""
        self._batch = batch
        self._failure = batch.bad
        if batch.bad is not None:
            return
        try:
            if self._aborts is not None and self._aborts.include(batch, self._data):
                return
            if batch.is_control or batch.last_offset < self.position or not batch.count:
                return
            if batch.magic < 2:
                self._open_legacy(batch)
                return
            body = self._data[batch.start + fmt.HEADER_BYTES : batch.end]
            codec = batch.attributes & fmt.CODEC_MASK
            self._payload = bytes(decompress(codec, body, self._max_batch_bytes, None, self._beside))
            self.unpack_bytes = max(self.unpack_bytes, len(self._payload) if codec else 0)
        except (DecompressionError, BadMessageError) as error:
            self._failure = str(error)
            return
        except BaseException:
            self._batch = None
            self._index -= 1  # such as a package that is missing: the next call tries again
            raise
        if batch.count * fmt.MIN_RECORD_BYTES > len(self._payload):
            self._failure = fmt.bad_count(batch.count, len(self._payload))
            return
        load_tables()
        self._place, self._left = 0, batch.count
        self._unpacked += len(self._payload)
        self._previous = batch.base_offset - 1
        appended = 1 if batch.attributes & fmt.LOG_APPEND_TIME else 0
        self._origin = Origin(self.context, batch.magic, appended, batch.leader_epoch)

    def _open_legacy(self, batch: Batch) -> None:
        made = []
        # Nobody has checked the offsets within: those of damaged data may repeat offsets that are ready by now.
        start = self.ready[0].offset + 1 if self.ready else self.position
        entry = self._data[batch.start : batch.end]
        for record in reversed(decode_entry(entry, self._max_batch_bytes, self._beside)):
            if record.offset >= start:
                message: Message = Message.__new__(Message)
                message.value, message.partition_key = record.value, record.key
                message.offset, message.timestamp, message.raw_headers = record.offset, record.timestamp, None
                message.origin = Origin(self.context, record.magic, record.timestamp_type, -1)
                made.append(message)
        self._unpacked += sum(len(message.value or b"") for message in made)
        self.ready[:0] = made  # in front: the next message is the last one

    def _read_lot(self, batch: Batch) -> None:
        """Turn the next records of the open batch into messages, up to one lot."""
        lot: list[Message] = []
        try:
            self._read_records(batch, lot)
            if not self._left and self._place != len(self._payload):
                self._failure = fmt.left_over(len(self._payload) - self._place, batch.count)
        except BadRecordError as error:
            self._failure, self._left = str(error), 0
        mend_timestamps(lot, batch.base_timestamp, batch.max_timestamp if self._origin.timestamp_type else None)
        lot.reverse()
        self.ready[:0] = lot  # in front: the next message is the last one

    def _read_records(self, batch: Batch, lot: list[Message]) -> None:
        """The hot loop, see ``_recordparse_py``: varints of one or two bytes are looked up, longer ones computed."""
        data, place, first, previous = self._payload, self._place, self._left, self._previous
        size, start, origin, base, last = len(data), self.position, self._origin, batch.base_offset, batch.last_offset
        new, one, two, base_timestamp = Message.__new__, ONE_BYTE, TWO_BYTES, batch.base_timestamp
        value: int | None
        try:
            for left in range(first, max(first - _LOT, 0), -1):  # not "while": Python 3.11 would never speed it up
                byte = data[place]
                if byte < 128:
                    value = one[byte]
                    place += 1
                elif (value := two[byte][data[place + 1]]) is not None:
                    place += 2
                else:
                    value, place = read_varint(data, place)
                end = place + value
                byte = data[place + 1]  # the byte before it is the attributes, without meaning so far
                if byte < 128:
                    value = one[byte]
                    place += 2
                elif (value := two[byte][data[place + 2]]) is not None:
                    place += 3
                else:
                    value, place = timestamp_delta(data, place + 1, base_timestamp)
                timestamp = base_timestamp + value
                byte = data[place]
                if byte < 128:
                    value = one[byte]
                    place += 1
                elif (value := two[byte][data[place + 1]]) is not None:
                    place += 2
                else:
                    value, place = read_varint(data, place)
                offset = base + value
                if not previous < offset <= last or not place <= end <= size:
                    raise misplaced(batch.count, left, offset, not place <= end <= size)
                previous = offset
                if offset >= start:
                    message: Message = new(Message)
                    message.offset = offset
                    message.timestamp = timestamp
                    message.origin = origin
                    if data[place] == 1:  # null
                        message.partition_key = None
                        place += 1
                    else:
                        message.partition_key, place = read_field(data, place)
                    byte = data[place]
                    if byte > 127 and (value := two[byte][data[place + 1]]) is not None and value >= 0:
                        place += 2 + value
                        message.value = data[place - value : place]
                    else:
                        message.value, place = read_field(data, place)
                    message.raw_headers = None if not data[place] and place + 1 == end else headers_of(data, place, end)
                    lot.append(message)
                place = end
        except IndexError:
            raise BadRecordError(fmt.bad_record(batch.count - left + 1, batch.count)) from None
        self._place, self._left, self._previous = place, left - 1, previous
