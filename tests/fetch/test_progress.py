"""How far a partition is, from what is seen of it: no broker, no clock."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from managedconsumer.fetch.progress import Oldest, PartitionSample, Track, moment_of, oldest_of

WALL = 1_700_000_000.0
TS = int(WALL * 1000)


class Chunk:
    """Messages as (offset, timestamp), of the offsets ``fetch_offset`` to ``next_fetch_offset``."""

    def __init__(self, begin: int, end: int, *records: tuple[int, int]) -> None:
        self.fetch_offset = self.position = begin
        self.next_fetch_offset = end
        self._records = [Message(*record) for record in records]

    def __next__(self) -> Message:
        if not self._records:
            self.position = self.next_fetch_offset
            raise StopIteration
        return self._records[0]


class Message:
    def __init__(self, offset: int, timestamp: int) -> None:
        self.offset, self.timestamp = offset, timestamp


def sight(
    finished: int | None, end: int | None, *, paused: bool = False, version: int = 0, start: int = -1
) -> PartitionSample:
    return PartitionSample(finished, finished, None, end, start, paused, version)


def told(track: Track, seen: PartitionSample, found: Oldest | None = None, at: float = 0.0):
    track.look(seen, found, at, WALL + at)
    return track.progress(seen, at, WALL + at)


class TestTheOldestMessage:
    def test_it_is_the_first_in_the_buffer(self) -> None:
        assert oldest_of([Chunk(5, 9, (7, 70), (8, 80))], 5, {}) == Oldest(5, 7, 70)

    def test_what_is_in_flight_is_older(self) -> None:
        assert oldest_of([Chunk(6, 9, (7, 70))], 5, {5: 50}) == Oldest(5, 5, 50)

    def test_markers_and_aborted_messages_are_passed(self) -> None:
        assert oldest_of([Chunk(5, 9), Chunk(9, 12, (10, 100))], 5, {}) == Oldest(5, 10, 100)
        assert oldest_of([Chunk(5, 9)], 5, {}) == Oldest(5, 9, None)

    def test_nothing_is_known_of_what_was_not_fetched(self) -> None:
        assert oldest_of([], 5, {}) is None
        assert oldest_of([Chunk(7, 9, (7, 70))], 5, {}) is None


class TestLag:
    def test_none_before_the_first_fetch(self) -> None:
        said = told(Track(0), sight(5, None))
        assert (said.end, said.lag, said.lag_seconds, said.exact) == (None, None, None, False)

    def test_nothing_is_behind(self) -> None:
        said = told(Track(0), sight(5, 5))
        assert (said.lag, said.lag_seconds, said.oldest_unfinished, said.exact) == (0, 0.0, None, True)
        assert said.drain_seconds == 0.0

    def test_the_age_of_the_oldest_message(self) -> None:
        said = told(Track(0), sight(5, 9), Oldest(5, 6, TS - 90_000))
        assert (said.lag, said.lag_seconds, said.exact) == (3, 90.0, True)
        assert said.oldest_unfinished == datetime.fromtimestamp(WALL - 90, timezone.utc)

    def test_only_markers_are_no_lag(self) -> None:
        said = told(Track(0), sight(5, 7), Oldest(5, 7, None))
        assert (said.lag, said.lag_seconds, said.exact) == (0, 0.0, True)

    def test_a_future_timestamp_counts_as_now(self) -> None:
        assert told(Track(0), sight(5, 9), Oldest(5, 5, TS + 3_600_000)).lag_seconds == 0.0

    @pytest.mark.parametrize("timestamp", [-1, 1 << 62])
    def test_a_timestamp_that_is_none(self, timestamp: int) -> None:
        said = told(Track(0), sight(5, 9), Oldest(5, 5, timestamp))
        assert said.lag == 4
        assert said.oldest_unfinished is None

    def test_what_was_not_fetched_is_at_most_as_old_as_the_last_time_without_lag(self) -> None:
        track = Track(0)
        told(track, sight(5, 5))
        said = told(track, sight(5, 9), at=60)
        assert (said.lag, said.lag_seconds, said.exact) == (4, 60.0, False)

    def test_what_comes_while_it_is_paused_is_not_known(self) -> None:
        track = Track(0)
        told(track, sight(5, 5))
        said = told(track, sight(5, 5, paused=True, version=1), at=60)
        assert (said.lag, said.lag_seconds, said.exact, said.paused) == (0, 60.0, False, True)

    def test_what_was_seen_right_before_the_pause_is_remembered(self) -> None:
        track = Track(0)
        told(track, sight(5, 9), Oldest(5, 6, TS))
        said = told(track, sight(5, 9, paused=True, version=1), at=60)
        assert (said.lag, said.lag_seconds, said.exact) == (3, 60.0, True)

    def test_what_retention_has_deleted_is_no_lag(self) -> None:
        assert told(Track(0), sight(5, 100, start=90)).lag == 10

    def test_a_seek_forgets_what_was_found(self) -> None:
        track = Track(0)
        told(track, sight(5, 9), Oldest(5, 6, TS))
        assert told(track, sight(5, 9, version=1)).exact is False


class TestRate:
    def test_of_the_last_minute(self) -> None:
        track = Track(0)
        for second in range(0, 600, 5):
            said = told(track, sight(10 * second, 10_000), at=second)
        assert said.rate == pytest.approx(10.0)
        assert said.drain_seconds == pytest.approx((10_000 - 5950) / 10)

    def test_never_where_nothing_moves(self) -> None:
        track = Track(0)
        told(track, sight(5, 9))
        said = told(track, sight(5, 9), at=30)
        assert (said.rate, said.drain_seconds) == (0.0, None)

    def test_a_seek_back_is_no_work(self) -> None:
        track = Track(0)
        told(track, sight(500, 900))
        assert told(track, sight(5, 900, version=1), at=30).rate == 0.0


class TestStuck:
    def test_since_it_moved(self) -> None:
        track = Track(0)
        told(track, sight(4, 9), at=10)
        told(track, sight(5, 9), at=20)
        assert told(track, sight(5, 9), at=400).stuck_for == 380

    def test_not_without_lag(self) -> None:
        track = Track(0)
        told(track, sight(5, 5))
        assert told(track, sight(5, 5), at=4000).stuck_for == 0.0

    def test_a_message_after_a_long_silence_is_not_stuck_yet(self) -> None:
        track = Track(0)
        told(track, sight(5, 5))
        assert told(track, sight(5, 6), at=4000).stuck_for == 0.0
        assert told(track, sight(5, 6), at=4010).stuck_for == 10.0

    def test_not_while_it_is_paused_nor_right_after(self) -> None:
        track = Track(0)
        told(track, sight(5, 9, paused=True))
        assert told(track, sight(5, 9, paused=True), at=4000).stuck_for == 0.0
        assert told(track, sight(5, 9), at=4001).stuck_for == 0.0

    def test_not_for_markers_at_the_end(self) -> None:
        track = Track(0)
        told(track, sight(5, 7), Oldest(5, 7, None))
        assert told(track, sight(5, 7), at=4000).stuck_for == 0.0
        assert told(track, sight(5, 8), Oldest(5, 7, TS), at=4001).stuck_for == 0.0


def test_a_moment_that_no_calendar_has() -> None:
    assert moment_of(1 << 62) is None
