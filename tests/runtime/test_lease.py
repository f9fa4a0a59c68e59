"""How long a member may hand out messages, by its own clock; see also test_freeze.py."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker
from tests.runtime.test_freeze import LONG, broker, member, stand_still
from tests.waiting import until

__all__ = ["broker"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_interruption_at_that_moment_leaves_a_member_that_joins_again(
    broker: MemoryBroker, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of a signal raises in the thread that consumes, and the program goes on."""
    with member(broker, protocol, session_timeout_ms=300) as consumer:
        assert until(consumer.consume, LONG).offset == 0
        assignment, interrupted = consumer._session.engine.assignment, []
        fence = assignment.fence

        def fence_or_not(tps: Any) -> None:
            if threading.current_thread() is threading.main_thread() and not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            fence(tps)

        monkeypatch.setattr(assignment, "fence", fence_or_not)
        with consumer._member._lock:
            stand_still(consumer)
            with suppress(KeyboardInterrupt):
                assert consumer.consume() is None
        assert until(consumer.consume, LONG).offset == 0


def test_what_comes_during_a_join_may_be_handed_out_as_long_as_the_session_that_follows() -> None:
    """There is no session while a join is on its way, and a member of a cooperative group consumes on meanwhile."""
    options = {"membership_protocol": "cooperative-sticky", "rebalance_timeout_ms": 60_000, "session_timeout_ms": 6000}
    with MemoryBroker({"t": 2}) as broker:
        for partition in (0, 1):
            broker.produce("t", [b"%d" % n for n in range(200)], partition=partition)
        with member(broker, "classic", **options) as consumer, member(broker, "classic", **options) as other:
            until(lambda: len(consumer.partitions) == 1 == len(other.partitions), LONG)
            third = member(broker, "classic", auto_start=False, **options)
            starting = threading.Thread(target=third.start)
            with other._member._lock:  # the join waits for it
                starting.start()
                until(lambda: consumer._member.machine.session_end() == float("inf"), LONG)
                before = consumer._session.engine.delivery.hand_out_until()
                assert consumer.consume() is not None
            until(lambda: consumer._member.machine.session_end() != float("inf"), LONG)
            assert before <= consumer._member.machine.session_end()
            starting.join(LONG)
            third.stop()
