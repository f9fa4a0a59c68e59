"""What a KIP-848 member sends and tells its driver: bodies, moments, and every event with its text."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.structs import NO_GENERATION, Generation
from tests.coordinator.kit import TOPIC, Modern, S, told

GONE = err.SocketDisconnectedError("connection gone")
LOOK_UP = f"CoordinatorLost {str(GONE)!r}"
JOINING = "[-1 'id1' None]"
ONE = "[1 'id1' None]"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _assigned(generation: str, *numbers: int) -> str:
    return f"Assigned {generation} b'' False True {((TOPIC, numbers),) if numbers else ()}"


def _parts(*numbers: int) -> list[dict[str, Any]]:
    return [{"topic_id": TOPIC, "partitions": list(numbers)}] if numbers else []


def test_the_way_into_the_group() -> None:
    member = Modern()
    assert (member.machine.is_leader, member.machine.need_rejoin()) == (False, True)
    assert told(member.machine.poll()) == [
        "Transition UNJOINED REVOKING 'first join' [-1 '' None]",
        "PrepareJoin 'first join' [-1 '' None]",
    ]
    assert told(member.machine.poll()) == []
    assert told(member.machine.prepared(False)) == [
        f"Transition REVOKING PREPARING_REBALANCE 'owner is ready' {JOINING}"
    ]
    assert member.answer(member.beat(), 1, [1, 0]) == [
        f"Transition PREPARING_REBALANCE COMPLETING_REBALANCE 'joined' {ONE}",
        f"Transition COMPLETING_REBALANCE ASSIGNING 'first assignment' {ONE}",
        _assigned(ONE, 0, 1),
    ]
    assert told(member.machine.reconciled()) == [f"Transition ASSIGNING STABLE 'assignment taken over' {ONE}"]
    assert (member.machine.rejoin_reason, member.machine.need_rejoin()) == (None, False)
    assert told(member.machine.poll()) == []


def test_an_owner_that_holds_partitions_is_noted() -> None:
    member = Modern()
    member.machine.poll()
    assert told(member.machine.prepared(True)) == [
        f"Transition REVOKING PREPARING_REBALANCE 'owner holds partitions' {JOINING}"
    ]
    assert not member.machine.generation.joined


def test_a_join_without_an_assignment_owns_nothing() -> None:
    member = Modern.joining()
    assert member.answer(member.beat(), 1)[-1] == _assigned(ONE)


def test_the_broker_may_give_another_id() -> None:
    member = Modern.joining()
    member.answer(member.beat(), 1, [0], member_id="theirs")
    assert member.machine.generation == Generation(1, "theirs")


def test_a_second_join_of_the_same_membership_is_told_as_such() -> None:
    member = Modern.joining()
    member.machine.generation = Generation(0, "id1")  # epoch 0: the broker has taken it in
    assert member.answer(member.beat(), 3, [0])[0] == (
        "Transition PREPARING_REBALANCE COMPLETING_REBALANCE 'joined again' [3 'id1' None]"
    )


def test_a_new_assignment_is_carried_out_when_it_differs() -> None:
    member = Modern.stable(0, due=True)
    assert member.answer(member.beat(), 2, [0]) == []
    member.wait(5.0)
    assert member.answer(member.beat(), 3, [0, 1]) == [
        "Transition STABLE ASSIGNING 'new assignment' [3 'id1' None]",
        _assigned("[3 'id1' None]", 0, 1),
    ]


def test_what_could_not_be_carried_out_is_gone_through_again() -> None:
    member = Modern.joining()
    member.answer(member.beat(), 1, [0, 1])
    assert told(member.machine.reconciled("topic not known yet")) == [
        f"Transition ASSIGNING STABLE 'topic not known yet' {ONE}"
    ]
    assert told(member.machine.poll()) == [f"Transition STABLE ASSIGNING 'new assignment' {ONE}", _assigned(ONE, 0, 1)]
    member.machine.reconciled()
    assert told(member.machine.poll()) == []


# -- heartbeats -------------------------------------------------------------------------------------------

QUIET = {
    "rack_id": None,
    "rebalance_timeout_ms": -1,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}


def test_each_heartbeat_as_it_is_sent() -> None:
    member = Modern(group_instance_id="till", rack="r1", server_assignor="uniform", topic_regex="t.*")
    identity = {"group_id": "g", "member_id": "id1", "instance_id": "till"}
    member.begin()
    join = member.beat()
    assert (join.api.name, join.timeout, join.generation) == ("ConsumerGroupHeartbeat", 30.0, Generation(-1, "id1"))
    assert join.body == {
        **identity,
        "member_epoch": 0,
        "rack_id": "r1",
        "rebalance_timeout_ms": 300000,
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": "t.*",
        "server_assignor": "uniform",
        "topic_partitions": [],
    }
    member.answer(join, 1, [0])
    member.machine.reconciled()
    told_owned = member.beat()
    assert told_owned.body == {**identity, **QUIET, "member_epoch": 1, "topic_partitions": _parts(0)}
    member.answer(told_owned, 2)
    assert member.machine.next_heartbeat(member.now) is None
    member.wait(5.0)
    quiet = member.beat()
    assert quiet.body == {**identity, **QUIET, "member_epoch": 2}
    assert (quiet.generation, member.machine.next_heartbeat(member.now + 9)) == (Generation(2, "id1"), None)
    member.answer(quiet, 2)
    member.topics = ["u", "t"]
    named = member.beat().body
    assert named == {
        **identity, **QUIET, "member_epoch": 2, "subscribed_topic_names": ["t", "u"], "subscribed_topic_regex": "t.*",
    }  # fmt: skip


def test_after_a_lost_answer_everything_is_told_again() -> None:
    member = Modern.stable(0, due=True)
    assert member.fail(member.beat(), GONE) == [LOOK_UP, f"Retrying {_named(GONE)} 0.1 1"]
    assert member.machine.next_heartbeat(member.now) is None  # after the pause
    member.wait(0.1)
    body = member.beat().body
    assert (body["rebalance_timeout_ms"], body["subscribed_topic_names"]) == (300000, ["t"])
    assert (body["topic_partitions"], body["member_epoch"]) == (_parts(0), 1)
    assert (body["rack_id"], body["server_assignor"]) == (None, None)


@pytest.mark.parametrize(("request_ms", "session_ms", "seconds"), [(30000, 45000, 30.0), (30000, 6000, 6.0)])
def test_how_long_a_heartbeat_waits_for_its_answer(request_ms: int, session_ms: int, seconds: float) -> None:
    member = Modern.joining(request_timeout_ms=request_ms, session_timeout_ms=session_ms)
    join = member.beat()
    assert join.timeout == seconds
    member.answer(join, 1, [])
    member.machine.reconciled()
    member.wait(session_ms / 1000.0 - 2.0)
    assert member.beat().timeout == 2.0  # what is left of the session


@pytest.mark.parametrize(("session_ms", "seconds"), [(45000, 3.0), (5001, 2.5)])
def test_until_the_broker_says_how_often_it_beats_often_enough(session_ms: int, seconds: float) -> None:
    member = Modern(session_timeout_ms=session_ms)
    assert member.machine.heartbeat.interval == seconds
    member.begin()
    member.answer(member.beat(), 1, [], heartbeat_interval_ms=0)
    assert member.machine.heartbeat.interval == seconds
    member.machine.reconciled()
    member.wait(seconds)
    member.answer(member.beat(), 1, heartbeat_interval_ms=900)
    assert member.machine.heartbeat.interval == 0.9


def test_pauses_fit_into_a_session_several_times() -> None:
    member = Modern.joining(session_timeout_ms=800, retry_backoff_ms=150, retry_backoff_max_ms=9000)
    for expected in (0.15, 0.2, 0.2):
        assert member.fail(member.beat(), GONE)[-1].split()[-2] == str(expected)
        member.wait(1.0)


def test_the_driver_is_woken_when_something_is_due() -> None:
    member = Modern()
    assert member.machine.next_deadline(member.now) is None
    member.begin()
    assert member.machine.next_deadline(member.now) == 100.0
    join = member.beat()
    assert member.machine.next_deadline(member.now) is None  # while an answer is awaited
    member.fail(join, GONE)
    assert member.machine.next_deadline(member.now) == 100.1
    member.wait(1.0)
    assert member.machine.next_deadline(member.now) == 101.0
    member.answer(member.beat(), 1, [0])
    member.machine.reconciled()
    assert member.machine.next_deadline(member.now) == 101.0  # to confirm what it owns
    member.answer(member.beat(), 1)
    assert member.machine.next_deadline(member.now) == pytest.approx(101.2)
    member.wait(10.0)
    member.answer(member.beat(), 1)
    assert member.machine.next_deadline(member.now) == 116.0
    member.wait(5.0)
    member.fail(member.beat(), GONE)
    assert member.machine.next_deadline(member.now) == 116.1
    member.machine.leave("bye")
    assert member.machine.next_deadline(member.now) is None


# -- refusals and failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "looked_up"), [(14, False), (15, True), (16, True), (-1, False)])
def test_a_refusal_that_passes_is_tried_again(code: int, looked_up: bool) -> None:
    member = Modern.stable(0, due=True)
    error = err.error_for_code(code, "says the broker")
    lost = [f"CoordinatorLost {str(error)!r}"] if looked_up else []
    events = member.answer(member.beat(), error_code=code, error_message="says the broker")
    assert events == [*lost, f"Retrying {_named(error)} 0.1 1"]
    assert "says the broker" in events[-1]
    assert member.machine.next_deadline(member.now) == member.now + 0.1


@pytest.mark.parametrize("code", [25, 110])
def test_a_join_under_an_id_that_is_not_known_takes_another(code: int) -> None:
    member = Modern.joining()
    error = err.error_for_code(code, "who?")
    assert member.answer(member.beat(), error_code=code, error_message="who?") == [f"Retrying {_named(error)} 0.1 1"]
    assert member.machine.generation == Generation(-1, "id2")
    member.wait(0.1)
    assert member.beat().body["member_id"] == "id2"


@pytest.mark.parametrize(("by", "code"), [("heartbeat", 25), ("heartbeat", 110), ("commit", 25)])
def test_an_expelled_member_keeps_its_id_and_nothing_else(by: str, code: int) -> None:
    member = Modern.stable(0, due=True)
    error = err.error_for_code(code)
    if by == "heartbeat":
        events = member.answer(member.beat(), error_code=code)
    else:
        events = told(member.machine.fence(error, Generation(9, "id1")))  # the epoch may have gone on
    assert events == [
        f"Transition STABLE LOSING {f'expelled by the coordinator: {error}'!r} {ONE}",
        f"MembershipLost 'expelled by the coordinator' {_named(error)} {ONE}",
    ]
    assert member.machine.generation == Generation(-1, "id1")
    assert not member.machine.is_current(Generation(-1, "id1"))
    assert told(member.machine.forgotten()) == [f"Transition LOSING UNJOINED 'partitions dropped' {JOINING}"]
    assert member.begin()[0] == (f"Transition UNJOINED REVOKING 'rejoin after: expelled by the coordinator' {JOINING}")
    join = member.beat()
    assert (join.body["topic_partitions"], join.body["member_epoch"]) == ([], 0)
    assert member.answer(join, 2, [0])[-1] == _assigned("[2 'id1' None]", 0)
    member.machine.reconciled()
    assert told(member.machine.poll()) == []


@pytest.mark.parametrize(("state", "whose"), [("stable", "another's"), ("left", "its own")])
def test_a_commit_s_bad_news_counts_only_for_the_membership_it_is_about(state: str, whose: str) -> None:
    member = Modern.stable(0)
    if state == "left":
        member.machine.leave("bye")
    generation = Generation(1, "id1" if whose == "its own" else "id0")
    assert member.machine.is_current(generation) is (whose == "its own")
    assert told(member.machine.fence(err.UnknownMemberId(), generation)) == []


def test_a_refused_login_takes_the_partitions_and_ends_it() -> None:
    member = Modern.stable(0, due=True)
    error = err.SaslAuthenticationError("no")
    assert member.fail(member.beat(), error) == [
        f"Transition STABLE LOSING {f'membership ended: {error}'!r} {ONE}",
        f"MembershipLost 'membership ended' {_named(error)} {ONE}",
    ]
    assert told(member.machine.forgotten())[-1] == f"MembershipFailed {_named(error)}"


def test_a_refused_login_of_a_member_without_partitions_ends_it_at_once() -> None:
    member = Modern.joining()
    error = err.SaslAuthenticationError("no")
    assert member.fail(member.beat(), error) == [
        f"Transition PREPARING_REBALANCE FAILED {str(error)!r} {JOINING}",
        f"MembershipFailed {_named(error)}",
    ]
    assert member.machine.next_heartbeat(member.now + 60) is None


# -- the end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("till", -2)])
def test_the_last_heartbeat(instance: str | None, epoch: int) -> None:
    member = Modern.stable(0, group_instance_id=instance)
    assert member.machine.next_request(member.now) is None
    assert told(member.machine.leave("bye")) == [f"Transition STABLE LEAVING 'bye' {ONE}"]
    leave = member.machine.next_request(member.now)
    assert leave is not None
    assert (leave.api.name, leave.timeout, leave.generation) == ("ConsumerGroupHeartbeat", 2.0, Generation(1, "id1"))
    assert leave.body == {"group_id": "g", "member_id": "id1", "instance_id": instance, "member_epoch": epoch}
    assert member.machine.next_request(member.now) is None
    assert member.answer(leave) == [f"Transition LEAVING LEFT 'bye' {ONE}"]
    assert member.machine.generation == NO_GENERATION
    assert told(member.machine.leave("twice")) == []


def test_a_last_heartbeat_without_an_answer_is_the_last_all_the_same() -> None:
    member = Modern.stable(0)
    member.machine.leave("bye")
    leave = member.machine.next_request(member.now)
    assert leave is not None
    assert member.fail(leave, GONE) == [f"Transition LEAVING LEFT 'leave not answered: {GONE}' {ONE}"]
    assert member.fail(leave, GONE) == []


def test_a_member_without_a_place_leaves_without_a_word() -> None:
    member = Modern.joining()
    assert told(member.machine.leave("bye")) == [f"Transition PREPARING_REBALANCE LEFT 'bye' {JOINING}"]
    assert (member.machine.next_request(member.now), member.machine.rejoin_reason) == (None, None)


def test_an_answer_that_comes_after_the_leave_counts_for_nothing() -> None:
    member = Modern.stable(0, due=True)
    beat = member.beat()
    member.machine.leave("bye")
    assert member.answer(beat, 9, [1]) == []
    assert member.fail(beat, GONE) == []
    assert member.machine.generation == Generation(1, "id1")


def test_another_subscription_is_told_with_the_next_heartbeat() -> None:
    member = Modern()
    member.machine.request_rejoin("too early to matter")
    assert member.machine.rejoin_reason == "first join"
    member.to_stable([0])
    assert member.machine.next_heartbeat(member.now) is None
    member.machine.request_rejoin("the topics changed")
    assert (member.machine.state, member.machine.rejoin_reason) == (S.STABLE, None)
    assert member.beat().body["subscribed_topic_names"] == ["t"]


def test_a_rejoin_that_is_wanted_before_the_first_has_a_reason() -> None:
    member = Modern()
    member.machine.rejoin_reason = None
    assert told(member.machine.poll()) == []
    member.machine.request_rejoin("the topics changed")
    assert told(member.machine.poll())[-1] == "PrepareJoin 'the topics changed' [-1 '' None]"


def test_members_choose_different_ids() -> None:
    ids = set()
    handler = ThreadingHandler()
    for _ in range(3):
        machine = ConsumerGroupMembership(
            MembershipConfig("g"), lambda: ["t"], handler.random, handler.now, handler.new_id
        )
        machine.poll()
        machine.prepared(False)
        ids.add(machine.member_id)
    assert len(ids) == 3
    assert {len(each) for each in ids} == {36}  # UUIDs, as KIP-848 asks for


def test_while_nobody_listens_at_the_coordinator_s_address_no_session_runs_out() -> None:
    """It is restarting: its successor begins all sessions anew. Silence is another matter."""
    refused = err.NoBrokersAvailableError("nobody")
    refused.refused = True
    for error, lasts in ((refused, True), (GONE, False)):
        member = Modern.stable(0, session_timeout_ms=10000)
        member.wait(9.0)
        member.fail(member.beat(), error)
        member.wait(5.0)
        assert (told(member.machine.check_session(member.now)) == []) is lasts


@pytest.mark.parametrize(
    ("assignor", "words"), [("uniform", "no assignor 'uniform' ("), (None, "no assignor of that name (")]
)
def test_an_assignor_that_the_broker_does_not_have_is_named(assignor: str | None, words: str) -> None:
    member = Modern.joining(server_assignor=assignor)
    (*_, failed) = member.answer(member.beat(), error_code=112, error_message="no")
    assert failed.startswith("MembershipFailed UnsupportedAssignor: group 'g': the broker has ")
    assert words in failed


def test_what_was_unfinished_is_forgotten_with_the_membership() -> None:
    member = Modern.joining()
    member.answer(member.beat(), 1, [0])
    member.machine.reconciled("a topic is not known yet")
    member.machine.fence(err.UnknownMemberId(), Generation(1, "id1"))
    member.machine.forgotten()
    member.begin()
    member.answer(member.beat(), 2, [])
    assert told(member.machine.reconciled())[-1].startswith("Transition ASSIGNING STABLE 'assignment taken over'")
    assert told(member.machine.poll()) == []
