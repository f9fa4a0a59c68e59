"""From the buffer to the user: who has what in flight, what is finished, and what is handed out again."""

from __future__ import annotations

import pytest

from managedconsumer.errors import CorruptRecordError
from managedconsumer.wire.records.encode import Record, encode_batch, encode_marker
from tests.fetch.kit import batch, damaged, filled, tp
from tests.wire.recordkit import with_crc

A, B, C = 1, 2, 3


def test_a_message_is_finished_when_its_thread_comes_back() -> None:
    kit = filled(batch(0, 3))
    assert kit.take(A) == (0, 0)
    assert (kit.position(), kit.finished()) == (1, 0)
    assert kit.take(A) == (0, 1)
    assert (kit.position(), kit.finished()) == (2, 1)
    kit.collector.finish(A)
    assert kit.finished() == 2


def test_what_the_slowest_thread_has_in_flight_bounds_what_is_finished() -> None:
    kit = filled(batch(0, 6))
    assert [kit.take(who) for who in (A, B, C)] == [(0, 0), (0, 1), (0, 2)]
    kit.take(B)
    kit.take(C)
    assert kit.finished() == 0  # A still works on 0
    kit.take(A)
    assert kit.finished() == 3  # B has 3 by now
    assert kit.collector.lowest_in_flight(tp(0)) == 3
    assert kit.collector.lowest_in_flight(tp(0), but=B) == 4
    for who in (A, B, C):
        kit.collector.finish(who)
    assert kit.finished() == 6
    assert not kit.collector.has_in_flight()


def test_who_waits_for_hands_to_be_empty_sees_only_the_partitions_asked_for() -> None:
    kit = filled(batch(0, 1), batch(0, 1))
    assert [kit.take(A), kit.take(B)] == [(0, 0), (1, 0)]
    assert kit.collector.has_in_flight({tp(0)})
    assert not kit.collector.has_in_flight({tp(0)}, but=A)
    assert kit.collector.has_in_flight({tp(0), tp(1)}, but=A)
    assert kit.collector.lowest_in_flight(tp(9)) is None


def test_a_batch_is_in_flight_as_a_whole() -> None:
    kit = filled(batch(0, 3), batch(0, 3))
    got = kit.collector.take_many(A, 5)
    assert [(m.partition_id, m.offset) for m in got] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert (kit.finished(0), kit.finished(1)) == (0, 0)
    assert [m.offset for m in kit.collector.take_many(A, 5)] == [2]
    assert (kit.finished(0), kit.finished(1)) == (3, 2)
    assert kit.collector.take_many(A, 5) == []
    assert kit.finished(1) == 3


def test_the_gap_behind_a_batch_in_flight_is_not_finished() -> None:
    kit = filled(batch(0, 2, last_offset_delta=6))
    kit.fetched(0, batch(7, 2))
    assert [m.offset for m in kit.collector.take_many(A, 100)] == [0, 1, 7, 8]
    assert (kit.position(), kit.finished()) == (9, 0)


def test_gaps_and_markers_at_the_end_of_a_chunk_are_passed() -> None:
    kit = filled(batch(0, 2, last_offset_delta=6) + encode_marker(commit=True, offset=7, producer_id=9))
    assert kit.take_all() == [(0, 0), (0, 1)]
    assert (kit.position(), kit.finished()) == (8, 8)


def test_a_gap_is_not_finished_before_the_message_in_flight_is() -> None:
    kit = filled(batch(0, 1, last_offset_delta=9), batch(0, 1))
    assert kit.take(A) == (0, 0)
    assert kit.take(B) == (1, 0)  # closes the chunk of partition 0
    assert (kit.position(0), kit.finished(0)) == (10, 0)
    kit.collector.finish(A)
    assert kit.finished(0) == 10


