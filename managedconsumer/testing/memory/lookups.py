"""The in-memory broker's responses to tools about groups: lists, descriptions, deletions."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from managedconsumer import codes
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberMetadata, group_by_topic
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.memory.classic_group import ClassicGroup
from managedconsumer.testing.memory.consumer_group import ModernGroup, ModernMember
from managedconsumer.testing.memory.groups import Group, Groups
from managedconsumer.testing.memory.logs import UNKNOWN_TOPIC, Topics
from managedconsumer.testing.memory.member import Body, GroupState

NON_EMPTY_GROUP, SUBSCRIBED = 68, 86
_HOST = "/127.0.0.1"
_NOT_FOUND_SINCE = 6  # of DescribeGroups: before, a group that does not exist is dead
_CONSUMER = "consumer"


def list_groups(groups: Groups, mine: Iterable[str], body: Body) -> dict[str, Any]:
    """ListGroups: the groups of one node, filtered by state and type (in any spelling)."""
    states = {each.lower() for each in body["states_filter"]}
    types = {each.lower() for each in body["types_filter"]}
    found = []
    for name in mine:
        group = groups.known[name]
        kind = "consumer" if isinstance(group, ModernGroup) else "classic"
        if (not states or _state(group).lower() in states) and (not types or kind in types):
            protocol = _CONSUMER if isinstance(group, ModernGroup) else group.kind or ""
            entry = {"group_id": name, "protocol_type": protocol, "group_state": _state(group)}
            found.append({**entry, "group_type": kind})
    return {"error_code": 0, "groups": found}


def describe_groups(groups: Groups, version: int, body: Body) -> dict[str, Any]:
    """DescribeGroups, which knows classic groups only."""
    return {"groups": [_describe(name, groups.known.get(name), version) for name in body["groups"]]}


def _describe(name: str, group: Group | None, version: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"group_id": name, "protocol_data": "", "protocol_type": "", "members": []}
    if not isinstance(group, ClassicGroup):
        text = f"Group {name} not found." if group is None else f"Group {name} is not a classic group."
        missing = {"error_code": codes.GROUP_ID_NOT_FOUND, "error_message": text}
        return {**entry, "group_state": "Dead", **(missing if version >= _NOT_FOUND_SINCE else {})}
    settled = group.state is GroupState.STABLE
    members = [
        {
            "member_id": member.id,
            "group_instance_id": member.instance,
            "client_id": member.client,
            "client_host": _HOST,
            "member_metadata": dict(member.protocols).get(group.protocol or "", b"") if settled else b"",
            "member_assignment": member.assignment,
        }
        for member in group.members.values()
    ]
    state = {"group_state": group.state.value, "protocol_data": (group.protocol or "") if settled else ""}
    return {**entry, **state, "protocol_type": group.kind or "", "members": members}


def describe_consumer_groups(groups: Groups, topics: Topics, body: Body) -> dict[str, Any]:
    """ConsumerGroupDescribe, which knows KIP-848 groups only."""
    found = []
    for name in body["group_ids"]:
        group = groups.known.get(name)
        if isinstance(group, ModernGroup):
            found.append(describe_modern(name, group, topics.id_of))
            continue
        text = f"Group {name} not found." if group is None else f"Group {name} is not a consumer group."
        entry = {"group_id": name, "group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": ""}
        found.append({**entry, "members": [], "error_code": codes.GROUP_ID_NOT_FOUND, "error_message": text})
    return {"groups": found}


def describe_modern(name: str, group: ModernGroup, id_of: Callable[[str], bytes]) -> dict[str, Any]:
    """The entry of a KIP-848 group in the response to a ConsumerGroupDescribe."""
    members = [_modern_member(each, id_of) for each in group.members.values()]
    epochs = {"group_epoch": group.epoch + group.assigning, "assignment_epoch": group.epoch}
    entry = {"group_id": name, "group_state": _state(group), "assignor_name": group.assignor, "members": members}
    return {"error_code": codes.NONE, **entry, **epochs}


def _modern_member(member: ModernMember, id_of: Callable[[str], bytes]) -> dict[str, Any]:
    def by_topic(tps: Iterable[TopicPartition]) -> dict[str, Any]:
        topics = group_by_topic(tps)
        entries = [{"topic_id": id_of(name), "topic_name": name, "partitions": numbers} for name, numbers in topics]
        return {"topic_partitions": entries}

    return {
        "member_id": member.id,
        "instance_id": member.instance,
        "member_epoch": member.epoch,
        "client_id": member.client,
        "client_host": _HOST,
        "subscribed_topic_names": list(member.topics),
        "subscribed_topic_regex": "" if member.pattern is None else member.pattern.pattern,
        "assignment": by_topic(member.assigned),
        "target_assignment": by_topic(member.target),
        "member_type": 1,
    }


def delete_groups(groups: Groups, body: Body) -> dict[str, Any]:
    """DeleteGroups: those that have no members."""
    results = []
    for name in body["groups_names"]:
        group = groups.known.get(name)
        code = codes.GROUP_ID_NOT_FOUND if group is None else NON_EMPTY_GROUP if group.members else 0
        if not code:
            del groups.known[name]
        results.append({"group_id": name, "error_code": code})
    return {"results": results}


def delete_offsets(groups: Groups, topics: Topics, body: Body) -> dict[str, Any]:
    """OffsetDelete: of topics that the group's members do not read."""
    group = groups.known.get(body["group_id"])
    if group is None:
        return {"error_code": codes.GROUP_ID_NOT_FOUND, "topics": []}
    if isinstance(group, ClassicGroup) and group.members and group.kind != _CONSUMER:
        return {"error_code": NON_EMPTY_GROUP, "topics": []}
    read = _read_by(group, topics)
    answers = []
    for topic in body["topics"]:
        name = topic["name"]
        code = UNKNOWN_TOPIC if name not in topics.logs else SUBSCRIBED if name in read else 0
        numbers = [part["partition_index"] for part in topic["partitions"]]
        for number in () if code else numbers:
            group.committed.pop(TopicPartition(name, number), None)
        parts = [{"partition_index": number, "error_code": code} for number in numbers]
        answers.append({"name": name, "partitions": parts})
    return {"error_code": 0, "topics": answers}


def _read_by(group: Group, topics: Topics) -> set[str]:
    if isinstance(group, ModernGroup):
        members = group.members.values()
        found = {name for member in members for name in member.topics}
        return found | {t for t in topics.logs for m in members if m.pattern and m.pattern.fullmatch(t)}
    blobs = [dict(member.protocols).get(group.protocol or "", b"") for member in group.members.values()]
    return {name for blob in blobs if blob for name in ConsumerProtocolMemberMetadata.decode(blob).topics}


def _state(group: Group) -> str:
    if isinstance(group, ClassicGroup):
        return group.state.value
    if not group.members:
        return GroupState.EMPTY.value
    if group.assigning:
        return "Assigning"
    return GroupState.STABLE.value if group.settled else "Reconciling"
