"""Small ranges share a task, big ones are cut, never fewer tasks than slots."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.spark.tasks import SMALL, SMALL_BYTES, Slice, Task, share_out, split
from managedconsumer.structs import TopicPartition


def slices(*sizes: int) -> list[Slice]:
    return [Slice("t", number, 0, size) for number, size in enumerate(sizes)]


def sizes(tasks: list[list[Slice]]) -> list[int]:
    return sorted(sum(part.size for part in task) for task in tasks)


def test_small_ranges_share_a_task() -> None:
    assert sizes(share_out(slices(*[1250] * 8), 2)) == [5000, 5000]
    assert len(share_out(slices(*[1] * 2000), 4)) == 4


def test_there_are_never_fewer_tasks_than_slots_unless_there_are_fewer_ranges() -> None:
    assert len(share_out(slices(*[10] * 8), 4)) == 4
    assert len(share_out(slices(10, 10), 4)) == 2
    assert len(share_out(slices(SMALL, 10, 10, 10, 10), 4)) == 4
    assert share_out([], 4) == []


def test_a_big_range_has_a_task_for_itself() -> None:
    tasks = share_out(slices(SMALL, SMALL * 9, 5, 5), 2)
    assert sizes(tasks) == [10, SMALL, SMALL * 9]
    assert len(share_out(slices(*[SMALL // 2] * 8), 2)) == 4, "and no task that is shared becomes much bigger"


def test_a_few_large_records_are_as_much_work_as_many_small_ones() -> None:
    parts = slices(*[200] * 8)
    assert len(share_out(parts, 2)) == 2
    assert len(share_out(parts, 2, {"t": 100.0})) == 2
    assert len(share_out(parts, 2, {"t": 1_000_000.0})) == 8, "each is 200 MB"
    assert len(share_out(parts, 2, {"t": SMALL_BYTES / 400})) == 4


def test_big_ranges_are_cut_when_min_partitions_asks() -> None:
    cut = split({TopicPartition("t", 0): OffsetRange(0, 100_000)}, 4)
    assert len(share_out(cut, 4)) == 4
    cut = split({TopicPartition("t", 0): OffsetRange(0, 100)}, 4)
    assert len(share_out(cut, 4)) == 4, "also where they are small"


@given(st.lists(st.integers(1, 3 * SMALL), max_size=60), st.integers(1, 16))
def test_each_range_is_in_one_task(given_sizes: list[int], slots: int) -> None:
    parts = slices(*given_sizes)
    tasks = share_out(parts, slots)
    assert sorted(part for task in tasks for part in task) == sorted(parts)
    assert len(tasks) >= min(slots, len(parts))
    assert all(task for task in tasks)
    shared = [task for task in tasks if len(task) > 1]
    assert all(sum(part.size for part in task) < 3 * SMALL for task in shared)


def test_a_task_of_thousands_of_ranges_is_small_on_its_way_to_the_executor() -> None:
    tp = TopicPartition("t", 0)
    for parts in ((), (Slice("t", 0, 5, 9),), tuple(slices(*[200] * 10_000))):
        task = Task(parts, {"t": "aa"}, "m", "data", {tp: OffsetRange(5, 9)})
        made = pickle.dumps(task)
        again = pickle.loads(made)
        assert again == task
        assert (type(again), {type(part) for part in again.parts}) == (Task, {type(part) for part in parts})
    assert len(made) < 15 * len(parts)
