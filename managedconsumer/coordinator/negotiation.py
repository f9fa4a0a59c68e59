"""The consumer's part of a join: assignors, subscription blobs, the leader's assignment."""

from __future__ import annotations

import logging
from typing import Any, Iterable, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.coordinator.assignors.abstract import RebalanceProtocol
from managedconsumer.coordinator.events import Assigned, Elected
from managedconsumer.coordinator.protocol import ConsumerProtocol, ConsumerProtocolMemberAssignment
from managedconsumer.shown import line, short
from managedconsumer.structs import ClusterSnapshot, TopicPartition

log = logging.getLogger(__name__)


def rebalance_protocol(assignors: Sequence[Any]) -> RebalanceProtocol:
    """Return the best protocol that *all* assignors support (KIP-429); a user's own assignors are eager."""
    common = set(RebalanceProtocol)
    for assignor in assignors:
        supported = getattr(assignor, "supported_protocols", lambda: (RebalanceProtocol.EAGER,))
        common &= set(supported())
    if not common:
        names = ", ".join(assignor.name for assignor in assignors)
        raise err.ConfigurationError(f"the assignors {names} have no rebalance protocol (eager, cooperative) in common")
    return max(common, key=lambda protocol: protocol.value)


def assigned_in_group(described: Mapping[str, Any]) -> dict[str, set[int]]:
    """Return all partitions that the members of a group have, by topic, from a DescribeGroups response.

    Raises the response's ProtocolClientError, and RebalanceInProgress unless the group is stable.
    """
    (group,) = described["groups"]
    if group["error_code"]:
        raise err.error_for_code(group["error_code"])
    if group["group_state"] != "Stable":
        raise err.RebalanceInProgress(f"the group is in the state {group['group_state']}")
    found: dict[str, set[int]] = {}
    for member in group["members"]:
        blob = bytes(member["member_assignment"])
        for tp in ConsumerProtocolMemberAssignment.decode(blob).partitions():
            found.setdefault(tp.topic, set()).add(tp.partition)
    return found


class Negotiation:
    """The assignors of one member, best first. Not thread-safe: the driver of the membership uses it."""

    def __init__(self, assignors: Sequence[Any], rack: str | None = None, *, incremental: bool = False) -> None:
        """``assignors`` have kafka-python's ``name``, ``version``, ``metadata``, ``assign``, ``on_assignment``.

        ``incremental``: the broker assigns (KIP-848), which is cooperative.
        """
        if not assignors:
            raise err.ConfigurationError("a group member needs at least one assignor")
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._rack = rack
        self._incremental = incremental
        self.protocol = rebalance_protocol(assignors)

    @property
    def cooperative(self) -> bool:
        """True if the member keeps, through a rebalance, the partitions that stay."""
        return self._incremental or self.protocol is RebalanceProtocol.COOPERATIVE

    def protocols(
        self, topics: Iterable[str], owned: Iterable[TopicPartition], generation_id: int
    ) -> list[tuple[str, bytes]]:
        """Return each assignor's name and subscription blob, for JoinGroup."""
        names, kept = sorted(topics), sorted(owned) if self.cooperative else []

        def blob(assignor: Any) -> bytes:
            state = ConsumerProtocol.subscription(
                assignor, names, owned_partitions=kept, generation_id=generation_id, rack_id=self._rack
            )
            return state.encode()

        return [(name, blob(assignor)) for name, assignor in self._assignors.items()]

    def topics_of(self, event: Elected) -> set[str]:
        """Return every topic that a member of the group subscribes to: the leader needs their partitions."""
        subscriptions, _ = ConsumerProtocol.decode_members(event.members)
        return {topic for metadata in subscriptions.values() for topic in metadata.subscription}

    def assign(self, event: Elected, cluster: ClusterSnapshot) -> dict[str, bytes]:
        """Return the leader's assignment as blobs by member id."""
        subscriptions, problems = ConsumerProtocol.decode_members(event.members)
        for member, problem in problems.items():
            log.warning(
                "member %s of the group sent a subscription that cannot be read: %s", short(member), line(problem)
            )
        assignor = self._assignors.get(event.protocol)
        if assignor is None:
            raise err.ConfigurationError(
                f"the group chose the assignor {event.protocol!r}, which this member did not offer "
                f"({', '.join(self._assignors)}): is another program in this group id?"
            )
        shares: Mapping[str, ConsumerProtocolMemberAssignment] = assignor.assign(cluster, subscriptions)
        return {member: share.encode() for member, share in shares.items()}

    def accept(self, event: Assigned, cluster: ClusterSnapshot) -> tuple[list[TopicPartition], list[bytes]]:
        """Return our assignment, sorted, and the ids of topics that ``cluster`` does not know (KIP-848 only).

        Under the classic protocol this calls ``on_assignment`` of the chosen assignor.
        """
        if event.target is not None:
            return self._by_name(event.target, cluster)
        assignment = ConsumerProtocolMemberAssignment.decode(event.assignment)
        assignor = self._assignors.get(event.generation.protocol or "")
        if assignor is not None:
            assignor.on_assignment(assignment)
            after = getattr(assignor, "on_generation_assignment", None)
            if after is not None:
                after(event.generation.id)
        return sorted(assignment.partitions()), []

    @staticmethod
    def _by_name(
        target: Sequence[tuple[bytes, tuple[int, ...]]], cluster: ClusterSnapshot
    ) -> tuple[list[TopicPartition], list[bytes]]:
        names = {info.topic_id: info.name for info in cluster.topics.values() if info.topic_id}
        known = [(names[topic_id], numbers) for topic_id, numbers in target if topic_id in names]
        share = [TopicPartition(name, number) for name, numbers in known for number in numbers]
        return sorted(share), [topic_id for topic_id, _ in target if topic_id not in names]
