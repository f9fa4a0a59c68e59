"""Kafka's four codecs, decompressed with a bound.

A record batch of 10 kB can decompress to 300 MiB (measured: zstd, a value of zeros), and the broker accepts it
from any producer.  So no codec here ever produces more than the caller's limit: output goes into a buffer of known
size, whose size is worked out beforehand from the frame's own block headers, or (gzip) is taken in pieces.

gzip comes from the standard library, or from ``isal`` (2.6 times faster) where that is installed.  lz4, snappy and
zstd come from ``cramjam``.  Everything here is pure and may be called from any thread; the codecs release the GIL.
"""

from __future__ import annotations

import mmap
import zlib
from functools import lru_cache
from typing import Any, Callable

from managedconsumer.errors import KafkaException, MissingPackageError
from managedconsumer.wire.protocol.framesizes import BadFrameError, lz4_bound, lz4_frames, snappy_blocks, zstd_bound
from managedconsumer.wire.records.lz4frames import pack_frame

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_MAX_BYTES = 64 * 1024 * 1024

Beside = Callable[..., Any]
"""``beside(fn, *args)`` returns ``fn(*args)``, and lets other greenlets of this thread run meanwhile if it can."""
_OFFLOAD_BYTES = 4 * 1024 * 1024  # of output: less takes some milliseconds at most

_SCRATCH_KEPT = 4  # buffers kept for reuse, per process
_SCRATCH_MAX_BYTES = 8 * 1024 * 1024  # a larger one is given back to the system
_GZIP_WINDOW = 31  # zlib's number for "gzip header and trailer, 32 kB window"


class DecompressionError(KafkaException):
    """The bytes are not what the codec's name says, or would become larger than the limit."""


class _TooLargeError(DecompressionError):
    """The output would be larger than the limit."""


class UnknownCodecError(DecompressionError):
    """The codec's number or name is none of Kafka's."""


def codec_number(codec: int | str) -> int:
    """The number (0 to 4) of a codec given by number or by name ("gzip"); UnknownCodecError for anything else."""
    if isinstance(codec, str) and codec.lower() in CODEC_NAMES:
        return CODEC_NAMES.index(codec.lower())
    if isinstance(codec, int) and 0 <= codec < len(CODEC_NAMES):
        return codec
    raise UnknownCodecError(f"unknown compression codec {codec!r}; Kafka has {', '.join(CODEC_NAMES)} (0 to 4)")


def decompress(
    codec: int,
    data: Buffer,
    max_bytes: int = DEFAULT_MAX_BYTES,
    scratch: Scratch | None = None,
    beside: Beside | None = None,
) -> Buffer:
    """Return the decompressed ``data``, at most ``max_bytes`` of it.

    With a ``scratch`` the answer may be a view into its memory, valid until the scratch is used again.
    ``beside`` runs what takes long: given where greenlets share a thread.
    Raises DecompressionError (also when the limit is passed), MissingPackageError, UnknownCodecError.
    """
    if codec == NONE:
        return data
    try:
        if beside is not None and max_bytes > _OFFLOAD_BYTES:
            return _decompress_beside(codec, data, max_bytes, scratch, beside)
        return _decompress(codec, data, max_bytes, scratch)
    except BadFrameError as error:
        raise DecompressionError(f"damaged {CODEC_NAMES[codec]} data: {error}") from None


def _decompress(codec: int, data: Buffer, max_bytes: int, scratch: Scratch | None = None) -> Buffer:
    if codec == GZIP:
        return _gunzip(data, max_bytes)
    if codec == SNAPPY:
        return _unsnappy(data, max_bytes, scratch or Scratch())
    if codec in (LZ4, ZSTD):
        return _unframe(codec, data, max_bytes, scratch or Scratch())
    raise UnknownCodecError(f"unknown compression codec {codec}; Kafka has {', '.join(CODEC_NAMES)} (0 to 4)")


def _decompress_beside(codec: int, data: Buffer, max_bytes: int, scratch: Scratch | None, beside: Beside) -> Buffer:
    """Decompress large outputs by ``beside``, into memory of their own: another greenlet may use the scratch."""
    if codec == GZIP:  # does not say how much it will be
        try:
            return _gunzip(data, _OFFLOAD_BYTES)
        except _TooLargeError:
            pass
    else:
        if _offered_size(codec, memoryview(data)) <= _OFFLOAD_BYTES:
            return _decompress(codec, data, max_bytes, scratch)
    large: Buffer = beside(_decompress, codec, data, max_bytes, _Pages())
    return large


def _offered_size(codec: int, view: memoryview) -> int:
    """A lower bound of the decompressed size, up to a little above ``_OFFLOAD_BYTES``; 0 for an unknown codec."""
    if codec not in (SNAPPY, LZ4, ZSTD):
        return 0
    _cramjam(codec)  # raises MissingPackageError before any DecompressionError
    if codec == SNAPPY:
        return sum(size for _, _, size in snappy_blocks(view))
    return (lz4_bound if codec == LZ4 else zstd_bound)(view, _OFFLOAD_BYTES)[0]


def compress(codec: int | str, data: Buffer) -> bytes:
    """``data`` compressed as Kafka's own clients do it: gzip, snappy in xerial's blocks, lz4 frame, zstd frame."""
    number = codec_number(codec)
    if number == NONE:
        return bytes(data)
    if number == GZIP:
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    package = _cramjam(number)
    if number == SNAPPY:
        return _snappy_xerial(package, memoryview(data).cast("B"))
    if number == ZSTD:
        return bytes(package.zstd.compress(data))
    return pack_frame(package, bytes(data))


