"""What a chunk or a column has given out stays as it is, whatever is decoded after it."""

from __future__ import annotations

import pytest

from managedconsumer.wire.records import PartitionContext, RecordChunk, compression
from managedconsumer.wire.records.arrow import chunk_to_columns
from managedconsumer.wire.records.encode import Record, encode_batch

CODECS = ("gzip", "snappy", "lz4", "zstd")


def _chunk(letter: str, codec: str | int, batches: int = 3) -> RecordChunk:
    data = b"".join(
        encode_batch(
            [Record((letter * 300 + str(10 * n + i)).encode(), letter.encode()) for i in range(10)],
            base_offset=10 * n,
            codec=codec,
        )
        for n in range(batches)
    )
    return RecordChunk(PartitionContext(letter, 0, None), data, 0)


def _wanted(letter: str, batches: int = 3) -> list[bytes]:
    return [(letter * 300 + str(n)).encode() for n in range(10 * batches)]


@pytest.mark.parametrize("codec", CODECS)
def test_two_compressed_chunks_that_are_read_by_turns(codec: str) -> None:
    compression.codec_number(codec)
    chunks = {letter: _chunk(letter, codec) for letter in "abc"}
    got: dict[str, list[bytes | None]] = {letter: [] for letter in chunks}
    for _ in range(30):
        for letter, chunk in chunks.items():
            message = next(chunk, None)
            assert message is not None
            got[letter].append(message.value)
    assert got == {letter: _wanted(letter) for letter in chunks}


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_an_arrow_batch_that_is_kept_while_others_are_built(codec: str | int) -> None:
    pytest.importorskip("pyarrow")
    kept = [(letter, chunk_to_columns(_chunk(letter, codec))) for letter in "abcdef"]
    for letter, batch in kept:
        assert batch.column("value").to_pylist() == _wanted(letter)
        assert set(batch.column("key").to_pylist()) == {letter.encode()}
        assert batch.column("offset").to_pylist() == list(range(30))


def test_an_arrow_batch_that_is_kept_while_the_same_chunk_is_read_on() -> None:
    pytest.importorskip("pyarrow")
    chunk = _chunk("x", "zstd", batches=6)
    first = chunk_to_columns(chunk, stop_offset=20)
    second = chunk_to_columns(chunk, stop_offset=40)
    rest = [message.value for message in chunk]
    assert first.column("value").to_pylist() + second.column("value").to_pylist() + rest == _wanted("x", 6)
