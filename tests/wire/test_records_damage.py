"""Bytes that are cut, flipped, absurd or hostile: what came before is delivered, then comes one typed error."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import cramjam
import pytest

from managedconsumer.errors import CorruptRecordError, MissingPackageError
from managedconsumer.wire.records import compression
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.wire.oldformats import encode_messages
from tests.wire.recordkit import PARTITION, TOPIC, batch, chunk, drain, flip, offsets, with_crc

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def header(data: bytes, **fields: int) -> bytes:
    """The batch with other numbers in its header; a CRC that fits, unless it is one of them."""
    places = {
        "base_offset": (0, ">q"),
        "size": (8, ">i"),
        "magic": (16, ">b"),
        "attributes": (21, ">h"),
        "last_delta": (23, ">i"),
        "count": (57, ">i"),
        "base_timestamp": (27, ">q"),
    }
    changed = bytearray(data)
    for name, value in fields.items():
        place, layout = places[name]
        struct.pack_into(layout, changed, place, value)
    return with_crc(bytes(changed))


# --- cut off ---


def test_a_batch_cut_off_at_the_end_is_ignored(twin: ModuleType) -> None:
    whole, tail = batch(0, 3), batch(3, 3)
    for length in range(len(tail)):
        records_ = chunk(twin, whole + tail[:length])
        assert (records_.next_fetch_offset, records_.needs_bytes, records_.corrupt) == (3, 0, False)
        assert offsets(records_) == [0, 1, 2]
        assert records_.position == 3


def test_a_first_batch_cut_off_says_how_many_bytes_it_takes(twin: ModuleType) -> None:
    data = batch(7, 3)
    for length in range(1, len(data)):
        records_ = chunk(twin, data[:length], 7)
        assert records_.needs_bytes == (len(data) if length > 16 else 61)
        assert list(records_) == []
        assert (records_.position, records_.next_fetch_offset) == (7, 7)


# --- damaged ---


def test_a_flipped_bit_is_found_after_everything_before_it(twin: ModuleType) -> None:
    data = batch(0, 3) + flip(batch(3, 3), 70) + batch(6, 2)
    records_ = chunk(twin, data)
    assert records_.corrupt
    assert records_.next_fetch_offset == 8
    for again in (False, True):  # until it is skipped
        delivered, error = drain(records_)
        assert delivered == ([] if again else [0, 1, 2])
        assert error is not None
        assert (error.topic, error.partition, error.offset) == (TOPIC, PARTITION, 3)
        assert "CRC" in error.reason
        assert records_.position == 3
    assert records_.skip_corrupt() == 6
    assert drain(records_) == ([6, 7], None)
    assert records_.position == 8


def test_take_delivers_before_it_raises(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 3) + flip(batch(3, 3), 70))
    assert offsets(records_.take(100)) == [0, 1, 2]
    with pytest.raises(CorruptRecordError, match="orders-3 at offset 3"):
        records_.take(100)
    assert records_.position == 3


def test_a_damaged_last_batch_does_not_move_the_next_fetch(twin: ModuleType) -> None:
    # Not even when the flipped bit is the highest of its last offset, which would make a fetch far beyond the log.
    records_ = chunk(twin, batch(0, 3) + flip(batch(3, 3), 23, 6))
    assert records_.next_fetch_offset == 3
    assert drain(records_)[0] == [0, 1, 2]
    assert records_.skip_corrupt() == 4  # its own words are not to be trusted, so one by one
    assert records_.next_fetch_offset == 4
    assert drain(records_) == ([], None)


def test_a_damaged_batch_whose_header_agrees_with_itself_is_skipped_whole(twin: ModuleType) -> None:
    records_ = chunk(twin, flip(batch(3, 3), 75), 3)
    assert drain(records_)[0] == []
    assert records_.skip_corrupt() == 6
    assert drain(records_) == ([], None)
    assert (records_.position, records_.next_fetch_offset) == (6, 6)


def test_skip_corrupt_does_nothing_where_nothing_is_wrong(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 3))
    next(records_)
    assert records_.skip_corrupt() == 1
    assert offsets(records_) == [1, 2]


def test_without_check_crcs_a_wrong_checksum_is_not_looked_at(twin: ModuleType) -> None:
    assert offsets(chunk(twin, flip(batch(0, 2), 17), check_crcs=False)) == [0, 1]


@pytest.mark.parametrize("magic", [3, 77, -1])
def test_an_unknown_format_is_named(twin: ModuleType, magic: int) -> None:
    records_ = chunk(twin, batch(0, 2) + header(batch(2, 2), magic=magic))
    delivered, error = drain(records_)
    assert delivered == [0, 1]
    assert error is not None
    assert (error.offset, error.reason) == (2, f"unknown record format {magic & 255}")
    assert records_.skip_corrupt() == 3
    assert drain(records_) == ([], None)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 48])
def test_an_impossible_size_is_named(twin: ModuleType, size: int) -> None:
    delivered, error = drain(chunk(twin, batch(0, 2) + header(batch(2, 2), size=size)))
    assert delivered == [0, 1]
    assert error is not None
    assert error.reason == f"it claims a size of {size} bytes"


def test_an_absurd_size_is_not_asked_for(twin: ModuleType) -> None:
    records_ = chunk(twin, header(batch(0, 2), size=2**31 - 1), max_batch_bytes=1 << 20)
    assert records_.needs_bytes == 0
    _, error = drain(records_)
    assert error is not None
    assert error.reason == f"it claims a size of {2**31 - 1} bytes, the limit is {1 << 20}"


@pytest.mark.parametrize(("claimed", "said"), [(-1, None), (2**31 - 1, None), (4, "record 4 of 4 cannot be read")])
@pytest.mark.parametrize("codec", CODECS)
def test_a_record_count_that_lies(twin: ModuleType, claimed: int, said: str | None, codec: str) -> None:
    records_ = chunk(twin, header(batch(0, 3, codec=codec), count=claimed, last_delta=1000))
    delivered, error = drain(records_)
    assert error is not None
    if said:
        assert (delivered, error.reason, records_.position) == ([0, 1, 2], said, 3)
        assert records_.skip_corrupt() == 1001
    else:
        assert (delivered, records_.position) == ([], 0)
        assert error.reason.startswith(f"it claims {claimed} records in ")


def test_fewer_records_than_bytes(twin: ModuleType) -> None:
    records_ = chunk(twin, header(batch(0, 3), count=2) + batch(3, 1))
    delivered, error = drain(records_)
    assert (delivered, records_.position) == ([0, 1], 2)
    assert error is not None
    assert error.reason.endswith("bytes are left over after its 2 records")
    assert records_.skip_corrupt() == 3
    assert drain(records_) == ([3], None)


def test_offsets_out_of_order_are_refused(twin: ModuleType) -> None:
    going_back = encode_batch([Record(b"a"), Record(b"b", offset_delta=5), Record(b"c", offset_delta=5)])
    delivered, error = drain(chunk(twin, going_back))
    assert delivered == [0, 5]
    assert error is not None
    assert error.reason == "record 3 of 3 has offset 5, which is out of order"
    beyond = encode_batch([Record(b"a"), Record(b"b", offset_delta=9)], last_offset_delta=1)
    delivered, error = drain(chunk(twin, beyond))
    assert delivered == [0]
    assert error is not None
    assert error.reason == "record 2 of 2 has offset 9, which is out of order"


def test_batches_out_of_order_are_refused(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 5) + batch(3, 2) + batch(5, 1))
    delivered, error = drain(records_)
    assert delivered == [0, 1, 2, 3, 4]
    assert error is not None
    assert (error.offset, error.reason) == (5, "its first offset is 3, expected at least 5")
    assert records_.skip_corrupt() == 5
    assert drain(records_) == ([5], None)
    for data in (header(batch(0, 1), base_offset=-5), header(batch(0, 2), base_offset=2**63 - 2)):
        assert drain(chunk(twin, data))[1] is not None


def test_an_unknown_codec_is_named(twin: ModuleType) -> None:
    _, error = drain(chunk(twin, header(batch(0, 1), attributes=6)))
    assert error is not None
    assert error.reason.startswith("unknown compression codec 6")


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compressed_data_is_an_error_of_its_batch(twin: ModuleType, codec: str) -> None:
    whole = batch(1, 500, codec=codec)
    torn = with_crc(whole[:8] + struct.pack(">i", len(whole) - 12 - 20) + whole[12:-20])
    records_ = chunk(twin, batch(0, 1) + torn + batch(501, 1))
    delivered, error = drain(records_)
    assert delivered[0] == 0
    assert error is not None
    assert records_.position == len(delivered)
    assert records_.skip_corrupt() == 501
    assert drain(records_) == ([501], None)


# --- bombs ---

_WATCH = """
import resource, sys
from managedconsumer.errors import CorruptRecordError
from managedconsumer.wire import records
import cramjam
module = records.load(sys.argv[1])
data = open(sys.argv[2], "rb").read()
chunk = module.RecordChunk(module.PartitionContext("t", 0), data, 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert next(chunk).value == b"first"
try:
    next(chunk)
except CorruptRecordError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def bomb(codec: int) -> bytes:
    """One record of 300 MiB of zeros, compressed in pieces."""
    size = 300 << 20
    inner = encode_batch([Record(bytes(1))])[61:]  # size, attributes, timestamp, offset, key, length, value, headers
    front = b"\0\0\0\1" + varint(size)
    record_size = varint(len(front) + size + 1)
    assert inner[-1] == 0
    pieces = [record_size + front, *([bytes(1 << 20)] * 300), b"\0"]
    if codec == compression.GZIP:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        packed = b"".join([*(packer.compress(piece) for piece in pieces), packer.flush()])
    else:
        module = {compression.LZ4: cramjam.lz4, compression.ZSTD: cramjam.zstd}[codec]
        writer = module.Compressor()
        for piece in pieces:
            writer.compress(piece)
        packed = bytes(writer.finish())
    shell = encode_batch([Record(b"x")], base_offset=1)
    whole = shell[:61] + packed
    return header(whole, size=len(whole) - 12, attributes=codec)


def varint(value: int) -> bytes:
    raw, out = value << 1, bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*out, raw])