class Scratch:
    """A growing buffer for one decompression after the other.  One user at a time.

    Buffers are used again, as new memory costs more (page faults) than decompression.
    """

    __slots__ = ("memory",)

    def __init__(self) -> None:
        self.memory = bytearray()

    def view(self, size: int) -> memoryview:
        """Return ``size`` writable bytes; the former content is lost."""
        if len(self.memory) < size:
            self.memory = bytearray(size)
        return memoryview(self.memory)[:size]


class _Pages(Scratch):
    """Memory from the system, for one use: a new bytearray would be filled with zeros under the GIL."""

    __slots__ = ()

    def view(self, size: int) -> memoryview:
        return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


_idle: list[Scratch] = []


def take_scratch() -> Scratch:
    """Return an idle buffer or a new one.  ``give_scratch`` makes it idle again."""
    try:
        return _idle.pop()
    except IndexError:
        return Scratch()


def give_scratch(scratch: Scratch) -> None:
    """Make a buffer idle; no view of it may be used afterwards."""
    if len(_idle) < _SCRATCH_KEPT and len(scratch.memory) <= _SCRATCH_MAX_BYTES:
        _idle.append(scratch)


def _cramjam(codec: int) -> Any:
    try:
        import cramjam
    except ImportError:
        raise MissingPackageError(
            f"{CODEC_NAMES[codec]} compression needs the package cramjam: pip install cramjam"
        ) from None
    return cramjam


def _too_large(codec: int, data: Buffer, max_bytes: int) -> _TooLargeError:
    packed = len(data)
    ratio = max_bytes // max(packed, 1)
    return _TooLargeError(
        f"{packed} bytes of {CODEC_NAMES[codec]} decompress to more than the limit of {max_bytes} bytes "
        f"(a ratio above {ratio}:1)"
    )


def _unframe(codec: int, data: Buffer, max_bytes: int, scratch: Scratch) -> Buffer:
    """Decompress an lz4 or zstd frame into a buffer of the size that its block headers allow, or of the limit."""
    package = _cramjam(codec)
    module = package.lz4 if codec == LZ4 else package.zstd
    bound, exact = (lz4_bound if codec == LZ4 else zstd_bound)(memoryview(data), max_bytes)
    if exact and bound > max_bytes:
        raise _too_large(codec, data, max_bytes)
    output = scratch.view(min(bound, max_bytes))
    try:
        if codec == LZ4 and not _reads_all_lz4_frames():
            return output[: _unframe_one_by_one(module, memoryview(data), output)]
        written: int = module.decompress_into(data, output)
    except package.DecompressionError as error:
        if bound > max_bytes and "buffer" in str(error):
            raise _too_large(codec, data, max_bytes) from None
        raise DecompressionError(f"damaged {CODEC_NAMES[codec]} data: {error}") from None
    return output[:written]


@lru_cache(maxsize=1)
def _reads_all_lz4_frames() -> bool:
    """False for a cramjam (2.11, the last for Python 3.10) that stops behind the first of several frames."""
    package = _cramjam(LZ4)
    frame, output = pack_frame(package, b"x"), bytearray(2)
    written: int = package.lz4.decompress_into(frame + frame, output)
    return written == len(output)


def _unframe_one_by_one(module: Any, data: memoryview, output: memoryview) -> int:
    done = 0
    for start, end in lz4_frames(data):
        done += module.decompress_into(data[start:end], output[done:])
    return done


def _unsnappy(data: Buffer, max_bytes: int, scratch: Scratch) -> Buffer:
    """Raw snappy or xerial's blocks of it (snappy-java); every block says its size in front."""
    package = _cramjam(SNAPPY)
    blocks = snappy_blocks(memoryview(data))
    total = sum(size for _, _, size in blocks)
    if total > max_bytes:
        raise _too_large(SNAPPY, data, max_bytes)
    output, source, done = scratch.view(total), memoryview(data), 0
    for start, end, size in blocks:
        try:
            written = package.snappy.decompress_raw_into(source[start:end], output[done : done + size])
        except package.DecompressionError as error:
            raise DecompressionError(f"damaged snappy data: {error}") from None
        if written != size:
            raise DecompressionError(f"damaged snappy data: a block of {size} bytes gave {written}")
        done += size
    return output


def _snappy_xerial(package: Any, data: memoryview) -> bytes:
    parts = [b"\x82SNAPPY\x00", (1).to_bytes(4, "big"), (1).to_bytes(4, "big")]
    for start in range(0, len(data), 32 * 1024):
        block = bytes(package.snappy.compress_raw(data[start : start + 32 * 1024]))
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def _gzip_module() -> Any:
    """Return ``isal``'s zlib or the standard library's; imported at the first use."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    """Decompress one or more gzip members, up to one byte beyond the limit."""
    parts: list[bytes] = []
    room = max_bytes
    rest: Buffer = data
    package = _gzip_module()
    while rest:
        unpacker = package.decompressobj(_GZIP_WINDOW)
        try:
            part: bytes = unpacker.decompress(rest, room + 1)
        except (zlib.error, package.error) as error:
            raise DecompressionError(f"damaged gzip data: {error}") from None
        if len(part) > room:
            raise _too_large(GZIP, data, max_bytes)
        if not unpacker.eof:
            raise DecompressionError("damaged gzip data: it ends in the middle")
        parts.append(part)
        room -= len(part)
        rest = unpacker.unused_data
    if not parts:
        raise DecompressionError("damaged gzip data: it is empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)
