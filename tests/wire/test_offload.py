"""What decompresses to a lot is handed to the given ``beside``; the result is the same."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer.testing.kafka.producer import encode_plain
from managedconsumer.wire import records
from managedconsumer.wire.records import compression
from managedconsumer.wire.records.compression import DecompressionError, compress, decompress

CODECS = ["gzip", "snappy", "lz4", "zstd"]
LARGE = 5 * 1024 * 1024


class Beside:
    """Runs what it is given, and notes the codecs."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, fn: Any, *args: Any) -> Any:
        self.calls.append(args[0])
        return fn(*args)


@pytest.mark.parametrize("codec", CODECS)
def test_small_ones_stay_here(codec: str) -> None:
    data, beside = bytes(range(256)) * 4096, Beside()
    assert decompress(compression.codec_number(codec), compress(codec, data), beside=beside) == data
    assert beside.calls == []


@pytest.mark.parametrize("codec", CODECS)
def test_large_ones_go_beside(codec: str) -> None:
    data = bytes(range(256)) * (LARGE // 256)
    number = compression.codec_number(codec)
    scratch, beside = compression.Scratch(), Beside()
    found = decompress(number, compress(codec, data), scratch=scratch, beside=beside)
    assert found == data
    assert beside.calls == [number]
    assert len(scratch.memory) == 0, "the caller's memory is not written to from elsewhere"


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_holds_there_too(codec: str) -> None:
    packed = compress(codec, bytes(2 * LARGE))
    with pytest.raises(DecompressionError, match=r"decompress to more than the limit|buffer"):
        decompress(compression.codec_number(codec), packed, LARGE, beside=Beside())


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_named_as_ever(codec: str) -> None:
    packed = compress(codec, bytes(range(256)) * (LARGE // 256))
    with pytest.raises(DecompressionError, match=f"damaged {codec}"):
        decompress(compression.codec_number(codec), packed[: len(packed) // 2], beside=Beside())


@pytest.mark.parametrize("twin", ["python", "cython"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_chunk_hands_its_large_batches_to_its_own(twin: str, codec: str) -> None:
    """Two consumers in one process: what one of them wants is nothing to the other."""
    decoder = records.load(twin)
    data = bytes(encode_plain([(b"k", bytes(LARGE), 0)], codec))
    mine, none = Beside(), decoder.RecordChunk(decoder.PartitionContext("t", 0, None), data, 0)
    chunk = decoder.RecordChunk(decoder.PartitionContext("t", 0, None), data, 0, beside=mine)
    assert mine.calls == []
    assert [len(message.value) for message in chunk] == [LARGE]
    assert mine.calls == [compression.codec_number(codec)]
    assert [len(message.value) for message in none] == [LARGE]
    assert len(mine.calls) == 1
