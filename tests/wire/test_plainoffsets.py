"""The quick way to read an answer about offsets says what the table says, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managedconsumer.wire.protocol import plainoffsets
from managedconsumer.wire.protocol.schemas import LIST_OFFSETS

FIELDS = ("partition_index", "error_code", "offset", "leader_epoch")
PART = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "error_code": st.integers(-1, 100),
        "timestamp": st.integers(-1, 2**60),
        "offset": st.integers(-1, 2**60),
        "leader_epoch": st.integers(-1, 2**31 - 1),
    }
)
TOPICS = st.dictionaries(st.sampled_from(["", "t", "orders-é", "x" * 200]), st.lists(PART, max_size=3), max_size=3)
VERSIONS = st.sampled_from(plainoffsets.VERSIONS)


def encoded(version: int, topics: dict[str, list[dict[str, int]]], throttle: int = 0) -> bytes:
    named = [{"name": name, "partitions": parts} for name, parts in topics.items()]
    return LIST_OFFSETS.encode_response(version, {"throttle_time_ms": throttle, "topics": named})


@given(VERSIONS, TOPICS, st.integers(0, 1000))
def test_it_is_what_the_table_reads(version: int, topics: dict[str, list[dict[str, int]]], throttle: int) -> None:
    found = plainoffsets.read(version, memoryview(encoded(version, topics, throttle)))
    assert found is not None
    assert found[0] == throttle
    told = {name: [*zip(*plainoffsets.columns(version, block), strict=True)] for name, block in found[1].items()}
    assert told == {name: [tuple(map(part.get, FIELDS)) for part in parts] for name, parts in topics.items()}


@given(
    VERSIONS,
    st.dictionaries(st.sampled_from(["", "t", "orders-é", "x" * 200]), st.lists(st.integers(0, 2**31 - 1), max_size=3)),
    st.sampled_from([-2, -1, 2**60]),
    st.integers(0, 1),
    st.integers(0, 2**31 - 1),
)
def test_a_request_is_what_the_table_writes(
    version: int, topics: dict[str, list[int]], timestamp: int, isolation: int, timeout: int
) -> None:
    named = [
        {"name": name, "partitions": [{"partition_index": n, "timestamp": timestamp} for n in numbers]}
        for name, numbers in topics.items()
    ]
    body = {"isolation_level": isolation, "topics": named, "timeout_ms": timeout}
    made = plainoffsets.request(version, topics, timestamp, isolation, timeout)
    assert made == LIST_OFFSETS.encode(version, body)


@given(VERSIONS, TOPICS, st.data())
def test_what_is_cut_short_is_not_plain(version: int, topics: dict[str, list[dict[str, int]]], data: Any) -> None:
    whole = encoded(version, topics)
    size = data.draw(st.integers(0, len(whole) - 1))
    assert plainoffsets.read(version, memoryview(whole[:size])) is None
    assert plainoffsets.read(version, memoryview(whole + b"\0")) is None


@pytest.mark.parametrize("place", [-1, -2, -3])
def test_tagged_fields_are_left_to_the_table(place: int) -> None:
    part = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 5, "leader_epoch": 1}
    data = bytearray(encoded(6, {"t": [part]}))
    assert data[place] == 0
    data[place] = 1
    assert plainoffsets.read(6, memoryview(data)) is None
