"""Threads, tasks and their hands: who counts as an owner, what is taken back, what is left behind."""

from __future__ import annotations

import pytest

from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.wire.records import PartitionContext, RecordChunk
from tests.fetch.kit import TOPIC, Kit, batch, filled, tp

A, B, C = 1, 2, 3


def test_a_task_gets_messages_without_the_short_way() -> None:
    kit = filled(batch(0, 3))
    for expected in range(2):
        message = kit.collector.take_for_task(A)
        assert message is not None
        assert message.offset == expected
        assert not kit.collector.lane.attached
    assert (kit.finished(), kit.collector.handed_out) == (1, 2)
    assert kit.collector.owners() == [A]
    assert kit.take(A) == (0, 2)
    assert kit.collector.lane.attached


def test_a_dispenser_without_a_lane_has_no_short_way() -> None:
    kit = Kit()
    collector = FetchCollector(kit.buffer)
    kit.fetched(data=batch(0, 3))
    for expected in range(3):
        message = collector.take(A)
        assert message is not None
        assert (message.offset, collector.lane.attached) == (expected, False)


def test_who_has_something_in_flight_is_an_owner() -> None:
    kit = filled(batch(0, 5))
    assert (kit.collector.owners(), A in kit.collector.in_flight) == ([], False)
    kit.collector.take_many(B, 2)
    assert (kit.collector.owners(), A in kit.collector.in_flight, B in kit.collector.in_flight) == ([B], False, True)
    kit.take(A)
    assert kit.collector.owners() == [A, B]
    kit.collector.finish(A)
    assert (kit.collector.owners(), A in kit.collector.in_flight) == ([B], False)
    kit.take(A)
    kit.collector.leave_behind(A)
    assert (kit.collector.owners(), A in kit.collector.in_flight) == ([B], False)


def test_what_an_owner_leaves_behind_is_not_finished_by_the_others() -> None:
    kit = filled(batch(0, 5))
    kit.take(A)
    assert kit.take(A) == (0, 1)
    assert kit.collector.leave_behind(A) == [(tp(0), 1)]
    assert kit.take_all(B) == [(0, 2), (0, 3), (0, 4)]
    assert (kit.finished(), kit.position()) == (1, 5)
    assert not kit.collector.has_in_flight(but=B)
    assert kit.collector.lowest_in_flight(tp(0), but=B) == 1
    assert kit.collector.lowest_in_flight(tp(7)) is None


def test_the_end_of_one_owner_leaves_another_its_short_way() -> None:
    kit = filled(batch(0, 5))
    kit.take(A)
    assert kit.collector.leave_behind(B) == []
    assert kit.collector.owners() == [A]
    kit.collector.finish(A)
    kit.collector.leave_behind(A)
    kit.take(C)
    assert kit.collector.lane.attached
    assert kit.collector.owners() == [C]


class TestTakeBack:
    def test_what_did_not_arrive_is_handed_out_again(self) -> None:
        kit = filled(batch(0, 4), batch(0, 2))
        taken = kit.collector.take_many(A, 5)
        assert [(m.partition_id, m.offset) for m in taken] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
        versions = [kit.queue(number).version for number in (0, 1)]
        kit.collector.take_back(A)
        assert (kit.position(0), kit.position(1)) == (0, 0)
        assert (kit.finished(0), kit.finished(1)) == (0, 0)
        assert [kit.queue(number).version for number in (0, 1)] == [version + 1 for version in versions]
        assert [kit.queue(number).fetch_offset for number in (0, 1)] == [0, 0]
        assert not kit.collector.has_in_flight()
        assert kit.take() is None  # until it is fetched again
        kit.fetched(0, batch(0, 4))
        assert kit.take_all() == [(0, n) for n in range(4)]

    def test_another_s_messages_stay_where_they_are(self) -> None:
        kit = filled(batch(0, 4), batch(0, 2))
        kit.collector.take_many(A, 4)
        kit.collector.take_many(B, 1)
        kit.collector.take_back(A)
        assert [(m.partition_id, m.offset) for m in kit.collector.take_many(B, 5)] == [(1, 1)]
        assert (kit.position(0), kit.finished(1)) == (0, 1)

    @pytest.mark.parametrize("gone", [True, False], ids=["gone", "without a position"])
    def test_of_such_a_partition_nothing_comes_back(self, gone: bool) -> None:
        kit = filled(batch(0, 4))
        kit.collector.take_many(A, 2)
        if gone:
            kit.states[0].active = False
        else:
            kit.states[0].await_reset(-1)
        version = kit.queue().version
        kit.collector.take_back(A)
        assert kit.position() == (2 if gone else None)
        assert not gone or kit.queue().version == version

    def test_who_has_nothing_has_nothing_to_give_back(self) -> None:
        kit = filled(batch(0, 4))
        kit.collector.take_back(A)
        assert kit.take_all() == [(0, n) for n in range(4)]


