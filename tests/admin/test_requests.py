"""Answers about groups, as brokers of different releases give them."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.admin import requests
from managedconsumer.admin.values import GroupListing
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment
from managedconsumer.structs import BrokerInfo, TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_an_old_broker_lists_neither_state_nor_type() -> None:
    old = {"error_code": 0, "groups": [{"group_id": "shop", "protocol_type": "consumer"}]}
    assert requests.read_list(old, 3) == [GroupListing("shop", "classic", "", "consumer", 3)]
    new = [{"group_id": "s", "protocol_type": "share", "group_state": "Empty", "group_type": "Share"}]
    assert requests.read_list({"error_code": 0, "groups": new}, 1) == [GroupListing("s", "share", "Empty", "share", 1)]


def test_a_broker_that_does_not_list_is_an_error() -> None:
    with pytest.raises(err.GroupCoordinatorNotAvailable, match="broker 3 does not list its groups"):
        requests.read_list({"error_code": 15, "groups": []}, 3)


def test_coordinators_of_several_groups_and_of_one() -> None:
    entry = {"key": "b", "node_id": 2, "host": "kafka2", "port": 9092, "error_code": 0, "error_message": None}
    away = {**entry, "key": "a", "node_id": -1, "error_code": 15}
    found = requests.read_find({"coordinators": [entry, away]}, ["a", "b"])
    assert found["b"] == BrokerInfo(2, "kafka2", 9092)
    assert isinstance(found["a"], err.GroupCoordinatorNotAvailable)
    old = {"error_code": 0, "error_message": None, "node_id": 5, "host": "kafka5", "port": 9092}
    assert requests.read_find(old, ["a", "b"]) == {"a": BrokerInfo(5, "kafka5", 9092)}


def classic(assignment: bytes, protocol_type: str = "consumer") -> dict[str, Any]:
    member = {
        "member_id": "m-1",
        "client_id": "web",
        "client_host": "/10.0.0.7",
        "member_metadata": b"",
        "member_assignment": assignment,
    }
    group = {"error_code": 0, "group_id": "shop", "group_state": "Stable", "protocol_type": protocol_type}
    return {"groups": [{**group, "protocol_data": "range", "members": [member]}]}


def test_members_and_their_partitions() -> None:
    blob = ConsumerProtocolMemberAssignment(0, [("orders", [1, 0])], b"").encode()
    described = requests.read_classic(classic(blob), 4)["shop"]
    assert not isinstance(described, err.KafkaException)
    (member,) = described.members
    assert (described.state, described.assignor, described.coordinator) == ("Stable", "range", 4)
    assert (member.member_id, member.instance_id, member.host, member.partitions) == ("m-1", None, "10.0.0.7", (A, B))


@pytest.mark.parametrize(
    ("blob", "protocol_type"), [(b"\x00", "consumer"), (b"", "consumer"), (b"\x7f" * 9, "connect")]
)
def test_an_assignment_that_cannot_be_read_is_no_partitions(blob: bytes, protocol_type: str) -> None:
    described = requests.read_classic(classic(blob, protocol_type), 4)["shop"]
    assert not isinstance(described, err.KafkaException)
    assert described.members[0].partitions == ()


def test_what_is_committed() -> None:
    def part(number: int, offset: int, code: int = 0) -> dict[str, Any]:
        return {"partition_index": number, "committed_offset": offset, "metadata": "", "error_code": code}

    def topics(*parts: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": "orders", "partitions": list(parts)}]

    groups = [
        {"group_id": "a", "topics": topics(part(0, 7), part(1, -1)), "error_code": 0},
        {"group_id": "b", "topics": [], "error_code": 30},
        {"group_id": "c", "topics": topics(part(0, -1, 3)), "error_code": 0},
    ]
    found = requests.read_offsets({"groups": groups}, ["a", "b", "c"])
    assert found["a"] == {A: 7}
    assert isinstance(found["b"], err.GroupAuthorizationFailed)
    assert isinstance(found["c"], err.UnknownTopicOrPartition)
    assert requests.read_offsets({"topics": topics(part(1, 9)), "error_code": 0}, ["old"]) == {"old": {B: 9}}


def test_many_groups_are_asked_for_in_slices() -> None:
    assert requests.slices(["c", "a", "b"], 2) == [["a", "b"], ["c"]]
    assert requests.slices([], 2) == []
