"""Writes messages of formats 0 and 1, as brokers before 0.11 keep them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from managedconsumer.wire.records import compression
from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records.encode import Record


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
