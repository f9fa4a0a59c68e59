"""The rhythm of heartbeats: members that joined together must not drift apart."""

from __future__ import annotations

import pytest

from managedconsumer.coordinator.heartbeat import LIVELY_SECONDS, SETTLING_SECONDS, Heartbeat


def beaten(late: float, seconds: float) -> Heartbeat:
    """A member whose every beat is ``late``, long after its join."""
    beat = Heartbeat(session_timeout_ms=9000, heartbeat_interval_ms=3000, clock=lambda: 0.0)
    beat.reset_session_timeout(0.0)
    now = 0.0
    while now < seconds:
        now += beat.ttl(now) + late
        beat.sent_heartbeat(now)
        beat.received_heartbeat(now + 0.004)
    return beat


def test_small_delays_do_not_add_up() -> None:
    hour = 3600.0
    quick, slow = (beaten(late, hour).last_send for late in (0.0001, 0.02))
    assert abs(quick - slow) % 3.0 == pytest.approx(0.0, abs=0.05)


def test_a_large_delay_begins_a_new_rhythm() -> None:
    beat = beaten(0.001, 60.0)
    frozen = beat.last_send + 9.0
    beat.sent_heartbeat(frozen)
    assert beat.ttl(frozen) == pytest.approx(3.0)
    beat.sent_heartbeat(frozen + 1.0)  # sooner than due, with news
    assert beat.ttl(frozen + 1.0) == pytest.approx(3.0)


def test_latency_is_from_when_it_really_was_sent() -> None:
    assert beaten(0.5, 60.0).latency == pytest.approx(0.004)


@pytest.mark.parametrize(("after", "next_in"), [(0.0, 0.2), (LIVELY_SECONDS, 3.0)])
def test_after_a_join_beats_come_soon(after: float, next_in: float) -> None:
    beat = beaten(0.001, 60.0)
    beat.reset_session_timeout(100.0)
    beat.sent_heartbeat(100.0 + after)
    assert beat.ttl(100.0 + after) == pytest.approx(next_in)


@pytest.mark.parametrize(("after", "next_in"), [(0.0, 0.2), (LIVELY_SECONDS, 0.5), (SETTLING_SECONDS, 3.0)])
def test_after_an_assignment_moved_the_group_settles(after: float, next_in: float) -> None:
    beat = beaten(0.001, 60.0)
    beat.settle(100.0)
    beat.sent_heartbeat(100.0 + after)
    assert beat.ttl(100.0 + after) == pytest.approx(next_in)


def test_a_session_does_not_run_out_while_the_coordinator_is_known_to_be_away() -> None:
    now = [0.0]
    heartbeat = Heartbeat(session_timeout_ms=6000, heartbeat_interval_ms=2000, clock=lambda: now[0])
    heartbeat.received_heartbeat(1.0)
    assert heartbeat.session_deadline() == 7.0
    heartbeat.coordinator_away(5.0)
    assert heartbeat.session_deadline() == 11.0
    assert not heartbeat.session_expired(10.9)
    assert heartbeat.session_expired(11.1)  # a frozen process has heard nothing since: its time is over
    assert heartbeat.last_receive == 1.0  # health() goes on telling the truth


def test_nobody_waits_for_an_answer_beyond_the_end_of_the_session() -> None:
    heartbeat = Heartbeat(session_timeout_ms=6000, heartbeat_interval_ms=2000, clock=lambda: 10.0)
    assert heartbeat.patience(30.0, 12.5) == 3.5
    assert heartbeat.patience(1.0, 12.5) == 1.0
    assert heartbeat.patience(30.0, 99.0) > 0.0
