"""The size of decompressed data, at most, from the frames' headers.

lz4 frames and zstd frames are chains of blocks with a short header each, so the headers give an upper bound within
microseconds.  snappy data begins with its size.  The bounds only choose a buffer, which the decompressor cannot leave.
Sources: LZ4 Frame Format 1.6, RFC 8878 (zstd), google/snappy's format description, snappy-java's block stream.
"""

from __future__ import annotations

import struct
from typing import Callable, Iterator

_LZ4_MAGIC = 0x184D2204
_ZSTD_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50  # the low four bits are free, in both formats
_LZ4_BLOCK_MAX = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_MAX_RATIO = 255
_ZSTD_BLOCK_MAX = 128 << 10
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_NO_LIMIT = 1 << 62

_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from
_big_i32 = struct.Struct(">i").unpack_from


_FrameReader = Callable[[memoryview, int, int], "tuple[int, bool, int]"]


class BadFrameError(ValueError):
    """The frame's headers contradict themselves or lead beyond the end."""


def lz4_bound(data: memoryview, limit: int) -> tuple[int, bool]:
    """(upper bound of the output, whether it is the exact size).  Stops counting once the bound is above ``limit``."""
    return _frames_bound(data, limit, _LZ4_MAGIC, _lz4_frame)


def lz4_frames(data: memoryview) -> list[tuple[int, int]]:
    """(start, end) of each frame, without the skippable ones.  Raises BadFrameError."""
    return [(start, end) for start, end, *_ in _frames(data, _NO_LIMIT, _LZ4_MAGIC, _lz4_frame)]


def zstd_bound(data: memoryview, limit: int) -> tuple[int, bool]:
    """(upper bound of the output, whether it is the exact size).  Stops counting once the bound is above ``limit``."""
    return _frames_bound(data, limit, _ZSTD_MAGIC, _zstd_frame)


def _frames_bound(data: memoryview, limit: int, expected: int, read_frame: _FrameReader) -> tuple[int, bool]:
    if not len(data):
        raise BadFrameError("it is empty")
    total, exact = 0, True
    for *_, size, frame_exact in _frames(data, limit, expected, read_frame):
        total += size
        exact = exact and frame_exact
    return total, exact


def _frames(
    data: memoryview, left: int, expected: int, read_frame: _FrameReader
) -> Iterator[tuple[int, int, int, bool]]:
    """(start, end, size or bound, exact) of each frame, without the skippable ones, until ``left`` is used up."""
    position = 0
    try:
        while position < len(data) and left >= 0:
            start, (magic,) = position, _u32(data, position)
            if magic & 0xFFFFFFF0 == _SKIPPABLE:
                position += 8 + _u32(data, position + 4)[0]
                continue
            if magic != expected:
                raise BadFrameError("it does not begin with a frame")
            size, exact, position = read_frame(data, position + 4, left)
            left -= size
            yield start, position, size, exact
    except (struct.error, IndexError):
        raise BadFrameError("it ends in the middle") from None


def _lz4_frame(data: memoryview, position: int, limit: int) -> tuple[int, bool, int]:
    """(size or bound, exact, position behind the frame) of the frame whose flags are at ``position``."""
    flags, block_code = data[position], data[position + 1] >> 4 & 7
    if flags >> 6 != 1 or block_code not in _LZ4_BLOCK_MAX:
        raise BadFrameError("unknown version or block size")
    position += 2
    declared = -1
    if flags & 0x08:
        (declared,) = _u64(data, position)
        position += 8
    position += 5 if flags & 0x01 else 1  # dictionary id, header checksum
    block_max = _LZ4_BLOCK_MAX[block_code]
    after_block = 4 if flags & 0x10 else 0
    bound = 0
    while True:
        (word,) = _u32(data, position)
        position += 4
        if word == 0:
            break
        size = word & 0x7FFFFFFF
        bound += size if word >> 31 else min(block_max, size * _LZ4_MAX_RATIO)
        position += size + after_block
        if bound > limit:
            return (max(declared, bound), declared > limit, position)
    position += 4 if flags & 0x04 else 0
    if declared > bound:
        raise BadFrameError("it claims more than its blocks can hold")
    return (declared, True, position) if declared >= 0 else (bound, False, position)


def _zstd_frame(data: memoryview, position: int, limit: int) -> tuple[int, bool, int]:
    """(size or bound, exact, position behind the frame) of the frame whose descriptor is at ``position``."""
    descriptor = data[position]
    single = descriptor >> 5 & 1
    position += 1 if single else 2  # window descriptor
    position += (0, 1, 2, 4)[descriptor & 3]  # dictionary id
    width = (single, 2, 4, 8)[descriptor >> 6]
    declared = -1
    if width:
        declared = int.from_bytes(data[position : position + width], "little") + (256 if width == 2 else 0)
        position += width
    bound, last = 0, 0
    while not last:
        header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        position += 3
        if kind == 3:
            raise BadFrameError("a block of a reserved kind")
        bound += _ZSTD_BLOCK_MAX if kind == 2 else size
        position += 1 if kind == 1 else size
        if bound > limit:
            return (max(declared, bound), declared > limit, position)
    position += 4 if descriptor & 4 else 0
    if declared > bound:
        raise BadFrameError("it claims more than its blocks can hold")
    return (declared, True, position) if declared >= 0 else (bound, False, position)


def snappy_blocks(data: memoryview) -> list[tuple[int, int, int]]:
    """(start, end, decompressed size) of each raw snappy block: one, or xerial's chain of them."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return [(0, len(data), _snappy_size(data, 0, len(data)))]
    blocks = []
    position = _XERIAL_HEADER
    if len(data) < position:
        raise BadFrameError("it ends in the middle")
    while position < len(data):
        if len(data) - position < 4:
            raise BadFrameError("it ends in the middle")
        (size,) = _big_i32(data, position)
        position += 4
        if not 0 < size <= len(data) - position:
            raise BadFrameError(f"a block claims {size} bytes, {len(data) - position} are left")
        blocks.append((position, position + size, _snappy_size(data, position, position + size)))
        position += size
    return blocks


def _snappy_size(data: memoryview, start: int, end: int) -> int:
    """The varint in front of raw snappy data: its decompressed size, below 4 GiB by the format."""
    value = 0
    for shift in range(0, 35, 7):
        if start >= end:
            raise BadFrameError("it ends in the middle")
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise BadFrameError("a block's size is not a number")
