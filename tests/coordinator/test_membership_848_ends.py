"""When a KIP-848 member sends its last heartbeat: wherever the coordinator may hold a place under its id."""

from __future__ import annotations

import pytest

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.structs import Generation
from tests.coordinator.kit import Modern, S

GONE = err.SocketDisconnectedError("connection gone")


def _leaves(member: Modern) -> bool:
    """Whether it sends a last heartbeat; either way it has left at the end."""
    member.machine.leave("bye")
    last = member.machine.next_request(member.now)
    if last is not None:
        assert (last.body["member_id"], last.body["member_epoch"]) == (member.machine.generation.member_id, -1)
        member.answer(last)
    assert member.machine.state is S.LEFT
    return last is not None


@pytest.mark.parametrize(
    ("code", "leaves"),
    [
        (codes.GROUP_AUTHORIZATION_FAILED, True),
        (codes.TOPIC_AUTHORIZATION_FAILED, True),
        (codes.UNSUPPORTED_ASSIGNOR, True),
        (codes.FENCED_INSTANCE_ID, False),
        (codes.UNRELEASED_INSTANCE_ID, False),
        (codes.UNSUPPORTED_VERSION, False),
    ],
)
@pytest.mark.parametrize("joined", [True, False])
def test_a_member_that_was_refused(code: int, leaves: bool, joined: bool) -> None:
    member = Modern()
    if joined:
        member.to_stable([0])
        member.wait(5.0)
    else:
        member.begin()
    member.answer(member.beat(), error_code=code)
    member.machine.forgotten()
    assert member.machine.state is S.FAILED
    assert _leaves(member) is leaves


def test_a_member_whose_broker_does_not_know_the_protocol_sends_it_nothing_more() -> None:
    member = Modern.joining()
    member.fail(member.beat(), err.UnsupportedBrokerError("b:9092", "ConsumerGroupHeartbeat", (0, 1), None, ""))
    assert member.machine.state is S.FAILED
    assert not _leaves(member)


def test_a_member_in_the_middle_of_its_join() -> None:
    member = Modern.joining()
    member.beat()
    assert _leaves(member)


def test_a_member_whose_join_was_not_answered() -> None:
    member = Modern.joining()
    member.fail(member.beat(), GONE)
    assert _leaves(member)


@pytest.mark.parametrize(("code", "leaves"), [(codes.UNKNOWN_MEMBER_ID, False), (codes.FENCED_MEMBER_EPOCH, True)])
@pytest.mark.parametrize("dropped", [True, False])
def test_a_member_that_was_expelled(code: int, leaves: bool, dropped: bool) -> None:
    member = Modern.stable(0, due=True)
    member.answer(member.beat(), error_code=code)
    if dropped:
        member.machine.forgotten()
    assert _leaves(member) is leaves


def test_a_member_whose_group_is_gone_joins_again() -> None:
    """It is no KIP-848 group any more, or not for now: the answer to the join decides."""
    member = Modern.stable(0, due=True)
    member.answer(member.beat(), error_code=codes.GROUP_ID_NOT_FOUND)
    assert member.machine.state is S.LOSING
    member.machine.forgotten()
    assert not _leaves(member)


@pytest.mark.parametrize("yields", [False, True])
def test_a_join_that_a_classic_group_refuses(yields: bool) -> None:
    member = Modern.joining(yields=yields)
    member.answer(member.beat(), error_code=codes.GROUP_ID_NOT_FOUND)
    assert member.machine.state is (S.FAILED if yields else S.PREPARING_REBALANCE)
    assert not _leaves(member)


def test_a_member_whose_commit_was_refused_as_that_of_no_member() -> None:
    member = Modern.stable(0)
    member.machine.fence(err.UnknownMemberId(), Generation(1, "id1"))
    assert not _leaves(member)


def test_a_member_that_takes_another_id_has_no_place_until_it_has_asked() -> None:
    member = Modern.joining()
    member.answer(member.beat(), error_code=codes.UNKNOWN_MEMBER_ID)
    assert not _leaves(member)


def test_a_member_whose_session_is_over_by_its_own_clock() -> None:
    member = Modern.stable(0, session_timeout_ms=10000)
    member.wait(20.0)
    member.machine.check_session(member.now)
    assert member.machine.state is S.LOSING
    assert _leaves(member)
