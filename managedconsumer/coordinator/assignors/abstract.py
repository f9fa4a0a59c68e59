"""The interface of assignors, and the order of members, topics and racks that all of them share. Pure.

The interface is kafka-python's: ``name``, ``version``, ``metadata(topics)``, ``assign(cluster, members)``,
``on_assignment(assignment)``. A user's own assignor needs only those five; ``cluster`` needs only
``partitions_for_topic(topic)``. ``assign`` depends on its arguments only, so it may be called on the class.

Stateless assignors may be called from any thread; one with memory (sticky, cooperative-sticky) belongs to one member
and is used under that member's lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import ClassVar, Protocol

from managedconsumer.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    group_by_topic,
)
from managedconsumer.structs import ClusterSnapshot, TopicPartition

Members = Mapping[str, ConsumerProtocolMemberMetadata]
Assignments = dict[str, ConsumerProtocolMemberAssignment]


class RebalanceProtocol(Enum):
    """KIP-429: what a member does with its partitions before it joins again."""

    EAGER = 0  # gives all of them up
    COOPERATIVE = 1  # keeps them, and gives up only what the new assignment takes away


class TopicMetadata(Protocol):
    """The part of the cluster's metadata that every assignor needs."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partition numbers of ``topic``; None or empty if it is not known."""


class Assignor(Protocol):
    """The methods that the membership needs of an assignor, ours or the user's."""

    @property
    def name(self) -> str:
        """The name that the members of a group agree on."""

    @property
    def version(self) -> int:
        """The version in this assignor's blobs."""

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return the metadata that this member sends to the leader."""

    def assign(self, cluster: TopicMetadata, members: Members) -> Assignments:
        """The leader's decision, one entry for every member."""

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Take this member's part of the leader's assignment."""


class AbstractPartitionAssignor(ABC):
    """Base of the built-in assignors, and of a user's own, which then needs only ``name`` and ``assign``."""

    name: ClassVar[str]
    version: ClassVar[int] = 0

    @classmethod
    def supported_protocols(cls) -> tuple[RebalanceProtocol, ...]:
        """The rebalance protocols this assignor works under, best first."""
        return (RebalanceProtocol.EAGER,)

    @classmethod
    @abstractmethod
    def assign(cls, cluster: TopicMetadata, members: Members) -> Assignments:
        """Assign the partitions of all subscribed topics that ``cluster`` knows.

        Every member of ``members`` is in the result. Topics are in alphabetical order, partitions ascending.
        """

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return this member's subscription; :meth:`ConsumerProtocol.subscription` adds to it before it is sent."""
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), self.user_data())

    def user_data(self) -> bytes | None:
        """Return the assignor's own bytes in the subscription."""
        return b""

    # Optional hooks, not abstract: an assignor without memory has nothing to do here.
    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Called with this member's assignment after each rebalance."""

    def on_generation_assignment(self, generation: int) -> None:
        """Called with the generation of the assignment, after :meth:`on_assignment` (kafka-python 2's hook)."""


def java_order(text: str) -> bytes:
    """Return the sort key that orders strings as Java's ``compareTo`` does: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_members(members: Members) -> list[str]:
    """Return member ids: static members first, by instance id, so that a restart moves no partitions (KIP-345)."""

    def order(member: str) -> tuple[bool, bytes]:
        instance_id = members[member].group_instance_id
        return (instance_id is None, java_order(member if instance_id is None else instance_id))

    return sorted(members, key=order)


def topic_partitions(cluster: TopicMetadata, members: Members) -> dict[str, list[int]]:
    """Return ``{topic: [partition, ...]}``, both ascending, of the subscribed topics that the cluster knows."""
    topics = {topic for member in members.values() for topic in member.subscription}
    known = ((topic, cluster.partitions_for_topic(topic)) for topic in sorted(topics, key=java_order))
    return {topic: sorted(partitions) for topic, partitions in known if partitions}


def member_racks(members: Members) -> dict[str, str]:
    """Return the racks of the members that report theirs (``client_rack``, KIP-881)."""
    return {member: data.rack_id for member, data in members.items() if data.rack_id}


def partition_racks(
    cluster: TopicMetadata, partitions: Mapping[str, list[int]]
) -> dict[TopicPartition, frozenset[str]]:
    """Return the racks that have a replica of each partition; empty sets where the cluster does not say.

    As in Java all replicas count, offline ones too: members do not rejoin for a change of the ISR.
    """
    racks: dict[TopicPartition, frozenset[str]] = {}
    snapshot = cluster if isinstance(cluster, ClusterSnapshot) else ClusterSnapshot()
    for topic, numbers in partitions.items():
        for number in numbers:
            tp = TopicPartition(topic, number)
            info = snapshot.partition(tp)
            brokers = [snapshot.brokers.get(node) for node in info.replicas] if info else []
            racks[tp] = frozenset(broker.rack for broker in brokers if broker is not None and broker.rack is not None)
    return racks


def racks_matter(member: Iterable[str], partition: Mapping[TopicPartition, frozenset[str]]) -> bool:
    """Return True if racks make a difference: some in common, and not every partition in every rack."""
    everywhere = frozenset[str]().union(*partition.values())
    return not everywhere.isdisjoint(member) and any(racks != everywhere for racks in partition.values())


def to_assignments(version: int, shares: Mapping[str, Iterable[TopicPartition]]) -> Assignments:
    """Return the result of ``assign``: every member's partitions grouped by topic, in ascending order."""
    return {
        member: ConsumerProtocolMemberAssignment(version, group_by_topic(share), b"")
        for member, share in shares.items()
    }
