"""What a classic member tells its driver: every event with its text, and what it asks for next."""

from __future__ import annotations

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator import requests
from managedconsumer.structs import NO_GENERATION, Generation
from tests.coordinator.kit import Classic, Modern, S, told

REFUSED = err.NoBrokersAvailableError("nothing listens there")
REFUSED.refused = True
# Answers to a heartbeat and errors before it could be sent, and whether they prove that no coordinator is ready.
PROOFS = [
    (14, True),  # it loads the group
    (15, False),  # it shuts down: the next one may have been at work for long
    (16, False),
    (REFUSED, True),
    (err.error_for_code(15), True),  # of the look-up: the brokers name none
    (err.error_for_code(16), False),
    (err.NoBrokersAvailableError("no route"), False),
    (err.SocketDisconnectedError("gone"), False),
]

LOST = err.SocketDisconnectedError("connection gone")
NOT_COORDINATOR = str(err.error_for_code(16))
NONE = "[-1 '' None]"
ONE = "[1 'me' range]"


def test_a_follower_on_its_way_into_the_group() -> None:
    member = Classic()
    assert member.poll() == [f"Transition UNJOINED REVOKING 'first join' {NONE}", f"PrepareJoin 'first join' {NONE}"]
    assert member.poll() == []
    assert member.prepare() == [f"Transition REVOKING PREPARING_REBALANCE 'owner is ready' {NONE}"]
    assert member.join() == [f"Transition PREPARING_REBALANCE COMPLETING_REBALANCE 'joined as follower' {ONE}"]
    assert (member.machine.leader_id, member.machine.is_leader) == ("other", False)
    assert member.sync() == [
        f"Transition COMPLETING_REBALANCE ASSIGNING 'assignment received' {ONE}",
        f"Assigned {ONE} b'share' False False None",
    ]
    assert told(member.machine.reconciled()) == [f"Transition ASSIGNING STABLE 'assignment taken over' {ONE}"]
    assert member.poll() == []


@pytest.mark.parametrize(("skips", "expected"), [({}, False), ({"skip_assignment": True}, True)])
def test_a_leader_gets_the_members_and_shares_out(skips: dict[str, bool], expected: bool) -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    listed = [
        {"member_id": "me", "metadata": b"m1"},
        {"member_id": "it", "group_instance_id": "till", "metadata": b"m2"},
    ]
    members = [ev.GroupMemberInfo("me", None, b"m1"), ev.GroupMemberInfo("it", "till", b"m2")]
    assert member.join(leader="me", members=listed, **skips) == [
        f"Transition PREPARING_REBALANCE COMPLETING_REBALANCE 'joined as leader' {ONE}",
        f"Elected 'range' {members} {expected}",
    ]
    member.machine.provide_assignments({"me": b"all"})
    member.machine.provide_assignments({"me": b"too late"})
    assert member.sync()[-1] == f"Assigned {ONE} b'share' True False None"


def test_what_a_leader_computed_for_one_round_is_not_sent_in_the_next() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    member.join(leader="me")
    member.machine.provide_assignments({"me": b"old"})
    assert member.answer(member.request(), 27) == [
        f"Transition COMPLETING_REBALANCE PREPARING_REBALANCE 'the group rebalances again' {ONE}"
    ]
    member.machine.provide_assignments({"me": b"nobody asked"})
    member.join(2, leader="me")
    assert member.machine.next_request(member.now) is None
    member.machine.provide_assignments({"me": b"new"})
    assert member.request().body["assignments"] == [{"member_id": "me", "assignment": b"new"}]


# -- requests ---------------------------------------------------------------------------------------------


