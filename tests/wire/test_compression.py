"""The four codecs: there and back, as others write them, and never beyond the limit."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managedconsumer.errors import KafkaException, MissingPackageError
from managedconsumer.wire.protocol.framesizes import BadFrameError, lz4_bound, zstd_bound
from managedconsumer.wire.records import compression
from managedconsumer.wire.records.compression import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    DecompressionError,
    Scratch,
    UnknownCodecError,
    codec_number,
    compress,
    decompress,
    give_scratch,
    take_scratch,
)

PACKED = [GZIP, SNAPPY, LZ4, ZSTD]
TEXT = b"a line of a log that repeats itself\n" * 5000 + os.urandom(300)


@settings(deadline=None)
@given(data=st.binary(max_size=70_000), codec=st.sampled_from([NONE, *PACKED]))
def test_there_and_back(data: bytes, codec: int) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_is_exact(codec: int) -> None:
    packed = compress(codec, TEXT)
    assert bytes(decompress(codec, packed, len(TEXT))) == TEXT
    for limit in (len(TEXT) - 1, 1000, 0):
        with pytest.raises(DecompressionError, match=f"to more than the limit of {limit} bytes"):
            decompress(codec, packed, limit)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_data_that_ends_in_the_middle(codec: int) -> None:
    packed = compress(codec, TEXT)
    for length in range(0, len(packed), 7):
        with pytest.raises(DecompressionError, match="damaged"):
            decompress(codec, packed[:length])


@pytest.mark.parametrize("codec", PACKED)
def test_flipped_bits_are_an_error_or_harmless(codec: int) -> None:
    packed = compress(codec, TEXT[-2000:])
    for place in range(len(packed)):
        damaged = packed[:place] + bytes([packed[place] ^ 0x41]) + packed[place + 1 :]
        try:
            assert len(decompress(codec, damaged, 1 << 20)) <= 1 << 20
        except DecompressionError:
            continue


@pytest.mark.parametrize("codec", PACKED)
@given(junk=st.binary(max_size=200))
def test_junk_is_an_error_or_nothing_much(codec: int, junk: bytes) -> None:
    try:
        assert len(decompress(codec, junk, 1 << 16)) <= 1 << 16
    except DecompressionError as error:
        assert isinstance(error, KafkaException)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_frames_one_after_the_other_are_one_text(codec: int) -> None:
    assert bytes(decompress(codec, compress(codec, b"one,") + compress(codec, b"two"))) == b"one,two"


def test_lz4_frames_are_read_one_by_one_where_cramjam_stops_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    data = compress(LZ4, b"one,") + skippable + compress(LZ4, b"two,") + compress(LZ4, b"three")
    monkeypatch.setattr(compression, "_reads_all_lz4_frames", lambda: False)
    assert bytes(decompress(LZ4, data)) == b"one,two,three"
    with pytest.raises(DecompressionError):
        decompress(LZ4, data[:-3])


def test_frames_as_streaming_writers_make_them() -> None:
    """Without a size in the header, block by block: Java's clients write like that."""
    for codec, module in ((LZ4, cramjam.lz4), (ZSTD, cramjam.zstd)):
        writer = module.Compressor()
        for start in range(0, len(TEXT), 10_000):
            writer.compress(TEXT[start : start + 10_000])
        packed = bytes(writer.finish())
        assert bytes(decompress(codec, packed, len(TEXT))) == TEXT
        bound, exact = (lz4_bound if codec == LZ4 else zstd_bound)(memoryview(packed), 1 << 30)
        assert bound >= len(TEXT)
        assert not exact or bound == len(TEXT)
    assert bytes(decompress(GZIP, gzip.compress(TEXT))) == TEXT


