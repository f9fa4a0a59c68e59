"""Greenlets that consume without ever waiting let the others of their hub run."""

from __future__ import annotations

import time

import pytest

from managedconsumer.runtime.waiting.handlers import GEventHandler
from managedconsumer.runtime.waiting.patience import Patience

pytestmark = pytest.mark.gevent
#: Seconds: longer than the turn that a greenlet has, and than the other's sleep.
COMPUTES, SLEEPS, TURNS = 0.012, 0.002, 6


@pytest.mark.parametrize("consuming", [1, 2, 3])
def test_who_sleeps_meanwhile_is_next(consuming: int) -> None:
    """Also where the loop's own time is from before a long turn."""
    import gevent

    story: list[str] = []

    def sleep() -> None:
        while True:
            gevent.sleep(SLEEPS)
            story.append("awake")

    def compute() -> None:
        patience = Patience(GEventHandler())
        for _ in range(TURNS):
            end = time.monotonic() + COMPUTES
            while time.monotonic() < end:
                pass
            story.append("turn")
            patience.give_turn()

    sleeper = gevent.spawn(sleep)
    gevent.joinall([gevent.spawn(compute) for _ in range(consuming)], raise_error=True)
    sleeper.kill()
    longest = max(len(between.split()) for between in " ".join(story).split("awake"))
    assert longest <= consuming  # each of them once