class TestPushedBack:
    """A deserializer could not use the message."""

    def test_it_comes_again_and_the_position_stays_before_it(self) -> None:
        kit = filled(batch(0, 3))
        kit.take(A)
        kit.refuse(A)
        assert (kit.position(), kit.finished()) == (1, 1)
        assert not kit.collector.has_in_flight()
        assert kit.take_all() == [(0, 1), (0, 2)]
        assert kit.finished() == 3

    def test_other_threads_get_it_too(self) -> None:
        kit = filled(batch(0, 4))
        bad = kit.collector.take(A)
        assert kit.take(B) == (0, 1)
        assert bad is not None
        kit.collector.push_back(A, [bad])
        kit.collector.finish(B)
        assert kit.finished() == 0
        assert kit.take(B) == (0, 0)
        assert kit.position() == 2  # 1 was handed out before
        assert kit.take(B) == (0, 2)
        assert kit.finished() == 2
        assert kit.take_all(B) == [(0, 3)]
        assert kit.finished() == 4

    def test_several_come_in_their_order(self) -> None:
        kit = filled(batch(0, 4))
        first, second = kit.collector.take(A), kit.collector.take(B)
        assert first is not None
        assert second is not None
        kit.collector.push_back(B, [second])
        kit.collector.push_back(A, [first])
        assert kit.position() == 0
        got = kit.collector.take_many(C, 3)
        assert [m.offset for m in got] == [0, 1, 2]
        assert kit.finished() == 0
        kit.collector.finish(C)
        assert kit.finished() == 3

    def test_the_rest_of_a_batch_stays_in_flight(self) -> None:
        kit = filled(batch(0, 3), batch(0, 3))
        got = kit.collector.take_many(A, 6)
        kit.collector.push_back(A, got[1:])
        assert (kit.position(0), kit.position(1)) == (1, 0)
        assert kit.collector.has_in_flight({tp(0)})
        assert not kit.collector.has_in_flight({tp(1)})
        assert kit.finished() == 0
        assert sorted(kit.take_all()) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        assert (kit.finished(0), kit.finished(1)) == (3, 3)

    def test_of_a_held_partition_it_waits(self) -> None:
        kit = filled(batch(0, 2), batch(0, 1))
        kit.refuse(A)
        kit.collector.shelve()
        kit.states[0].suspended = True
        assert kit.take_all() == [(1, 0)]
        kit.states[0].suspended = False
        assert kit.take_all() == [(0, 0), (0, 1)]

    def test_after_a_seek_it_is_forgotten(self) -> None:
        kit = filled(batch(0, 2))
        kit.refuse(A)
        kit.collector.forget({tp(0)})
        kit.seek(0, 50)
        assert kit.take() is None
        assert kit.position() == 50

    def test_of_a_partition_that_is_gone_it_does_nothing(self) -> None:
        kit = filled(batch(0, 2))
        bad = kit.collector.take(A)
        assert bad is not None
        kit.collector.forget({tp(0)})
        kit.buffer.drop([tp(0)])
        kit.collector.push_back(A, [bad])
        assert kit.take() is None


class TestInterruptions:
    def test_a_shelved_chunk_goes_on_where_it_was(self) -> None:
        kit = filled(batch(0, 3), batch(0, 1))
        kit.take()
        kit.collector.shelve()
        kit.states[0].suspended = True
        assert kit.take_all() == [(1, 0)]
        kit.states[0].suspended = False
        assert kit.take_all() == [(0, 1), (0, 2)]

    def test_a_forgotten_partition_is_in_no_hand(self) -> None:
        kit = filled(batch(0, 2), batch(0, 2))
        assert [kit.take(A), kit.take(A), kit.take(B)] == [(0, 0), (0, 1), (1, 0)]
        kit.collector.forget({tp(0)})
        assert not kit.collector.has_in_flight({tp(0)})
        assert kit.collector.has_in_flight({tp(1)})
        assert kit.take(A) == (1, 1)

    def test_a_seek_in_the_middle_of_a_chunk(self) -> None:
        kit = filled(batch(0, 10))
        kit.take()
        kit.collector.forget({tp(0)})
        kit.seek(0, 4)
        assert kit.take() is None
        assert kit.position() == 4
        kit.fetched(0, batch(0, 10))  # brokers answer with the whole batch
        assert kit.take_all() == [(0, n) for n in range(4, 10)]

    def test_the_end_of_a_chunk_does_not_undo_a_reset(self) -> None:
        kit = filled(batch(0, 2))
        kit.take()
        kit.take()
        kit.collector.forget({tp(0)})
        kit.states[0].await_reset(-2)
        kit.buffer.restart(tp(0))
        assert kit.take() is None
        assert kit.position() is None