def test_a_forgotten_partition_s_chunk_is_dead() -> None:
    kit = filled(batch(0, 4), batch(0, 4))
    chunk = kit.queue(0).chunks[0]
    kit.collector.take_many(A, 1)
    kit.collector.forget([tp(1)])
    assert (chunk.active, kit.take()) == (True, (0, 1))
    kit.collector.forget([tp(0)])
    assert chunk.active is False


def test_what_was_pushed_back_is_forgotten_with_its_partition_only() -> None:
    kit = filled(batch(0, 2), batch(0, 2))
    kit.collector.push_back(A, kit.collector.take_many(A, 4))
    kit.collector.forget([tp(0)])
    assert kit.take_all() == [(1, 0), (1, 1)]


def test_of_many_messages_all_are_counted() -> None:
    kit = filled(batch(0, 6))
    assert len(kit.collector.take_many(A, 2)) == 2
    assert len(kit.collector.take_many(A, 3)) == 3
    assert kit.collector.handed_out == 5
    assert len(kit.collector.take_many(A, 3)) == 1
    assert (kit.collector.handed_out, kit.position(), kit.finished()) == (6, 6, 5)


class TestColumns:
    def columns(self, kit: Kit, who: int = A) -> list[int] | None:
        pytest.importorskip("pyarrow")
        found = kit.collector.take_columns(who, ["offset"])
        return None if found is None else found[0].column("offset").to_pylist()

    def test_a_chunk_at_a_time(self) -> None:
        kit = filled(batch(0, 2))
        kit.fetched(0, batch(2, 3))
        assert self.columns(kit) == [0, 1]
        assert (kit.finished(), kit.position(), kit.collector.handed_out) == (0, 2, 2)
        assert kit.collector.has_in_flight([tp(0)])
        assert self.columns(kit) == [2, 3, 4]
        assert (kit.finished(), kit.position(), kit.collector.handed_out) == (2, 5, 5)
        assert self.columns(kit) is None
        assert (kit.finished(), kit.collector.has_in_flight()) == (5, False)

    def test_the_rest_of_an_open_chunk(self) -> None:
        kit = filled(batch(0, 4))
        kit.take(A)
        assert self.columns(kit) == [1, 2, 3]
        assert kit.collector.lowest_in_flight(tp(0)) == 1

    def test_what_was_pushed_back_comes_first_and_alone(self) -> None:
        kit = filled(batch(0, 2), batch(0, 2))
        messages = kit.collector.take_many(A, 4)
        kit.collector.push_back(A, messages[1:])
        assert kit.collector.handed_out == 4
        assert self.columns(kit, B) == [1]
        assert kit.collector.handed_out == 5
        assert kit.collector.lowest_in_flight(tp(0), but=A) == 1
        assert self.columns(kit, B) == [0, 1]
        assert (kit.finished(0), kit.position(0), kit.position(1)) == (0, 2, 2)
        kit.collector.finish(A)
        assert kit.finished(0) == 2

    def test_a_chunk_without_rows_is_passed(self) -> None:
        kit = Kit()
        queue = kit.queue()
        kit.buffer.accept(queue, queue.version, RecordChunk(PartitionContext(TOPIC, 0), b"", 0))
        kit.fetched(0, batch(0, 2))
        assert self.columns(kit) == [0, 1]
