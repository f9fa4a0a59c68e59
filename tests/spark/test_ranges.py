"""Planning of micro-batches: limits, slices, offsets in the checkpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark import ranges, tasks
from managedconsumer.spark.ranges import OffsetRange, StreamOffset
from managedconsumer.structs import TopicPartition

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
PARTITIONS = st.dictionaries(st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 9)), st.integers(0, 10**6))


def test_an_offset_survives_sparks_checkpoint() -> None:
    offset = StreamOffset({P0: OffsetRange(5, 9), TopicPartition("u.v-w", 12): OffsetRange(0, 0)})
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert offset.ends == {P0: 9, TopicPartition("u.v-w", 12): 0}


def test_the_initial_offset_says_that_nothing_was_read() -> None:
    offset = StreamOffset({P0: OffsetRange(5, 5)}, initial=True)
    again = StreamOffset.from_json(offset.to_json())
    assert again.initial
    assert again == offset


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"page-views": {"0": 23}}, "checkpointLocation of its own"),
        ({"version": 1, "ranges": {"t": {"0": 5}}}, "is no offset of this source"),
        ({"version": 7, "ranges": {}}, "version 7"),
        (None, "is no offset of this source"),
    ],
)
def test_offsets_of_another_source_are_named_as_such(value: object, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        StreamOffset.from_json(value)  # type: ignore[arg-type]


def test_a_batch_goes_from_the_positions_to_the_ends() -> None:
    positions = {P0: 5, P1: 7, P2: 1}
    available = ranges.behind(positions, {P0: 9, P1: 7})
    assert available == {P0: 4}
    assert ranges.plan(positions, available) == {P0: (5, 9), P1: (7, 7), P2: (1, 1)}


def test_a_log_that_ends_before_the_position_gives_an_empty_range() -> None:
    assert ranges.plan({P0: 50}, ranges.behind({P0: 50}, {P0: 10})) == {P0: (50, 50)}


@given(PARTITIONS, st.integers(1, 10**6))
def test_a_limit_is_used_up_exactly_and_never_exceeded(available: dict[TopicPartition, int], limit: int) -> None:
    granted = ranges.share(available, limit)
    assert granted.keys() == available.keys()
    assert all(0 <= granted[tp] <= available[tp] for tp in available)
    assert sum(granted.values()) == min(limit, sum(available.values()))


def test_a_small_partition_is_not_forgotten_beside_a_large_one() -> None:
    granted = ranges.share({P0: 1_000_000, P1: 1, P2: 20}, 100)
    assert granted[P1] == 1
    assert granted[P2] >= 1
    assert granted[P0] > 90


@given(PARTITIONS, st.one_of(st.none(), st.integers(1, 40)))
def test_slices_cover_every_offset_once(sizes: dict[TopicPartition, int], min_partitions: int | None) -> None:
    wanted = {tp: OffsetRange(3, 3 + size) for tp, size in sizes.items()}
    covered: dict[TopicPartition, int] = {}
    for part in tasks.split(wanted, min_partitions):
        tp = TopicPartition(part.topic, part.partition)
        assert part.start == covered.get(tp, 3)
        assert part.stop > part.start
        covered[tp] = part.stop
    assert covered == {tp: entry.stop for tp, entry in wanted.items() if entry.size}


def test_min_partitions_cuts_large_ranges_in_proportion() -> None:
    slices = tasks.split({P0: OffsetRange(0, 900), P1: OffsetRange(0, 100)}, 10)
    assert [part.partition for part in slices] == [0] * 9 + [1]
    assert len(tasks.split({P0: OffsetRange(0, 900), P1: OffsetRange(0, 100)}, 2)) == 2


def test_available_now_leaves_out_what_came_later() -> None:
    assert ranges.cap({P0: 10, P1: 3, P2: 5}, {P0: 8, P1: 4}) == {P0: 8, P1: 3}
    assert ranges.cap({P0: 10}, None) == {P0: 10}
