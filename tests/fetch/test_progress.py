"""How far a partition is, from what is seen of it: no broker, no clock."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

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


@pytest.mark.parametrize(
    ("chunks", "in_flight", "oldest"),
    [
        ([Chunk(5, 9, (7, 70), (8, 80))], {}, Oldest(5, 7, 70)),  # the first in the buffer
        ([Chunk(6, 9, (7, 70))], {5: 50}, Oldest(5, 5, 50)),  # what is in flight is older
        ([Chunk(5, 9), Chunk(9, 12, (10, 100))], {}, Oldest(5, 10, 100)),  # markers and aborted messages are passed
        ([Chunk(5, 9)], {}, Oldest(5, 9, None)),
        ([], {}, None),  # nothing is known of what was not fetched
        ([Chunk(7, 9, (7, 70))], {}, None),
    ],
)
def test_the_oldest_message(chunks: list[Chunk], in_flight: dict[int, int], oldest: Oldest | None) -> None:
    assert oldest_of(chunks, 5, in_flight) == oldest


#: What is seen, one after the other (with the oldest message, at which second), and what is told of the last.
CASES: dict[str, tuple[list[tuple[Any, ...]], dict[str, Any]]] = {
    "before the first fetch": ([(sight(5, None),)], {"end": None, "lag": None, "lag_seconds": None, "exact": False}),
    "nothing is behind": (
        [(sight(5, 5),)],
        {"lag": 0, "lag_seconds": 0.0, "oldest_unfinished": None, "exact": True, "drain_seconds": 0.0},
    ),
    "the age of the oldest message": (
        [(sight(5, 9), Oldest(5, 6, TS - 90_000))],
        {
            "lag": 3,
            "lag_seconds": 90.0,
            "exact": True,
            "oldest_unfinished": datetime.fromtimestamp(WALL - 90, timezone.utc),
        },
    ),
    "only markers are no lag": ([(sight(5, 7), Oldest(5, 7, None))], {"lag": 0, "lag_seconds": 0.0, "exact": True}),
    "a future timestamp counts as now": ([(sight(5, 9), Oldest(5, 5, TS + 3_600_000))], {"lag_seconds": 0.0}),
    "a timestamp that is none": ([(sight(5, 9), Oldest(5, 5, -1))], {"lag": 4, "oldest_unfinished": None}),
    "one that no calendar has": ([(sight(5, 9), Oldest(5, 5, 1 << 62))], {"lag": 4, "oldest_unfinished": None}),
    "what was not fetched is at most as old as the last time without lag": (
        [(sight(5, 5),), (sight(5, 9), None, 60)],
        {"lag": 4, "lag_seconds": 60.0, "exact": False},
    ),
    "what comes while it is paused is not known": (
        [(sight(5, 5),), (sight(5, 5, paused=True, version=1), None, 60)],
        {"lag": 0, "lag_seconds": 60.0, "exact": False, "paused": True},
    ),
    "what was seen right before the pause is remembered": (
        [(sight(5, 9), Oldest(5, 6, TS)), (sight(5, 9, paused=True, version=1), None, 60)],
        {"lag": 3, "lag_seconds": 60.0, "exact": True},
    ),
    "what retention has deleted is no lag": ([(sight(5, 100, start=90),)], {"lag": 10}),
    "a seek forgets what was found": ([(sight(5, 9), Oldest(5, 6, TS)), (sight(5, 9, version=1),)], {"exact": False}),
    "no rate where nothing moves": ([(sight(5, 9),), (sight(5, 9), None, 30)], {"rate": 0.0, "drain_seconds": None}),
    "a seek back is no work": ([(sight(500, 900),), (sight(5, 900, version=1), None, 30)], {"rate": 0.0}),
    "stuck since it moved": (
        [(sight(4, 9), None, 10), (sight(5, 9), None, 20), (sight(5, 9), None, 400)],
        {"stuck_for": 380},
    ),
    "not stuck without lag": ([(sight(5, 5),), (sight(5, 5), None, 4000)], {"stuck_for": 0.0}),
    "a message after a long silence is not stuck yet": (
        [(sight(5, 5),), (sight(5, 6), None, 4000)],
        {"stuck_for": 0.0},
    ),
    "but later": ([(sight(5, 5),), (sight(5, 6), None, 4000), (sight(5, 6), None, 4010)], {"stuck_for": 10.0}),
    "not stuck while it is paused": (
        [(sight(5, 9, paused=True),), (sight(5, 9, paused=True), None, 4000)],
        {"stuck_for": 0.0},
    ),
    "nor right after": (
        [(sight(5, 9, paused=True),), (sight(5, 9, paused=True), None, 4000), (sight(5, 9), None, 4001)],
        {"stuck_for": 0.0},
    ),
    "not stuck for markers at the end": (
        [(sight(5, 7), Oldest(5, 7, None)), (sight(5, 7), None, 4000)],
        {"stuck_for": 0.0},
    ),
    "nor with the first message behind them": (
        [(sight(5, 7), Oldest(5, 7, None)), (sight(5, 7), None, 4000), (sight(5, 8), Oldest(5, 7, TS), 4001)],
        {"stuck_for": 0.0},
    ),
}


@pytest.mark.parametrize(("seen", "expected"), CASES.values(), ids=CASES)
def test_what_is_told(seen: list[tuple[Any, ...]], expected: dict[str, Any]) -> None:
    track = Track(0)
    for each in seen:
        said = told(track, *each)
    assert {name: getattr(said, name) for name in expected} == expected


def test_the_rate_is_that_of_the_last_minute() -> None:
    track = Track(0)
    for second in range(0, 600, 5):
        said = told(track, sight(10 * second, 10_000), at=second)
    assert said.rate == pytest.approx(10.0)
    assert said.drain_seconds == pytest.approx((10_000 - 5950) / 10)


def test_a_moment_that_no_calendar_has() -> None:
    assert moment_of(1 << 62) is None
