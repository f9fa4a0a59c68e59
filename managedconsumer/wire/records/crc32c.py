"""CRC-32C (Castagnoli), the checksum of record batches since Kafka 0.11.

The compiled accelerator brings its own.  Without it the package ``crc32c`` is used where it is installed (hardware
instructions, about 30 GB/s), and else tables in Python: correct, but some 10 MB/s.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Callable

Buffer = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78  # reversed 0x1EDC6F41


@cache
def _tables() -> tuple[list[int], list[int]]:
    """The tables for one byte, and for two at a time: half the steps of the loop. Made at the first use (20 ms)."""
    table = list(range(256))
    for _ in range(8):
        table = [(crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0) for crc in table]
    starts = (table[low] ^ high for high in range(256) for low in range(256))
    return table, [(crc >> 8) ^ table[crc & 0xFF] for crc in starts]


def crc32c_pure(data: Buffer, value: int = 0) -> int:
    """The checksum in Python."""
    table, pairs = _tables()
    view = memoryview(data).cast("B")
    crc = value ^ 0xFFFFFFFF
    even = len(view) & ~1
    # Bytes 0, 2, 4 ... are the low halves of little-endian pairs, whatever the machine's own order is.
    for low, high in zip(view[0:even:2], view[1:even:2], strict=True):
        crc = (crc >> 16) ^ pairs[(crc ^ (low | high << 8)) & 0xFFFF]
    if even != len(view):
        crc = (crc >> 8) ^ table[(crc ^ view[even]) & 0xFF]
    return crc ^ 0xFFFFFFFF


@cache
def chosen() -> Callable[..., int]:
    """The quickest implementation, chosen at the first call: importing the package ``crc32c`` takes 40 ms."""
    accelerator = sys.modules.get("managedconsumer.wire.records._records")
    if accelerator is not None:
        found: Callable[..., int] = accelerator.crc32c
        return found
    try:
        from crc32c import crc32c as accelerated
    except ImportError:
        return crc32c_pure
    return accelerated


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC-32C of ``data``, continued from ``value`` (the CRC of what came before).  Pure; any thread."""
    return chosen()(data, value)
