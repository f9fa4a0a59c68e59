"""What a member holds while it joins, and must not hold any more: a round that it missed, an id that is not known."""

from __future__ import annotations

import pytest

from managedconsumer import errors as err
from tests.coordinator.kit import Classic, S, kinds


def _member_of_generation_one() -> Classic:
    member = Classic.at(S.ASSIGNING, group_instance_id="static", session_timeout_ms=45000)
    member.machine.reconciled("one more round")
    return member


def test_what_is_held_through_a_missed_round_is_lost() -> None:
    member = _member_of_generation_one()
    member.rejoin(holding=True)
    assert member.join(3)[-1].endswith("[1 'me' range]")
    assert member.machine.state is S.LOSING
    member.machine.forgotten()
    assert member.machine.member_id == "me"  # the place is kept, and taken again with empty hands
    assert member.machine.need_rejoin()
    member.reach(S.PREPARING_REBALANCE)
    assert kinds(member.join(4)) == []
    assert member.machine.state is S.COMPLETING_REBALANCE


@pytest.mark.parametrize(("generation", "holding"), [(3, False), (2, True), (1, True)])
def test_nothing_is_lost_when_nothing_is_held_or_no_round_was_missed(generation: int, holding: bool) -> None:
    member = _member_of_generation_one()
    member.rejoin(holding)
    assert kinds(member.join(generation)) == []
    assert member.machine.state is S.COMPLETING_REBALANCE


@pytest.mark.parametrize(("silent", "is_lost"), [(45.0, False), (45.1, True)])
def test_what_is_held_through_a_silent_session_is_lost_in_a_kip_848_group(silent: float, is_lost: bool) -> None:
    """Such a group takes a classic member in again that it has put out, under its old id (seen on Kafka 4.4).

    Its epochs skip numbers, nobody leads, and the broker assigns (a migration is going on).
    """
    member = _member_of_generation_one()
    member.wait(silent)
    member.rejoin(holding=True)
    assert kinds(member.join(5, leader="")) == (["MembershipLost"] if is_lost else [])
    assert member.machine.state is (S.LOSING if is_lost else S.COMPLETING_REBALANCE)
    assert is_lost or member.machine.generation.id == 5


@pytest.mark.parametrize(
    ("answers", "seconds", "is_lost"),
    [
        ([27], 5.9, False),
        ([27], 6.1, True),
        ([0], 6.1, False),  # the group is calm: nothing is waited for
        ([0, 27], 6.1, True),
        ([27, 0], 6.1, False),
        ([None], 6.1, True),  # the answer that is lost may have said so
    ],
)
def test_what_is_held_is_lost_when_a_kip_848_group_has_waited_too_long_for_the_join(
    answers: list[int | None], seconds: float, is_lost: bool
) -> None:
    """It waits for the rebalance timeout from the heartbeat on whose answer asks for it, and takes the id in again."""
    member = Classic.at(S.STABLE, rebalance_timeout_ms=6000, session_timeout_ms=45000)
    for code in answers:
        member.wait(3.0)
        beat = member.beat()
        member.answer(beat, code) if code is not None else member.fail(beat, err.SocketDisconnectedError())
    member.rejoin(holding=True)
    member.wait(seconds)
    assert kinds(member.join(5, leader="")) == (["MembershipLost"] if is_lost else [])


def test_an_id_that_is_asked_for_again_was_not_known() -> None:
    member = _member_of_generation_one()
    member.rejoin(holding=True)
    assert kinds(member.answer(member.request(), 79, member_id="other")) == ["MembershipLost"]
    assert member.machine.member_id == ""


def test_a_coordinator_that_asks_for_an_id_for_ever_is_not_asked_without_a_pause() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    for number in (1, 2):
        member.answer(member.request(), 79, member_id=f"id-{number}")
    assert member.machine.failures == 1
    assert member.machine.next_request(member.now) is None


def test_a_round_that_was_begun_and_not_finished_was_not_missed() -> None:
    """Two members leave one after the other: the first round is broken off between join and sync."""
    member = _member_of_generation_one()
    member.rejoin(holding=True)
    member.join(2)
    member.answer(member.request(), 27, assignment=b"")
    assert kinds(member.join(3)) == []
    assert member.machine.state is S.COMPLETING_REBALANCE
