"""How a classic member fails, is refused, ends and begins again: the events with their texts."""

from __future__ import annotations

import pytest

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.structs import NO_GENERATION, Generation
from tests.coordinator.kit import Classic, S, told

GONE = err.SocketDisconnectedError("connection gone")
LOOK_UP = f"CoordinatorLost {str(GONE)!r}"
RETRY = f"Retrying SocketDisconnectedError: {GONE} 0.1 1"
NONE = "[-1 '' None]"
ONE = "[1 'me' range]"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# -- requests without an answer ---------------------------------------------------------------------------


def test_a_join_that_fails_is_tried_again() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    assert member.fail(member.request(), GONE) == [LOOK_UP, RETRY]
    assert (member.machine.last_error, member.machine.failures) == (GONE, 1)


def test_a_sync_that_fails_joins_again() -> None:
    member = Classic.at(S.COMPLETING_REBALANCE)
    again = f"Transition COMPLETING_REBALANCE PREPARING_REBALANCE 'sync was not answered' {ONE}"
    assert member.fail(member.request(), GONE) == [LOOK_UP, again, RETRY]


def test_a_leave_that_fails_has_left_all_the_same() -> None:
    member = Classic.at(S.STABLE)
    member.machine.leave("bye")
    assert member.fail(member.request(), GONE) == [f"Transition LEAVING LEFT 'leave not answered: {GONE}' {ONE}"]


def test_a_heartbeat_that_fails_is_sent_again_at_once() -> None:
    member = Classic.at(S.STABLE)
    member.answer(member.beat())
    member.wait(5.0)
    assert member.fail(member.beat(), GONE) == [LOOK_UP]
    assert member.machine.next_deadline(member.now) == member.now
    assert (member.machine.state, member.machine.failures) == (S.STABLE, 0)
    member.beat()


def test_a_heartbeat_of_before_a_join_fails_in_silence() -> None:
    member = Classic.at(S.STABLE)
    beat = member.beat()
    member.rejoin()
    join = member.request()
    assert member.fail(beat, GONE) == []
    assert member.machine.next_request(member.now) is None  # the join still waits
    assert member.fail(join, GONE) == [LOOK_UP, RETRY]


def test_a_request_that_was_given_up_fails_in_silence() -> None:
    member = Classic.at(S.STABLE)
    beat = member.beat()
    member.machine.fence(err.UnknownMemberId(), member.machine.generation)
    assert member.fail(beat, err.SaslAuthenticationError("no")) == []
    assert member.machine.state is S.LOSING


def test_a_sync_of_a_round_that_is_over_fails_in_silence() -> None:
    member = Classic.at(S.COMPLETING_REBALANCE)
    sync, beat = member.request(), member.beat()
    member.answer(beat, 25)
    member.machine.forgotten()
    member.reach(S.STABLE, generation=3)
    assert member.fail(sync, GONE) == []
    assert member.answer(sync, 27) == []
    assert member.machine.state is S.STABLE


@pytest.mark.parametrize("error", [err.SaslAuthenticationError("no"), err.error_for_code(30)], ids=["login", "acl"])
def test_what_no_retry_heals_ends_a_member_that_has_nothing(error: err.KafkaException) -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    failed = member.fail(member.request(), error)
    end = member.machine.error
    assert type(end) is type(error)
    assert failed == [f"Transition PREPARING_REBALANCE FAILED {str(end)!r} {NONE}", f"MembershipFailed {_named(end)}"]
    assert (member.machine.rejoin_reason, member.poll()) == (None, [])


def test_what_no_retry_heals_takes_the_partitions_of_a_member_first() -> None:
    member = Classic.at(S.STABLE)
    error = err.SaslAuthenticationError("no")
    assert member.fail(member.beat(), error) == [
        f"Transition STABLE LOSING {f'membership ended: {error}'!r} {ONE}",
        f"MembershipLost 'membership ended' {_named(error)} {ONE}",
    ]
    assert (member.machine.last_error, member.machine.rejoin_reason) == (error, None)
    assert told(member.machine.forgotten())[-1] == f"MembershipFailed {_named(error)}"
    assert member.machine.error is error


