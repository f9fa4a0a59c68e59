"""The map of finished messages in a commit's metadata: it says the truth, is short, and leaves others' maps alone."""

from __future__ import annotations

import base64
import json
import random
import tracemalloc
import zlib
from itertools import pairwise

import pytest

from managedconsumer.partition_state import TopicPartitionState
from managedconsumer.processing import offset_map
from managedconsumer.processing.key_queues import PartitionWork
from managedconsumer.processing.offset_map import LIMIT, OffsetMap
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

PLAIN = json.dumps({"consumer_id": "consumer-1-" + "f" * 36, "hostname": "host"})


@pytest.mark.parametrize("seed", range(30))
def test_a_map_says_again_what_was_written(seed: int) -> None:
    chance = random.Random(seed)
    base, length, share = (
        chance.choice((0, 7, 2**40)),
        chance.choice((1, 9, 500, 9000)),
        chance.choice((0.01, 0.5, 0.99)),
    )
    unfinished = tuple(base + n for n in range(length) if chance.random() < share)
    epoch, log = chance.choice((-1, 0, 300)), chance.choice((b"", b"12345678"))
    known = OffsetMap(unfinished, base + length, epoch, log)
    text = offset_map.encode(known, base)
    if len(unfinished) == length:
        assert text == ""
    else:
        assert offset_map.decode(text, base) == known


def test_one_stuck_message_takes_a_few_characters() -> None:
    text = offset_map.encode(OffsetMap((5,), 100_006), 5)
    assert len(text) < 20
    assert offset_map.decode(text, 5) == OffsetMap((5,), 100_006)


def test_the_map_stands_beside_pykafkas_metadata() -> None:
    text = offset_map.encode(OffsetMap((5, 8), 12), 5)
    metadata = offset_map.with_map(PLAIN, text)
    assert json.loads(metadata) == {**json.loads(PLAIN), "finished": text}
    assert offset_map.map_in(metadata) == text
    assert offset_map.with_map(PLAIN, "") == PLAIN
    assert offset_map.map_in(PLAIN) == ""


def test_what_does_not_fit_is_left_out_and_counts_as_unfinished() -> None:
    chance, base = random.Random(3), 100
    unfinished = tuple(n for n in range(base, 90_000) if chance.random() < 0.4)
    known = OffsetMap(unfinished, 90_000)
    room = offset_map.room_for_map(PLAIN)
    text = offset_map.shortened(known, base, room)
    assert 0.8 * room < len(text) <= room
    assert len(offset_map.with_map(PLAIN, text).encode()) <= LIMIT
    told = offset_map.decode(text, base)
    assert told is not None
    assert told.unfinished == tuple(offset for offset in unfinished if offset < told.top)


def test_as_much_of_a_map_as_fits_is_written() -> None:
    chance = random.Random(7)
    unfinished = tuple(sorted({100, *chance.sample(range(100, 5000), 40)}))
    known = OffsetMap(unfinished, 5000)
    parts = [offset_map.encode(known.below(top), 100) for top in unfinished]
    assert all(len(one) <= len(more) for one, more in pairwise(parts))
    for room in range(len(parts[-1]) + 1):
        assert offset_map.shortened(known, 100, room) == max((each for each in parts if len(each) <= room), key=len)


def test_the_room_for_a_map_is_the_whole_rest() -> None:
    room = offset_map.room_for_map(PLAIN)
    assert len(offset_map.with_map(PLAIN, "x" * room).encode()) == LIMIT
    assert offset_map.room_for_map(PLAIN, 20) < 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3g",
        "1gAB",  # a development version's: it did not say of which log it was
        "2gAB",
        "2g000000000000SO9",  # version 0.2.0's
        "xgAB",
        "3gé",
        "3G0000",
        '3g"',
        "3g" + "z" * 11,
        "bQAAAA==",
        "0",
        "3b00",
        "3g~~~~~~~~~~~~~~~",
    ],
)
def test_maps_of_others_are_not_ours(text: str) -> None:
    assert offset_map.decode(text, 7) is None


#: One of each kind. Members of other versions read them in the group's commits.
GOLDEN = [
    (OffsetMap((100, 227, 355, 484), 1000, 3, b"12345678"), "3g<OOY32{AG=G&MFiID`iPet&=g"),
    (OffsetMap(tuple(range(100, 130, 3)), 131), "3bfZ`Nr03S(`Bnb"),
    (OffsetMap(tuple(range(100, 5100, 50)), 6000, 3), "3Gc$`yOrMaJ@M~}gf_5c91Mipu"),
    (OffsetMap(tuple(n for n in range(100, 1300) if n % 8 in (0, 1, 5)), 1301), "3Bc%19~vr(C0Bd5`z1PlPADj;M"),
]


