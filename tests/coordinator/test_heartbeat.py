"""The rhythm of heartbeats: members that joined together must not drift apart."""

from __future__ import annotations

import pytest

from managedconsumer.coordinator.heartbeat import LIVELY_SECONDS, SETTLING_SECONDS, Heartbeat
from managedconsumer.errors import ConfigurationError


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


@pytest.mark.parametrize(
    ("event", "after", "next_in"),
    [
        ("reset_session_timeout", 0.0, 0.2),  # a join
        ("reset_session_timeout", LIVELY_SECONDS, 3.0),
        ("settle", 0.0, 0.2),  # an assignment: the group settles
        ("settle", LIVELY_SECONDS, 0.5),
        ("settle", SETTLING_SECONDS, 3.0),
    ],
)
def test_after_a_join_or_an_assignment_beats_come_soon(event: str, after: float, next_in: float) -> None:
    beat = beaten(0.001, 60.0)
    getattr(beat, event)(100.0)
    beat.sent_heartbeat(100.0 + after)
    assert beat.ttl(100.0 + after) == pytest.approx(next_in)


def test_a_session_does_not_run_out_while_the_coordinator_is_known_to_be_away() -> None:
    now = [0.0]
    heartbeat = Heartbeat(session_timeout_ms=6000, heartbeat_interval_ms=2000, clock=lambda: now[0])
    heartbeat.sent_heartbeat(1.0)
    heartbeat.received_heartbeat(1.0)
    assert heartbeat.session_deadline() == 7.0
    heartbeat.sent_heartbeat(5.0)
    now[0] = 10.5  # the process stands still before it learns of it
    heartbeat.coordinator_away()
    assert heartbeat.session_deadline() == 11.0
    assert not heartbeat.session_expired(10.9)
    assert heartbeat.session_expired(11.1)
    assert heartbeat.last_receive == 1.0  # health() goes on telling the truth


def test_an_answer_that_was_read_late_does_not_lengthen_the_session() -> None:
    """The process stood still between the heartbeat and its answer: the coordinator may have expelled it meanwhile."""
    heartbeat = Heartbeat(session_timeout_ms=6000, heartbeat_interval_ms=2000, clock=lambda: 0.0)
    heartbeat.sent_heartbeat(1.0)
    heartbeat.received_heartbeat(30.0)
    assert heartbeat.session_deadline() == 7.0
    assert heartbeat.session_expired(30.0)
    assert heartbeat.last_heard() == 30.0  # health() and the metrics say when the answer was read
    heartbeat.settle(30.0)  # KIP-848: the answer has an assignment
    assert heartbeat.session_deadline() == 7.0


def test_nobody_waits_for_an_answer_beyond_the_end_of_the_session() -> None:
    heartbeat = Heartbeat(session_timeout_ms=6000, heartbeat_interval_ms=2000, clock=lambda: 10.0)
    assert heartbeat.patience(30.0, 12.5) == 3.5
    assert heartbeat.patience(1.0, 12.5) == 1.0
    assert heartbeat.patience(30.0, 99.0) > 0.0


def test_without_settings_a_session_lasts_thirty_seconds_and_a_beat_comes_every_three() -> None:
    heartbeat = Heartbeat(clock=lambda: 50.0, something_else=1)
    assert (heartbeat.timeout, heartbeat.interval) == (30.0, 3.0)
    assert Heartbeat().session_deadline() > 0.0  # by the machine's own clock


def test_a_new_one_has_sent_nothing_and_is_due() -> None:
    heartbeat = Heartbeat(session_timeout_ms=9000, heartbeat_interval_ms=3000, clock=lambda: 50.0)
    assert (heartbeat.sent, heartbeat.received, heartbeat.latency) == (0, 0, 0.0)
    assert (heartbeat.last_send, heartbeat.last_receive, heartbeat.last_reset) == (47.0, 50.0, 50.0)
    assert heartbeat.should_heartbeat(50.0)
    assert heartbeat.session_deadline() == 59.0


@pytest.mark.parametrize(("interval", "session"), [(3000, 3000), (3001, 3000)])
def test_an_interval_that_is_no_shorter_than_the_session_is_refused(interval: int, session: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Heartbeat(session_timeout_ms=session, heartbeat_interval_ms=interval)
    assert str(caught.value) == (
        f"heartbeat_interval_ms={interval} must be lower than session_timeout_ms={session}: a third of it is usual"
    )


class ReadOnly:
    """A clock that shows ``now``."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_given_moment_the_clock_is_read() -> None:
    clock = ReadOnly()
    heartbeat = Heartbeat(session_timeout_ms=9000, heartbeat_interval_ms=3000, clock=clock)
    clock.now = 105.0
    clock.now = 200.0
    assert heartbeat.session_expired()
    assert heartbeat.should_heartbeat()
    assert heartbeat.ttl() == 0.0
    clock.now = 201.0
    heartbeat.reset_session_timeout()
    assert (heartbeat.last_reset, heartbeat.last_send) == (201.0, 198.0)
    clock.now = 202.0
    heartbeat.sent_heartbeat()
    assert heartbeat.last_send == 202.0
    clock.now = 202.5
    heartbeat.received_heartbeat()
    assert (heartbeat.last_receive, heartbeat.latency, heartbeat.session_deadline()) == (202.5, 0.5, 211.0)
    for now, more_answers_come in ((300.0, heartbeat.settle), (400.0, heartbeat.await_partitions)):
        clock.now = now
        heartbeat.sent_heartbeat()
        assert heartbeat.ttl() == 3.0
        more_answers_come()
        assert heartbeat.ttl() < 0.5


def test_a_given_moment_comes_before_the_clock() -> None:
    clock = ReadOnly()
    heartbeat = Heartbeat(session_timeout_ms=9000, heartbeat_interval_ms=3000, clock=clock)
    heartbeat.await_partitions(400.0)
    heartbeat.sent_heartbeat(402.0)
    assert heartbeat.ttl(402.0) == 0.5  # until an interval and a bit after 400 s
    assert heartbeat.ttl(404.5) == 0.0
    heartbeat.sent_heartbeat(404.5)
    assert heartbeat.ttl(404.5) == 0.5  # it settles for 8 s
    heartbeat.received_heartbeat(406.0)
    assert not heartbeat.session_expired(413.5)
    assert heartbeat.session_expired(413.6)


def test_everything_is_counted() -> None:
    heartbeat = Heartbeat(clock=lambda: 0.0)
    for now in (3.0, 6.0, 9.0):
        heartbeat.sent_heartbeat(now)
    for now in (3.5, 6.5):
        heartbeat.received_heartbeat(now)
    assert (heartbeat.sent, heartbeat.received) == (3, 2)


@pytest.mark.parametrize(
    ("sent", "next_due"),
    [(13.0, 16.0), (13.5, 16.0), (13.75, 16.75), (12.9, 15.9)],
    ids=["on time", "a little late", "late", "early"],
)
def test_the_schedule_is_kept_by_beats_that_are_a_little_late(sent: float, next_due: float) -> None:
    heartbeat = Heartbeat(session_timeout_ms=9000, heartbeat_interval_ms=3000, clock=lambda: 10.0)
    heartbeat.sent_heartbeat(10.0)
    heartbeat.sent_heartbeat(sent)
    assert sent + heartbeat.ttl(sent) == pytest.approx(next_due)
