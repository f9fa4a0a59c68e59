"""Both implementations tell exactly the same story of any bytes: messages, positions, errors and their words."""

from __future__ import annotations

import copy
import pickle
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from managedconsumer.wire.records.arrow import chunk_to_columns
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.fuzz.records import Records
from tests.wire.logkit import build, implementations, step
from tests.wire.oldformats import encode_messages
from tests.wire.recordkit import batch, chunk, with_crc

FIELDS = (
    *("value", "partition_key", "key", "offset", "timestamp", "headers", "topic", "partition_id", "partition"),
    *("timestamp_type", "leader_epoch", "protocol_version", "compression_type", "produce_attempt", "delivery_report_q"),
)
TWINS = Records()

action = st.one_of(
    st.just(["next"]),
    st.tuples(st.just("take"), st.integers(0, 12), st.none() | st.integers(0, 400), st.none() | st.integers(0, 300)),
    st.tuples(st.just("columns"), st.none() | st.integers(0, 400)),
    st.just(["skip"]),
    st.tuples(st.just("active"), st.booleans()),
)


def same_story(data: bytes, first: int, actions: list[Any], **options: Any) -> None:
    """All that can be seen of a chunk while it is used as ``actions`` say, and then read to its end."""
    given = {"view": "bytes", "check_crcs": True, "read_committed": False, "aborted": [], **options}
    TWINS.check({"data": data, "first": first, "actions": actions, **given})


@settings(deadline=None)
@given(
    steps=st.lists(step, min_size=1, max_size=6),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 7)), max_size=4),
    actions=st.lists(action, max_size=12),
    first=st.integers(0, 60),
    check=st.booleans(),
    committed=st.booleans(),
)
def test_any_log_with_any_damage(
    steps: list[Any], flips: list[Any], actions: list[Any], first: int, check: bool, committed: bool
) -> None:
    raw, _, aborted, _ = build(steps)
    damaged = bytearray(raw)
    for where, bit in flips if raw else ():
        damaged[int(where * len(damaged))] ^= 1 << bit
    same_story(bytes(damaged), first, actions, check_crcs=check, aborted=aborted, read_committed=committed)


def same_story_of_a_body(
    body: bytes, count: int, last_delta: int, base: int, base_timestamp: int, attributes: int, first: int
) -> None:
    shell = bytearray(encode_batch([Record(b"")])[:61] + body)
    shell[0:8] = base.to_bytes(8, "big")
    shell[8:12] = (len(shell) - 12).to_bytes(4, "big")
    shell[21:23] = attributes.to_bytes(2, "big")
    shell[23:27] = last_delta.to_bytes(4, "big", signed=True)
    shell[27:35] = shell[35:43] = base_timestamp.to_bytes(8, "big", signed=True)
    shell[57:61] = count.to_bytes(4, "big", signed=True)
    same_story(with_crc(bytes(shell)), first, [["next"], ["skip"], ["next"]])


@settings(deadline=None)
@given(
    body=st.binary(max_size=60),
    count=st.integers(-1, 6),
    last_delta=st.integers(-1, 20),
    base=st.sampled_from([0, 5, 2**62, 2**63 - 30]),
    base_timestamp=st.sampled_from([0, -1, 2**63 - 1, -(2**63)]),
    attributes=st.sampled_from([0, 0, 0, 8, 16, 32, 48, 5]),
    first=st.sampled_from([0, 3, 7, 2**62 + 2, 2**63 - 29]),
)
@example(body=b"\x0c\0\0\0\1\1\0", count=1, last_delta=0, base=0, base_timestamp=0, attributes=0, first=0)
@example(body=b"\x02\0\0\0\1\1\0", count=1, last_delta=0, base=0, base_timestamp=0, attributes=0, first=0)
@example(
    body=b"\x06\0\0\xfe\xff\xff\xff\x7f",
    count=1,
    last_delta=3,
    base=2**63 - 30,
    base_timestamp=0,
    attributes=0,
    first=0,
)
@example(body=b"\x0e\0\0\0\1\1\x80\0", count=1, last_delta=0, base=0, base_timestamp=0, attributes=0, first=0)
def test_any_body_of_a_batch(
    body: bytes, count: int, last_delta: int, base: int, base_timestamp: int, attributes: int, first: int
) -> None:
    same_story_of_a_body(body, count, last_delta, base, base_timestamp, attributes, first)


