"""The membership machine, driven by hand: how every answer moves it, and how long it waits for one."""

from __future__ import annotations

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership import JoinTimeout
from managedconsumer.coordinator.states import TRANSITIONS, check_transition
from managedconsumer.structs import NO_GENERATION, Generation
from tests.coordinator.kit import Classic, S, kinds, told


def _time_out(member: Classic, request: ev.Request) -> list[str]:
    member.wait(request.timeout)
    return kinds(member.fail(request, err.RequestTimedOut("silence")))


def test_a_join_without_an_answer_is_repeated_as_long_as_the_group_may_take() -> None:
    """A slow group and a dead connection look the same; a member that waits for the others has not failed."""
    member = Classic.at(
        S.PREPARING_REBALANCE, rebalance_timeout_ms=60000, request_timeout_ms=30000, session_timeout_ms=45000
    )
    member.answer(member.request(), 79, member_id="me-1")
    for _ in range(2):
        request = member.request()
        assert request.timeout == 30.0
        assert request.body["member_id"] == "me-1"
        assert _time_out(member, request) == ["CoordinatorLost"]
        assert member.machine.failures == 0
    # 90 s: longer than the group may take
    assert _time_out(member, member.request()) == ["CoordinatorLost", "Retrying"]


def test_a_coordinator_that_cannot_be_connected_to_is_a_failure_however_soon() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    request = member.request()
    member.wait(0.5)
    assert kinds(member.fail(request, err.RequestTimedOut("no ApiVersions"))) == ["CoordinatorLost", "Retrying"]


@pytest.mark.parametrize("leads", [False, True])
def test_a_sync_without_an_answer_is_repeated_as_long_as_the_group_may_take(leads: bool) -> None:
    """The leader may be slow, and the connection may be dead. Another join would make the whole group rebalance."""
    member = Classic.at(
        S.PREPARING_REBALANCE, rebalance_timeout_ms=25000, request_timeout_ms=30000, session_timeout_ms=10000
    )
    _time_out(member, member.request())  # the joins have a time of their own
    member.join(leader="me" if leads else "other")
    member.machine.provide_assignments({"me": b"all"} if leads else {})
    for _ in range(3):
        request = member.request()
        assert (request.api.name, request.timeout, len(request.body["assignments"])) == ("SyncGroup", 10.0, leads)
        assert _time_out(member, request) == ["CoordinatorLost"]
        assert (member.machine.state, member.machine.failures) == (S.COMPLETING_REBALANCE, 0)
    # 40 s: longer than the group may take
    assert _time_out(member, member.request()) == ["CoordinatorLost", "Retrying"]
    assert member.machine.state is S.PREPARING_REBALANCE


@pytest.mark.parametrize("holding", [False, True])
@pytest.mark.parametrize("by", ["heartbeat", "commit"])
def test_a_member_that_is_unknown_does_not_wait_for_its_join(by: str, holding: bool) -> None:
    member = Classic.at(S.STABLE)
    beat = member.beat()
    member.rejoin(holding)
    join, error = member.request(), err.error_for_code(25)
    if by == "heartbeat":
        events = member.answer(beat, 25)
    else:
        events = told(member.machine.fence(error, member.machine.generation))
    given_up = f"CoordinatorLost {f'the join that waits is given up: {error}'!r}"
    lost = [
        f"Transition PREPARING_REBALANCE LOSING {f'expelled while joining: {error}'!r} [1 'me' range]",
        f"MembershipLost 'expelled while joining' UnknownMemberId: {error} [1 'me' range]",
    ]
    assert events == [given_up, *(lost if holding else [])]
    assert member.answer(join, member_id="me", generation_id=2) == []  # too late: it changes nothing
    if holding:
        member.machine.forgotten()
        member.reach(S.PREPARING_REBALANCE)
    assert member.machine.generation == NO_GENERATION
    assert member.request().body["member_id"] == ""


def test_an_outdated_generation_is_no_reason_to_give_a_join_up() -> None:
    """The group may have gone on to the generation that the join is about to tell us of."""
    member = Classic.at(S.STABLE)
    beat = member.beat()
    member.rejoin(holding=True)
    join = member.request()
    assert member.answer(beat, 22) == []
    member.answer(join, member_id="me", generation_id=2, protocol_name="range", leader="other", members=[])
    assert member.machine.generation.id == 2


@pytest.mark.parametrize("code", [14, 15, 16, 27, 7, 9999])
def test_passing_errors_of_a_join_are_retried_with_back_off(code: int) -> None:
    member, error = Classic.at(S.PREPARING_REBALANCE), err.error_for_code(code)
    looked_up = [f"CoordinatorLost {str(error)!r}"] if code in (15, 16) else []
    assert member.answer(member.request(), code) == [*looked_up, f"Retrying {type(error).__name__}: {error} 0.1 1"]
    assert member.machine.next_request(member.now) is None
    member.wait(0.1)
    assert member.request().api.name == "JoinGroup"


