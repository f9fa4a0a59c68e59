"""The layout of Kafka's record batches, and the texts of damage, for both twins.

A batch of format 2 (Kafka 0.11 and newer) is a header of 61 bytes and the records, compressed as a whole; formats 0
and 1 are single messages, or wrappers around a compressed set of them.  All formats begin with an offset (8 bytes), a
size (4) and have their version, the "magic", at byte 16.  Source: "Record Batch" in Kafka's protocol documentation.
"""

from __future__ import annotations

import struct

PREFIX_BYTES = 12  # offset and size, in front of every batch
MAGIC_AT = 16
HEADER_BYTES = 61
CRC_FROM = 21  # format 2's CRC covers everything from the attributes to the end
LEGACY_CRC_FROM = 16  # formats 0 and 1: from the magic to the end
MIN_SIZES = (14, 22, HEADER_BYTES - PREFIX_BYTES)  # by magic: the least that "size" can say
MIN_RECORD_BYTES = 7
MAX_OFFSET = (1 << 63) - 1

# base offset, size, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, max timestamp,
# producer id, producer epoch, base sequence, record count
HEADER = struct.Struct(">qiibIhiqqqhii")

CODEC_MASK = 0x07
#: A guess of how many times larger a batch is when it is unpacked.
UNPACKS_TO = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

CONTROL_ABORT = 0
CONTROL_COMMIT = 1


def signed(value: int) -> int:
    """Return the number as 64 bits hold it, as in a Java producer's overflow."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def zigzag(raw: int) -> int:
    """Decode the zigzag number ``raw``."""
    return raw >> 1 ^ -(raw & 1)


def read_varint(data: bytes, place: int, limit: int = 5) -> tuple[int, int]:
    """(number, place behind it) of the varint at ``place``; IndexError if it has more than ``limit`` bytes."""
    value = shift = 0
    while shift < 7 * limit:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return zigzag(value & 0xFFFFFFFFFFFFFFFF), place
        shift += 7
    raise IndexError


def no_room(size: int, _limit: int = 0) -> str:
    """The size of a batch is impossible."""
    return f"it claims a size of {size} bytes"


def beyond_limit(size: int, limit: int) -> str:
    """The size of an incomplete batch is above this consumer's limit."""
    return f"it claims a size of {size} bytes, the limit is {limit}"


def unknown_magic(magic: int, _limit: int = 0) -> str:
    """Kafka has no such version of the format."""
    return f"unknown record format {magic}"


def bad_crc(computed: int, stated: int) -> str:
    """The checksum is wrong."""
    return f"its CRC is {computed:08x}, it should be {stated:08x}"


def bad_order(offset: int, expected: int) -> str:
    """The batch's offsets overlap those of the one before it, or are negative."""
    return f"its first offset is {offset}, expected at least {expected}"


def bad_count(count: int, size: int) -> str:
    """The bytes are too few for the number of records."""
    return f"it claims {count} records in {size} bytes"


def bad_record(number: int, count: int) -> str:
    """A record's fields contradict its size, or lead beyond the end; ``number`` counts from 1."""
    return f"record {number} of {count} cannot be read"


def bad_offset(number: int, count: int, offset: int) -> str:
    """A record's offset is outside its batch or not above the one before it."""
    return f"record {number} of {count} has offset {offset}, which is out of order"


def left_over(size: int, count: int) -> str:
    """The records end before the batch does."""
    return f"{size} bytes are left over after its {count} records"
