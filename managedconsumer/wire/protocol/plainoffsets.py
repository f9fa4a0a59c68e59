"""The answer to ListOffsets in a few steps, for thousands of partitions that are asked about again and again.

From version 4 to 11 there are two layouts, but for tagged fields, which no broker sends. A topic's partitions stay the
bytes that came: so it costs nothing to see that none of them has changed. What is not plain gives None, and the table's
own reader does it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, Iterator

from managedconsumer.wire.protocol.primitives import Malformed, read_compact_length, read_length16, read_length32

#: The versions that are understood here, and the first that is flexible.
VERSIONS: Final = range(4, 12)
_FLEXIBLE: Final = 6

# Partition, error, timestamp, offset, leader epoch; in flexible versions the number of tagged fields.
_CLASSIC: Final = Struct(">ihqqi")
_COMPACT: Final = Struct(">ihqqix")
_THROTTLE: Final = Struct(">i").unpack_from

Parts = Iterator[tuple[int, int, int, int, int]]


def read(version: int, data: memoryview) -> tuple[int, dict[str, bytes]] | None:
    """How long the broker throttles (ms), and the partitions of each topic, see :func:`partitions`; None: not plain."""
    flexible = version >= _FLEXIBLE
    size = (_COMPACT if flexible else _CLASSIC).size
    name_length = read_compact_length if flexible else read_length16
    length = read_compact_length if flexible else read_length32
    topics: dict[str, bytes] = {}
    try:
        (throttle,) = _THROTTLE(data, 0)
        count, pos = length(data, 4)
        for _ in range(count):
            letters, pos = name_length(data, pos)
            name = str(data[pos : pos + letters], "utf-8")
            number, pos = length(data, pos + letters)
            block = bytes(data[pos : pos + number * size])
            pos += len(block)
            if number < 0 or letters < 0 or len(block) != number * size:
                return None
            if flexible:
                if data[pos] or block[size - 1 :: size].count(0) != number:
                    return None
                pos += 1
            topics[name] = block
        if flexible:
            pos += 1 if not data[pos] else 0
    except (struct_error, ValueError, LookupError, Malformed):
        return None
    return (throttle, topics) if count >= 0 and pos == len(data) else None


def partitions(version: int, block: bytes) -> Parts:
    """Partition, error code, timestamp, offset and leader epoch of all partitions of a topic."""
    return (_COMPACT if version >= _FLEXIBLE else _CLASSIC).iter_unpack(block)
