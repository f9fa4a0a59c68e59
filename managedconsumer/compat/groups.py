"""Consumer groups as pykafka's ``Cluster.get_managed_group_descriptions`` describes them."""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping, TypeVar

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.shown import short
from managedconsumer.structs import BrokerInfo
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas

log = logging.getLogger(__name__)

_CLASSIC = ("", "classic")
T = TypeVar("T")


class MemberMetadata(NamedTuple):
    version: int
    topic_names: list[bytes]
    user_data: bytes


class MemberAssignment(NamedTuple):
    """A member's assignment: ``partition_assignment`` is ``[(topic, [number, ...]), ...]``."""

    version: int
    partition_assignment: list[tuple[bytes, list[int]]]


class GroupMember(NamedTuple):
    """A member; ids and host are bytes, as in pykafka."""

    member_id: bytes
    client_id: bytes
    client_host: bytes
    member_metadata: MemberMetadata
    member_assignment: MemberAssignment


class DescribeGroupResponse(NamedTuple):
    """A group; ``members`` by member id."""

    error_code: int
    group_id: bytes
    state: bytes
    protocol_type: bytes
    protocol: bytes
    members: dict[bytes, GroupMember]


def find_coordinator(cluster: Cluster, group: str, patience: float) -> BrokerInfo:
    """Return the group's coordinator; retry transient errors for ``patience`` seconds, then raise."""
    now = cluster.handler.now
    deadline, backoff = Deadline(now(), patience), Backoff(0.05, 1.0, cluster.handler.random)
    while True:
        try:
            return cluster.find_coordinator(group)
        except err.ProtocolClientError as error:
            if not error.retriable or deadline.expired(now()):
                raise
        cluster.handler.sleep(min(backoff.fail(now()), deadline.remaining(now()) or 0.0))


def describe_all(cluster: Cluster) -> dict[bytes, DescribeGroupResponse]:
    """Return every classic group; each broker lists those that it coordinates."""
    found: dict[bytes, DescribeGroupResponse] = {}
    for node in sorted(cluster.refresh(()).brokers):
        connection = cluster.connect(node)
        try:
            listed = connection.request(schemas.LIST_GROUPS, {"states_filter": [], "types_filter": []})
            if listed["error_code"]:
                raise err.error_for_code(listed["error_code"], f"broker {node} does not list its groups")
            names = [g["group_id"] for g in listed["groups"] if g.get("group_type", "").lower() in _CLASSIC]
            if names:
                answer = connection.request(schemas.DESCRIBE_GROUPS, {"groups": names})
                found.update((entry["group_id"].encode(), _group(entry)) for entry in answer["groups"])
        finally:
            connection.close()
    return found


def _group(entry: Mapping[str, Any]) -> DescribeGroupResponse:
    members = [_member(member) for member in entry["members"]]
    return DescribeGroupResponse(
        entry["error_code"],
        entry["group_id"].encode(),
        entry["group_state"].encode(),
        entry["protocol_type"].encode(),
        entry["protocol_data"].encode(),
        {member.member_id: member for member in members},
    )


def _member(entry: Mapping[str, Any]) -> GroupMember:
    return GroupMember(
        entry["member_id"].encode(),
        entry["client_id"].encode(),
        entry["client_host"].encode(),
        _metadata(bytes(entry["member_metadata"]), entry["member_id"]),
        _assignment(bytes(entry["member_assignment"]), entry["member_id"]),
    )


def _metadata(blob: bytes, member: str) -> MemberMetadata:
    read = _decoded(ConsumerProtocolMemberMetadata.decode, blob, member) if blob else None
    if read is None:
        return MemberMetadata(0, [], b"")
    return MemberMetadata(read.version, [name.encode() for name in read.subscription], read.user_data or b"")


def _assignment(blob: bytes, member: str) -> MemberAssignment:
    read = _decoded(ConsumerProtocolMemberAssignment.decode, blob, member)
    if read is None:
        return MemberAssignment(0, [])
    return MemberAssignment(read.version, [(name.encode(), list(numbers)) for name, numbers in read.assignment])


def _decoded(decode: Callable[[bytes], T], blob: bytes, member: str) -> T | None:
    """Decode another client's blob; a malformed one is logged, and None."""
    try:
        return decode(blob)
    except err.MalformedResponseError as error:
        log.warning("member %s: %s", short(member), error)
        return None
