"""ListOffsets in a few steps, for thousands of partitions that are asked about again and again.

Versions 4 to 11 have two layouts, but for tagged fields, which no broker sends. A topic's partitions stay bytes, so
that two responses are compared quickly. For any other layout :func:`read` returns None, and the table's reader does it.
"""

from __future__ import annotations

from itertools import chain, repeat
from struct import Struct, calcsize, pack, unpack
from struct import error as struct_error
from typing import Collection, Final, Mapping

from managedconsumer.wire.protocol.primitives import (
    Malformed,
    read_compact_length,
    read_length16,
    read_length32,
    write_compact_length,
    write_length16,
    write_length32,
)

#: The versions that are understood here, and the first that is flexible; the first that says how long it may take.
VERSIONS: Final = range(4, 12)
_FLEXIBLE: Final = 6
_TIMED: Final = 10

# A partition of an answer: number, error, timestamp (passed over), offset, leader epoch; flexible: the tagged fields.
_CLASSIC: Final = "ih8xqi"
_COMPACT: Final = "ih8xqix"
# A partition of a request: number, the leader epoch that is known (none), timestamp.
_ASKED: Final = "iiq"
_THROTTLE: Final = Struct(">i").unpack_from

Column = tuple[int, ...]


def request(version: int, topics: Mapping[str, Collection[int]], timestamp: int, isolation: int, timeout: int) -> bytes:
    """ListOffsets for these partitions of each topic, all at one ``timestamp`` (ms, or -1 and -2: end and start).

    ``timeout``: how long (ms) the broker may take.
    """
    flexible = version >= _FLEXIBLE
    name_length = write_compact_length if flexible else write_length16
    length = write_compact_length if flexible else write_length32
    tags = b"\0" if flexible else b""
    parts = [pack(">ib", -1, isolation), length(len(topics))]
    for topic, numbers in topics.items():
        letters = topic.encode()
        layout = ">" + (_ASKED + "x" * flexible) * len(numbers)
        asked = pack(layout, *chain.from_iterable(zip(numbers, repeat(-1), repeat(timestamp))))
        parts += [name_length(len(letters)), letters, length(len(numbers)), asked, tags]
    if version >= _TIMED:
        parts.append(pack(">i", timeout))
    return b"".join([*parts, tags])


def read(version: int, data: memoryview) -> tuple[int, dict[str, bytes]] | None:
    """Return the throttle time (ms), and each topic's partitions for :func:`columns`; None: not plain."""
    flexible = version >= _FLEXIBLE
    size = calcsize(">" + _layout(version))
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


def columns(version: int, block: bytes) -> tuple[Column, Column, Column, Column]:
    """Numbers, error codes, offsets and leader epochs of all partitions of a topic."""
    layout = _layout(version)
    told = unpack(">" + layout * (len(block) // calcsize(">" + layout)), block)
    return told[0::4], told[1::4], told[2::4], told[3::4]


def _layout(version: int) -> str:
    return _COMPACT if version >= _FLEXIBLE else _CLASSIC