@pytest.mark.parametrize("holding", [True, False])
def test_a_refused_join_takes_the_partitions_that_are_held_through_it(holding: bool) -> None:
    member = Classic.at(S.STABLE)
    member.rejoin(holding)
    member.answer(member.request(), 81)
    assert member.machine.state is (S.LOSING if holding else S.FAILED)


# -- refused joins and syncs ------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kept"), [(22, "me"), (25, ""), (79, "")])
@pytest.mark.parametrize("holding", [True, False])
def test_a_join_under_an_id_that_is_not_known(code: int, kept: str, holding: bool) -> None:
    member = Classic.at(S.STABLE)
    member.rejoin(holding)
    error = err.error_for_code(code)
    lost = [
        f"Transition PREPARING_REBALANCE LOSING {f'expelled while joining: {error}'!r} {ONE}",
        f"MembershipLost 'expelled while joining' {_named(error)} {ONE}",
    ]
    events = member.answer(member.request(), code, member_id="given")
    assert events == (lost if holding else [f"Retrying {_named(error)} 0.1 1"])
    assert member.machine.generation == Generation(-1, kept)
    assert member.machine.leader_id == ""


@pytest.mark.parametrize(("code", "kept"), [(22, "me"), (25, "")])
def test_a_sync_of_a_member_that_is_not_known(code: int, kept: str) -> None:
    member = Classic.at(S.COMPLETING_REBALANCE)
    error = err.error_for_code(code)
    assert member.answer(member.request(), code) == [
        f"Transition COMPLETING_REBALANCE LOSING {f'expelled while joining: {error}'!r} {ONE}",
        f"MembershipLost 'expelled while joining' {_named(error)} {ONE}",
    ]
    assert member.machine.generation == Generation(-1, kept)


@pytest.mark.parametrize(("code", "looked_up"), [(14, False), (16, True)])
def test_a_sync_that_is_refused_for_now_joins_again_after_a_pause(code: int, looked_up: bool) -> None:
    member = Classic.at(S.COMPLETING_REBALANCE)
    error = err.error_for_code(code)
    assert member.answer(member.request(), code) == [
        f"Transition COMPLETING_REBALANCE PREPARING_REBALANCE 'sync failed' {ONE}",
        *([f"CoordinatorLost {str(error)!r}"] if looked_up else []),
        f"Retrying {_named(error)} 0.1 1",
    ]
    assert member.machine.next_deadline(member.now) == member.now + 0.1


def test_a_sync_that_is_refused_for_good_takes_the_place_in_the_group() -> None:
    member = Classic.at(S.COMPLETING_REBALANCE)
    assert member.answer(member.request(), 30)[-1].startswith("MembershipFailed GroupAuthorizationFailed: group 'g': ")
    assert member.machine.state is S.FAILED


def test_a_missed_round_is_named() -> None:
    member = Classic.at(S.STABLE)
    member.rejoin(holding=True)
    error = err.IllegalGeneration("generation 2 was missed")
    assert member.join(3) == [
        f"Transition PREPARING_REBALANCE LOSING {f'a rebalance was missed: {error}'!r} {ONE}",
        f"MembershipLost 'a rebalance was missed' {_named(error)} {ONE}",
    ]


def test_after_partitions_were_dropped_nothing_is_held() -> None:
    member = Classic.at(S.STABLE)
    member.answer(member.beat(), 22)
    member.machine.forgotten()
    member.reach(S.PREPARING_REBALANCE)
    assert member.answer(member.request(), 25)[-1].startswith("Retrying ")  # and no second loss


# -- the end, and another beginning -----------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.UNJOINED, S.PREPARING_REBALANCE])
def test_without_a_place_in_the_group_leaving_sends_nothing(state: S) -> None:
    member = Classic()
    if state is not S.UNJOINED:
        member.reach(state)
    assert told(member.machine.leave("bye")) == [f"Transition {state.name} LEFT 'bye' {NONE}"]
    assert member.machine.next_request(member.now) is None
    assert told(member.machine.leave("twice")) == []
    assert member.machine.rejoin_reason is None


@pytest.mark.parametrize(("code", "state"), [(22, S.LEAVING), (25, S.LEFT)])
def test_a_lost_member_leaves_where_the_group_may_still_know_it(code: int, state: S) -> None:
    member = Classic.at(S.STABLE)
    member.answer(member.beat(), code)
    member.machine.leave("bye")
    assert member.machine.state is state
    leave = member.machine.next_request(member.now)
    assert (leave is not None) is (state is S.LEAVING)
    if leave is not None:
        assert (leave.api.name, leave.body["members"][0]["member_id"]) == ("LeaveGroup", "me")