def test_each_request_as_it_is_sent() -> None:
    member = Classic(group_instance_id="till", rebalance_timeout_ms=60000)
    identity = {"group_id": "g", "member_id": "", "group_instance_id": "till"}
    member.reach(S.PREPARING_REBALANCE)
    join = member.request()
    assert (join.api.name, join.timeout, join.generation) == ("JoinGroup", 10.0, NO_GENERATION)
    assert join.body == {
        **identity,
        "session_timeout_ms": 10000,
        "rebalance_timeout_ms": 60000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"meta"}],
        "reason": "first join",
    }
    fields = {"generation_id": 4, "protocol_name": "range", "leader": "me", "member_id": "me", "members": []}
    member.answer(join, **fields)
    member.machine.provide_assignments({"me": b"1", "it": b"2"})
    identity["member_id"] = "me"
    sync = member.request()
    assert (sync.api.name, sync.timeout, sync.generation) == ("SyncGroup", 10.0, Generation(4, "me", "range"))
    assert sync.body == {
        **identity,
        "generation_id": 4,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": "me", "assignment": b"1"}, {"member_id": "it", "assignment": b"2"}],
    }
    beat = member.beat()
    assert (beat.api.name, beat.timeout, beat.generation) == ("Heartbeat", 10.0, Generation(4, "me", "range"))
    assert beat.body == {**identity, "generation_id": 4}


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(30000, 2.0), (1500, 1.5)])
def test_a_leave_is_short(timeout_ms: int, seconds: float) -> None:
    member = Classic.at(S.STABLE, request_timeout_ms=timeout_ms)
    assert told(member.machine.leave("r" * 300)) == [f"Transition STABLE LEAVING {'r' * 300!r} {ONE}"]
    leave = member.request()
    assert (leave.api.name, leave.timeout) == ("LeaveGroup", seconds)
    assert leave.body == {
        "group_id": "g",
        "member_id": "me",
        "members": [{"member_id": "me", "group_instance_id": None, "reason": "r" * 255}],
    }
    assert member.answer(leave) == [f"Transition LEAVING LEFT {'r' * 300!r} {ONE}"]
    assert member.machine.generation == NO_GENERATION


def test_a_join_names_its_reason_in_short() -> None:
    member = Classic.at(S.STABLE)
    member.machine.request_rejoin("x" * 300)
    member.machine.request_rejoin("a second reason")
    member.reach(S.PREPARING_REBALANCE)
    assert member.request().body["reason"] == "x" * 255


def test_a_second_join_after_an_id_was_given_has_a_reason_too() -> None:
    member = Classic.at(S.PREPARING_REBALANCE)
    assert member.answer(member.request(), 79, member_id="me-1") == []
    assert member.machine.generation == Generation(-1, "me-1")
    assert not member.machine.generation.joined
    assert (member.request().body["reason"], member.machine.rejoin_reason) == ("rejoin", None)


@pytest.mark.parametrize(("instance", "sent"), [(None, True), ("till", False)])
def test_a_farewell_is_a_leave_of_dynamic_members(instance: str | None, sent: bool) -> None:
    member = Classic(group_instance_id=instance)
    assert member.machine.leave_request("too slow") is None  # it has no id yet
    member.reach(S.STABLE)
    leave = member.machine.leave_request("too slow")
    assert (leave is not None) is sent
    if leave is not None:
        assert leave.body["members"] == [{"member_id": "me", "group_instance_id": None, "reason": "too slow"}]


@pytest.mark.parametrize(
    ("request_ms", "rebalance_ms", "seconds"), [(30000, 300000, 305.0), (30000, 10000, 35.0), (1, 2, 5.002)]
)
def test_how_long_a_group_may_let_a_member_wait(request_ms: int, rebalance_ms: int, seconds: float) -> None:
    config = Classic(request_timeout_ms=request_ms, rebalance_timeout_ms=rebalance_ms).machine.config
    assert requests.longest_join(config) == seconds


@pytest.mark.parametrize(
    ("api", "begin", "end"),
    [
        ("JoinGroup", "the coordinator waits until the group's other members", "takes its own place at once"),
        ("SyncGroup", "the coordinator waits until the group's leader has", "assigned the partitions"),
        ("LeaveGroup", "the coordinator is", "silent"),
    ],
)
def test_what_a_member_waits_for(api: str, begin: str, end: str) -> None:
    text = requests.waiting_text(api, 45.0)
    assert text.startswith(f"{api} has had no answer for some seconds: {begin} ")
    assert text.endswith(f" {end}")


# -- time -------------------------------------------------------------------------------------------------


