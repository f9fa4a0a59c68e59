"""Deadlines and back-off on a given time."""

from __future__ import annotations

import pytest

from managedconsumer.clock import Backoff, Deadline


def test_a_deadline_counts_down_and_expires() -> None:
    deadline = Deadline(100.0, 5.0)
    assert deadline.remaining(102.0) == 3.0
    assert not deadline.expired(104.99)
    assert deadline.expired(105.0)
    assert deadline.remaining(200.0) == 0.0


@pytest.mark.parametrize("never", [None, -1, -0.001])
def test_no_deadline(never: float | None) -> None:
    deadline = Deadline(100.0, never)
    assert deadline.remaining(1e12) is None
    assert not deadline.expired(1e12)


def test_a_deadline_of_zero_has_expired() -> None:
    assert Deadline(100.0, 0).expired(100.0)


def test_back_off_doubles_up_to_its_cap() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    assert [round(backoff.fail(0.0), 6) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    for _ in range(2000):
        assert backoff.fail(0.0) == 1.0  # no overflow


@pytest.mark.parametrize("random", [0.0, 0.999999])
def test_jitter_stays_within_a_fifth(random: float) -> None:
    assert 0.8 <= Backoff(1.0, 10.0, lambda: random).fail(0.0) <= 1.2


def test_it_is_ready_when_the_time_is_over_and_after_a_success() -> None:
    backoff = Backoff(1.0, 10.0, lambda: 0.5)
    assert backoff.ready(0.0)
    backoff.fail(50.0)
    assert not backoff.ready(50.9)
    assert backoff.ready(51.0)
    backoff.fail(51.0)
    backoff.succeed()
    assert backoff.ready(51.0)
    assert backoff.fail(51.0) == 1.0