# 82: another member has our place.
@pytest.mark.parametrize(("code", "leaves"), [(23, True), (30, True), (42, True), (82, False)])
@pytest.mark.parametrize("holding", [True, False])
def test_a_member_that_was_refused_leaves_if_it_may_have_a_place(code: int, leaves: bool, holding: bool) -> None:
    member = Classic.at(S.STABLE, static_leaves=True, group_instance_id="one")
    member.rejoin(holding)
    member.answer(member.request(), code)
    member.machine.forgotten()
    assert (member.machine.state, type(member.machine.error)) == (S.FAILED, type(err.error_for_code(code)))
    member.machine.leave("bye")
    leave = member.machine.next_request(member.now)
    assert (leave is not None) is leaves
    if leave is not None:
        assert leave.body["members"][0]["member_id"] == "me"
        member.answer(leave)
    assert member.machine.state is S.LEFT


def test_a_leave_that_no_retry_heals_has_left_all_the_same() -> None:
    member = Classic.at(S.STABLE)
    member.machine.leave("bye")
    member.fail(member.request(), err.SaslAuthenticationError("no"))
    assert (member.machine.state, member.machine.error) == (S.LEFT, None)


@pytest.mark.parametrize("end", ["leaving", "left", "failed"])
def test_at_the_end_no_rebalance_is_wanted_any_more(end: str) -> None:
    member = Classic.at(S.STABLE)
    if end == "failed":
        member.answer(member.beat(), codes.GROUP_AUTHORIZATION_FAILED)
        member.machine.forgotten()
        assert member.machine.state is S.FAILED
    else:
        member.machine.leave("bye")
        if end == "left":
            member.answer(member.request())
    member.machine.request_rejoin("the topics changed")
    assert (member.machine.rejoin_reason, member.poll()) == (None, [])


def test_after_the_end_it_begins_as_a_new_member() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    member.fail(member.request(), GONE)
    member.wait(1.0)
    member.join()
    member.answer(member.request(), codes.GROUP_AUTHORIZATION_FAILED)
    member.machine.restart()
    machine = member.machine
    assert (machine.generation, machine.leader_id) == (NO_GENERATION, "")
    assert (machine.error, machine.last_error, machine.failures) == (None, None, 0)
    assert member.poll() == [f"Transition UNJOINED REVOKING 'first join' {NONE}", f"PrepareJoin 'first join' {NONE}"]
    member.prepare()
    member.join(7)
    assert member.sync()[-1] == "Assigned [7 'me' range] b'share' False False None"


def test_a_loss_after_another_beginning_is_no_end() -> None:
    member = Classic.at(S.STABLE)
    member.fail(member.beat(), err.SaslAuthenticationError("no"))
    member.machine.forgotten()
    member.machine.restart()
    member.reach(S.STABLE)
    member.answer(member.beat(), 25)
    assert told(member.machine.forgotten()) == [f"Transition LOSING UNJOINED 'partitions dropped' {NONE}"]


def test_a_generation_is_current_until_the_next() -> None:
    member = Classic.at(S.STABLE)
    one = member.machine.generation
    assert member.machine.is_current(one)
    member.machine.request_rejoin("test")
    member.reach(S.ASSIGNING, generation=2)
    assert not member.machine.is_current(one)


def test_while_nobody_listens_at_the_coordinator_s_address_no_session_runs_out() -> None:
    """It is restarting: its successor begins all sessions anew. Silence is another matter."""
    refused = err.NoBrokersAvailableError("nobody")
    refused.refused = True
    for error, lasts in ((refused, True), (GONE, False)):
        member = Classic.at(S.STABLE)
        member.wait(9.0)
        member.fail(member.beat(), error)
        member.wait(5.0)
        assert (told(member.machine.check_session(member.now)) == []) is lasts


def test_assignments_that_nobody_waits_for_are_not_kept() -> None:
    member = Classic.at(S.ASSIGNING)
    member.machine.provide_assignments({"me": b"late"})
    member.machine.reconciled()
    member.rejoin()
    member.join(2, leader="me")
    assert member.machine.next_request(member.now) is None