def test_lz4_is_written_as_brokers_take_it() -> None:
    """Version 1, independent blocks of 64 kB, uncompressed where that is shorter, and a checksum that others verify.

    A broker answers UNKNOWN_SERVER_ERROR to a batch whose blocks refer to the one before.
    """
    noise = os.urandom(70_000)
    packed = compress(LZ4, noise)
    assert packed[:6] == b"\x04\x22\x4d\x18\x60\x40"
    assert packed[7:11] == (65536 | 1 << 31).to_bytes(4, "little")
    assert bytes(cramjam.lz4.decompress(packed)) == noise
    assert lz4_bound(memoryview(packed), 1 << 20) == (70_000, False)
    assert bytes(cramjam.lz4.decompress(compress(LZ4, b""))) == b""
    frame = compress(LZ4, b"managed" * 50_000)
    assert frame[4] & 0x20, "blocks depend on each other"
    assert bytes(decompress(LZ4, frame, 1 << 20)) == b"managed" * 50_000


def test_raw_snappy_and_snappy_javas_blocks_are_both_read() -> None:
    assert bytes(decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)))) == TEXT
    framed = compress(SNAPPY, TEXT)
    assert framed.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    assert bytes(decompress(SNAPPY, framed)) == TEXT
    for length in (-1, 0, 2**31 - 1):
        with pytest.raises(DecompressionError, match="a block claims"):
            decompress(SNAPPY, framed[:16] + length.to_bytes(4, "big", signed=True) + framed[20:])


def test_snappys_claim_of_four_gigabytes_allocates_nothing() -> None:
    with pytest.raises(DecompressionError, match="more than the limit"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20)


def test_headers_that_claim_more_than_their_blocks_hold() -> None:
    packed = bytearray(cramjam.zstd.compress(b"x" * 300))
    assert packed[4] >> 6 == 1, "the size of this frame takes two bytes"
    place = 5 if packed[4] & 0x20 else 6
    packed[place : place + 2] = b"\xff\xff"
    with pytest.raises(DecompressionError):
        decompress(ZSTD, packed, 1 << 20)
    with pytest.raises(BadFrameError):
        zstd_bound(memoryview(b"\x28\xb5\x2f\xfd\x20\x05\x07\x00\x00"), 1 << 20)  # a block of the reserved kind


def test_skippable_frames_are_skipped() -> None:
    note = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"
    assert zstd_bound(memoryview(note + compress(ZSTD, b"text")), 1 << 20)[0] >= 4
    assert lz4_bound(memoryview(note + compress(LZ4, b"text")), 1 << 20)[0] >= 4
    assert bytes(decompress(ZSTD, note + compress(ZSTD, b"text"))) == b"text"


@pytest.mark.parametrize("codec", [-1, 5, 7, "brotli", None])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(UnknownCodecError, match="none, gzip, snappy, lz4, zstd"):
        codec_number(codec)


def test_codecs_by_name() -> None:
    assert [codec_number(name) for name in ("none", "gzip", "Snappy", "LZ4", "zstd", 4)] == [0, 1, 2, 3, 4, 4]
    with pytest.raises(UnknownCodecError):
        decompress(5, b"x")


@pytest.mark.parametrize("beside", [None, lambda work, *args: work(*args)], ids=["here", "beside"])
@pytest.mark.parametrize("codec", [SNAPPY, LZ4, ZSTD])
def test_a_missing_package_is_named(codec: int, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for call in (lambda: compress(codec, b"x"), lambda: decompress(codec, compress(GZIP, b"x"), beside=beside)):
        with pytest.raises(MissingPackageError, match=f"{compression.CODEC_NAMES[codec]}.*pip install cramjam"):
            call()


def test_gzip_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    assert compression._gzip_module() is zlib
    packed = compress(GZIP, TEXT)
    assert bytes(decompress(GZIP, packed)) == TEXT
    with pytest.raises(DecompressionError, match="more than the limit"):
        decompress(GZIP, packed, 100)
    with pytest.raises(DecompressionError, match="damaged"):
        decompress(GZIP, packed[:50])


def test_scratch_memory_is_used_again() -> None:
    scratch = Scratch()
    first = decompress(LZ4, compress(LZ4, TEXT), scratch=scratch)
    memory = scratch.memory
    del first
    assert bytes(decompress(LZ4, compress(LZ4, b"short"), scratch=scratch)) == b"short"
    assert scratch.memory is memory
    give_scratch(scratch)
    assert take_scratch() is scratch
    huge = Scratch()
    huge.view(9 << 20)
    give_scratch(huge)
    assert take_scratch() is not huge
