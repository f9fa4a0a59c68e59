"""Scenes of what ``run()`` decides, one by one: which messages start, in which lists, when, and what is counted.

The simulation beside it plays random schedules and looks whether promises are broken. Here the answers are exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from managedconsumer.processing import offset_map
from managedconsumer.processing.key_queues import KeyQueue, PartitionWork
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.processing.values import KEY, NONE, PARTITION, Plan, Retry
from managedconsumer.processing.work import Work
from managedconsumer.processing.worker_slots import WorkerSlot
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass
class Gate:
    suspended: bool = False
    paused: bool = False


class Bench:
    """A run without threads: its partitions are 0 and 1, their messages have ascending offsets."""

    def __init__(self, order: str = NONE, **more: Any) -> None:
        self.work = Work(Plan(order, **more))
        self.gates = {TP: Gate(), OTHER: Gate()}
        self.ends = {TP: 0, OTHER: 0}
        self.now = 0.0

    def part(self, tp: TopicPartition = TP) -> PartitionWork:
        return self.work.parts.get(tp) or self.work.open(tp, self.gates[tp], None)

    def offer(self, keys: str | int, tp: TopicPartition = TP) -> None:
        """Messages come: one for each letter, its key, or so many without keys."""
        named = list(keys) if isinstance(keys, str) else [None] * keys
        first = self.ends[tp]
        self.ends[tp] += len(named)
        messages = [
            Message(
                b"", offset=first + n, topic=tp.topic, partition_id=tp.partition, partition_key=key and key.encode()
            )
            for n, key in enumerate(named)
        ]
        self.work.offer(self.part(tp), messages, self.now)

    def take(self, limit: int = 1_000_000) -> list[KeyQueue]:
        return self.work.take(limit, self.now)

    def back(self, key_queue: KeyQueue, place: int | None = None, *, failed: bool = False) -> int:
        """The worker of ``key_queue`` is through with it: all of it, or what is before ``place``."""
        key_queue.place = len(key_queue.running) if place is None else place
        if failed:
            key_queue.failed = True
        return self.work.take_back([key_queue], self.now)

    def commit(self, tp: TopicPartition = TP) -> int:
        """Up to where everything is finished."""
        low = self.part(tp).lowest()
        return self.ends[tp] if low is None else low


def offsets(key_queues: list[KeyQueue]) -> list[list[int]]:
    return [[message.offset for message in key_queue.running] for key_queue in key_queues]


# -- what starts ----------------------------------------------------------------------------------------------------


def test_single_messages_start_in_their_order_up_to_the_limit() -> None:
    bench = Bench(NONE)
    bench.offer(5)
    assert bench.work.ready == 5
    assert offsets(bench.take(1)) == [[0]]
    assert offsets(bench.take(2)) == [[1], [2]]
    assert bench.work.ready == 2
    assert offsets(bench.take(9)) == [[3], [4]]
    assert bench.take(9) == []
    assert (bench.work.ready, bench.work.in_flight) == (0, 5)


def test_messages_of_a_key_go_to_one_worker_at_a_time() -> None:
    bench = Bench(KEY)
    bench.offer("abab")
    assert bench.work.ready == 4
    (a,) = bench.take(1)
    assert offsets([a]) == [[0]]
    assert bench.work.ready == 2, "what waits behind one that runs is not ready"
    bench.offer("ac")
    (b, c) = bench.take()
    assert offsets([b, c]) == [[1, 3], [5]]
    bench.back(a)
    assert bench.work.ready == 2
    assert offsets(bench.take()) == [[2, 4]]
    assert bench.work.ready == 0


def test_a_key_that_had_its_turn_lets_others_go_first() -> None:
    bench = Bench(KEY)
    bench.offer("aab")
    (a,) = bench.take(1)
    bench.back(a)
    assert offsets(bench.take(1)) == [[2]]
    assert offsets(bench.take(1)) == [[1]]


def test_what_was_not_begun_goes_first_when_it_comes_back() -> None:
    bench = Bench(KEY)
    bench.offer("aab")
    (a,) = bench.take(2)
    bench.back(a, 1)
    assert offsets(bench.take(1)) == [[1]]


def test_messages_without_a_key_are_in_no_order() -> None:
    bench = Bench(KEY)
    bench.offer(2)
    bench.offer("a")
    bench.offer(1)
    assert bench.work.ready == 4
    assert offsets(bench.take()) == [[0], [1], [2], [3]]


def test_a_partition_is_one_line() -> None:
    bench = Bench(PARTITION)
    bench.offer("ab")
    bench.offer(2, OTHER)
    assert bench.work.ready == 4
    first = bench.take(1)
    assert offsets(first) == [[0]]
    assert offsets(bench.take()) == [[0, 1]]
    assert bench.take() == []
    bench.back(first[0])
    assert offsets(bench.take()) == [[1]]


def test_what_the_group_knows_to_be_finished_does_not_start() -> None:
    bench = Bench(NONE)
    bench.work.open(TP, bench.gates[TP], OffsetMap((1, 3), 5))
    bench.offer(7)
    assert offsets(bench.take()) == [[1], [3], [5], [6]]
    assert (bench.work.in_flight, bench.work.done, bench.commit()) == (4, 0, 1)


# -- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [NONE, PARTITION])
def test_a_list_starts_when_it_is_full_or_old(order: str) -> None:
    bench = Bench(order, batch=(3, 2.0))
    assert bench.work.next_deadline() is None
    bench.now = 10.0
    bench.offer(2)
    bench.now = 11.5
    assert bench.take() == []
    assert (bench.work.ready, bench.work.next_deadline()) == (0, 12.0)
    bench.offer(1)
    (full,) = bench.take()
    assert offsets([full]) == [[0, 1, 2]]
    bench.back(full)
    bench.offer(1)
    bench.now = 13.4
    assert bench.take() == []
    bench.now = 13.5
    bench.work.wake(bench.now)
    assert bench.work.ready == 1
    assert offsets(bench.take()) == [[3]]
    assert bench.work.next_deadline() is None


@pytest.mark.parametrize("order", [NONE, KEY, PARTITION])
def test_lists_without_a_time_do_not_wait(order: str) -> None:
    bench = Bench(order, batch=(3, 0.0))
    bench.offer("aa")
    assert bench.work.next_deadline() is None
    assert [offset for each in offsets(bench.take()) for offset in each] == [0, 1]


def test_the_limit_counts_lists() -> None:
    bench = Bench(NONE, batch=(2, 0.5))
    bench.offer(7)
    assert offsets(bench.take(1)) == [[0, 1]]
    assert offsets(bench.take(2)) == [[2, 3], [4, 5]]
    assert bench.take(2) == []
    bench.now = 0.5
    assert offsets(bench.take(2)) == [[6]]


def test_lists_of_a_key_have_messages_of_that_key_alone() -> None:
    bench = Bench(KEY, batch=(2, 5.0))
    bench.offer("abaab")
    (a, b) = bench.take()
    assert offsets([a, b]) == [[0, 2], [1, 4]]
    bench.now = 3.0
    bench.back(a)
    assert bench.take() == [] and bench.work.next_deadline() == 5.0, "its time runs since its list was taken"
    bench.now = 5.0
    assert offsets(bench.take()) == [[3]]


def test_messages_without_a_key_share_a_list() -> None:
    bench = Bench(KEY, batch=(2, 5.0))
    bench.offer(1)
    bench.offer("a")
    bench.offer(1, OTHER)
    (mixed,) = bench.take()
    assert [(message.partition_id, message.offset) for message in mixed.running] == [(0, 0), (1, 0)]
    assert (bench.part().top, bench.part(OTHER).top) == (0, 0)
    assert bench.back(mixed) == 2
    assert (bench.commit(), bench.commit(OTHER)) == (1, 1)
    assert (bench.part().top, bench.part(OTHER).top) == (1, 1)


def test_a_key_that_was_idle_begins_a_new_list() -> None:
    bench = Bench(PARTITION, batch=(3, 5.0))
    bench.offer(3)
    (first,) = bench.take()
    bench.now = 4.0
    bench.offer(1)
    bench.now = 6.0
    bench.offer(1)
    bench.back(first)
    assert bench.take() == []
    assert bench.work.next_deadline() == 9.0, "since the first that waits has come"


def test_a_list_that_was_mixed_is_parted_where_one_partition_is_paused() -> None:
    bench = Bench(NONE, batch=(4, 5.0), retry=Retry(first_ms=1000, jitter=0))
    bench.offer(2)
    bench.offer(2, OTHER)
    (mixed,) = bench.take()
    bench.back(mixed, 0, failed=True)
    bench.gates[OTHER].paused = True
    bench.now = 1.0
    (rest,) = bench.take()
    assert [message.partition_id for message in rest.running] == [0, 0]
    bench.offer(2)
    assert bench.take() == []
    bench.gates[OTHER].paused = False
    (aside,) = bench.take()
    assert [message.partition_id for message in aside.running] == [1, 1]
    assert (aside.attempts, rest.attempts) == (1, 1)
    bench.back(rest)
    bench.back(aside)
    assert (bench.work.done, bench.work.in_flight) == (4, 2)


# -- what fails -------------------------------------------------------------------------------------------------------


def test_a_failed_message_is_tried_again_after_its_pause() -> None:
    bench = Bench(KEY, retry=Retry(attempts=3, first_ms=1000, jitter=0.2))
    bench.offer("aab")
    (a, b) = bench.take()
    bench.back(b)
    bench.now = 10.0
    assert bench.back(a, 0, failed=True) == 0
    assert (bench.work.parked, bench.work.retried, bench.work.next_deadline()) == (1, 1, 11.0)
    bench.now = 10.9
    assert bench.take() == []
    bench.now = 11.0
    assert bench.take() == [a] and offsets([a]) == [[0, 1]]
    assert bench.work.parked == 0
    a.failed, a.place = True, 0
    bench.work.take_back([a], bench.now, lambda: 1.0)  # the longest that chance makes of two seconds
    assert bench.work.next_deadline() == pytest.approx(13.4)
    bench.now = 14.0
    bench.take()
    assert bench.back(a) == 2
    assert (bench.work.done, bench.work.retried, bench.work.in_flight, bench.work.next_deadline()) == (3, 2, 0, None)


def test_a_message_that_has_failed_counts_its_own_attempts() -> None:
    bench = Bench(PARTITION, retry=Retry(attempts=3, first_ms=0, on=(ValueError,)))
    bench.offer(3)
    (key_queue,) = bench.take()
    assert bench.work.again(key_queue, 0, ValueError()) and not bench.work.again(key_queue, 0, KeyError())
    for _ in range(2):
        bench.back(key_queue, 0, failed=True)
        (key_queue,) = bench.take()
    assert not bench.work.again(key_queue, 0, ValueError()), "the third time"
    assert bench.work.again(key_queue, 1, ValueError()), "the first time of the next one"
    bench.back(key_queue, 1, failed=True)
    (key_queue,) = bench.take()
    assert offsets([key_queue]) == [[1, 2]]
    assert bench.work.again(key_queue, 0, ValueError())
    bench.back(key_queue, 0, failed=True)
    (key_queue,) = bench.take()
    assert not bench.work.again(key_queue, 0, ValueError())


def test_the_next_message_has_all_its_attempts() -> None:
    bench = Bench(PARTITION, retry=Retry(attempts=2, first_ms=0))
    bench.offer(2)
    (key_queue,) = bench.take()
    bench.back(key_queue, 0, failed=True)
    (key_queue,) = bench.take()
    assert not bench.work.again(key_queue, 0, ValueError())
    assert bench.work.again(key_queue, 1, ValueError())


def test_attempts_of_what_was_lost_do_not_count_for_what_comes() -> None:
    bench = Bench(KEY, retry=Retry(attempts=2, first_ms=0))
    bench.offer("a")
    (key_queue,) = bench.take()
    bench.back(key_queue, 0, failed=True)
    (key_queue,) = bench.take()
    bench.work.forget({TP})
    bench.offer("a")
    bench.back(key_queue, 0, failed=True)
    (key_queue,) = bench.take()
    assert offsets([key_queue]) == [[1]]
    assert bench.work.again(key_queue, 0, ValueError())


def test_without_a_retry_nothing_is_tried_again() -> None:
    bench = Bench(NONE)
    bench.offer(1)
    assert not bench.work.again(bench.take()[0], 0, ValueError())


def test_a_list_is_tried_again_as_it_was() -> None:
    bench = Bench(PARTITION, batch=(3, 5.0), retry=Retry(first_ms=1000, jitter=0))
    bench.offer(2)
    bench.now = 5.0
    (key_queue,) = bench.take()
    bench.offer(4)
    bench.back(key_queue, 0, failed=True)
    bench.now = 6.0
    assert bench.take() == [key_queue] and offsets([key_queue]) == [[0, 1]]
    bench.back(key_queue, 0)  # it was not begun: still the same list, at once
    assert bench.take() == [key_queue] and offsets([key_queue]) == [[0, 1]]
    bench.back(key_queue)
    assert offsets(bench.take()) == [[2, 3, 4]]


def test_a_list_that_was_not_begun_may_grow() -> None:
    bench = Bench(PARTITION, batch=(3, 5.0))
    bench.offer(2)
    bench.now = 5.0
    (key_queue,) = bench.take()
    bench.offer(4)
    bench.back(key_queue, 0)
    assert offsets(bench.take()) == [[0, 1, 2]]


def test_a_list_that_waits_stays_where_another_partition_is_lost() -> None:
    bench = Bench(NONE, batch=(2, 5.0))
    bench.offer(2, OTHER)
    bench.take()
    bench.offer(1)
    bench.work.forget({OTHER})
    bench.offer(1)
    assert offsets(bench.take()) == [[0, 1]]


def test_dead_messages_are_counted_apart() -> None:
    bench = Bench(PARTITION)
    bench.offer(4)
    (key_queue,) = bench.take()
    key_queue.place = 1
    assert bench.work.note(key_queue) == 1
    key_queue.place = 2
    assert bench.work.note(key_queue, 1) == 1
    assert bench.work.note(key_queue, 0) == 0
    assert (bench.work.done, bench.work.dead, bench.work.in_flight, bench.commit()) == (1, 1, 2, 2)
    key_queue.place = 3
    bench.work.note(key_queue, 1)
    assert bench.back(key_queue) == 1
    assert (bench.work.done, bench.work.dead, bench.work.in_flight) == (2, 2, 0)


def test_a_workers_count_grows_wherever_it_is_in_its_block() -> None:
    bench = Bench(PARTITION)
    bench.offer(4)
    bench.offer(3, OTHER)
    slot = WorkerSlot()
    key_queues = bench.take()
    slot.current = key_queues[0]
    key_queues[0].place = 1
    bench.work.collect([slot], bench.now)
    key_queues[0].place = 3
    bench.work.collect([slot, WorkerSlot()], bench.now)
    assert (slot.count, bench.work.done) == (3, 3)
    key_queues[0].place = 4
    key_queues[1].place = 3
    slot.current, slot.through = None, list(key_queues)
    bench.work.collect([slot], bench.now)
    assert (slot.count, bench.work.done, slot.through) == (7, 7, [])
    bench.work.collect([slot], bench.now)
    assert (slot.count, bench.work.done) == (7, 7)


def test_a_worker_that_has_been_given_nothing_has_done_nothing_and_may_begin_nothing() -> None:
    slot = WorkerSlot()
    assert (list(slot.todo), slot.current, slot.through, slot.hand_in()) == ([], None, [], [])
    assert (slot.count, slot.era, slot.since, slot.until) == (0, 0, 0.0, 0.0)


def test_chance_decides_the_pause_of_what_a_worker_hands_in() -> None:
    bench = Bench(NONE, retry=Retry(first_ms=1000, jitter=0.5))
    bench.offer(1)
    slot = WorkerSlot()
    slot.through = bench.take()
    slot.through[0].failed = True
    bench.work.collect([slot], bench.now, lambda: 1.0)
    assert bench.work.next_deadline() == 1.5


# -- pauses, rebalances, the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["suspended", "paused"])
def test_a_partition_that_is_kept_back_goes_on_in_its_order(why: str) -> None:
    bench = Bench(NONE)
    bench.offer(3)
    bench.offer(1, OTHER)
    setattr(bench.gates[TP], why, True)
    assert [key_queue.part.tp for key_queue in bench.take()] == [OTHER]
    assert bench.work.ready == 0
    bench.offer(1)
    bench.work.wake(bench.now)
    assert bench.work.ready == 1, "what came since"
    setattr(bench.gates[TP], why, False)
    bench.work.wake(bench.now)
    assert bench.work.ready == 4
    assert offsets(bench.take()) == [[0], [1], [2], [3]]


def test_a_paused_partition_leaves_its_room_to_others() -> None:
    bench = Bench(NONE, max_in_flight=10)
    assert bench.work.capacity() == 10
    bench.offer(4)
    assert bench.work.capacity() == 6
    bench.gates[TP].paused = True
    assert bench.take() == []
    assert bench.work.capacity() == 10
    bench.gates[TP].paused = False
    assert len(bench.take()) == 4
    assert bench.work.capacity() == 6
    bench.gates[TP].suspended = True
    assert bench.work.capacity() == 6
    bench.gates[TP].paused = True
    assert bench.work.capacity() == 6, "what runs has not made room"


def test_a_partition_with_most_of_the_room_waits_until_it_has_less() -> None:
    bench = Bench(NONE, max_in_flight=100)
    bench.offer(79)
    assert not bench.part().full and not bench.work.turned
    bench.offer(1)
    assert bench.part().full and bench.work.turned == {TP}
    bench.work.turned.clear()
    key_queues = bench.take()
    for key_queue in key_queues[:13]:
        bench.back(key_queue)
    assert bench.part().full
    for key_queue in key_queues[13:20]:
        bench.back(key_queue)
    assert not bench.part().full and bench.work.turned == {TP}
    bench.offer(20)
    bench.work.turned.clear()
    bench.work.forget({TP})
    assert bench.work.turned == {TP}, "it is taken again where it comes back"


def test_a_partition_whose_map_has_no_room_waits() -> None:
    """Its finished messages lie between unfinished ones without any pattern: the map has a bit for each."""
    bench = Bench(NONE, max_in_flight=100_000)
    bench.work.map_room = 400
    bench.offer(500)
    assert bench.part().map_fits(0), "so few always fit"
    bench.offer(3500)
    assert not bench.part().full, "one stretch is short"
    key_queues = bench.take()
    random.Random(1).shuffle(key_queues)
    for key_queue in key_queues[:1800]:
        bench.back(key_queue)
    bench.offer(1)
    assert bench.part().full and bench.work.turned == {TP}
    assert len(bench.part().text(0, 400)) <= 400
    for key_queue in key_queues[1800:3600] + bench.take():
        bench.back(key_queue)
    assert bench.take() == []  # a worker that finds nothing to do looks again
    assert not bench.part().full


def test_a_map_that_fits_does_so_until_it_is_looked_again() -> None:
    key_queues = []

    def begun() -> PartitionWork:
        bench = Bench(NONE, max_in_flight=100_000)
        bench.offer(1000)
        key_queues[:] = bench.take()
        random.Random(2).shuffle(key_queues)
        for key_queue in key_queues[:200]:
            key_queue.place = 1
            key_queue.settle()
        return bench.part()

    size = len(begun().text(0, 10_000))
    least = next(room for room in range(size, 2 * size, 8) if begun().map_fits(room))
    assert least > size, "what runs makes it longer"
    part = begun()
    assert part.map_fits(least)
    for count, key_queue in enumerate(key_queues[200:400], 1):
        key_queue.place = 1
        key_queue.settle()
        assert len(part.text(0, 10_000)) <= least or not part.map_fits(least), f"after {count} more"
    assert not part.map_fits(0)
    for key_queue in key_queues[400:500]:
        key_queue.place = 1
        key_queue.settle()
    assert part.map_fits(0), "500 fit"


def test_what_was_lost_does_not_count_and_the_rest_goes_on() -> None:
    bench = Bench(NONE)
    bench.offer(3)
    bench.offer(2, OTHER)
    (running,) = bench.take(1)
    era = bench.work.era
    bench.work.forget({TP})
    assert bench.work.era > era, "workers give back what they have not begun"
    assert (bench.work.in_flight, bench.work.unfinished, bench.work.ready) == (2, 3, 2)
    assert bench.back(running) == 1
    assert (bench.work.done, bench.work.in_flight) == (0, 2)
    assert [key_queue.part.tp for key_queue in bench.take()] == [OTHER, OTHER]


def test_a_key_that_still_runs_goes_before_what_comes_when_its_partition_is_back() -> None:
    bench = Bench(KEY)
    bench.offer("aab")
    (a, _b) = bench.take()
    bench.work.forget({TP})
    bench.ends[TP] = 0
    bench.offer("ac")
    assert offsets(bench.take()) == [[1]]
    bench.back(a)
    assert offsets(bench.take()) == [[0]]
    assert bench.work.done == 0


def test_a_log_that_was_cut_keeps_what_is_before() -> None:
    bench = Bench(NONE)
    bench.offer(6)
    key_queues = bench.take(4)
    bench.work.forget({TP}, 3)
    assert (bench.work.in_flight, bench.work.unfinished) == (3, 3)
    for key_queue in key_queues:
        bench.back(key_queue)
    assert (bench.work.done, bench.work.in_flight) == (3, 0)
    assert bench.take() == []
    assert bench.part().top == 3


def test_logs_that_were_cut_at_one_offset() -> None:
    bench = Bench(NONE)
    bench.offer(3)
    bench.offer(3, OTHER)
    bench.work.forget({TP, OTHER}, 1)
    assert (bench.work.in_flight, bench.work.unfinished, bench.work.ready) == (2, 4, 2)


def test_what_others_have_finished_in_a_log_that_was_cut_starts_again() -> None:
    bench = Bench(NONE)
    bench.work.open(TP, bench.gates[TP], OffsetMap((0,), 10))
    bench.offer(3)
    assert bench.part().known() == OffsetMap((0,), 10)
    bench.work.forget({TP}, 2)
    assert bench.part().known() == OffsetMap((0,), 2)
    bench.ends[TP] = 2
    bench.offer(3)
    assert offsets(bench.take()) == [[0], [2], [3], [4]]


def test_a_retry_of_what_was_lost_is_forgotten() -> None:
    bench = Bench(NONE, retry=Retry(first_ms=1000, jitter=0))
    bench.offer(1)
    bench.offer(1, OTHER)
    for key_queue in bench.take():
        bench.back(key_queue, 0, failed=True)
    assert bench.work.parked == 2
    bench.work.forget({TP})
    assert bench.work.parked == 1
    bench.now = 1.0
    assert [key_queue.part.tp for key_queue in bench.take()] == [OTHER]


def test_after_the_end_nothing_starts_and_what_runs_may_finish() -> None:
    bench = Bench(NONE, retry=Retry(first_ms=1000))
    bench.offer(4)
    first, second = bench.take(2)
    bench.back(first, 0, failed=True)
    era = bench.work.era
    bench.work.end()
    assert bench.work.era > era
    bench.now = 9.0
    assert bench.take() == []
    assert (bench.work.capacity(), bench.work.next_deadline()) == (0, None)
    bench.back(second)
    assert (bench.work.done, bench.work.unfinished) == (1, 0)
    bench.work.abandon()
    assert (bench.work.done, bench.work.unfinished, bench.work.in_flight) == (1, 3, 0)


def test_what_was_given_up_does_not_count_any_more() -> None:
    bench = Bench(NONE)
    bench.offer(2)
    bench.offer(3, OTHER)
    key_queues = bench.take()
    bench.work.forget({OTHER})
    bench.work.abandon()
    bench.back(key_queues[0])
    bench.work.forget({TP})
    assert (bench.work.done, bench.work.unfinished, bench.work.in_flight) == (0, 5, 0)


# -- what is said -----------------------------------------------------------------------------------------------------


def test_the_map_of_a_commit_names_its_log() -> None:
    bench = Bench(NONE)
    bench.offer(5)
    bench.back(bench.take()[3])
    assert offset_map.decode(bench.part().text(0, 100, 7, b"12345678"), 0) == OffsetMap((0, 1, 2), 4, 7, b"12345678")
    assert offset_map.decode(bench.part().text(0, 100), 0) == OffsetMap((0, 1, 2), 4)


def test_a_map_says_on_what_others_have_finished() -> None:
    bench = Bench(NONE)
    bench.work.open(TP, bench.gates[TP], OffsetMap((1, 5, 7), 9, 2))
    bench.offer(5)
    assert bench.part().known(3) == OffsetMap((1, 5, 7), 9, 2)
    bench.offer(4)
    assert bench.part().known(3) == OffsetMap((1, 5, 7), 9, 3), "all of it was read"
    assert bench.part().skip is None


def test_the_age_of_what_is_in_flight() -> None:
    bench = Bench(NONE)
    assert bench.work.oldest() is None
    bench.now = 5.0
    bench.offer(2)
    bench.now = 7.0
    bench.offer(1)
    bench.offer(1, OTHER)
    key_queues = bench.take()
    bench.back(key_queues[0])
    assert bench.work.oldest() == 5.0
    bench.back(key_queues[1])
    assert bench.work.oldest() == 7.0
    bench.now = 8.0
    bench.offer(1)
    bench.back(key_queues[2])
    assert bench.part().since() == 8.0
    assert bench.work.oldest() == 7.0
    bench.back(key_queues[3])
    assert bench.work.oldest() == 8.0
    bench.back(bench.take()[0])
    assert bench.work.oldest() is None


def test_of_which_partitions_a_worker_has_messages() -> None:
    bench = Bench(NONE, batch=(2, 5.0))
    bench.offer(1)
    bench.offer(1, OTHER)
    (mixed,) = bench.take()
    single = KeyQueue(bench.part(), None, [])
    away = TopicPartition("away", 0)
    for key_queue, touched in ((mixed, {TP, OTHER}), (single, {TP})):
        assert key_queue.touches(None)
        assert [key_queue.touches({tp}) for tp in (TP, OTHER, away)] == [tp in touched for tp in (TP, OTHER, away)]
        assert key_queue.touches({OTHER, TP, away})


def test_a_new_run_has_done_nothing() -> None:
    work = Work(Plan())
    assert (work.done, work.retried, work.dead, work.unfinished, work.in_flight, work.ready, work.parked) == (0,) * 7
    slot = WorkerSlot()
    assert (slot.current, slot.count, list(slot.todo), slot.hand_in()) == (None, 0, [], [])
    assert work.take(9, 0.0) == []
