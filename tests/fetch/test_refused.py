"""A batch that was too large to be received stands in its partition's queue as damage does."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from managedconsumer.errors import FrameTooLargeError, RecordTooLargeError
from managedconsumer.fetch.refused import RefusedBatch, refused_batch
from managedconsumer.wire.records import PartitionContext
from tests.fetch.kit import batch

CONTEXT = PartitionContext("orders", 3)
SIZE, LIMIT = 5000, 1000


def _header(first: int = 40, count: int = 5, size: int = 400, magic: int = 2) -> bytes:
    """The first 61 bytes of a batch: ``count`` records from ``first``, ``size`` bytes in all."""
    data = bytearray(batch(first, count))
    struct.pack_into(">qi", data, 0, first, size - 12)
    data[16] = magic
    return bytes(data[:61])


def _answer(records: bytes | None, partition: int = 3) -> dict[str, Any]:
    return {"responses": [{"partitions": [{"partition_index": partition, "records": records}]}]}


def _met(answer: dict[str, Any] | None, offset: int = 42) -> RefusedBatch | None:
    return refused_batch(CONTEXT, offset, FrameTooLargeError("too large", SIZE, LIMIT, answer), "the_option")


def _refused(**header: int) -> RefusedBatch:
    met = _met(_answer(_header(**header)))
    assert met is not None
    return met


def test_it_begins_where_the_fetch_did_and_counts_as_damage() -> None:
    met = _refused()
    assert (met.fetch_offset, met.position, met.next_fetch_offset) == (42, 42, 42)
    assert (met.active, met.corrupt, met.exhausted) == (True, True, False)
    assert (met.record_count, met.nbytes, met.needs_bytes, met.last_leader_epoch) == (0, 0, 0, -1)
    assert met.epochs == []
    assert met.context is CONTEXT


@pytest.mark.parametrize(("first", "named"), [(40, 42), (42, 42), (44, 44)])
def test_the_error_names_the_batch_and_what_to_raise(first: int, named: int) -> None:
    met = _refused(first=first)
    error = met.error
    assert (error.topic, error.partition, error.offset) == ("orders", 3, named)
    assert (error.size, error.limit) == (400, 1000)
    assert "raise the_option to 400, or skip the batch" in str(error)


def test_it_is_raised_until_it_is_skipped() -> None:
    met = _refused()
    assert met.skip_corrupt() == 42  # nobody has met it yet
    for _ in range(2):
        with pytest.raises(RecordTooLargeError) as caught:
            next(iter(met))
        assert caught.value is met.error
        with pytest.raises(RecordTooLargeError):
            met.take(1)
    assert met.skip_corrupt() == 45
    assert (met.position, met.next_fetch_offset) == (45, 45)
    assert list(met) == []
    assert met.exhausted
    assert met.take(10) == []


def test_once_skipped_it_never_goes_back() -> None:
    met = _refused()
    with pytest.raises(RecordTooLargeError):
        met.take(1)
    met.position = 60
    assert met.skip_corrupt() == 60


@pytest.mark.parametrize(
    ("count", "stop", "raises"), [(0, None, False), (1, None, True), (5, 42, False), (5, 43, True), (-1, None, False)]
)
def test_who_does_not_come_to_it_does_not_meet_it(count: int, stop: int | None, raises: bool) -> None:
    met = _refused()
    if raises:
        with pytest.raises(RecordTooLargeError):
            met.take(count, stop)
    else:
        assert met.take(count, stop) == []


def test_a_call_that_was_interrupted_meets_it_again() -> None:
    met = _refused()
    with pytest.raises(RecordTooLargeError):
        met.take(1)
    met.rewind(42)
    assert met.skip_corrupt() == 42
    with pytest.raises(RecordTooLargeError):
        met.take(1)
    assert met.skip_corrupt() == 45
    assert met.again(42) is None


def test_one_that_was_switched_off_raises_no_more() -> None:
    met = _refused()
    met.active = False
    assert list(met) == []
    assert met.take(1) == []


@pytest.mark.parametrize(("magic", "behind"), [(0, 43), (1, 43), (2, 47)])
def test_where_reading_goes_on_if_it_is_skipped(magic: int, behind: int) -> None:
    """Formats 0 and 1 tell the last offset, format 2 the first one."""
    met = _refused(first=42, magic=magic)
    with pytest.raises(RecordTooLargeError):
        met.take(1)
    assert met.skip_corrupt() == behind


@pytest.mark.parametrize(
    "header",
    [
        _header(first=42, magic=3),
        _header(first=37),  # it ends before what was asked for
        _header(first=-5),
        _header(size=60),  # smaller than its header
        _header(size=5001),  # larger than the answer
        _header()[:60],
        b"",
        None,
    ],
)
def test_what_is_no_such_batch_means_a_broken_stream(header: bytes | None) -> None:
    assert _met(_answer(header)) is None


@pytest.mark.parametrize("options", [{"first": 38}, {"size": 61}, {"size": 5000}])
def test_at_the_bounds_it_is_one(options: dict[str, int]) -> None:
    assert _met(_answer(_header(**options))) is not None


def test_more_than_the_header_may_have_been_received() -> None:
    assert _met(_answer(_header() + bytes(100))) is not None


def test_an_answer_for_other_partitions_or_none_is_none() -> None:
    assert _met(None) is None
    assert _met({}) is None
    assert _met(_answer(_header(), partition=4)) is None
    both = _answer(_header(first=90), partition=4)
    both["responses"] += _answer(_header())["responses"]
    met = _met(both)
    assert met is not None
    assert met.error.offset == 42


def test_sizes_beyond_sixteen_mebibytes_are_read_whole() -> None:
    answer = _answer(_header(size=(1 << 25) + 7))
    met = refused_batch(CONTEXT, 42, FrameTooLargeError("too large", 1 << 26, 1 << 20, answer), "the_option")
    assert met is not None
    assert met.error.size == (1 << 25) + 7
