"""Versions and counters of the buffer: what makes answers worthless, and what tells fetchers that there may be work."""

from __future__ import annotations

import pytest

from tests.fetch.kit import Kit, batch, damaged, filled, tp


def test_every_restart_and_the_drop_make_another_version() -> None:
    kit = Kit()
    queue = kit.queue()
    seen = [queue.version]
    for _ in range(2):
        queue.in_flight = True
        kit.buffer.restart(tp(0))
        assert queue.in_flight is False
        seen.append(queue.version)
    kit.buffer.drop([tp(0)])
    seen.append(queue.version)
    assert seen == [seen[0] + number for number in range(4)]


def test_a_restart_gives_the_bytes_back() -> None:
    kit = Kit()
    data = batch(0, 3)
    kit.fetched(data=data)
    kit.fetched(data=batch(3, 1))
    queue = kit.queue()
    assert (queue.records, queue.nbytes) == (4, len(data) + len(batch(3, 1)))
    assert queue.restart() == len(data) + len(batch(3, 1))
    assert (queue.records, queue.nbytes, queue.fetch_offset) == (0, 0, 0)
    assert queue.restart() == 0


@pytest.mark.parametrize(("last", "order"), [(False, [0, 1]), (True, [1, 0])])
def test_what_comes_back_is_first_or_last(last: bool, order: list[int]) -> None:
    kit = filled(batch(0, 3), batch(0, 3))
    found = kit.popped()
    kit.buffer.give_back(*found, last=last)
    assert [kit.popped()[0].tp.partition for _ in range(2)] == order


def test_by_default_what_comes_back_is_first() -> None:
    kit = filled(batch(0, 3), batch(0, 3))
    found = kit.popped()
    kit.buffer.give_back(*found)
    kit.buffer.give_back(*found)  # as after an interruption in the middle of the first time
    assert kit.buffer.records == 6
    assert [kit.popped()[0].tp.partition for _ in range(2)] == [0, 1]
    assert kit.buffer.pop() is None


@pytest.mark.parametrize("good", [0, 1])
def test_behind_damage_fetching_goes_on_when_it_was_read(good: int) -> None:
    kit = filled((batch(0, good) if good else b"") + damaged(good, 2))
    queue, chunk = kit.popped()
    assert (queue.fetch_offset, kit.buffer.pops) == (-1, 1)
    kit.buffer.used_up(queue, chunk)
    assert (queue.fetch_offset, kit.buffer.pops) == (chunk.position, 2)
    kit.buffer.used_up(queue, chunk)
    assert kit.buffer.pops == 2  # it has begun already


def test_a_sound_chunk_that_is_used_up_changes_nothing() -> None:
    kit = filled(batch(0, 3))
    found = kit.popped()
    kit.buffer.used_up(*found)
    assert (kit.queue().fetch_offset, kit.buffer.pops) == (3, 1)


def test_fetching_stays_where_it_is_while_something_waits_behind_the_damage() -> None:
    kit = filled(damaged(0, 2))
    queue, chunk = kit.popped()
    kit.fetched(data=batch(2, 1), fetch_offset=2)
    queue.fetch_offset = -1
    kit.buffer.used_up(queue, chunk)
    assert (queue.fetch_offset, kit.buffer.pops) == (-1, 1)


def test_what_is_lost_is_fetched_again_and_wakes_the_fetchers() -> None:
    kit = filled(batch(0, 3))
    queue = kit.queue()
    kit.states[0].position = 2
    version = queue.version
    kit.buffer.fetch_again(queue)
    assert (queue.fetch_offset, queue.version, kit.buffer.pops) == (2, version + 1, 1)
    kit.states[0].active = False
    kit.buffer.fetch_again(queue)
    assert (queue.version, kit.buffer.pops) == (version + 1, 1)
    kit.buffer.drop([tp(0)])
    kit.states[0].active = True
    kit.buffer.fetch_again(queue)
    assert (queue.version, kit.buffer.pops) == (version + 2, 1)


def test_a_paused_partition_keeps_its_turn_behind_the_others() -> None:
    kit = filled(batch(0, 1), batch(0, 1))
    kit.states[0].pause()
    for _ in range(3):
        found = kit.buffer.peek()
        assert found is not None
        assert found[0].tp == tp(1)
    kit.states[0].resume()
    assert sorted(kit.take_all()) == [(0, 0), (1, 0)]


def test_where_the_waiting_chunks_begin() -> None:
    kit = Kit()
    queue = kit.queue()
    assert queue.frontier == 0
    kit.fetched(data=batch(0, 3))
    assert (queue.fetch_offset, queue.frontier) == (3, 0)
    kit.buffer.pop()
    assert queue.frontier == 3
    queue.fetch_offset = -1
    assert queue.frontier is None


def test_every_loss_wakes_the_fetchers() -> None:
    kit = Kit()
    for expected in (1, 2):
        kit.buffer.fetch_again(kit.queue())
        assert kit.buffer.pops == expected
