"""The membership machine, driven by hand: what it sends, how every answer moves it, what it asks its owner to do."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.states import TRANSITIONS, MemberState, check_transition
from managedconsumer.structs import Generation

S = MemberState


class Rig:
    """A machine with a clock in the hand of the test."""

    def __init__(self, **config: Any) -> None:
        self.now = 100.0
        settings = {"group_id": "g", "session_timeout_ms": 10000, "heartbeat_interval_ms": 3000, **config}
        self.machine = Membership(
            MembershipConfig(**settings), lambda: [("range", b"meta")], lambda: 0.5, clock=lambda: self.now
        )
        self.log: list[ev.Event] = []

    def take(self, events: list[ev.Event]) -> list[ev.Event]:
        self.log += events
        return [event for event in events if not isinstance(event, ev.Transition)]

    def poll(self) -> list[ev.Event]:
        return self.take(self.machine.poll())

    def request(self) -> ev.Request:
        request = self.machine.next_request(self.now)
        assert request is not None
        return request

    def answer(self, request: ev.Request, **fields: Any) -> list[ev.Event]:
        return self.take(self.machine.receive(request, {"error_code": 0, **fields}, self.now))

    def join(self, generation: int = 1, leader: str = "other", member: str = "me", **more: Any) -> list[ev.Event]:
        fields = {
            "generation_id": generation,
            "protocol_name": "range",
            "leader": leader,
            "member_id": member,
            "members": [],
            **more,
        }
        return self.answer(self.request(), **fields)

    def to_joining(self, holding: bool = False) -> None:
        assert [type(e) for e in self.poll()] == [ev.PrepareJoin]
        self.take(self.machine.prepared(holding))
        assert self.machine.state is S.PREPARING_REBALANCE

    def to_stable(self, generation: int = 1) -> ev.Assigned:
        self.to_joining()
        self.join(generation)
        (assigned,) = self.answer(self.request(), assignment=b"share")
        assert isinstance(assigned, ev.Assigned)
        self.take(self.machine.reconciled())
        assert self.machine.state is S.STABLE
        return assigned

    def beat(self, code: int = 0) -> list[ev.Event]:
        self.now += 3.0
        request = self.machine.next_heartbeat(self.now)
        assert request is not None
        return self.answer(request, error_code=code)

    def states(self) -> list[S]:
        return [event.new for event in self.log if isinstance(event, ev.Transition)]


def test_the_way_into_the_group_as_a_follower() -> None:
    rig = Rig()
    assigned = rig.to_stable(generation=7)
    assert rig.states() == [S.REVOKING, S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.ASSIGNING, S.STABLE]
    assert assigned.assignment == b"share"
    assert assigned.generation == Generation(7, "me", "range")
    assert not assigned.is_leader
    assert not assigned.continuous  # there was no generation before
    assert not rig.machine.need_rejoin()


def test_a_join_says_who_we_are_and_waits_no_longer_than_the_session() -> None:
    rig = Rig(rebalance_timeout_ms=60000, group_instance_id="static-1")
    rig.to_joining()
    request = rig.request()
    assert request.api.name == "JoinGroup"
    assert request.body["protocols"] == [{"name": "range", "metadata": b"meta"}]
    assert request.body["session_timeout_ms"] == 10000
    assert request.body["rebalance_timeout_ms"] == 60000
    assert request.body["group_instance_id"] == "static-1"
    assert request.body["reason"] == "first join"
    assert request.timeout == 10.0
    assert rig.machine.next_request(rig.now) is None  # one at a time


def _time_out(rig: Rig, request: ev.Request) -> list[ev.Event]:
    rig.now += request.timeout
    return rig.take(rig.machine.failed(request, err.RequestTimedOut("silence"), rig.now))


def test_a_join_without_an_answer_is_repeated_as_long_as_the_group_may_take() -> None:
    """A slow group and a dead connection look the same; a member that waits for the others has not failed."""
    rig = Rig(rebalance_timeout_ms=60000, request_timeout_ms=30000, session_timeout_ms=45000)
    rig.to_joining()
    rig.answer(rig.request(), error_code=79, member_id="me-1")
    for _ in range(2):
        request = rig.request()
        assert request.timeout == 30.0
        assert request.body["member_id"] == "me-1"
        assert [type(event) for event in _time_out(rig, request)] == [ev.CoordinatorLost]
        assert rig.machine.failures == 0
    events = _time_out(rig, rig.request())  # 90 s: longer than the group may take
    assert [type(event) for event in events] == [ev.CoordinatorLost, ev.Retrying]


def test_a_coordinator_that_cannot_be_connected_to_is_a_failure_however_soon() -> None:
    rig = Rig()
    rig.to_joining()
    request = rig.request()
    rig.now += 0.5
    events = rig.take(rig.machine.failed(request, err.RequestTimedOut("no ApiVersions"), rig.now))
    assert [type(event) for event in events] == [ev.CoordinatorLost, ev.Retrying]


@pytest.mark.parametrize("leads", [False, True])
def test_a_sync_without_an_answer_is_repeated_as_long_as_the_group_may_take(leads: bool) -> None:
    """The leader may be slow, and the connection may be dead. Another join would make the whole group rebalance."""
    rig = Rig(rebalance_timeout_ms=25000, request_timeout_ms=30000, session_timeout_ms=10000)
    rig.to_joining()
    _time_out(rig, rig.request())  # the joins have a time of their own
    rig.join(leader="me" if leads else "other")
    shares = {"me": b"all"} if leads else {}
    rig.machine.provide_assignments(shares)
    for _ in range(3):
        request = rig.request()
        assert (request.api.name, request.timeout, len(request.body["assignments"])) == ("SyncGroup", 10.0, leads)
        assert [type(event) for event in _time_out(rig, request)] == [ev.CoordinatorLost]
        assert (rig.machine.state, rig.machine.failures) == (S.COMPLETING_REBALANCE, 0)
    events = _time_out(rig, rig.request())  # 40 s: longer than the group may take
    assert [type(event) for event in events] == [ev.CoordinatorLost, ev.Retrying]
    assert rig.machine.state is S.PREPARING_REBALANCE


@pytest.mark.parametrize("holding", [False, True])
@pytest.mark.parametrize("by", ["heartbeat", "commit"])
def test_a_member_that_is_unknown_does_not_wait_for_its_join(by: str, holding: bool) -> None:
    rig = Rig()
    rig.to_stable()
    rig.now += 3.0
    beat = rig.machine.next_heartbeat(rig.now)
    assert beat is not None
    rig.machine.request_rejoin("the group rebalances")
    rig.to_joining(holding)
    join = rig.request()
    if by == "heartbeat":
        events = rig.answer(beat, error_code=25)
    else:
        events = rig.take(rig.machine.fence(err.UnknownMemberId(), rig.machine.generation))
    kinds = [type(event) for event in events]
    assert kinds == ([ev.CoordinatorLost, ev.MembershipLost] if holding else [ev.CoordinatorLost])
    assert rig.answer(join, member_id="me", generation_id=2) == []  # too late: it changes nothing
    if holding:
        rig.take(rig.machine.forgotten())
        rig.to_joining()
    assert rig.request().body["member_id"] == ""


def test_an_outdated_generation_is_no_reason_to_give_a_join_up() -> None:
    """The group may have gone on to the generation that the join is about to tell us of."""
    rig = Rig()
    rig.to_stable()
    rig.now += 3.0
    beat = rig.machine.next_heartbeat(rig.now)
    assert beat is not None
    rig.machine.request_rejoin("the group rebalances")
    rig.to_joining(holding=True)
    join = rig.request()
    assert rig.answer(beat, error_code=22) == []
    rig.answer(join, member_id="me", generation_id=2, protocol_name="range", leader="other", members=[])
    assert rig.machine.generation.id == 2


def test_member_id_required_is_answered_at_once_with_the_given_id() -> None:
    rig = Rig()
    rig.to_joining()
    assert rig.answer(rig.request(), error_code=79, member_id="me-1") == []
    assert rig.request().body["member_id"] == "me-1"
    assert rig.machine.failures == 0


def test_the_leader_computes_before_it_syncs() -> None:
    rig = Rig()
    rig.to_joining()
    members = [{"member_id": "me", "group_instance_id": None, "metadata": b"m"}]
    (elected,) = rig.join(leader="me", members=members)
    assert isinstance(elected, ev.Elected)
    assert elected.members == [ev.GroupMemberInfo("me", None, b"m")]
    assert rig.machine.next_request(rig.now) is None
    rig.machine.provide_assignments({"me": b"all"})
    request = rig.request()
    assert request.body["assignments"] == [{"member_id": "me", "assignment": b"all"}]
    assert request.body["generation_id"] == 1


@pytest.mark.parametrize("code", [14, 15, 16, 27, 7, 9999])
def test_passing_errors_of_a_join_are_retried_with_back_off(code: int) -> None:
    rig = Rig()
    rig.to_joining()
    events = rig.answer(rig.request(), error_code=code)
    retry = events[-1]
    assert isinstance(retry, ev.Retrying)
    assert isinstance(events[0], ev.CoordinatorLost) == (code in (15, 16))
    assert rig.machine.next_request(rig.now) is None
    rig.now += retry.delay
    assert rig.request().api.name == "JoinGroup"


@pytest.mark.parametrize("code", [23, 24, 26, 30, 35, 81, 82])
def test_errors_that_nothing_heals_end_the_membership(code: int) -> None:
    rig = Rig()
    rig.to_joining()
    (failed,) = rig.answer(rig.request(), error_code=code)
    assert isinstance(failed, ev.MembershipFailed)
    assert code == failed.error.ERROR_CODE  # type: ignore[attr-defined]
    assert rig.machine.state is S.FAILED
    assert rig.machine.next_request(rig.now) is None
    assert rig.machine.next_heartbeat(rig.now + 60) is None


def test_unknown_member_while_joining_starts_over_as_a_new_member() -> None:
    rig = Rig()
    rig.to_stable()
    rig.beat(27)
    rig.to_joining()
    events = rig.answer(rig.request(), error_code=25)
    assert not any(isinstance(e, ev.MembershipLost) for e in events)  # an eager member has nothing to lose here
    rig.now += 10
    assert rig.request().body["member_id"] == ""


def test_unknown_member_while_joining_with_partitions_in_flight_loses_them_first() -> None:
    rig = Rig()
    rig.to_stable()
    rig.beat(27)
    rig.to_joining(holding=True)
    (lost,) = rig.answer(rig.request(), error_code=25)
    assert isinstance(lost, ev.MembershipLost)
    assert rig.machine.state is S.LOSING
    rig.take(rig.machine.forgotten())
    assert rig.machine.state is S.UNJOINED
    assert rig.machine.need_rejoin()


@pytest.mark.parametrize("code", [22, 25])
def test_a_heartbeat_that_expels_us_loses_the_partitions_and_rejoins(code: int) -> None:
    rig = Rig()
    rig.to_stable()
    (lost,) = rig.beat(code)
    assert isinstance(lost, ev.MembershipLost)
    assert lost.generation.id == 1
    assert rig.machine.generation.id == -1
    rig.take(rig.machine.forgotten())
    rig.to_joining()
    assert rig.request().body["member_id"] == ("me" if code == 22 else "")


def test_a_fenced_static_member_loses_its_partitions_and_ends() -> None:
    rig = Rig(group_instance_id="s")
    rig.to_stable()
    (lost,) = rig.beat(82)
    assert isinstance(lost, ev.MembershipLost)
    (failed,) = rig.take(rig.machine.forgotten())
    assert isinstance(failed, ev.MembershipFailed)
    assert isinstance(failed.error, err.FencedInstanceId)


def test_heartbeats_are_due_by_interval_and_go_on_while_the_owner_works() -> None:
    rig = Rig()
    rig.to_joining()
    assert rig.machine.next_heartbeat(rig.now) is None  # the join itself keeps our place
    rig.join()
    assert rig.beat() == []  # completing
    rig.answer(rig.request(), assignment=b"")
    assert rig.machine.state is S.ASSIGNING
    assert rig.beat() == []  # while the assigned-callback runs
    rig.take(rig.machine.reconciled())
    assert rig.machine.next_heartbeat(rig.now + 2.9) is None
    rig.beat(27)
    rig.poll()
    assert rig.machine.state is S.REVOKING
    assert rig.beat(27) == []  # while the revoked-callback runs


def test_a_rebalance_noticed_while_taking_over_is_not_forgotten() -> None:
    rig = Rig()
    rig.to_joining()
    rig.join()
    rig.answer(rig.request(), assignment=b"")
    rig.beat(27)
    rig.take(rig.machine.reconciled())
    assert rig.machine.state is S.STABLE
    assert rig.machine.need_rejoin()


def test_a_silent_coordinator_ends_the_session_after_its_timeout() -> None:
    rig = Rig()
    rig.to_stable()
    rig.now += 9.9
    assert rig.take(rig.machine.check_session(rig.now)) == []
    rig.now += 0.2
    (unknown, lost) = rig.take(rig.machine.check_session(rig.now))
    assert isinstance(unknown, ev.CoordinatorLost)  # its connections are not used again
    assert isinstance(lost, ev.MembershipLost)
    assert isinstance(lost.error, err.SessionExpiredError)


def test_a_broken_heartbeat_connection_is_not_an_eviction() -> None:
    rig = Rig()
    rig.to_stable()
    rig.now += 3
    request = rig.machine.next_heartbeat(rig.now)
    assert request is not None
    events = rig.take(rig.machine.failed(request, err.SocketDisconnectedError("gone"), rig.now))
    assert [type(e) for e in events] == [ev.CoordinatorLost]
    assert rig.machine.state is S.STABLE
    assert rig.machine.next_heartbeat(rig.now) is not None  # again, as soon as the coordinator is found


def test_answers_of_another_generation_change_nothing() -> None:
    rig = Rig()
    rig.to_stable(generation=1)
    rig.now += 3
    old = rig.machine.next_heartbeat(rig.now)
    assert old is not None
    rig.machine.request_rejoin("test")
    rig.to_joining()
    rig.join(generation=2)
    before = rig.machine.state
    assert rig.answer(old, error_code=25) == []
    assert rig.machine.state is before
    assert rig.take(rig.machine.fence(err.error_for_code(25), Generation(1, "me", "range"))) == []


def test_a_sync_that_is_refused_for_a_rebalance_joins_again_at_once() -> None:
    rig = Rig()
    rig.to_joining()
    rig.join()
    assert rig.answer(rig.request(), error_code=27) == []
    request = rig.request()
    assert request.api.name == "JoinGroup"
    assert request.body["member_id"] == "me"


def test_a_sync_that_is_not_answered_joins_again_after_a_pause() -> None:
    rig = Rig()
    rig.to_joining()
    rig.join()
    events = rig.take(rig.machine.failed(rig.request(), err.RequestTimedOut("late"), rig.now))
    assert isinstance(events[0], ev.CoordinatorLost)
    assert isinstance(events[1], ev.Retrying)
    rig.now += events[1].delay
    assert rig.request().api.name == "JoinGroup"


def test_the_next_generation_of_the_same_member_is_continuous_and_a_gap_is_not() -> None:
    rig = Rig()
    rig.to_stable(generation=4)
    rig.beat(27)
    assert rig.to_stable(generation=5).continuous
    rig.beat(27)
    assert not rig.to_stable(generation=7).continuous


@pytest.mark.parametrize(("instance", "leaves"), [(None, True), ("static", False)])
def test_leaving(instance: str | None, leaves: bool) -> None:
    rig = Rig(group_instance_id=instance)
    rig.to_stable()
    rig.take(rig.machine.leave("shutting down"))
    request = rig.machine.next_request(rig.now)
    assert (request is not None) is leaves
    if request is not None:
        assert request.body["members"][0] == {
            "member_id": "me",
            "group_instance_id": None,
            "reason": "shutting down",
        }
        rig.answer(request)
    assert rig.machine.state is S.LEFT


def test_leaving_while_joining_makes_the_join_s_answer_worthless() -> None:
    rig = Rig()
    rig.to_joining()
    rig.answer(rig.request(), error_code=79, member_id="pending")
    join = rig.request()
    rig.take(rig.machine.leave("stop"))
    leave = rig.request()
    assert leave.api.name == "LeaveGroup"
    assert leave.body["member_id"] == "pending"
    assert rig.answer(join, generation_id=3, protocol_name="range", leader="x", member_id="pending", members=[]) == []
    assert rig.machine.state is S.LEAVING


def test_a_refused_login_ends_it_and_a_lost_connection_does_not() -> None:
    rig = Rig()
    rig.to_joining()
    rig.take(rig.machine.failed(rig.request(), err.SocketDisconnectedError("x"), rig.now))
    assert rig.machine.state is S.PREPARING_REBALANCE
    rig.now += 10
    (failed,) = rig.take(rig.machine.failed(rig.request(), err.SaslAuthenticationError("no"), rig.now))
    assert isinstance(failed, ev.MembershipFailed)


def test_every_illegal_move_raises() -> None:
    for old in S:
        for new in S:
            if new in TRANSITIONS[old]:
                check_transition(old, new)
            else:
                with pytest.raises(err.IllegalStateError, match=f"{old.name} to {new.name}"):
                    check_transition(old, new)


def test_time_alone_wakes_the_driver_when_something_is_due() -> None:
    rig = Rig()
    assert rig.machine.next_deadline(rig.now) is None
    rig.to_stable()
    rig.beat()
    assert rig.machine.next_deadline(rig.now) == rig.now + 3.0


def test_who_has_not_joined_yet_sends_no_heartbeat() -> None:
    """It would be answered with UNKNOWN_MEMBER_ID while the join waits, which would be given up for another one."""
    rig = Rig()
    assert [type(event) for event in rig.poll()] == [ev.PrepareJoin]
    assert rig.machine.state is S.REVOKING
    assert rig.machine.next_heartbeat(rig.now) is None
    assert rig.machine.next_deadline(rig.now) is None
    rig.take(rig.machine.prepared(False))
    rig.join()
    rig.answer(rig.request(), assignment=b"share")
    assert rig.machine.next_heartbeat(rig.now) is not None
