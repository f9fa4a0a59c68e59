"""The bodies of the classic group requests, and how long each may take."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from managedconsumer.coordinator.events import GroupMemberInfo
from managedconsumer.structs import Generation, TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas

RequestParts = tuple[schemas.Api, Mapping[str, Any], float]

# How much longer (ms) than the rebalance timeout we wait for the response to a join.
_JOIN_GRACE_MS = 5000
# The longest wait (ms) for the response to a leave.
_LEAVE_TIMEOUT_MS = 2000
# Kafka cuts the reason of a join or leave at this length (KIP-800).
_REASON_LENGTH = 255


class MembershipConfig(NamedTuple):
    """The settings that a member sends to the coordinator; times in milliseconds.

    ``static_leaves``: a static member that ends leaves the group, too, instead of keeping its place for its return.

    For KIP-848 only: ``rack``, ``server_assignor``; ``topic_regex``: the subscribed pattern in RE2's syntax, by which
    the broker finds topics (from version 1 of the heartbeat on); ``yields``: a classic group that the broker does not
    convert ends the membership (otherwise the join is tried again).
    """

    group_id: str
    protocol_type: str = "consumer"
    session_timeout_ms: int = 45000
    rebalance_timeout_ms: int = 300000
    heartbeat_interval_ms: int = 3000
    request_timeout_ms: int = 30000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 2000
    group_instance_id: str | None = None
    static_leaves: bool = False
    rack: str | None = None
    server_assignor: str | None = None
    topic_regex: str | None = None
    yields: bool = False

    @property
    def keeps_place(self) -> bool:
        """True if the group keeps the member's place when the member ends (KIP-345)."""
        return self.group_instance_id is not None and not self.static_leaves


def _identity(config: MembershipConfig, generation: Generation) -> dict[str, Any]:
    return {
        "group_id": config.group_id,
        "member_id": generation.member_id,
        "group_instance_id": config.group_instance_id,
    }


def within_session(config: MembershipConfig) -> float:
    """For how long (seconds) to wait for a response that is of no use after the session."""
    return min(config.request_timeout_ms, config.session_timeout_ms) / 1000.0


def longest_join(config: MembershipConfig) -> float:
    """Return how long (seconds) a coordinator may let a member wait in its joins or syncs, with repeated ones."""
    return (max(config.request_timeout_ms, config.rebalance_timeout_ms) + _JOIN_GRACE_MS) / 1000.0


_WHY_NO_ANSWER = {
    schemas.JOIN_GROUP.name: "the coordinator waits until the group's other members have joined again: for a slow one "
    "up to rebalance_timeout_ms, for one that has gone without leaving (kill -9, a machine that was lost) until its "
    "session is over, which takes up to {session:g} s where its session_timeout_ms is ours. A lower session_timeout_ms "
    "makes that shorter. With a group_instance_id a process that is started again takes its own place at once",
    schemas.SYNC_GROUP.name: "the coordinator waits until the group's leader has assigned the partitions",
}
#: Why a KIP-848 member may be without partitions.
NOTHING_YET = (
    "no partition is this member's yet: others have them all. Those of a member that has gone without leaving "
    "(kill -9, a machine that was lost) are free when its session is over: 45 s, unless the broker's or the group's "
    "consumer.session.timeout.ms says otherwise. With a group_instance_id a process that is started again takes its "
    "own place at once"
)


def assignment_is_due(group: Mapping[str, Any], member_id: str) -> bool:
    """Return True if a KIP-848 member without partitions gets some although no other member gives any up.

    ``group``: its entry in a ConsumerGroupDescribe response. Kafka 4.3 assigns once a second at most (KIP-1263).
    """
    if group["group_state"] == "Assigning":
        return True
    target: set[TopicPartition] = set()
    of_others: set[TopicPartition] = set()
    for member in group["members"]:
        if member["member_id"] == member_id:
            target = partitions_in(member["target_assignment"])
        else:
            of_others |= partitions_in(member["assignment"])
    return not target <= of_others


def partitions_in(assignment: Mapping[str, Any]) -> set[TopicPartition]:
    """Return the partitions of a member's assignment in a ConsumerGroupDescribe response."""
    topics = assignment["topic_partitions"]
    return {TopicPartition(topic["topic_name"], number) for topic in topics for number in topic["partitions"]}


def waiting_text(api: str, session: float) -> str:
    """Say why the request ``api`` may have had no response for a while. ``session``: the member's timeout (seconds)."""
    why = _WHY_NO_ANSWER.get(api, "the coordinator is silent").format(session=session)
    return f"{api} has had no answer for some seconds: {why}"


def join(
    config: MembershipConfig, generation: Generation, protocols: Sequence[tuple[str, bytes]], reason: str | None
) -> RequestParts:
    """JoinGroup: its response comes when every known member has joined or the rebalance timeout is over.

    No request waits that long: a dead connection and a slow group look the same. A repeated join replaces the first.
    """
    body = {
        **_identity(config, generation),
        "session_timeout_ms": config.session_timeout_ms,
        "rebalance_timeout_ms": config.rebalance_timeout_ms,
        "protocol_type": config.protocol_type,
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
        "reason": (reason or "rejoin")[:_REASON_LENGTH],
    }
    return schemas.JOIN_GROUP, body, within_session(config)


def members_in(response: Mapping[str, Any]) -> list[GroupMemberInfo]:
    """Return the members in a JoinGroup response; a follower's has none."""
    return [
        GroupMemberInfo(each["member_id"], each.get("group_instance_id"), bytes(each["metadata"]))
        for each in response["members"]
    ]


def sync(config: MembershipConfig, generation: Generation, assignments: Mapping[str, bytes]) -> RequestParts:
    """SyncGroup: with all assignments from the leader, empty from the others; repeated as a join is."""
    body = {
        **_identity(config, generation),
        "generation_id": generation.id,
        "protocol_type": config.protocol_type,
        "protocol_name": generation.protocol,
        "assignments": [{"member_id": member, "assignment": blob} for member, blob in assignments.items()],
    }
    return schemas.SYNC_GROUP, body, within_session(config)


def heartbeat(config: MembershipConfig, generation: Generation) -> RequestParts:
    """Heartbeat: a response after the session's end is of no use."""
    body = {**_identity(config, generation), "generation_id": generation.id}
    return schemas.HEARTBEAT, body, within_session(config)


def leave(config: MembershipConfig, generation: Generation, reason: str) -> RequestParts:
    """LeaveGroup with the reason for the broker's log (KIP-800)."""
    member = {
        "member_id": generation.member_id,
        "group_instance_id": config.group_instance_id,
        "reason": reason[:_REASON_LENGTH],
    }
    body = {"group_id": config.group_id, "member_id": generation.member_id, "members": [member]}
    return schemas.LEAVE_GROUP, body, min(config.request_timeout_ms, _LEAVE_TIMEOUT_MS) / 1000.0
