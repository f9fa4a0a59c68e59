"""Find other members of the group, and readers of the same topics. Pure: the caller asks the coordinator."""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Iterable, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.coordinator.protocol import ConsumerProtocol
from managedconsumer.wire.protocol import schemas

log = logging.getLogger(__name__)

Ask = Callable[[schemas.Api, Mapping[str, Any]], Mapping[str, Any]]
#: Topics by member id; None: unknown during a rebalance.
Members = dict[str, set[str] | None]


def subscribed(members: Iterable[tuple[str, str | None, bytes]]) -> dict[str, set[str]]:
    """Return the topics of each member, from ``(id, instance id, subscription)`` as the group's leader gets them."""
    subscriptions, _ = ConsumerProtocol.decode_members(members)
    return {member: set(metadata.subscription) for member, metadata in subscriptions.items()}


def group_members(group: str, ask: Ask) -> Members:
    """Return the members of ``group``, of either protocol; empty if there is no such group. Raises KafkaException."""
    (found,) = ask(schemas.DESCRIBE_GROUPS, {"groups": [group]})["groups"]
    if found["error_code"] not in (codes.NONE, codes.GROUP_ID_NOT_FOUND):
        raise err.error_for_code(found["error_code"])
    if found["error_code"] or found["group_state"] == "Dead":  # or a group of KIP-848, which this API does not see
        return _members_848(group, ask)
    rows = [(row["member_id"], row.get("group_instance_id"), bytes(row["member_metadata"])) for row in found["members"]]
    if found["group_state"] != "Stable":
        return dict.fromkeys([member for member, _, _ in rows])
    return {**subscribed(rows)}


def _members_848(group: str, ask: Ask) -> Members:
    try:
        answer = ask(schemas.CONSUMER_GROUP_DESCRIBE, {"group_ids": [group], "include_authorized_operations": False})
    except (err.UnsupportedVersion, err.UnsupportedBrokerError):
        return {}
    (found,) = answer["groups"]
    if found["error_code"] == codes.GROUP_ID_NOT_FOUND:
        return {}
    if found["error_code"]:
        raise err.error_for_code(found["error_code"])
    return {row["member_id"]: set(row["subscribed_topic_names"]) for row in found["members"]}


class SharingLog:
    """Logs one warning for each member that reads topics of this query."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._told: set[str] = set()

    def note(self, others: set[str], topics: Collection[str]) -> None:
        new = others - self._told
        self._told = others | self._told
        if new:
            log.warning(
                "group %s: %s reads %s, too. The members of a group share the partitions, so this query sees only its "
                "part. If it is to read everything, give it a group.id of its own, or group.mode=progress "
                "(two sources of one query that read the same topic need that, too)",
                self._group,
                " and ".join(sorted(new)[:3]) + (f" and {len(new) - 3} more" if len(new) > 3 else ""),
                ", ".join(sorted(topics)[:3]),
            )