def test_the_driver_is_woken_for_the_heartbeat_or_the_end_of_the_session() -> None:
    member = Classic()
    assert member.machine.next_deadline(member.now) is None
    member.reach(S.STABLE)
    assert member.machine.next_deadline(member.now) == 100.0  # the first heartbeat is due at once
    beat = member.beat()
    assert member.machine.next_heartbeat(member.now + 9) is None  # one at a time
    assert member.machine.next_deadline(member.now) == 110.0
    member.wait(1.0)
    member.answer(beat)
    assert member.machine.next_deadline(member.now) == 101.0  # soon after a join a heartbeat comes early
    member.answer(member.beat())
    assert member.machine.next_deadline(member.now) == pytest.approx(101.2)
    member.wait(1.0)
    assert member.machine.next_deadline(member.now) == 104.0


def test_the_driver_is_woken_when_a_join_may_be_tried_again() -> None:
    member = Classic.at(S.PREPARING_REBALANCE, retry_backoff_ms=200, retry_backoff_max_ms=300)
    assert member.machine.next_deadline(member.now) == 100.0
    join = member.request()
    assert member.machine.next_deadline(member.now) is None
    error = "GroupLoadInProgress: " + str(err.error_for_code(14))
    assert member.answer(join, 14) == [f"Retrying {error} 0.2 1"]
    assert str(member.machine.last_error) == str(err.error_for_code(14))
    assert member.machine.next_deadline(member.now) == 100.2
    assert member.machine.next_request(member.now) is None
    member.wait(0.25)
    assert member.machine.next_deadline(member.now) == 100.25
    assert member.answer(member.request(), 14) == [f"Retrying {error} 0.3 2"]  # not beyond the longest pause
    member.wait(0.3)
    member.join()
    assert member.machine.failures == 0


def test_a_heartbeat_waits_no_longer_than_the_session_lasts() -> None:
    member = Classic.at(S.STABLE, heartbeat_interval_ms=9000)
    member.answer(member.beat())
    member.wait(9.5)
    assert member.beat().timeout == 0.5


def test_a_session_that_ran_out_is_told_with_its_length_and_the_id_is_kept() -> None:
    member = Classic.at(S.STABLE)
    member.answer(member.beat())
    member.wait(10.0)
    assert told(member.machine.check_session(member.now)) == []
    member.wait(0.1)
    error = str(err.SessionExpiredError("g", 10000))
    assert told(member.machine.check_session(member.now)) == [
        f"CoordinatorLost {error!r}",
        f"Transition STABLE LOSING {'session timed out: ' + error!r} {ONE}",
        f"MembershipLost 'session timed out' SessionExpiredError: {error} {ONE}",
    ]
    assert str(member.machine.last_error) == error
    assert member.machine.rejoin_reason == "rejoin after: session timed out"
    assert told(member.machine.forgotten()) == ["Transition LOSING UNJOINED 'partitions dropped' [-1 'me' None]"]
    assert told(member.machine.check_session(member.now)) == []


def _stable(made: type[Classic | Modern]) -> Classic | Modern:
    """A member with a session of 10 s that begins now."""
    member = made(session_timeout_ms=10000)
    if isinstance(member, Classic):
        member.reach(S.STABLE)
        member.answer(member.beat())
    else:
        member.to_stable([0])
    return member


@pytest.mark.parametrize(("proof", "longer"), PROOFS)
@pytest.mark.parametrize("made", [Classic, Modern])
def test_while_a_group_has_no_coordinator_no_session_runs_out(
    made: type[Classic | Modern], proof: int | BaseException, longer: bool
) -> None:
    """From when the heartbeat was sent that found it so. All else may be told after the next one has begun it."""
    member = _stable(made)
    sent = member.now
    member.wait(6.0)
    found_at, beat = member.now, member.beat()
    member.wait(1.0)
    if isinstance(proof, int):
        member.answer(beat, error_code=proof)
    else:
        member.fail(beat, proof)
    assert member.machine.session_end() == (found_at if longer else sent) + 10.0


@pytest.mark.parametrize("made", [Classic, Modern])
def test_no_heartbeat_revives_a_session_that_is_over(made: type[Classic | Modern]) -> None:
    """The process stood still between the look at the session and the heartbeat. A loading coordinator answers any."""
    member = _stable(made)
    member.wait(10.1)
    assert member.machine.next_heartbeat(member.now) is None
    assert len(told(member.machine.check_session(member.now))) == 3


