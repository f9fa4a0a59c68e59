"""When it is said that a partition stands still: no clock."""

from __future__ import annotations

import pytest

from managedconsumer.fetch.stuck import MOVES, STANDS, Alarm


def said(alarm: Alarm, seconds: list[float]) -> list[tuple[float, str]]:
    """What ``alarm`` says when it is asked after so many seconds without a move."""
    answers = [(each, alarm.look(each)) for each in seconds]
    return [(each, what) for each, what in answers if what]


EVERY_FIVE = [5.0 * n for n in range(4000)]


def test_it_is_said_again_with_growing_pauses_and_at_last_every_hour() -> None:
    times = [300, 600, 1200, 2400, 4800, 8400, 12000, 15600, 19200]
    assert said(Alarm(), EVERY_FIVE) == [(at, STANDS) for at in times]


def test_a_partition_that_moves_again_is_told_of_once() -> None:
    alarm = Alarm()
    assert said(alarm, [100, 299.9]) == []
    assert said(alarm, [301, 400]) == [(301, STANDS)]
    assert said(alarm, [0, 0, 5]) == [(0, MOVES)]
    assert said(alarm, [299, 310]) == [(310, STANDS)]


@pytest.mark.parametrize("times", [[0, 0, 0], [0, 200, 0, 250, 3, 299]])
def test_a_partition_that_moves_now_and_then_is_not_told_of(times: list[float]) -> None:
    assert said(Alarm(), times) == []


def test_one_that_is_looked_at_late_is_told_of_at_once() -> None:
    assert said(Alarm(), [0, 5000, 5005, 8600, 8601]) == [(5000, STANDS), (8600, STANDS)]
