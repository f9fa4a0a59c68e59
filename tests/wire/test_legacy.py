"""Messages of formats 0 and 1, as old logs hold them: read like other clients read them."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import cramjam
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatch as AioBatch
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioBuilder

from managedconsumer.wire.records import compression, legacy
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.wire.oldformats import encode_messages
from tests.wire.recordkit import chunk, drain, offsets

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # importing kafka-python uses a deprecated function
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonBuilder

RECORDS = [Record(b"v%d" % i * 20, None if i % 3 else b"key%d" % i, 1000 + i) for i in range(50)]
RECORDS += [Record(None, b"tombstone", 5000), Record(b"", b"", 5001)]
# lz4 in format 0 has a deliberate error in its checksum (KAFKA-3160), so it has its own test.
CASES = [(magic, codec) for magic in (0, 1) for codec in (0, 1, 2, 3) if (magic, codec) != (0, 3)]


def appended(data: bytes, codec: int) -> bytes:
    """As the broker stores it: a producer leaves the wrapper's offset, which is the last message's, to the broker."""
    return (len(RECORDS) - 1).to_bytes(8, "big") + data[8:] if codec else data


def rows(messages: Any, magic: int) -> list[tuple[Any, ...]]:
    return [(m.offset, m.timestamp if magic else 0, m.key, m.value) for m in messages]


def expected(magic: int, base: int = 0) -> list[tuple[Any, ...]]:
    return [(base + i, r.timestamp if magic else 0, r.key, r.value) for i, r in enumerate(RECORDS)]


@pytest.mark.parametrize(("magic", "codec"), CASES)
def test_we_read_what_aiokafka_writes(twin: ModuleType, magic: int, codec: int) -> None:
    builder = AioBuilder(magic, codec, 1 << 20)
    for offset, record in enumerate(RECORDS):
        assert builder.append(offset, timestamp=record.timestamp, key=record.key, value=record.value)
    records_ = chunk(twin, appended(bytes(builder.build()), codec))
    messages = list(records_)
    assert rows(messages, magic) == expected(magic)
    assert records_.position == records_.next_fetch_offset == len(RECORDS)
    first = messages[0]
    assert (first.protocol_version, first.timestamp_type, first.leader_epoch, first.headers) == (
        magic,
        magic - 1,
        -1,
        [],
    )


@pytest.mark.parametrize(("magic", "codec"), [(0, 1), (1, 1), (0, 0), (1, 0)])
def test_we_read_what_kafka_python_writes(twin: ModuleType, magic: int, codec: int) -> None:
    builder = KafkaPythonBuilder(magic, codec, 1 << 20)
    for offset, record in enumerate(RECORDS):
        assert builder.append(offset, timestamp=record.timestamp, key=record.key, value=record.value)
    assert rows(chunk(twin, appended(bytes(builder.build()), codec)), magic) == expected(magic)


@pytest.mark.parametrize(("magic", "codec"), CASES)
def test_aiokafka_reads_what_we_write(magic: int, codec: int) -> None:
    data = encode_messages(RECORDS, magic=magic, codec=codec)
    seen: list[Any] = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        theirs = AioBatch(bytearray(data[:size]), magic)
        assert theirs.validate_crc()
        seen += theirs
        data = data[size:]
    assert [(m.offset, m.timestamp or 0, m.key, m.value) for m in seen] == expected(magic)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_in_the_middle_of_a_log(twin: ModuleType, magic: int) -> None:
    data = encode_messages(RECORDS, magic=magic, codec="gzip", base_offset=1000) + encode_messages(
        RECORDS[:2], magic=magic, base_offset=2000
    )
    records_ = chunk(twin, data, 1050)
    assert records_.next_fetch_offset == 2002
    assert offsets(records_) == [1050, 1051, 2000, 2001]
    assert records_.position == 2002


def test_all_formats_in_one_chunk(twin: ModuleType) -> None:
    data = b"".join(
        [
            encode_messages([Record(b"0")], magic=0, base_offset=0),
            encode_messages([Record(b"1"), Record(b"2")], magic=1, base_offset=1, codec="snappy"),
            encode_batch([Record(b"3")], base_offset=3, codec="zstd"),
        ]
    )
    assert [(m.offset, m.value, m.protocol_version) for m in chunk(twin, data)] == [
        *((0, b"0", 0), (1, b"1", 1), (2, b"2", 1), (3, b"3", 2)),
    ]
    assert offsets(chunk(twin, data).take(10, 2)) == [0, 1]


@pytest.mark.parametrize("codec", [0, 1])
def test_log_append_time_of_format_1(twin: ModuleType, codec: int) -> None:
    data = encode_messages(RECORDS[:3], magic=1, codec=codec, log_append_time=42)
    assert [(m.timestamp, m.timestamp_type) for m in chunk(twin, data)] == [(42, 1)] * 3


def test_the_wrong_lz4_checksum_of_format_0_is_forgiven(twin: ModuleType) -> None:
    packed = bytearray(cramjam.lz4.compress(encode_messages(RECORDS, magic=0)))
    packed[6] ^= 0x55
    data = encode_messages([Record(bytes(packed))], magic=0, base_offset=len(RECORDS) - 1)
    wrapper = bytearray(data)
    wrapper[17] = compression.LZ4
    assert rows(chunk(twin, bytes(wrapper), check_crcs=False), 0) == expected(0)


def test_a_wrapper_within_a_wrapper_is_refused(twin: ModuleType) -> None:
    inner = encode_messages(RECORDS[:2], magic=1, codec="gzip")
    wrapper = Record(compression.compress("gzip", inner))
    data = bytearray(encode_messages([wrapper], magic=1))
    data[17] = compression.GZIP
    delivered, error = drain(chunk(twin, bytes(data), check_crcs=False))
    assert delivered == []
    assert error is not None
    assert error.reason == "a compressed message lies within another"


@pytest.mark.parametrize("magic", [0, 1])
def test_a_bomb_in_a_wrapper_is_refused(twin: ModuleType, magic: int) -> None:
    data = encode_messages([Record(bytes(1 << 20))], magic=magic, codec="gzip")
    _, error = drain(chunk(twin, data, max_batch_bytes=1000))
    assert error is not None
    assert "more than the limit of 1000 bytes" in error.reason


@pytest.mark.parametrize("magic", [0, 1])
def test_every_cut_and_every_flipped_bit_of_an_entry_is_an_error_or_harmless(magic: int) -> None:
    whole = encode_messages(RECORDS[:2], magic=magic, codec="gzip")
    for place in range(len(whole)):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x81]) + whole[place + 1 :]):
            try:
                legacy.decode_entry(damaged, 1 << 16)
            except (legacy.BadMessageError, compression.DecompressionError):
                continue
