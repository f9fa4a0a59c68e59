"""lz4 frames as Kafka's Java clients write them: independent blocks of 64 kB, no checksums but the header's.

Brokers refuse blocks that refer to the one before ("Dependent block stream is unsupported"), and larger blocks are
decompressed at half the speed.  Source: LZ4 Frame Format 1.6.
"""

from __future__ import annotations

import struct
from typing import Any

_MAGIC = b"\x04\x22\x4d\x18"
_DESCRIPTOR = bytes((0x60, 0x40))  # version 1, independent blocks; blocks of 64 kB
_BLOCK = 64 * 1024
_UNCOMPRESSED = 1 << 31


def pack_frame(package: Any, data: bytes) -> bytes:
    """``data`` as one frame; ``package`` is cramjam."""
    parts = [_MAGIC, _DESCRIPTOR, _checksum(_DESCRIPTOR)]
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        packed = bytes(package.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += [len(packed).to_bytes(4, "little"), packed]
        else:
            parts += [(len(block) | _UNCOMPRESSED).to_bytes(4, "little"), block]
    return b"".join([*parts, bytes(4)])


def repair_checksum(frame: bytes) -> bytes:
    """The frame with the header checksum that the format asks for: old clients wrote another one (KAFKA-3160)."""
    if len(frame) < 7:
        return frame
    end = 6 + (8 if frame[4] & 0x08 else 0) + (4 if frame[4] & 0x01 else 0)
    return frame[:end] + _checksum(frame[4:end]) + frame[end + 1 :]


def _checksum(descriptor: bytes) -> bytes:
    """The second byte of xxHash-32 with seed 0, of fewer than 16 bytes, which is all that a descriptor can be."""
    mask = 0xFFFFFFFF
    value = (374761393 + len(descriptor)) & mask
    words = len(descriptor) & ~3
    for (word,) in struct.iter_unpack("<I", descriptor[:words]):
        value = (value + word * 3266489917) & mask
        value = ((value << 17 | value >> 15) * 668265263) & mask
    for byte in descriptor[words:]:
        value = (value + byte * 374761393) & mask
        value = ((value << 11 | value >> 21) * 2654435761) & mask
    for shift, factor in ((15, 2246822519), (13, 3266489917)):
        value = ((value ^ value >> shift) * factor) & mask
    return bytes(((value ^ value >> 16) >> 8 & 0xFF,))
