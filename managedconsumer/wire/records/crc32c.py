"""CRC-32C (Castagnoli), the checksum of record batches since Kafka 0.11.

The compiled accelerator brings its own.  Without it the package ``crc32c`` is used where it is installed (hardware
instructions, about 30 GB/s), and else tables in Python: correct, but some 10 MB/s.
"""

from __future__ import annotations

import sys
from typing import Callable

Buffer = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78  # reversed 0x1EDC6F41


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def _make_pair_table(table: tuple[int, ...]) -> tuple[int, ...]:
    """The table for two bytes at a time: half the steps of the Python loop."""
    return tuple(
        (crc >> 8) ^ table[crc & 0xFF] for crc in (table[low] ^ high for high in range(256) for low in range(256))
    )


class _PureCrc32c:
    """The checksum in Python; its tables are made at the first use (20 ms), so importing costs nothing."""

    def __init__(self) -> None:
        self._table: tuple[int, ...] = ()
        self._pairs: tuple[int, ...] = ()

    def __call__(self, data: Buffer, value: int = 0) -> int:
        if not self._pairs:
            self._table = _make_table()
            self._pairs = _make_pair_table(self._table)
        view = memoryview(data).cast("B")
        crc = value ^ 0xFFFFFFFF
        pairs = self._pairs
        even = len(view) & ~1
        # Bytes 0, 2, 4 ... are the low halves of little-endian pairs, whatever the machine's own order is.
        for low, high in zip(view[0:even:2], view[1:even:2], strict=True):
            crc = (crc >> 16) ^ pairs[(crc ^ (low | high << 8)) & 0xFFFF]
        if even != len(view):
            crc = (crc >> 8) ^ self._table[(crc ^ view[even]) & 0xFF]
        return crc ^ 0xFFFFFFFF


crc32c_pure: Callable[..., int] = _PureCrc32c()


def _choose() -> tuple[Callable[..., int], str]:
    accelerator = sys.modules.get("managedconsumer.wire.records._records")
    if accelerator is not None:
        return accelerator.crc32c, "cython"
    try:
        from crc32c import crc32c as accelerated
    except ImportError:
        return crc32c_pure, "python"
    return accelerated, "crc32c"


_chosen: Callable[..., int] | None = None


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC-32C of ``data``, continued from ``value`` (the CRC of what came before).  Pure; any thread.

    The implementation is chosen at the first call: importing the package ``crc32c`` takes 40 ms.
    """
    global _chosen
    if _chosen is None:
        _chosen = _choose()[0]
    return _chosen(data, value)
