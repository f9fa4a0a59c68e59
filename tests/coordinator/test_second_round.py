"""A cooperative leader begins the second round itself when nobody else does within a session."""

from __future__ import annotations

import pytest

from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from managedconsumer.structs import TopicPartition
from tests.coordinator.kit import Classic, S

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION, BEAT = 10.0, 3.0


def leader(held: list[TopicPartition], shares: dict[str, dict[str, list[int]]], *, skip: bool = False) -> Classic:
    """Stable, and the leader of "me" and "you", who says that it holds ``held``."""
    member = Classic.at(S.PREPARING_REBALANCE)
    members = [
        {"member_id": name, "metadata": ConsumerProtocolMemberMetadata(1, ["t"], b"", owned).encode()}
        for name, owned in {"me": [], "you": held}.items()
    ]
    member.join(leader="me", members=members, skip_assignment=skip)
    blobs = {
        name: ConsumerProtocolMemberAssignment(1, list(share.items()), b"").encode() for name, share in shares.items()
    }
    member.machine.provide_assignments(blobs)
    member.sync(blobs.get("me", b""))
    member.machine.reconciled()
    return member


def beat(member: Classic, code: int = 0) -> None:
    member.wait(BEAT)
    member.answer(member.beat(), code)


def test_after_a_session_without_it() -> None:
    member = leader([A, B], {"me": {}, "you": {"t": [0]}})
    began = member.now
    while member.now + BEAT < began + SESSION:
        beat(member)
        assert member.machine.rejoin_reason is None
    beat(member)
    assert member.machine.rejoin_reason == "partitions that were to move have no owner"


def test_somebody_else_begins_it() -> None:
    member = leader([A, B], {"me": {}, "you": {"t": [0]}})
    beat(member, 27)
    member.poll()
    member.prepare(holding=True)
    member.join(2, leader="you")
    member.sync()
    member.machine.reconciled()
    for _ in range(5):
        beat(member)
    assert member.machine.rejoin_reason is None


@pytest.mark.parametrize(
    ("held", "shares", "skip"),
    [
        pytest.param([A, B], {"me": {}, "you": {"t": [0, 1]}}, False, id="nothing changes hands"),
        pytest.param([], {"me": {"t": [0]}, "you": {"t": [1]}}, False, id="nobody held anything"),
        pytest.param([A, B], {}, True, id="a leader that is back has not assigned"),
    ],
)
def test_there_is_none(held: list[TopicPartition], shares: dict[str, dict[str, list[int]]], skip: bool) -> None:
    member = leader(held, shares, skip=skip)
    for _ in range(5):
        beat(member)
    assert member.machine.rejoin_reason is None
