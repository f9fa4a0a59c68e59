"""The batches of a fetched chunk: their headers, and which belong to aborted transactions (KIP-98).  Python twin."""

from __future__ import annotations

import zlib
from typing import Sequence

from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records.compression import DecompressionError, decompress
from managedconsumer.wire.records.crc32c import crc32c
from managedconsumer.wire.records.format import read_varint, signed


class Batch:
    """One batch, or one message of formats 0 and 1, as its header describes it.

    ``start`` and ``end`` are its place in the chunk.  ``bad`` is None, or says why it cannot be read; then no other
    field is to be trusted.  ``base_offset`` is -1 where only the last offset is known (compressed formats 0, 1).
    """

    __slots__ = (
        *("attributes", "bad", "base_offset", "base_timestamp", "count", "end", "last_offset", "leader_epoch"),
        *("magic", "max_timestamp", "producer_id", "start"),
    )

    def __init__(self, start: int, end: int, base_offset: int, magic: int) -> None:
        self.start = start
        self.end = end
        self.base_offset = base_offset
        self.last_offset = base_offset
        self.magic = magic
        self.bad: str | None = None
        self.attributes = 0
        self.count = 1
        self.leader_epoch = -1
        self.producer_id = -1
        self.base_timestamp = self.max_timestamp = -1

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction marker instead of records."""
        return self.magic >= 2 and bool(self.attributes & fmt.CONTROL)

    @property
    def consistent(self) -> bool:
        """Whether offsets and count agree, as in every batch that was not compacted."""
        return self.last_offset - self.base_offset + 1 == self.count > 0


class Walk:
    """The batches of a chunk in order.  ``needs_bytes``: what the first one takes if it is cut off, else 0."""

    __slots__ = ("_checking", "_data", "_expected", "_limit", "batches", "needs_bytes")

    def __init__(self, data: memoryview, *, check_crcs: bool, max_batch_bytes: int) -> None:
        self.batches: list[Batch] = []
        self.needs_bytes = 0
        self._data = data
        self._checking = check_crcs
        self._limit = max_batch_bytes
        self._expected = 0  # the lowest offset that the next batch may begin with
        position: int | None = 0
        while position is not None:
            position = self._step(position)

    def largest(self) -> tuple[int, int]:
        """Bytes of the largest batch, and a guess of what the largest compressed one takes when it is unpacked."""
        sizes = [batch.end - batch.start for batch in self.batches]
        packed = [b.end - b.start for b in self.batches if b.bad is None and b.attributes & fmt.CODEC_MASK]
        return max(sizes, default=0), fmt.UNPACKS_TO * max(packed, default=0)

    def _step(self, start: int) -> int | None:
        """Read the header at ``start``; where the next one is, or None at the end of what can be read."""
        data, left = self._data, len(self._data) - start
        if left < fmt.MAGIC_AT + 1:
            if left and not start:
                self.needs_bytes = fmt.HEADER_BYTES
            return None
        base_offset = int.from_bytes(data[start : start + 8], "big", signed=True)
        size = int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
        magic = data[start + fmt.MAGIC_AT]
        if magic > 2:
            self._give_up(start, base_offset, fmt.unknown_magic(magic))
            return None
        if size < fmt.MIN_SIZES[magic]:
            self._give_up(start, base_offset, fmt.no_room(size))
            return None
        end = start + fmt.PREFIX_BYTES + size
        if end > len(data):
            if size > self._limit:
                self._give_up(start, base_offset, fmt.beyond_limit(size, self._limit))
            elif not start:
                self.needs_bytes = end
            return None
        batch = Batch(start, end, base_offset, magic)
        if magic == 2:
            self._describe(batch)
        else:
            self._describe_legacy(batch)
        self.batches.append(batch)
        return end

    def _give_up(self, start: int, base_offset: int, reason: str) -> None:
        """From here on nothing can be told apart: the rest of the chunk is one bad batch."""
        batch = Batch(start, len(self._data), base_offset, 2)
        batch.bad = reason
        batch.count = 0
        self.batches.append(batch)

    def _describe(self, batch: Batch) -> None:
        fields = fmt.HEADER.unpack_from(self._data, batch.start)
        base_offset, _size, batch.leader_epoch, _magic, crc, batch.attributes, last_delta = fields[:7]
        batch.base_timestamp, batch.max_timestamp, batch.producer_id, _epoch, _sequence, batch.count = fields[7:]
        batch.last_offset = base_offset + last_delta
        if self._checking:
            computed = crc32c(self._data[batch.start + fmt.CRC_FROM : batch.end])
            if computed != crc:
                batch.bad = fmt.bad_crc(computed, crc)
                batch.last_offset = signed(batch.last_offset)
                return
        payload = batch.end - batch.start - fmt.HEADER_BYTES
        unpacked = not batch.attributes & fmt.CODEC_MASK
        if base_offset < self._expected or last_delta < 0 or batch.last_offset >= fmt.MAX_OFFSET:
            batch.bad = fmt.bad_order(base_offset, self._expected)
            batch.last_offset = signed(batch.last_offset)
        elif batch.count < 0 or (unpacked and batch.count * fmt.MIN_RECORD_BYTES > payload):
            batch.bad = fmt.bad_count(batch.count, payload)
        else:
            self._expected = batch.last_offset + 1

    def _describe_legacy(self, batch: Batch) -> None:
        data, start = self._data, batch.start
        batch.attributes = data[start + 17]
        if self._checking:
            computed = zlib.crc32(data[start + fmt.LEGACY_CRC_FROM : batch.end])
            stated = int.from_bytes(data[start + 12 : start + 16], "big")
            if computed != stated:
                batch.bad = fmt.bad_crc(computed, stated)
                return
        if not self._expected <= batch.last_offset < fmt.MAX_OFFSET:
            batch.bad = fmt.bad_order(batch.last_offset, self._expected)
        else:
            self._expected = batch.last_offset + 1
        if batch.attributes & fmt.CODEC_MASK:
            batch.base_offset = -1


class Aborts:
    """The aborted transactions of one response, ``given``.  The batches are passed in order, from the first on."""

    __slots__ = ("_begun", "_later", "_max_batch_bytes", "given")

    def __init__(self, aborted: Sequence[tuple[int, int]], max_batch_bytes: int) -> None:
        # Latest first, so that those that begin next are popped from the end.
        self.given = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._max_batch_bytes = max_batch_bytes
        self.restart()

    def restart(self) -> None:
        """Begin with the first batch again."""
        self._later, self._begun = list(self.given), set[int]()

    def include(self, batch: Batch, data: memoryview) -> bool:
        """Return whether the batch, which is in ``data``, belongs to an aborted transaction."""
        while self._later and self._later[-1][1] <= batch.last_offset:
            self._begun.add(self._later.pop()[0])
        if batch.is_control:
            if self._is_abort_marker(batch, data):
                self._begun.discard(batch.producer_id)
            return False
        transactional = batch.magic >= 2 and bool(batch.attributes & fmt.TRANSACTIONAL)
        return transactional and batch.producer_id in self._begun

    def _is_abort_marker(self, batch: Batch, data: memoryview) -> bool:
        """A control record's key is its version and its type, two bytes each; other types are not for consumers."""
        if batch.count < 1:
            return False  # compacted away
        try:
            records = data[batch.start + fmt.HEADER_BYTES : batch.end]
            body = decompress(batch.attributes & fmt.CODEC_MASK, records, self._max_batch_bytes)
            record, place = bytes(body[:64]), 0
            _, place = read_varint(record, place)  # size
            _, place = read_varint(record, place + 1)  # timestamp, after the attributes
            _, place = read_varint(record, place)  # offset
            size, place = read_varint(record, place)
            return size >= 4 and record[place + 2 : place + 4] == b"\x00\x00"
        except (DecompressionError, IndexError):
            return False
