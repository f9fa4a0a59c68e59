"""Messages of formats 0 and 1, from logs written before Kafka 0.11: single ones, and compressed sets in a wrapper.

Both twins come here for them: such logs are rare and shrinking, so one implementation in Python is enough.
"""

from __future__ import annotations

import struct

from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import compression
from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records.lz4frames import repair_checksum

Buffer = bytes | bytearray | memoryview

_LOG_APPEND = fmt.LOG_APPEND_TIME
_entry = struct.Struct(">qiIBB").unpack_from  # offset, size, CRC, magic, attributes
_i32 = struct.Struct(">i").unpack_from
_i64 = struct.Struct(">q").unpack_from
_ENTRY_BYTES = 18


class LegacyRecord(NamedTuple):
    """One message.  ``timestamp`` is 0 and ``timestamp_type`` -1 in format 0, which has no timestamps."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    magic: int


class BadMessageError(ValueError):
    """The bytes are no message of formats 0 or 1."""


def decode_entry(
    data: Buffer, max_bytes: int = compression.DEFAULT_MAX_BYTES, beside: compression.Beside | None = None
) -> list[LegacyRecord]:
    """The messages of one entry (offset, size, message): one, or as many as its wrapper holds.

    ``beside``: see :func:`managedconsumer.wire.records.compression.decompress`.
    The entry's CRC is the caller's business; those inside a wrapper are covered by it.  Raises BadMessageError,
    DecompressionError, MissingPackageError.
    """
    outer, codec = _message(memoryview(data))
    if not codec:
        return [outer]
    packed = outer.value or b""
    if codec == compression.LZ4 and outer.magic == 0:
        packed = repair_checksum(packed)
    unpacked = memoryview(compression.decompress(codec, packed, max_bytes, None, beside))
    inner: list[LegacyRecord] = []
    while len(unpacked):
        if len(unpacked) < fmt.PREFIX_BYTES or _i32(unpacked, 8)[0] < fmt.MIN_SIZES[0]:
            raise BadMessageError("a compressed set of messages is cut off")
        end = fmt.PREFIX_BYTES + _i32(unpacked, 8)[0]
        record, nested = _message(unpacked[:end])
        if nested:
            raise BadMessageError("a compressed message lies within another")
        inner.append(record)
        unpacked = unpacked[end:]
    return _absolute(outer, inner)


def _message(data: memoryview) -> tuple[LegacyRecord, int]:
    """The message at the front of ``data``, and its codec."""
    try:
        offset, size, _crc, magic, attributes = _entry(data)
        position, timestamp, kind = _ENTRY_BYTES, 0, -1
        if magic == 1:
            (timestamp,) = _i64(data, position)
            position, kind = position + 8, 1 if attributes & _LOG_APPEND else 0
        elif magic:
            raise BadMessageError(fmt.unknown_magic(magic))
        key, position = _bytes(data, position)
        value, position = _bytes(data, position)
    except struct.error:
        raise BadMessageError("a message is cut off") from None
    if position != fmt.PREFIX_BYTES + size:
        raise BadMessageError("a message's fields contradict its size")
    return LegacyRecord(offset, timestamp, kind, key, value, magic), attributes & fmt.CODEC_MASK


def _bytes(data: memoryview, position: int) -> tuple[bytes | None, int]:
    (size,) = _i32(data, position)
    position += 4
    if size == -1:
        return None, position
    if not 0 <= size <= len(data) - position:
        raise BadMessageError(f"a field claims {size} bytes, {len(data) - position} are left")
    return bytes(data[position : position + size]), position + size


def _absolute(outer: LegacyRecord, inner: list[LegacyRecord]) -> list[LegacyRecord]:
    """Format 1 numbers the messages of a wrapper from its first; the wrapper has the last one's offset (KIP-31)."""
    if not inner:
        raise BadMessageError("a compressed set of messages is empty")
    shift = outer.offset - inner[-1].offset if outer.magic == 1 else 0
    fixed = [record._replace(offset=record.offset + shift) for record in inner]
    if outer.timestamp_type == 1:  # the broker's time of appending counts for all
        fixed = [record._replace(timestamp=outer.timestamp, timestamp_type=1) for record in fixed]
    previous = -1
    for record in fixed:
        if record.offset <= previous or record.offset > outer.offset:
            raise BadMessageError("a compressed set's offsets are out of order")
        previous = record.offset
    return fixed
