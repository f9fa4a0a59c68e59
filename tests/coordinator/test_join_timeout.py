"""How long a join without an answer is repeated at once before it counts as a failure."""

from __future__ import annotations

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator.membership import JoinTimeout

SILENCE = err.RequestTimedOut("silence")


@pytest.mark.parametrize(("waited", "lasts"), [(9.9, False), (10.0, True), (29.9, True), (30.0, False)])
def test_it_lasts_until_the_group_may_not_take_longer(waited: float, lasts: bool) -> None:
    timeout = JoinTimeout(30.0)
    timeout.sent(100.0)
    assert timeout.lasts(SILENCE, 10.0, 100.0 + waited) is lasts


def test_another_join_does_not_make_it_longer_and_another_rebalance_does() -> None:
    timeout = JoinTimeout(30.0)
    timeout.sent(100.0)
    timeout.sent(115.0)
    assert timeout.lasts(SILENCE, 10.0, 126.0)
    assert not timeout.lasts(SILENCE, 10.0, 131.0)
    timeout.begin()
    timeout.sent(131.0)
    assert timeout.lasts(SILENCE, 10.0, 150.0)


def test_only_silence_is_waited_through() -> None:
    timeout = JoinTimeout(30.0)
    timeout.sent(100.0)
    assert not timeout.lasts(err.SocketDisconnectedError("gone"), 10.0, 115.0)


def test_before_a_join_there_is_nothing_to_wait_for() -> None:
    assert not JoinTimeout(30.0).lasts(SILENCE, 0.0, 0.0)
