"""A cooperative leader begins the second round itself when nobody else does within a session."""

from __future__ import annotations

import pytest

from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from managedconsumer.structs import TopicPartition
from tests.coordinator.test_membership import Rig

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION, BEAT = 10.0, 3.0


def leader(held: list[TopicPartition], shares: dict[str, dict[str, list[int]]], *, skip: bool = False) -> Rig:
    """Stable, and the leader of "me" and "you", who says that it holds ``held``."""
    rig = Rig()
    rig.to_joining()
    owned = {"me": [], "you": held}
    members = [
        {
            "member_id": name,
            "group_instance_id": name,
            "metadata": ConsumerProtocolMemberMetadata(1, ["t"], b"", owned[name]).encode(),
        }
        for name in owned
    ]
    rig.join(leader="me", members=members, skip_assignment=skip)
    blobs = {
        name: ConsumerProtocolMemberAssignment(1, list(share.items()), b"").encode() for name, share in shares.items()
    }
    rig.machine.provide_assignments(blobs)
    rig.answer(rig.request(), assignment=blobs.get("me", b""))
    rig.take(rig.machine.reconciled())
    return rig


def test_after_a_session_without_it() -> None:
    rig = leader([A, B], {"me": {}, "you": {"t": [0]}})
    began = rig.now
    while rig.now + BEAT < began + SESSION:
        rig.beat()
        assert rig.machine.rejoin_reason is None
    rig.beat()
    assert rig.machine.rejoin_reason == "partitions that were to move have no owner"


def test_somebody_else_begins_it() -> None:
    rig = leader([A, B], {"me": {}, "you": {"t": [0]}})
    rig.beat(27)
    rig.to_joining(holding=True)
    rig.join(2, leader="you")
    rig.answer(rig.request(), assignment=b"share")
    rig.take(rig.machine.reconciled())
    for _ in range(5):
        rig.beat()
    assert rig.machine.rejoin_reason is None


@pytest.mark.parametrize(
    ("held", "shares", "skip"),
    [
        pytest.param([A, B], {"me": {}, "you": {"t": [0, 1]}}, False, id="nothing changes hands"),
        pytest.param([], {"me": {"t": [0]}, "you": {"t": [1]}}, False, id="nobody held anything"),
        pytest.param([A, B], {}, True, id="a leader that is back has not assigned"),
    ],
)
def test_there_is_none(held: list[TopicPartition], shares: dict[str, dict[str, list[int]]], skip: bool) -> None:
    rig = leader(held, shares, skip=skip)
    for _ in range(5):
        rig.beat()
    assert rig.machine.rejoin_reason is None