def test_only_a_heartbeat_finds_that_a_group_has_no_coordinator() -> None:
    """A sync may have been sent long before; a heartbeat beside it finds the same, and its moment is known."""
    member = Classic.at(S.COMPLETING_REBALANCE)
    ends = member.machine.session_end()
    sync = member.request()
    member.answer(member.beat())
    member.wait(5.0)
    member.fail(sync, REFUSED)
    assert member.machine.heartbeat.session_deadline() == ends


# -- heartbeats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.COMPLETING_REBALANCE, S.ASSIGNING, S.STABLE, S.REVOKING])
def test_a_rebalance_that_a_heartbeat_tells_of_is_wanted_where_it_is_news(state: S) -> None:
    member = Classic()
    member.reach(S.STABLE if state is S.REVOKING else state)
    if state is S.REVOKING:
        member.machine.request_rejoin("test")
        member.poll()
        member.machine.rejoin_reason = None
    assert member.answer(member.beat(), 27) == []
    assert member.machine.rejoin_reason == ("the group rebalances" if state in (S.ASSIGNING, S.STABLE) else None)
    assert member.machine.heartbeat.received == 1


@pytest.mark.parametrize(("code", "looked_up"), [(14, False), (15, True), (16, True), (7, False)])
def test_a_heartbeat_that_is_refused_for_now_is_repeated(code: int, looked_up: bool) -> None:
    member = Classic.at(S.STABLE)
    member.wait(5.0)
    events = member.answer(member.beat(), code)
    assert events == ([f"CoordinatorLost {str(err.error_for_code(code))!r}"] if looked_up else [])
    assert (member.machine.next_heartbeat(member.now) is not None) is looked_up
    assert member.machine.heartbeat.received == 0


@pytest.mark.parametrize("by", ["heartbeat", "commit"])
@pytest.mark.parametrize(("code", "kept"), [(22, "me"), (25, "")])
def test_an_expelled_member_says_so(by: str, code: int, kept: str) -> None:
    member = Classic.at(S.STABLE)
    error = err.error_for_code(code)
    if by == "heartbeat":
        events = member.answer(member.beat(), code)
    else:
        events = told(member.machine.fence(error, Generation(1, "me", "range")))
    assert events == [
        f"Transition STABLE LOSING {f'expelled by the coordinator: {error}'!r} {ONE}",
        f"MembershipLost 'expelled by the coordinator' {type(error).__name__}: {error} {ONE}",
    ]
    assert member.machine.rejoin_reason == "rejoin after: expelled by the coordinator"
    assert member.machine.generation == Generation(-1, kept)
    assert (member.machine.leader_id, member.machine.is_leader) == ("", False)


@pytest.mark.parametrize("by", ["heartbeat", "commit"])
def test_a_fenced_member_loses_what_it_has_and_ends(by: str) -> None:
    member = Classic.at(S.STABLE, group_instance_id="till")
    if by == "heartbeat":
        events = member.answer(member.beat(), 82)
    else:
        events = told(member.machine.fence(err.FencedInstanceId(), Generation(1, "me", "range")))
    assert [line.split("group 'g'")[0] for line in events] == [
        'Transition STABLE LOSING "membership ended: ',
        "MembershipLost 'membership ended' FencedInstanceId: ",
    ]
    assert "another member has taken over group_instance_id='till'" in events[1]
    assert member.machine.rejoin_reason is None
    text = str(member.machine.last_error)
    assert told(member.machine.forgotten()) == [
        f"Transition LOSING FAILED {text!r} [-1 '' None]",
        f"MembershipFailed FencedInstanceId: {text}",
    ]
    assert (str(member.machine.error), member.machine.rejoin_reason) == (text, None)


def test_a_commit_s_bad_news_counts_only_for_a_member_of_that_generation() -> None:
    member = Classic.at(S.STABLE)
    assert told(member.machine.fence(err.UnknownMemberId(), Generation(2, "me", "range"))) == []
    member.machine.leave("bye")
    assert told(member.machine.fence(err.UnknownMemberId(), Generation(1, "me", "range"))) == []
    assert member.machine.state is S.LEAVING


def test_an_error_without_a_code_of_kafka_s_counts_as_unknown_member() -> None:
    member = Classic.at(S.STABLE)
    events = told(member.machine.fence(ValueError("no such thing"), Generation(1, "me", "range")))
    assert events[-1] == f"MembershipLost 'expelled by the coordinator' ValueError: no such thing {ONE}"
    assert member.machine.member_id == ""
