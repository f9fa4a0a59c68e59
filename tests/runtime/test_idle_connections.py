"""Idle connections that several consumers of one client use in turn."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from managedconsumer.runtime.cluster import idle_connections
from managedconsumer.runtime.cluster.idle_connections import IdleConnections
from managedconsumer.runtime.waiting.handlers import ThreadingHandler

HERE = ("broker", 9092)


class Clock(ThreadingHandler):
    time = 100.0

    def now(self) -> float:
        return self.time


class Line:
    """What is looked at of a connection."""

    def __init__(self, host: str = "broker", heard_at: float = 100.0) -> None:
        self.host, self.port, self.heard_at, self.connected = host, 9092, heard_at, True

    def close(self) -> None:
        self.connected = False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def idle(clock: Clock) -> Any:
    return IdleConnections(clock)


def test_what_was_used_last_is_used_next(idle: Any) -> None:
    first, second, other = Line(), Line(), Line("another")
    for each in (first, second, other):
        idle.put(each)
    assert idle.take(HERE) is second
    assert idle.take(HERE) is first
    assert idle.take(None) is other
    assert idle.take(HERE, patience=0.0) is None


def test_a_broken_one_is_given_to_nobody(idle: Any) -> None:
    good, broken, late = Line(), Line(), Line()
    for each in (good, broken):
        idle.put(each)
    broken.connected = late.connected = False
    idle.put(late)
    assert idle.take(HERE) is good
    assert idle.take(HERE, patience=0.0) is None


def test_what_has_been_silent_for_long_is_not_good_enough_for_a_long_request(idle: Any) -> None:
    old, fresh = Line(heard_at=90.0), Line(heard_at=99.0)
    for each in (fresh, old):
        idle.put(each)
    assert idle.take(HERE, 98.0) is fresh
    assert not old.connected


def test_one_that_is_soon_back_is_waited_for(idle: Any) -> None:
    line = Line()
    idle.put(line)
    assert idle.take(HERE) is line
    threading.Timer(0.02, idle.put, [line]).start()
    assert idle.take(HERE, patience=20.0) is line


def test_one_that_may_be_away_for_long_is_not(idle: Any, clock: Clock) -> None:
    line = Line()
    idle.put(line)
    assert idle.take(HERE, 50.0) is line  # as for a join
    assert idle.take(HERE, patience=20.0) is None
    idle.put(line)
    assert idle.take(HERE) is line
    clock.time += 20.0  # no answer so far
    assert idle.take(HERE, patience=20.0) is None


def test_what_is_back_and_was_taken_away_is_not_waited_for(idle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    idle.put(Line())
    idle.put(idle.take(HERE))
    assert len(idle.take_all()) == 1
    monkeypatch.setattr(idle._changed, "wait", None)
    assert idle.take(HERE) is None
    assert idle.take(None) is None


def test_more_than_needed_are_closed(idle: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_connections, "_NOT_NEEDED", 5.0)
    lines = [Line() for _ in range(3)]
    for each in lines:
        idle.put(each)
    for _ in range(3):
        clock.time += 2.0
        idle.put(idle.take(HERE))
    assert [each.connected for each in lines] == [False, False, True]


def test_the_end(idle: Any) -> None:
    kept, lent = Line(), Line()
    idle.put(kept)
    idle.close()
    idle.put(lent)
    assert not kept.connected
    assert not lent.connected
    assert idle.take(HERE, patience=0.0) is None
