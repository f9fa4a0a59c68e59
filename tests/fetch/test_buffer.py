"""What has been fetched: order, turns, bounds, and answers that have become worthless."""

from __future__ import annotations

import pytest

from managedconsumer.errors import KafkaException
from managedconsumer.subscription_state import TopicPartitionState
from managedconsumer.wire.records import RecordChunk
from tests.fetch.kit import Kit, batch, damaged, filled, tp


def test_chunks_of_a_partition_come_in_the_order_they_were_fetched() -> None:
    kit = filled(batch(0, 3))
    kit.fetched(0, batch(3, 2))
    assert kit.queue().fetch_offset == 5
    assert kit.take_all() == [(0, n) for n in range(5)]


def test_partitions_take_turns() -> None:
    kit = Kit(3)
    for partition in range(3):
        kit.fetched(partition, batch(0, 2))
        kit.fetched(partition, batch(2, 2))
    assert [kit.popped()[0].tp.partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert kit.buffer.pop() is None


def test_a_partition_that_always_has_data_does_not_starve_the_others() -> None:
    kit = Kit(2)
    kit.fetched(0, batch(0, 5))
    order = []
    for round_ in range(1, 6):
        kit.fetched(0, batch(5 * round_, 5))
        if round_ == 1:
            kit.fetched(1, batch(0, 1))
        found = kit.popped()
        order.append(found[0].tp.partition)
    assert 1 in order[:2]


def test_what_is_queued_is_counted_until_it_is_taken_out() -> None:
    kit = Kit(2)
    first, second = batch(0, 3), batch(0, 4)
    kit.fetched(0, first)
    kit.fetched(1, second)
    assert (kit.buffer.records, kit.buffer.nbytes) == (7, len(first) + len(second))
    kit.buffer.pop()
    assert (kit.buffer.records, kit.buffer.nbytes, kit.buffer.pops) == (4, len(second), 1)
    kit.buffer.pop()
    assert (kit.buffer.records, kit.buffer.nbytes, kit.buffer.ready()) == (0, 0, False)


def test_a_chunk_that_is_given_back_comes_first_again() -> None:
    kit = Kit(2)
    kit.fetched(0, batch(0, 3))
    kit.fetched(0, batch(3, 3))
    kit.fetched(1, batch(0, 3))
    queue, chunk = kit.popped()
    kit.buffer.give_back(queue, chunk)
    assert kit.buffer.records == 9
    assert queue.chunks[0] is chunk
    kit.collector.shelve()
    assert [offset for partition, offset in kit.take_all() if partition == 0] == list(range(6))


def test_a_chunk_of_a_partition_that_is_gone_is_not_taken_back() -> None:
    kit = filled(batch(0, 3))
    queue, chunk = kit.popped()
    kit.buffer.drop([tp(0)])
    kit.buffer.give_back(queue, chunk)
    assert kit.buffer.pop() is None
    assert kit.buffer.records == 0


def test_a_seek_makes_answers_on_their_way_worthless() -> None:
    kit = Kit()
    queue = kit.queue()
    asked_under = queue.version
    queue.in_flight = True
    kit.seek(0, 100)
    assert not queue.in_flight
    assert queue.fetch_offset == 100
    assert not kit.buffer.accept(queue, asked_under, RecordChunk(queue.context, batch(0, 3), 0))
    assert kit.take() is None
    assert kit.fetched(0, batch(100, 1))
    assert kit.take() == (0, 100)


def test_an_answer_for_a_partition_that_was_given_up_and_came_back_is_worthless() -> None:
    kit = Kit()
    old = kit.queue()
    asked_under = old.version
    again = TopicPartitionState()
    again.seek(50)
    kit.buffer.add(tp(0), again, "partition 0")
    kit.buffer.restart(tp(0))
    assert not kit.buffer.accept(old, asked_under, RecordChunk(old.context, batch(0, 3), 0))
    assert kit.buffer.pop() is None


def test_an_answer_of_a_dead_assignment_is_worthless() -> None:
    kit = Kit()
    kit.states[0].active = False
    assert not kit.fetched(0, batch(0, 3))


def test_dropping_a_partition_ends_its_chunks() -> None:
    kit = filled(batch(0, 3), batch(0, 1))
    chunk = kit.queue(0).chunks[0]
    kit.buffer.drop([tp(0), tp(7)])
    assert not chunk.active
    assert kit.take_all() == [(1, 0)]


@pytest.mark.parametrize("obstacle", ["paused", "suspended"])
def test_a_partition_that_is_paused_or_held_waits_and_keeps_what_it_has(obstacle: str) -> None:
    kit = filled(batch(0, 2), batch(0, 2))
    setattr(kit.states[0], obstacle, True)
    assert kit.take_all() == [(1, 0), (1, 1)]
    assert not kit.buffer.ready()
    setattr(kit.states[0], obstacle, False)
    assert kit.buffer.ready()
    assert kit.take_all() == [(0, 0), (0, 1)]


def test_restarting_a_partition_without_a_position_asks_for_nothing() -> None:
    kit = filled(batch(0, 3))
    kit.states[0].await_reset(-1)
    kit.buffer.restart(tp(0))
    assert (kit.queue().fetch_offset, kit.queue().records, kit.buffer.nbytes) == (-1, 0, 0)


def test_nothing_is_fetched_behind_a_damaged_batch() -> None:
    """Else the same batch would be fetched again and again, and fill the memory."""
    kit = filled(batch(0, 3) + damaged(3, 2))
    assert kit.queue().fetch_offset == -1


def test_the_next_fetch_begins_behind_the_gaps_that_compaction_leaves() -> None:
    kit = filled(batch(0, 3) + batch(20, 2))
    assert kit.queue().fetch_offset == 22, "not offset and count"
    assert kit.take_all() == [(0, n) for n in (0, 1, 2, 20, 21)]


def test_only_the_user_can_say_where_to_go_on() -> None:
    kit = Kit()
    queue = kit.queue()
    queue.undecided = KafkaException("seek")
    kit.seek(0, 7)
    assert queue.fetch_offset == -1
    queue.undecided = None
    kit.buffer.restart(tp(0))
    assert queue.fetch_offset == 7
