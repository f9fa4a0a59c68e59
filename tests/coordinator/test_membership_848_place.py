"""The place that a static KIP-848 member may still have: the broker refuses a join at it, even to the member itself."""

from __future__ import annotations

import pytest

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.wire.protocol import schemas
from tests.coordinator.kit import Modern, S

GONE = err.SocketDisconnectedError("connection gone")
MOVED = codes.NOT_COORDINATOR


def _lost(code: int = codes.FENCED_MEMBER_EPOCH, instance: str | None = "one") -> Modern:
    """A member that was expelled with ``code``, and is about to join again."""
    member = Modern.stable(0, due=True, group_instance_id=instance)
    member.answer(member.beat(), error_code=code)
    member.machine.forgotten()
    member.begin()
    return member


def _joins(member: Modern) -> bool:
    member.wait(10.0)
    request = member.beat()
    return request.api is schemas.CONSUMER_GROUP_HEARTBEAT and request.body["member_epoch"] == 0


@pytest.mark.parametrize("answer", [codes.NONE, codes.UNKNOWN_MEMBER_ID])
def test_it_leaves_its_place_and_joins_under_a_new_id(answer: int) -> None:
    member = _lost()
    release = member.beat()
    assert (release.body["member_id"], release.body["member_epoch"]) == ("id1", -2)
    member.answer(release, error_code=answer)
    assert member.machine.generation.member_id == "id2"
    assert _joins(member)


def test_its_place_is_asked_for_until_there_is_an_answer() -> None:
    member = _lost()
    member.fail(member.beat(), GONE)
    member.wait(10.0)
    member.answer(member.beat(), error_code=MOVED)
    member.wait(10.0)
    member.answer(member.beat())
    assert _joins(member)


def test_another_one_has_its_place() -> None:
    member = _lost()
    member.answer(member.beat(), error_code=codes.FENCED_INSTANCE_ID)
    assert member.machine.state is S.FAILED
    assert isinstance(member.machine.error, err.FencedInstanceId)


@pytest.mark.parametrize(("answer", "ends"), [(codes.FENCED_INSTANCE_ID, True), (codes.UNKNOWN_MEMBER_ID, False)])
def test_a_classic_group_is_asked_by_a_classic_heartbeat(answer: int, ends: bool) -> None:
    member = _lost(codes.GROUP_ID_NOT_FOUND)
    asked = member.beat()
    assert asked.api is schemas.HEARTBEAT
    assert asked.body == {"group_id": "g", "generation_id": -1, "member_id": "id1", "group_instance_id": "one"}
    member.answer(asked, error_code=answer)
    assert (member.machine.state is S.FAILED) is ends
    assert ends or _joins(member)


def test_the_group_becomes_a_classic_one_meanwhile() -> None:
    member = _lost()
    member.answer(member.beat(), error_code=codes.GROUP_ID_NOT_FOUND)
    asked = member.beat()
    assert (asked.api, asked.body["member_id"]) == (schemas.HEARTBEAT, "id1")


def test_a_member_without_a_name_joins_at_once() -> None:
    assert _joins(_lost(instance=None))


def test_a_first_join_without_an_answer_may_have_made_a_place() -> None:
    """Another member at the place of one that never had it is for the join to tell."""
    member = Modern.joining(group_instance_id="one")
    member.fail(member.beat(), GONE)
    member.wait(10.0)
    release = member.beat()
    assert release.body["member_epoch"] == -2
    member.answer(release, error_code=codes.FENCED_INSTANCE_ID)
    assert _joins(member)
