"""Who else in the group reads the same topics. Pure."""

from __future__ import annotations

import logging
from typing import Any, Collection, Iterable, Mapping

from managedconsumer.coordinator.protocol import ConsumerProtocol

log = logging.getLogger(__name__)

#: A member as the group's leader sees it: its id, its instance id, its subscription as bytes.
MemberRow = tuple[str, str | None, bytes]


def sharers(members: Iterable[MemberRow], own_id: str, topics: Collection[str]) -> set[str]:
    """The ids of the other members that subscribe to any of ``topics``."""
    subscriptions, _ = ConsumerProtocol.decode_members(members)
    return {
        member
        for member, metadata in subscriptions.items()
        if member != own_id and not set(metadata.subscription).isdisjoint(topics)
    }


def described(answer: Mapping[str, Any]) -> list[MemberRow] | None:
    """The members from a DescribeGroups answer; None while their subscriptions are not told (a rebalance goes on)."""
    (group,) = answer["groups"]
    if group["error_code"] or group["group_state"] != "Stable":
        return None
    return [(row["member_id"], row.get("group_instance_id"), bytes(row["member_metadata"])) for row in group["members"]]


class SharingLog:
    """Warns once of each member with which this query shares its topics."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._told: set[str] = set()

    def note(self, others: set[str], topics: Collection[str]) -> None:
        """One line in the log for those that are new."""
        new = others - self._told
        self._told = others | self._told
        if new:
            log.warning(
                "group %s: %s reads %s, too. The members of a group share the partitions, so this query sees only its "
                "part. If it is to read everything, give it a group.id that nobody else uses, or group.mode=progress "
                "(two sources of one query that read the same topic need that, too)",
                self._group,
                " and ".join(sorted(new)[:3]) + (f" and {len(new) - 3} more" if len(new) > 3 else ""),
                ", ".join(sorted(topics)[:3]),
            )