@pytest.mark.parametrize("code", [23, 24, 26, 30, 35, 81, 82])
def test_errors_that_nothing_heals_end_the_membership(code: int) -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    assert kinds(member.answer(member.request(), code)) == ["MembershipFailed"]
    assert code == member.machine.error.ERROR_CODE  # type: ignore[union-attr]
    assert member.machine.state is S.FAILED
    assert member.machine.next_request(member.now) is None
    assert member.machine.next_heartbeat(member.now + 60) is None


def test_heartbeats_are_due_by_interval_and_go_on_while_the_owner_works() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    assert member.machine.next_heartbeat(member.now) is None  # the join itself keeps our place
    member.join()
    member.wait(3.0)
    assert member.answer(member.beat()) == []  # completing
    member.sync()
    member.wait(3.0)
    assert member.answer(member.beat()) == []  # while the assigned-callback runs
    member.machine.reconciled()
    assert member.machine.next_heartbeat(member.now + 2.9) is None
    member.wait(3.0)
    member.answer(member.beat(), 27)
    member.poll()
    assert member.machine.state is S.REVOKING
    member.wait(3.0)
    assert member.answer(member.beat(), 27) == []  # while the revoked-callback runs


def test_a_rebalance_noticed_while_taking_over_is_not_forgotten() -> None:
    member = Classic.at(S.ASSIGNING)
    member.answer(member.beat(), 27)
    member.machine.reconciled()
    assert member.machine.state is S.STABLE
    assert member.machine.need_rejoin()


def test_answers_of_another_generation_change_nothing() -> None:
    member = Classic.at(S.STABLE)
    old = member.beat()
    member.rejoin()
    member.join(2)
    before = member.machine.state
    assert member.answer(old, 25) == []
    assert member.machine.state is before
    assert told(member.machine.fence(err.error_for_code(25), Generation(1, "me", "range"))) == []


def test_a_static_member_leaves_without_a_word() -> None:
    member = Classic.at(S.STABLE, group_instance_id="static")
    member.machine.leave("shutting down")
    assert member.machine.next_request(member.now) is None
    assert member.machine.state is S.LEFT


def test_leaving_while_joining_makes_the_join_s_answer_worthless() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    member.answer(member.request(), 79, member_id="pending")
    join = member.request()
    member.machine.leave("stop")
    leave = member.request()
    assert leave.api.name == "LeaveGroup"
    assert leave.body["member_id"] == "pending"
    joined = {"generation_id": 3, "protocol_name": "range", "leader": "x", "member_id": "pending", "members": []}
    assert member.answer(join, **joined) == []
    assert member.machine.state is S.LEAVING


def test_every_illegal_move_raises() -> None:
    for old in S:
        for new in S:
            if new in TRANSITIONS[old]:
                check_transition(old, new)
            else:
                with pytest.raises(err.IllegalStateError, match=f"{old.name} to {new.name}"):
                    check_transition(old, new)


def test_who_has_not_joined_yet_sends_no_heartbeat() -> None:
    """It would be answered with UNKNOWN_MEMBER_ID while the join waits, which would be given up for another one."""
    member = Classic()
    assert kinds(member.poll()) == ["PrepareJoin"]
    assert member.machine.state is S.REVOKING
    assert member.machine.next_heartbeat(member.now) is None
    assert member.machine.next_deadline(member.now) is None
    member.prepare()
    member.join()
    member.sync()
    assert member.machine.next_heartbeat(member.now) is not None


SILENCE = err.RequestTimedOut("silence")


@pytest.mark.parametrize(
    ("error", "waited", "lasts"),
    [
        *((SILENCE, waited, lasts) for waited, lasts in [(9.9, False), (10.0, True), (29.9, True), (30.0, False)]),
        (err.SocketDisconnectedError("gone"), 15.0, False),  # only silence is waited through
    ],
)
def test_it_lasts_until_the_group_may_not_take_longer(error: BaseException, waited: float, lasts: bool) -> None:
    timeout = JoinTimeout(30.0)
    timeout.sent(100.0)
    assert timeout.lasts(error, 10.0, 100.0 + waited) is lasts


def test_another_join_does_not_make_it_longer_and_another_rebalance_does() -> None:
    timeout = JoinTimeout(30.0)
    timeout.sent(100.0)
    timeout.sent(115.0)
    assert timeout.lasts(SILENCE, 10.0, 126.0)
    assert not timeout.lasts(SILENCE, 10.0, 131.0)
    timeout.begin()
    timeout.sent(131.0)
    assert timeout.lasts(SILENCE, 10.0, 150.0)


def test_before_a_join_there_is_nothing_to_wait_for() -> None:
    assert not JoinTimeout(30.0).lasts(SILENCE, 0.0, 0.0)
