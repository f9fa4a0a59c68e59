"""Record batches out: for the in-memory broker, the demo's writer and the tests.  The consumers never write.

``encode_batch`` writes format 2 with any codec, headers, transactions and gaps; ``encode_marker`` the control batch
that ends a transaction; ``encode_messages`` the formats 0 and 1 of brokers before 0.11.
"""

from __future__ import annotations

import struct
import zlib
from typing import Iterable, Sequence

from managedconsumer.values import NamedTuple
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


def encode_batch(
    records: Iterable[Record],
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
    body = bytearray()
    base_timestamp = max_timestamp = 0
    count, delta = 0, -1
    for record in records:
        if not count:
            base_timestamp = max_timestamp = record.timestamp
        delta = delta + 1 if record.offset_delta is None else record.offset_delta
        max_timestamp = max(max_timestamp, record.timestamp)
        _append_record(body, record, record.timestamp - base_timestamp, delta)
        count += 1
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
    ) + (compression.compress(number, body) if number else bytes(body))
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


def encode_messages(
    records: Iterable[Record], *, magic: int, base_offset: int = 0, codec: int | str = 0, log_append_time: int = -1
) -> bytes:
    """A message set of format 0 or 1; with a codec, one wrapper around all of them."""
    number = compression.codec_number(codec)
    inner: list[tuple[int, Record]] = []
    delta = -1
    for record in records:
        delta = delta + 1 if record.offset_delta is None else record.offset_delta
        inner.append((delta, record))
    stamped = 0 if log_append_time < 0 or magic == 0 else fmt.LOG_APPEND_TIME
    if not number:
        return b"".join(
            _legacy_message(base_offset + delta, record, magic, stamped, log_append_time) for delta, record in inner
        )
    first = base_offset if magic == 0 else 0  # format 1 counts from the wrapper's first message (KIP-31)
    packed = b"".join(_legacy_message(first + delta, record, magic, 0, -1) for delta, record in inner)
    latest = max((record.timestamp for _, record in inner), default=0)
    wrapper = Record(compression.compress(number, packed), None, latest)
    return _legacy_message(base_offset + delta, wrapper, magic, number | stamped, log_append_time)


def _legacy_message(offset: int, record: Record, magic: int, attributes: int, log_append_time: int) -> bytes:
    parts = [struct.pack(">bB", magic, attributes)]
    if magic == 1:
        parts.append(struct.pack(">q", log_append_time if attributes & fmt.LOG_APPEND_TIME else record.timestamp))
    for field in (record.key, record.value):
        parts.append(struct.pack(">i", -1 if field is None else len(field)))
        parts.append(field or b"")
    covered = b"".join(parts)
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


def _append_record(body: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    value, key, _, headers, _ = record
    fields = bytearray(b"\0")  # attributes, without meaning so far
    _append_varint(fields, (timestamp_delta + _2_63) % _2_64 - _2_63)  # as 64 bits hold it
    _append_varint(fields, offset_delta)
    for field in (key, value):
        _append_bytes(fields, field)
    _append_varint(fields, len(headers))
    for name, content in headers:
        _append_bytes(fields, name.encode())
        _append_bytes(fields, content)
    _append_varint(body, len(fields))
    body += fields


def _append_bytes(out: bytearray, field: Bytes | None) -> None:
    if field is None:
        out.append(1)  # zigzag for -1
    else:
        _append_varint(out, len(field))
        out += field


def _append_varint(out: bytearray, value: int) -> None:
    """Zigzag, then seven bits a byte, least significant first, as protobuf's sint64."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    out.append(raw)
