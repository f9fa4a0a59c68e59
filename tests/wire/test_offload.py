"""What decompresses to a lot is handed to ``compression.offload``, where there is one; the result is the same."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer.wire import compression
from managedconsumer.wire.compression import DecompressionError, compress, decompress

CODECS = ["gzip", "snappy", "lz4", "zstd"]
LARGE = 5 * 1024 * 1024


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []

    def run(fn: Any, *args: Any) -> Any:
        made.append(args[0])
        return fn(*args)

    monkeypatch.setattr(compression, "offload", run)
    return made


@pytest.mark.parametrize("codec", CODECS)
def test_small_ones_stay_here(calls: list[int], codec: str) -> None:
    data = bytes(range(256)) * 4096
    assert decompress(compression.codec_number(codec), compress(codec, data)) == data
    assert calls == []


@pytest.mark.parametrize("codec", CODECS)
def test_large_ones_go_beside(calls: list[int], codec: str) -> None:
    data = bytes(range(256)) * (LARGE // 256)
    number = compression.codec_number(codec)
    scratch = compression.Scratch()
    found = decompress(number, compress(codec, data), scratch=scratch)
    assert found == data
    assert calls == [number]
    assert len(scratch.memory) == 0, "the caller's memory is not written to from elsewhere"


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_holds_there_too(calls: list[int], codec: str) -> None:
    packed = compress(codec, bytes(2 * LARGE))
    with pytest.raises(DecompressionError, match=r"decompress to more than the limit|buffer"):
        decompress(compression.codec_number(codec), packed, LARGE)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_named_as_ever(calls: list[int], codec: str) -> None:
    packed = compress(codec, bytes(range(256)) * (LARGE // 256))
    with pytest.raises(DecompressionError, match=f"damaged {codec}"):
        decompress(compression.codec_number(codec), packed[: len(packed) // 2])