varints = st.one_of(st.integers(0, 40), st.integers(0, 2**70)).map(lambda n: varint(n))


def varint(raw: int) -> bytes:
    out = bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*out, raw])


@settings(deadline=None)
@given(
    parts=st.lists(st.one_of(varints, st.binary(max_size=6), st.just(b"\0")), max_size=14),
    count=st.integers(1, 3),
    first=st.integers(0, 3),
)
def test_any_varints_in_a_record(parts: list[bytes], count: int, first: int) -> None:
    inner = b"".join(parts)
    for body in (varint(2 * len(inner)) + inner, inner):
        same_story_of_a_body(body, count, 10, 0, 0, 0, first)


@settings(deadline=None)
@given(junk=st.binary(max_size=200), first=st.integers(0, 2**63 - 1), actions=st.lists(action, max_size=5))
def test_junk(junk: bytes, first: int, actions: list[Any]) -> None:
    for check in (True, False):
        same_story(junk, first, actions, check_crcs=check)


@settings(deadline=None)
@given(
    steps=st.lists(step, min_size=1, max_size=6),
    actions=st.lists(action, max_size=8),
    first=st.integers(0, 60),
    old=st.booleans(),
)
def test_columns_and_messages_by_turns(steps: list[Any], actions: list[Any], first: int, old: bool) -> None:
    """However a chunk is read, each offset comes once, in order, in both."""
    raw, log, aborted, _ = build(steps)
    if old:
        raw = encode_messages([Record(b"old", b"k", 5)] * 2, magic=1) + batch(2, 1)
    wanted = [0, 1, 2] if old else [offset for offset, _, _ in log]
    for twin in implementations():
        records_ = chunk(twin, raw, first, aborted=aborted)
        seen: list[int] = []
        for what in [*actions, ("take", 10_000)]:
            if what[0] == "take":
                seen += [message.offset for message in records_.take(*what[1:])]
            elif what[0] == "columns":
                seen += chunk_to_columns(records_, what[1], ["offset"], 1000).to_pydict()["offset"]
            elif what[0] == "next":
                seen += [message.offset for message in [next(records_, None)] if message is not None]
            assert not seen or records_.position > seen[-1]
        assert seen == [offset for offset in wanted if offset >= first]


def test_messages_of_one_can_be_opened_by_the_other() -> None:
    for twin in implementations():
        message = next(chunk(twin, encode_batch([Record(b"v", b"k", 7, [("h", b"x")])], base_offset=3)))
        for other in (copy.copy(message), pickle.loads(pickle.dumps(message))):
            assert [getattr(other, name) for name in FIELDS if name != "partition"] == [
                getattr(message, name) for name in FIELDS if name != "partition"
            ]


class Other:
    """A message of somebody else."""

    def __init__(self, topic: str, partition_id: int, offset: int) -> None:
        self.topic, self.partition_id, self.offset = topic, partition_id, offset


@given(
    places=st.lists(
        st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(-1, 2), st.integers(-1, 9)), max_size=12
    )
)
def test_first_and_last_offsets_of_partitions(places: list[tuple[bool, str, int, int]]) -> None:
    wanted: dict[tuple[str, int], list[int]] = {}
    for _, topic, number, offset in places:
        wanted.setdefault((topic, number), []).append(offset)
    for twin in implementations():
        contexts = {key: twin.PartitionContext(*key) for key in wanted}
        made: list[Any] = []
        for other, topic, number, offset in places:
            if other:
                made.append(Other(topic, number, offset))
            elif offset % 2:  # of a chunk: with one context for all
                chunk_ = twin.RecordChunk(
                    contexts[topic, number], encode_batch([Record(b"v")], base_offset=offset), offset
                )
                made.extend(
                    chunk_ if offset >= 0 else [twin.Message(b"", offset=offset, topic=topic, partition_id=number)]
                )
            else:
                made.append(twin.Message(b"v", offset=offset, topic=topic, partition_id=number))
        assert twin.extents_of(made) == {key: (min(all_), max(all_)) for key, all_ in wanted.items()}


@pytest.mark.parametrize("name", ["value", "partition_key"])
def test_a_deleted_attribute_is_gone(twin: ModuleType, name: str) -> None:
    message = twin.Message(b"v", b"k")
    delattr(message, name)
    with pytest.raises(AttributeError):
        getattr(message, name)
    setattr(message, name, b"again")
    assert getattr(message, name) == b"again"
