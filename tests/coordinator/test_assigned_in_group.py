"""What all members of a group have, read from DescribeGroups (KIP-814: for a static leader that is back)."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator.negotiation import assigned_in_group
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment


def described(*assignments: list[tuple[str, list[int]]], **group: Any) -> dict[str, Any]:
    blobs = [ConsumerProtocolMemberAssignment(1, each, None).encode() if each else b"" for each in assignments]
    members = [{"member_assignment": blob} for blob in blobs]
    return {"groups": [{"error_code": 0, "group_state": "Stable", "members": members, **group}]}


def test_of_all_members() -> None:
    answer = described([("t", [0, 1]), ("u", [3])], [("t", [2])], [])
    assert assigned_in_group(answer) == {"t": {0, 1, 2}, "u": {3}}
    assert assigned_in_group(described()) == {}


def test_not_while_a_rebalance_goes_on() -> None:
    with pytest.raises(err.RebalanceInProgress, match="PreparingRebalance"):
        assigned_in_group(described([("t", [0])], group_state="PreparingRebalance"))


def test_a_refusal_is_raised() -> None:
    with pytest.raises(err.GroupAuthorizationFailed):
        assigned_in_group(described([("t", [0])], error_code=30))
