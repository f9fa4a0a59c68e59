"""Requests about groups: their bodies, and their responses as values. Pure."""

from __future__ import annotations

import logging
from typing import Any, Callable, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.admin.values import GroupDescription, GroupListing, MemberDescription
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment
from managedconsumer.coordinator.requests import partitions_in
from managedconsumer.logs import LogFields
from managedconsumer.structs import BrokerInfo, TopicPartition

log = logging.getLogger(__name__)

#: The protocol type of groups of consumers; others (Connect, ...) encode their assignments differently.
_CONSUMER = "consumer"

Found = dict[str, Any]


def read_list(answer: Mapping[str, Any], node: int) -> list[GroupListing]:
    """The groups of one coordinator; raises the error that the answer carries."""
    if answer["error_code"]:
        raise err.error_for_code(answer["error_code"], f"broker {node} does not list its groups")
    return [
        GroupListing(
            group["group_id"],
            (group.get("group_type") or "classic").lower(),
            group.get("group_state") or "",
            group["protocol_type"],
            node,
        )
        for group in answer["groups"]
    ]


def read_find(answer: Mapping[str, Any], names: list[str]) -> dict[str, BrokerInfo | err.KafkaException]:
    """Return each group's coordinator, or the error. An old broker's answer is about the first name only."""
    entries = answer.get("coordinators") or [{**answer, "key": names[0]}]
    found: dict[str, BrokerInfo | err.KafkaException] = {}
    for entry in entries:
        code = entry["error_code"]
        broker = BrokerInfo(entry["node_id"], entry["host"], entry["port"])
        found[entry["key"]] = err.error_for_code(code, entry.get("error_message")) if code else broker
    return found


def read_classic(answer: Mapping[str, Any], node: int) -> dict[str, GroupDescription | err.KafkaException]:
    """DescribeGroups: each group, or its error."""

    def describe(name: str, entry: Mapping[str, Any]) -> GroupDescription:
        readable = entry["protocol_type"] == _CONSUMER
        members = tuple(
            _member(each, "group_instance_id", _assignment(bytes(each["member_assignment"]), name) if readable else ())
            for each in entry["members"]
        )
        return GroupDescription(name, "classic", entry["group_state"], entry["protocol_data"], node, members)

    return _each(answer, describe)


def read_consumer(answer: Mapping[str, Any], node: int) -> dict[str, GroupDescription | err.KafkaException]:
    """ConsumerGroupDescribe (KIP-848): each group, or its error."""

    def describe(name: str, entry: Mapping[str, Any]) -> GroupDescription:
        members = tuple(
            _member(each, "instance_id", tuple(sorted(partitions_in(each["assignment"])))) for each in entry["members"]
        )
        return GroupDescription(name, "consumer", entry["group_state"], entry["assignor_name"], node, members)

    return _each(answer, describe)


def _each(
    answer: Mapping[str, Any], describe: Callable[[str, Mapping[str, Any]], GroupDescription]
) -> dict[str, GroupDescription | err.KafkaException]:
    found: dict[str, GroupDescription | err.KafkaException] = {}
    for entry in answer["groups"]:
        name, code = entry["group_id"], entry["error_code"]
        found[name] = err.error_for_code(code, entry.get("error_message")) if code else describe(name, entry)
    return found


def _member(entry: Mapping[str, Any], instance: str, tps: tuple[TopicPartition, ...]) -> MemberDescription:
    host = entry["client_host"].lstrip("/")
    return MemberDescription(entry["member_id"], entry.get(instance), entry["client_id"], host, tps)


def _assignment(blob: bytes, group: str) -> tuple[TopicPartition, ...]:
    """Decode an assignment of any client; a malformed one counts as empty."""
    if not blob:
        return ()
    try:
        read = ConsumerProtocolMemberAssignment.decode(blob)
    except err.MalformedResponseError as error:
        log.warning("group %s: %s", group, error, extra=LogFields(group)())
        return ()
    return tuple(sorted(TopicPartition(topic, number) for topic, numbers in read.assignment for number in numbers))


def offsets_body(names: list[str]) -> dict[str, Any]:
    """An OffsetFetch of all committed offsets of the groups; version 7 and older: of the first group."""
    groups = [{"group_id": name, "member_id": None, "member_epoch": -1, "topics": None} for name in names]
    return {"group_id": names[0], "topics": None, "groups": groups, "require_stable": False}


def read_offsets(answer: Mapping[str, Any], names: list[str]) -> Found:
    """``{group: {partition: committed offset}}``, or the group's error; partitions without a commit are left out."""
    found: Found = {}
    for entry in answer.get("groups") or [{**answer, "group_id": names[0]}]:
        code = entry.get("error_code", 0)
        offsets: dict[TopicPartition, int] = {}
        for topic in entry["topics"]:
            for part in topic["partitions"]:
                code = code or part["error_code"]
                if part["committed_offset"] >= 0:
                    offsets[TopicPartition(topic["name"], part["partition_index"])] = part["committed_offset"]
        found[entry["group_id"]] = err.error_for_code(code) if code else offsets
    return found


def slices(names: Iterable[str], size: int) -> list[list[str]]:
    """``names`` in lists of at most ``size``: the response about many groups could exceed a frame."""
    ordered = sorted(names)
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]