class TestDamage:
    def test_what_comes_before_it_is_delivered_and_the_position_stays(self) -> None:
        kit = filled(batch(0, 2) + damaged(2, 2) + batch(4, 2))
        assert [kit.take(), kit.take()] == [(0, 0), (0, 1)]
        for _ in range(3):
            with pytest.raises(CorruptRecordError) as caught:
                kit.take()
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 0, 2)
        assert (kit.position(), kit.finished()) == (2, 2)

    def test_the_other_partitions_go_on(self) -> None:
        kit = filled(damaged(0, 2), batch(0, 2))
        with pytest.raises(CorruptRecordError):
            kit.take()
        assert [kit.take(), kit.take()] == [(1, 0), (1, 1)]
        with pytest.raises(CorruptRecordError):
            kit.take()

    def test_skipped_what_follows_is_delivered(self) -> None:
        kit = filled(batch(0, 2) + damaged(2, 2) + batch(4, 1) + damaged(5, 1))
        assert [kit.take(), kit.take()] == [(0, 0), (0, 1)]
        with pytest.raises(CorruptRecordError):
            kit.take()
        kit.collector.skip_corrupt(tp(0))
        assert (kit.position(), kit.finished()) == (4, 4)
        assert kit.take() == (0, 4)
        assert kit.queue().fetch_offset == -1
        with pytest.raises(CorruptRecordError) as caught:
            kit.take()
        assert caught.value.offset == 5
        kit.collector.skip_corrupt(tp(0))
        before = kit.buffer.pops
        assert kit.take() is None
        assert kit.queue().fetch_offset == 6
        assert kit.buffer.pops != before  # the fetchers are told
        kit.fetched(0, batch(6, 1))
        assert kit.take_all() == [(0, 6)]

    def test_skipping_loses_nothing_that_was_pushed_back(self) -> None:
        kit = filled(batch(0, 1) + damaged(1, 1) + batch(2, 1))
        bad = kit.collector.take(A)
        assert bad is not None
        with pytest.raises(CorruptRecordError):
            kit.take(B)
        kit.collector.push_back(A, [bad])
        kit.collector.skip_corrupt(tp(0))
        assert (kit.position(), kit.finished()) == (0, 0)
        assert kit.take_all() == [(0, 0), (0, 2)]

    @pytest.mark.parametrize(("limit", "good"), [(10, 1), (2, 3), (10, 11), (10, 10), (1, 2)])
    def test_no_message_before_it_is_lost_whatever_the_limit(self, limit: int, good: int) -> None:
        kit = filled(batch(0, good) + damaged(good, 1) + batch(good + 1, 1))
        got: list[int] = []
        errors = 0
        while True:
            try:
                more = [m.offset for m in kit.collector.take_many(A, limit)]
            except CorruptRecordError as error:
                errors += 1
                kit.collector.skip_corrupt(tp(0), error.offset)
                assert kit.finished() == good + 1
                continue
            if not more:
                break
            got += more
        assert got == [*range(good), good + 1]
        assert errors == 1

    def test_skipping_acts_on_what_raised_and_on_nothing_behind_it(self) -> None:
        """The checksum fits, so more is fetched behind the damage."""
        data = encode_batch([Record(b"bad")], base_offset=1)
        kit = filled(batch(0, 1) + with_crc(data[:61] + b"\x04" + data[62:]) + batch(2, 8))
        kit.fetched(0, batch(10, 2))
        assert [m.offset for m in kit.collector.take_many(A, 4)] == [0]
        with pytest.raises(CorruptRecordError) as caught:
            kit.collector.take_many(A, 4)
        kit.collector.skip_corrupt(tp(0), caught.value.offset)
        assert (kit.position(), kit.finished()) == (2, 2)
        assert [m.offset for m in kit.collector.take_many(A, 99)] == list(range(2, 12))

    def test_two_threads_that_met_one_error_skip_one_batch(self) -> None:
        kit = filled(damaged(0, 2) + damaged(2, 2) + batch(4, 1))
        met = []
        for who in (A, B):
            with pytest.raises(CorruptRecordError) as caught:
                kit.take(who)
            met.append(caught.value.offset)
        assert met == [0, 0]
        kit.collector.skip_corrupt(tp(0), met[0])
        position = kit.position()
        with pytest.raises(CorruptRecordError):
            kit.take(A)
        kit.collector.skip_corrupt(tp(0), met[1])
        assert kit.position() == position

    def test_skipping_where_nothing_is_wrong_does_nothing(self) -> None:
        kit = filled(batch(0, 2))
        kit.collector.skip_corrupt(tp(0))
        kit.collector.skip_corrupt(tp(5))
        assert kit.take_all() == [(0, 0), (0, 1)]


class TestTakenAway:
    """What a thread had in flight when its partition was taken away is told until the thread comes back."""

    def test_it_is_told_until_the_thread_comes_back(self) -> None:
        kit = filled(batch(0, 5))
        for _ in range(3):
            kit.take(A)
        assert kit.collector.in_flight.taken_away(A) == {}
        kit.collector.take_away({tp(0)})
        assert kit.collector.in_flight.taken_away(A) == {tp(0): 3}
        assert kit.collector.in_flight.taken_away(B) == {}
        assert not kit.collector.has_in_flight()
        kit.take(A)
        assert kit.collector.in_flight.taken_away(A) == {}

    def test_a_seek_takes_nothing_away(self) -> None:
        kit = filled(batch(0, 5))
        kit.take(A)
        kit.collector.forget({tp(0)})
        assert kit.collector.in_flight.taken_away(A) == {}
