"""Short cuts of the record tests: a chunk, what it delivers, and batches to fill it with."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from managedconsumer.errors import CorruptRecordError
from managedconsumer.wire.records.encode import Record, encode_batch

TOPIC, PARTITION = "orders", 3


def chunk(twin: ModuleType, data: bytes, fetch_offset: int = 0, **options: Any) -> Any:
    return twin.RecordChunk(twin.PartitionContext(TOPIC, PARTITION, "the partition"), data, fetch_offset, **options)


def offsets(messages: Any) -> list[int]:
    return [message.offset for message in messages]


def batch(first: int, count: int, **options: Any) -> bytes:
    """``count`` records with offsets from ``first`` and values that name their offset."""
    return encode_batch(
        [Record(b"v%d" % offset, b"k", 1_700_000_000_000 + offset) for offset in range(first, first + count)],
        base_offset=first,
        **options,
    )


def drain(records: Any) -> tuple[list[int], CorruptRecordError | None]:
    """The offsets delivered, and the error that came after them."""
    delivered: list[int] = []
    try:
        delivered.extend(message.offset for message in records)
    except CorruptRecordError as error:
        return delivered, error
    return delivered, None


def flip(data: bytes, place: int, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


def with_crc(data: bytes) -> bytes:
    """The batch with the checksum that fits its bytes: damage that a broken producer signed."""
    from managedconsumer.wire.records.crc32c import crc32c

    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]