@pytest.mark.slow
@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, compression.ZSTD])
def test_a_bomb_is_refused_within_the_limit(twin: ModuleType, codec: int, tmp_path: Path) -> None:
    path = tmp_path / "batches"
    path.write_bytes(encode_batch([Record(b"first")]) + bomb(codec))
    if codec == compression.ZSTD:
        assert path.stat().st_size < 11_000
    command = [sys.executable, "-c", _WATCH, twin.IMPLEMENTATION, str(path)]
    said, grown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert said.startswith("corrupt record in t-0 at offset 1: ")
    assert "decompress to more than the limit of 67108864 bytes" in said
    assert int(grown) <= 64 + 50, f"{grown} MiB"


def test_the_limit_is_the_callers(twin: ModuleType) -> None:
    data = encode_batch([Record(bytes(10_000))], codec="zstd")
    assert len(next(chunk(twin, data, max_batch_bytes=10_100)).value) == 10_000
    with pytest.raises(CorruptRecordError, match="more than the limit of 10000 bytes"):
        next(chunk(twin, data, max_batch_bytes=10_000))


def test_a_missing_package_is_named_and_nothing_is_lost(twin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    records_ = chunk(twin, batch(0, 1) + batch(1, 1, codec="lz4"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cramjam", None)
        assert next(records_).offset == 0
        for _ in range(2):
            with pytest.raises(MissingPackageError, match="pip install cramjam"):
                next(records_)
        assert (records_.position, records_.skip_corrupt()) == (1, 1)
    assert next(records_).offset == 1


@pytest.mark.parametrize("magic", [0, 1])
def test_damaged_old_messages(twin: ModuleType, magic: int) -> None:
    good, bad = (
        encode_messages([Record(b"a")], magic=magic),
        encode_messages([Record(b"b")], magic=magic, base_offset=1),
    )
    records_ = chunk(twin, good + flip(bad, len(bad) - 1) + encode_messages([Record(b"c")], magic=magic, base_offset=2))
    delivered, error = drain(records_)
    assert (delivered, records_.position) == ([0], 1)
    assert error is not None
    assert "CRC" in error.reason
    assert records_.skip_corrupt() == 2
    assert drain(records_) == ([2], None)


@pytest.mark.parametrize("headers", [False, True])
def test_arrow_says_what_messages_say(twin: ModuleType, headers: bool) -> None:
    """An offset out of order behind good records, where the reading takes two passes."""
    pytest.importorskip("pyarrow")
    from managedconsumer.wire.records.arrow import COLUMNS, chunk_to_columns

    made = [Record(b"v", headers=[("h", b"x")] if headers else [], offset_delta=n) for n in (0, 1, 5)]
    data = header(encode_batch(made), last_delta=3)
    told = []
    for rows in (False, True):
        records_ = chunk(twin, data)
        assert (chunk_to_columns(records_, columns=COLUMNS).num_rows if rows else len(records_.take(9))) == 2
        with pytest.raises(CorruptRecordError) as caught:
            next(records_)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "out of order" in told[0]


def test_skipping_at_the_last_offset_that_there_can_be(twin: ModuleType) -> None:
    last = (1 << 63) - 1
    records_ = chunk(twin, flip(header(batch(0, 2), base_offset=last - 1), 70), last - 1)
    with pytest.raises(CorruptRecordError):
        next(records_)
    assert records_.skip_corrupt() == last == records_.position
