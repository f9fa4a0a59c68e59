"""What a chunk delivers, in which order, and where its position is meanwhile."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import datetime
from types import ModuleType
from typing import Any

import pytest

from managedconsumer.errors import CorruptRecordError
from managedconsumer.wire import records
from managedconsumer.wire.records.encode import Record, encode_batch, encode_marker
from tests.wire.oldformats import encode_messages
from tests.wire.recordkit import PARTITION, TOPIC, batch, chunk, drain, flip, offsets


def test_position_follows_every_message(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(10, 3) + batch(20, 2), 10)
    assert (records_.position, records_.next_fetch_offset, records_.record_count) == (10, 22, 5)
    assert [(message.offset, records_.position) for message in records_] == [
        (10, 11),
        (11, 12),
        (12, 13),
        (20, 21),
        (21, 22),
    ]
    assert (records_.position, records_.exhausted) == (22, True)
    with pytest.raises(StopIteration):
        next(records_)


def test_message_has_pykafkas_attributes_and_kafkas(twin: ModuleType) -> None:
    data = encode_batch(
        [Record(b"value", b"key", 1_700_000_000_123, [("h", b"1"), ("n", None), ("h", b"")])], leader_epoch=7
    )
    message = next(chunk(twin, data))
    assert (message.value, message.partition_key, message.key, message.offset) == (b"value", b"key", b"key", 0)
    assert type(message.value) is bytes
    assert type(message.partition_key) is bytes
    assert (message.topic, message.partition_id, message.partition) == (TOPIC, PARTITION, "the partition")
    assert message.timestamp == 1_700_000_000_123
    assert message.timestamp_dt == datetime(2023, 11, 14, 22, 13, 20, 123000)
    assert message.headers == [("h", b"1"), ("n", None), ("h", b"")]
    assert message.headers is message.headers
    assert (message.timestamp_type, message.leader_epoch, message.protocol_version) == (0, 7, 2)
    assert (message.compression_type, message.produce_attempt, message.delivery_report_q) == (0, 0, None)
    assert len(message) == 14 + 5 + 3 + 8
    assert repr(message) == "<Message orders-3 offset 0 key b'key' value b'value'>"


def test_tombstones_and_empty_messages_are_true(twin: ModuleType) -> None:
    data = encode_batch([Record(None, None), Record(b"", b"")])
    first, second = chunk(twin, data)
    assert first
    assert second
    assert (first.value, first.partition_key, first.headers, len(first)) == (None, None, [], 14)
    assert (second.value, second.partition_key) == (b"", b"")
    assert first.timestamp_dt is None


def test_message_can_be_changed_as_deserializers_do(twin: ModuleType) -> None:
    message = next(chunk(twin, batch(5, 1)))
    message.value, message.partition_key = {"a": 1}, 42
    assert (message.value, message.key) == ({"a": 1}, 42)
    message.key = "k"
    message.offset, message.timestamp = 99, 1
    message.timestamp_dt = datetime(1970, 1, 1, 0, 0, 2)
    message.partition_id, message.partition = 8, "other"
    message.headers = [("a", None)]
    assert (message.partition_key, message.offset, message.timestamp) == ("k", 99, 2000)
    assert (message.partition_id, message.partition, message.topic) == (8, "other", TOPIC)
    assert message.headers == [("a", None)]
    with pytest.raises(AttributeError):
        message.no_such_attribute = 1


def test_changing_one_message_leaves_its_neighbours_alone(twin: ModuleType) -> None:
    first, second = chunk(twin, batch(0, 2))
    first.partition_id = 77
    assert second.partition_id == PARTITION


def test_messages_survive_copying_and_pickling(twin: ModuleType) -> None:
    data = encode_batch([Record(b"v", b"k", 5, [("h", None)])], base_offset=11, leader_epoch=2)
    message = next(chunk(twin, data))
    for other in (copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert (other.value, other.key, other.offset, other.timestamp, other.headers) == (
            b"v",
            b"k",
            11,
            5,
            [("h", None)],
        )
        assert (other.topic, other.partition_id, other.leader_epoch, other.partition) == (TOPIC, PARTITION, 2, None)


def test_messages_can_be_made_by_hand(twin: ModuleType) -> None:
    message = twin.Message(
        b"v", b"k", offset=3, timestamp=datetime(1970, 1, 1, 0, 0, 1), topic="t", headers=[("a", b"b")]
    )
    assert (message.value, message.key, message.offset, message.timestamp) == (b"v", b"k", 3, 1000)
    assert (message.topic, message.partition_id, message.partition, message.headers) == ("t", -1, None, [("a", b"b")])
    assert twin.Message(None).timestamp == 0


def test_records_below_the_fetch_offset_are_not_delivered(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 10) + batch(10, 2), 7)
    assert records_.position == 7
    assert offsets(records_) == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("read", [offsets, lambda records_: offsets(records_.take(100))], ids=["next", "take"])
def test_damaged_offsets_within_old_compressed_messages_repeat_no_message(
    twin: ModuleType, magic: int, read: Callable[[Any], list[int]]
) -> None:
    """Also where small batches are read ahead of the position."""
    damaged = [Record(b"v", offset_delta=delta) for delta in (-4, -2, 0, 3)]
    data = batch(0, 4) + encode_messages(damaged, magic=magic, base_offset=4, codec=1) + batch(9, 1)
    assert read(chunk(twin, data)) == [0, 1, 2, 3, 4, 7, 9]


def test_a_fetch_offset_beyond_a_compacted_batch_moves_on(twin: ModuleType) -> None:
    data = encode_batch([Record(b"a"), Record(b"b", offset_delta=4)], base_offset=10, last_offset_delta=9)
    records_ = chunk(twin, data, 16)
    assert records_.next_fetch_offset == 20
    assert offsets(records_) == []
    assert records_.position == 20


def test_gaps_of_compaction_are_passed(twin: ModuleType) -> None:
    data = encode_batch(
        [Record(b"a", offset_delta=2), Record(b"b", offset_delta=500)], base_offset=100, last_offset_delta=999
    ) + batch(2000, 1)
    records_ = chunk(twin, data, 100)
    assert next(records_).offset == 102
    assert records_.position == 103
    assert next(records_).offset == 600
    assert records_.position == 601
    assert next(records_).offset == 2000
    assert list(records_) == []
    assert records_.position == 2001


def test_an_empty_batch_moves_the_position(twin: ModuleType) -> None:
    records_ = chunk(twin, encode_batch([], base_offset=5, last_offset_delta=4), 5)
    assert (records_.record_count, records_.next_fetch_offset) == (0, 10)
    assert list(records_) == []
    assert records_.position == 10


def test_no_bytes_at_all(twin: ModuleType) -> None:
    records_ = chunk(twin, b"", 42)
    assert (records_.needs_bytes, records_.next_fetch_offset, records_.nbytes) == (0, 42, 0)
    assert list(records_) == []
    assert (records_.position, records_.last_leader_epoch) == (42, -1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(twin: ModuleType, codec: str) -> None:
    data = batch(0, 1000, codec=codec) + batch(1000, 1, codec=codec)
    messages = list(chunk(twin, data))
    assert [message.value for message in messages] == [b"v%d" % offset for offset in range(1001)]
    assert [message.timestamp for message in messages] == [1_700_000_000_000 + offset for offset in range(1001)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(twin: ModuleType, kind: type) -> None:
    assert offsets(chunk(twin, kind(batch(0, 3)))) == [0, 1, 2]


def test_a_message_outlives_its_chunk_and_buffer(twin: ModuleType) -> None:
    buffer = bytearray(encode_batch([Record(b"value", b"key", 0, [("h", b"header")])]))
    records_ = chunk(twin, memoryview(buffer))
    message = next(records_)
    del records_
    buffer[:] = bytes(len(buffer))
    gc.collect()
    assert (message.value, message.key, message.headers) == (b"value", b"key", [("h", b"header")])


def test_log_append_time_outranks_the_producers(twin: ModuleType) -> None:
    messages = list(chunk(twin, batch(0, 3, log_append_time=77)))
    assert [(message.timestamp, message.timestamp_type) for message in messages] == [(77, 1)] * 3


@pytest.mark.parametrize(
    "timestamps", [[0, 2**63 - 1], [2**63 - 1, -(2**63) + 1], [-(2**62), 2**62, -1], [5, 70, 9000, 2**40]]
)
def test_timestamps_of_any_size(twin: ModuleType, timestamps: list[int]) -> None:
    data = encode_batch([Record(b"v", None, timestamp) for timestamp in timestamps])
    assert [message.timestamp for message in chunk(twin, data)] == timestamps


def test_a_header_name_that_is_no_utf8_is_shown_with_replacement(twin: ModuleType) -> None:
    from tests.wire.recordkit import with_crc

    data = encode_batch([Record(b"v", None, 0, [("ab", b"x")])])
    place = data.index(b"ab")
    assert next(chunk(twin, with_crc(data[:place] + b"\xffb" + data[place + 2 :]))).headers == [("\ufffdb", b"x")]


# --- transactions ---


def transaction(first: int, count: int, producer_id: int) -> bytes:
    return batch(first, count, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def test_control_batches_are_never_delivered(twin: ModuleType) -> None:
    data = transaction(0, 2, 9) + encode_marker(commit=True, offset=2, producer_id=9) + batch(3, 1)
    for read_committed in (False, True):
        records_ = chunk(twin, data, read_committed=read_committed)
        assert records_.record_count == 3
        assert offsets(records_) == [0, 1, 3]
        assert records_.position == 4


def test_a_control_batch_at_the_end_is_passed(twin: ModuleType) -> None:
    records_ = chunk(twin, transaction(0, 1, 9) + encode_marker(commit=True, offset=1, producer_id=9))
    assert offsets(records_) == [0]
    assert (records_.position, records_.next_fetch_offset) == (2, 2)


def test_aborted_transactions_are_left_out_under_read_committed(twin: ModuleType) -> None:
    data = b"".join(
        [
            *(transaction(0, 2, 1), transaction(2, 2, 2), batch(4, 1), transaction(5, 1, 1)),
            *(encode_marker(commit=False, offset=6, producer_id=1), transaction(7, 1, 2)),
            *(encode_marker(commit=True, offset=8, producer_id=2), transaction(9, 2, 1)),
            *(
                encode_marker(commit=True, offset=11, producer_id=1),
                encode_marker(commit=False, offset=12, producer_id=5),
            ),
        ]
    )
    aborted = [(1, 0)]
    assert offsets(chunk(twin, data, aborted=aborted, read_committed=True)) == [2, 3, 4, 7, 9, 10]
    assert offsets(chunk(twin, data, aborted=aborted)) == [0, 1, 2, 3, 4, 5, 7, 9, 10]
    last = chunk(twin, data, aborted=aborted, read_committed=True)
    assert last.take(100)
    assert last.position == 13


def test_one_producer_aborts_commits_and_aborts_again(twin: ModuleType) -> None:
    data = b"".join(
        [
            *(transaction(0, 1, 1), encode_marker(commit=False, offset=1, producer_id=1)),
            *(encode_marker(commit=False, offset=2, producer_id=1), transaction(3, 1, 1)),
            *(encode_marker(commit=True, offset=4, producer_id=1), transaction(5, 1, 1)),
            encode_marker(commit=False, offset=6, producer_id=1),
        ]
    )
    # The response lists transactions in any order; a second marker for the same one changes nothing.
    assert offsets(chunk(twin, data, aborted=[(1, 5), (1, 0)], read_committed=True)) == [3]


def test_an_emptied_control_batch_does_not_end_a_transaction(twin: ModuleType) -> None:
    emptied = encode_batch([], base_offset=1, last_offset_delta=0, producer_id=1, transactional=True, control=True)
    data = transaction(0, 1, 1) + emptied + transaction(2, 1, 1) + encode_marker(commit=False, offset=3, producer_id=1)
    assert offsets(chunk(twin, data, aborted=[(1, 0)], read_committed=True)) == []


def test_idempotent_batches_are_no_transactions(twin: ModuleType) -> None:
    data = batch(0, 2, producer_id=1, producer_epoch=0, base_sequence=0)
    assert offsets(chunk(twin, data, aborted=[(1, 0)], read_committed=True)) == [0, 1]


def test_reading_begins_in_the_middle_of_an_aborted_transaction(twin: ModuleType) -> None:
    data = transaction(0, 5, 1) + encode_marker(commit=False, offset=5, producer_id=1) + transaction(6, 1, 1)
    assert offsets(chunk(twin, data, 3, aborted=[(1, 0)], read_committed=True)) == [6]


# --- take, active ---


def test_take_gives_lists_across_batches(twin: ModuleType) -> None:
    records_ = chunk(twin, b"".join(batch(first, 1) for first in range(700)) + batch(700, 600))
    assert offsets(records_.take(650)) == list(range(650))
    assert records_.position == 650
    assert next(records_).offset == 650
    assert offsets(records_.take(100)) == list(range(651, 751))
    assert offsets(records_.take(10_000)) == list(range(751, 1300))
    assert records_.take(5) == []
    assert records_.position == 1300


@pytest.mark.parametrize("n", [0, -1])
def test_take_nothing(twin: ModuleType, n: int) -> None:
    records_ = chunk(twin, batch(0, 3))
    assert records_.take(n) == []
    assert records_.position == 0


def test_take_stops_below_an_offset_and_passes_the_gap_before_it(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 10) + batch(50, 10))
    assert offsets(records_.take(100, 5)) == [0, 1, 2, 3, 4]
    assert records_.position == 5
    assert records_.take(100, 5) == []
    assert offsets(records_.take(100, 30)) == [5, 6, 7, 8, 9]
    assert records_.take(100, 30) == []
    assert records_.position == 30
    assert offsets(records_.take(100, 51)) == [50]
    assert offsets(records_) == list(range(51, 60))


def test_take_stops_opening_batches_beyond_a_number_of_bytes(twin: ModuleType) -> None:
    records_ = chunk(twin, b"".join(batch(first, 100, codec="gzip") for first in range(0, 1000, 100)))
    assert offsets(records_.take(1000, max_bytes=1)) == list(range(100))
    assert offsets(records_.take(1000, max_bytes=2500)) == list(range(100, 300))
    assert len(records_.take(1000)) == 700


def test_an_inactive_chunk_hands_out_nothing(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 10))
    assert next(records_).offset == 0
    records_.active = False
    with pytest.raises(StopIteration):
        next(records_)
    assert records_.take(3) == []
    assert records_.position == 1
    assert not records_.exhausted
    records_.active = True
    assert next(records_).offset == 1


@pytest.mark.slow
def test_another_thread_can_end_a_chunk(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 200_000))
    frozen: list[int] = []
    started = threading.Event()

    def revoke() -> None:
        started.wait()
        records_.active = False
        frozen.append(records_.position)

    revoker = threading.Thread(target=revoke)
    revoker.start()
    last = -1
    for message in records_:
        last = message.offset
        if last == 100:
            started.set()
    started.set()
    revoker.join()
    assert records_.position == last + 1 == frozen[0]


# --- the choice ---


def test_the_implementation_is_named_and_one_of_two() -> None:
    assert records.__impl__ in records.IMPLEMENTATIONS
    assert records.__impl_reason__
    assert records.load(records.__impl__).RecordChunk is records.RecordChunk


def test_an_implementation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ImportError, match="MANAGEDCONSUMER_IMPL is 'rust'; it can be cython or python"):
        records.load("rust")


# --- memory ---


class Owner:
    """Stands for a partition object that leads back to its consumer, and so to the chunk."""

    chunk: object = None


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_chunks_in_a_circle_are_collected(twin: ModuleType, codec: str) -> None:
    owner = Owner()
    data = bytearray(batch(0, 100, codec=codec))
    owner.chunk = twin.RecordChunk(twin.PartitionContext(TOPIC, PARTITION, owner), memoryview(data), 0)
    next(owner.chunk)  # type: ignore[call-overload]
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
    data.extend(b"x")  # BufferError if the chunk still held the bytes


def test_an_exhausted_chunk_lets_go_of_its_bytes(twin: ModuleType) -> None:
    data = bytearray(batch(0, 10))
    records_ = chunk(twin, data)
    with pytest.raises(BufferError):
        data.extend(b"x")
    assert len(list(records_)) == 10
    data.extend(b"x")


def test_memory_does_not_grow(twin: ModuleType) -> None:
    data = [batch(0, 50, codec=codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")]
    torn = flip(data[1], len(data[1]) - 3)

    def once() -> None:
        for each in data:
            for message in chunk(twin, each):
                assert message.headers == []
            chunk(twin, each).take(10)
        for check in (True, False):
            records_ = chunk(twin, torn, check_crcs=check)
            drain(records_)
            records_.skip_corrupt()

    for _ in range(10):
        once()
    gc.collect()
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    for _ in range(30):
        once()
    gc.collect()
    assert len(gc.get_objects()) - objects < 20
    assert sys.getallocatedblocks() - blocks < 60


@pytest.mark.parametrize("read", [lambda c, n: [next(c) for _ in range(n)], lambda c, n: c.take(n)])
@pytest.mark.parametrize("taken", [1, 3, 5, 7, 9])
def test_a_chunk_goes_back_to_where_it_has_been(twin: ModuleType, read: Any, taken: int) -> None:
    """Over batches, gaps, codecs and aborted transactions."""
    producer = {"transactional": True, "producer_id": 9}
    aborted = batch(4, 2, **producer) + encode_marker(commit=False, offset=6, producer_id=9)
    data = batch(0, 3, codec="gzip") + aborted + batch(7, 3, **producer) + batch(12, 4, codec="zstd")
    records_ = chunk(twin, data, aborted=[(9, 4)], read_committed=True)
    whole = [0, 1, 2, 7, 8, 9, 12, 13, 14, 15]
    for start in range(taken):
        place = records_.position
        assert offsets(read(records_, taken - start)) == whole[start:taken]
        records_.rewind(place)
        assert records_.position == place
        assert next(records_).offset == whole[start]
    assert offsets(records_) == whole[taken:]
    assert records_.exhausted
    records_.rewind(0)  # its bytes are gone
    assert (records_.active, records_.position, list(records_)) == (False, 0, [])


def test_what_was_skipped_stays_skipped(twin: ModuleType) -> None:
    bad = bytearray(batch(2, 2))
    bad[-2] ^= 1
    records_ = chunk(twin, batch(0, 2) + bytes(bad) + batch(4, 2))
    assert offsets(records_.take(9)) == [0, 1]
    with pytest.raises(CorruptRecordError):
        next(records_)
    assert records_.skip_corrupt() == 4
    assert next(records_).offset == 4
    records_.rewind(4)
    assert offsets(records_) == [4, 5]


@pytest.mark.parametrize("read", [False, True])
def test_a_chunk_is_made_once(twin: ModuleType, read: bool) -> None:
    records_ = chunk(twin, batch(0, 2))
    if read:
        assert offsets(records_) == [0, 1]
    with pytest.raises(TypeError, match="twice"):
        records_.__init__(twin.PartitionContext("t", 0), batch(0, 2), 0)
    assert offsets(records_) == ([] if read else [0, 1])