@pytest.mark.parametrize(("known", "text"), GOLDEN)
def test_the_text_of_a_map(known: OffsetMap, text: str) -> None:
    assert offset_map.decode(text, 100) == known
    written = offset_map.encode(known, 100)
    assert written[:2] == text[:2]
    if written[1].islower():  # builds of zlib deflate the same bytes to different ones
        assert written == text


@pytest.mark.parametrize(("known", "text"), GOLDEN)
def test_a_map_counts_beside_its_own_offset_and_as_a_whole(known: OffsetMap, text: str) -> None:
    assert [offset_map.decode(text, base) for base in (99, 101, 0, 1000)] == [None] * 4
    assert [offset_map.decode(text[:end], 100) for end in range(len(text))] == [None] * len(text)
    assert [offset_map.decode(digit + text[1:], 100) for digit in "0124"] == [None] * 4


def test_a_map_is_as_short_behind_a_high_offset() -> None:
    for known, text in GOLDEN:
        moved = OffsetMap(tuple(n + 2**40 for n in known.unfinished), known.top + 2**40, known.epoch, known.log)
        assert abs(len(offset_map.encode(moved, 100 + 2**40)) - len(text)) <= 4


@pytest.mark.parametrize("length", [1, 2, 126, 127, 128, 129, 255, 256, 16383, 16384, 16385])
def test_a_map_of_any_length(length: int) -> None:
    known = OffsetMap((5,), 5 + length + 1)
    assert offset_map.decode(offset_map.encode(known, 5), 5) == known
    known = OffsetMap((5, 5 + length), 5 + length + 5)
    assert offset_map.decode(offset_map.encode(known, 5), 5) == known


def sealed(kind: str, raw: bytes, base: int = 5) -> str:
    """The text for any bytes, with the right checksum: anybody who may commit for the group can write it."""
    raw = zlib.crc32(raw, zlib.crc32(b"%d" % base)).to_bytes(4, "big") + raw
    return f"3{kind}{base64.b85encode(zlib.compress(raw) if kind.isupper() else raw).decode()}"


@pytest.mark.parametrize(
    ("kind", "raw", "known"),
    [
        ("g", b"\x00\x0a\x00\x08", OffsetMap((5, 14), 15)),
        ("G", b"\x00\x0a\x00\x08", OffsetMap((5, 14), 15)),
        ("b", b"\x00\x0a\x01\x02", OffsetMap((5, 14), 15)),
        ("B", b"\x00\x0a\x01\x02", OffsetMap((5, 14), 15)),
        ("g", b"\x00\x0a\x00\x09", None),  # an offset behind the end
        ("b", b"\x00\x0a\x01\x04", None),
        ("g", b"\x00\x00", None),  # no length
        ("g", b"\x00\x80\x80\x80\x80\x80\x20", OffsetMap((), 5 + 2**40)),
        ("g", b"\x00\x81\x80\x80\x80\x80\x20", None),  # longer than any log
        ("g", b"\x00" + b"\x80" * 30 + b"\x01", None),
        ("g", b"\x00\x0a\x80", None),  # it ends within a number
        ("g", b"\x01\x0a", None),  # it ends within the id of the log
        ("g", b"", None),
    ],
)
def test_any_bytes_are_a_map_that_can_be_or_none(kind: str, raw: bytes, known: OffsetMap | None) -> None:
    assert offset_map.decode(sealed(kind, raw), 5) == known


@pytest.mark.parametrize(
    "metadata", ["", "finished", '{"finished": 3}', '["finished"]', '{"finished": "x"', "o:finished", '{"finished"']
)
def test_metadata_of_others_is_no_map(metadata: str) -> None:
    assert offset_map.map_in(metadata) == ""


def test_a_text_that_would_become_huge_is_refused() -> None:
    """It is not inflated first."""
    bomb = sealed("B", b"\x00\xff\xff\xff\xff\x01" + bytes(32 << 20))
    tracemalloc.start()
    try:
        assert offset_map.decode(bomb, 5) is None
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


OLD, NEW = b"old log.", b"new log."


