"""Encodes record batches of format 2, for the in-memory broker, the small producer and the tests."""

from __future__ import annotations

import struct
from typing import Iterable, Sequence

from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol.primitives import uvarint
from managedconsumer.wire.records import compression
from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records.crc32c import crc32c

Bytes = bytes | bytearray | memoryview
HeaderPair = tuple[str, "bytes | None"]

_TAIL = struct.Struct(">hiqqqhii")  # what format 2's CRC covers, up to the records
_FRONT = struct.Struct(">qiibI")
NO_PRODUCER = -1
_2_63, _2_64 = 1 << 63, 1 << 64


class Record(NamedTuple):
    """A record to encode; ``offset_delta`` None means the one after the record before."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: Sequence[HeaderPair] = ()
    offset_delta: int | None = None


#: The fields of a Record: a plain tuple of them is made more quickly.
Row = tuple["bytes | None", "bytes | None", int, Sequence[HeaderPair], "int | None"]


def encode_batch(
    records: Iterable[Row],
    *,
    base_offset: int = 0,
    codec: int | str = compression.NONE,
    log_append_time: int | None = None,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch of format 2.

    ``last_offset_delta`` may be beyond the last record's, as compaction leaves it (and must be given for a batch
    without records).  ``log_append_time`` in milliseconds is the broker's stamp, which outranks the records' own.
    """
    number = compression.codec_number(codec)
    parts: list[bytes] = []
    add, varint = parts.append, _varint
    base_timestamp = max_timestamp = 0
    count, delta = 0, -1
    for value, key, timestamp, headers, offset_delta in records:
        if not count:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        delta = delta + 1 if offset_delta is None else offset_delta
        since = timestamp - base_timestamp
        if not -_2_63 <= since < _2_63:
            since = (since + _2_63) % _2_64 - _2_63  # as 64 bits hold it
        head = varint[since] + varint[delta]
        content = b"\1" if key is None else varint[len(key)] + key
        content += b"\1" if value is None else varint[len(value)] + value
        tail = _encoded_headers(headers) if headers else b"\0"
        add(varint[len(head) + len(content) + len(tail) + 1])
        add(b"\0%b%b%b" % (head, content, tail))  # no attributes
        count += 1
    body = b"".join(parts)
    attributes = number | (fmt.TRANSACTIONAL if transactional else 0) | (fmt.CONTROL if control else 0)
    if log_append_time is not None:
        attributes |= fmt.LOG_APPEND_TIME
        max_timestamp = log_append_time
    if last_offset_delta is None:
        if not count:
            raise ValueError("a batch without records needs last_offset_delta")
        last_offset_delta = delta
    covered = _TAIL.pack(
        *(attributes, last_offset_delta, base_timestamp, max_timestamp),
        *(producer_id, producer_epoch, base_sequence, count),
    ) + (compression.compress(number, body) if number else body)
    size = fmt.CRC_FROM - fmt.PREFIX_BYTES + len(covered)
    return _FRONT.pack(base_offset, size, leader_epoch, 2, crc32c(covered)) + covered


def encode_marker(*, commit: bool, offset: int, producer_id: int, producer_epoch: int = 0, timestamp: int = 0) -> bytes:
    """The control batch by which the broker ends a transaction: committed, or aborted."""
    kind = fmt.CONTROL_COMMIT if commit else fmt.CONTROL_ABORT
    record = Record(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind), timestamp)
    return encode_batch(
        [record],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


class _Varints(dict[int, bytes]):
    """Zigzag varints by number, as protobuf's sint64; the small ones, which come again and again, are kept."""

    def __missing__(self, number: int) -> bytes:
        made = uvarint(number << 1 if number >= 0 else (-number << 1) - 1, 64)
        if -65536 < number < 65536:
            self[number] = made
        return made


_varint = _Varints()


def _sized(field: Bytes | None) -> bytes:
    return b"\1" if field is None else _varint[len(field)] + field  # -1: none


def _encoded_headers(headers: Sequence[HeaderPair]) -> bytes:
    pairs = [_sized(name.encode()) + _sized(content) for name, content in headers]
    return b"".join([_varint[len(pairs)], *pairs])