@pytest.mark.parametrize(
    ("known", "log", "leader_epoch", "end", "same"),
    [
        (OffsetMap((5,), 100, 3, OLD), OLD, 3, 100, True),
        (OffsetMap((5,), 100, 3, OLD), OLD, 7, 100, True),
        (OffsetMap((5,), 100, 3, OLD), NEW, 3, 5000, False),  # deleted and made anew
        (OffsetMap((5,), 100, 3, OLD), OLD, 7, 60, True),  # a new leader does not know its end yet
        (OffsetMap((5,), 100, 3), b"", 0, 5000, False),  # leader epochs begin at 0 again
        (OffsetMap((5,), 100, 3), b"", -1, 5000, True),
        (OffsetMap((5,), 100, 3), b"", 3, 99, False),
        (OffsetMap((5,), 100), b"", 3, 100, True),
        (OffsetMap((5,), 100), NEW, 3, 99, False),
        (OffsetMap((5,), 100, 3, OLD), b"", 3, None, True),
    ],
)
def test_a_map_counts_for_its_own_log_alone(
    known: OffsetMap, log: bytes, leader_epoch: int, end: int | None, same: bool
) -> None:
    assert known.of_log(log, leader_epoch, end) is same


def test_a_log_is_known_by_its_topic_and_partition() -> None:
    one, other = bytes(range(16)), bytes(range(1, 17))
    ids = [offset_map.log_id(topic, partition) for topic in (one, other) for partition in (0, 1, 1000)]
    assert len(set(ids)) == 6
    assert {len(each) for each in ids} == {8}
    assert offset_map.log_id(None, 3) == offset_map.log_id(b"", 3) == b""
    # Other versions of managedconsumer read it in the group's commits.
    assert offset_map.log_id(one, 0x0102) == bytes.fromhex("0001020304050705")


def test_after_a_refusal_the_map_has_half_the_room_and_none_in_the_end() -> None:
    assert offset_map.smaller_limit(1001, 100) == 550
    limits, limit = [], 4000
    while limit:
        limit = offset_map.smaller_limit(limit, 100)
        limits.append(limit)
    assert limits[-2:] == [100, 0] and len(limits) < 15
    assert offset_map.smaller_limit(2, 1) == 1
    assert offset_map.smaller_limit(99, 100) == offset_map.smaller_limit(50, 0) == 0


def test_a_part_of_a_map() -> None:
    known = OffsetMap((5, 7), 10, 3, b"12345678")
    assert known.below(10) == known.below(11) == known
    assert known.below(8) == OffsetMap((5, 7), 8, 3, b"12345678")
    assert known.below(7) == OffsetMap((5,), 7, 3, b"12345678")


def test_what_was_written_under_a_later_epoch_is_not_finished() -> None:
    """The log was cut at 60 and written anew; the map says that 5 and 70 alone are not finished up to 100."""
    state = TopicPartitionState()
    state.seek(5, 2)
    part = PartitionWork(TopicPartition("orders", 0), state, OffsetMap((5, 70), 100, 3, OLD))
    state.note_epochs([(5, 2), (40, 3)])
    part.believe(state.newer_than(3))
    assert [m.offset for m in part.take([Message(b"", offset=n) for n in range(5, 50)], 0.0)] == [5]
    state.note_epochs([(60, 4)])
    part.believe(state.newer_than(3))
    assert part.known(2, OLD) == OffsetMap((5,), 60, 3, OLD)
    assert [m.offset for m in part.take([Message(b"", offset=n) for n in range(50, 90)], 0.0)] == list(range(60, 90))
    assert part.skip is None and part.lowest() == 5


def test_a_map_that_was_found_does_not_outlive_a_seek() -> None:
    """A commit that was under way may be noted after the seek: it is not what is passed over."""
    state = TopicPartitionState()
    state.seek(5)
    state.found_map = 5, "a map"
    state.seek(0)
    state.committed, state.finished_map = 5, "a map"
    assert state.found_map is None


def test_metadata_that_is_brackets_in_brackets_is_no_map() -> None:
    """Whoever may commit for a group could keep it from finding its positions."""
    for deep in ('{"finished": ' + "[" * 4000, '{"finished": ' * 4000):
        assert offset_map.map_in(deep) == ""


def test_more_unfinished_messages_than_anybody_has_are_no_map() -> None:
    """A few characters would become hundreds of megabytes of numbers."""
    most = offset_map._MOST_UNFINISHED
    for count, step in ((most, 1), (most + 1, 1), (most, 9), (most + 1, 9)):
        known = OffsetMap(tuple(range(0, step * count, step)), step * count + 5, 3, b"12345678")
        text = offset_map.encode(known, 0)
        assert offset_map.decode(text, 0) == (known if count == most else None)
