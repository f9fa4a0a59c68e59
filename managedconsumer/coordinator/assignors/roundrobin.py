"""Round robin over all partitions of all topics.  Source: Kafka's RoundRobinAssignor, whose decisions it makes."""

from __future__ import annotations

from itertools import cycle

from managedconsumer.coordinator.assignors.abstract import (
    AbstractPartitionAssignor,
    Assignments,
    Members,
    TopicMetadata,
    sorted_members,
    to_assignments,
    topic_partitions,
)
from managedconsumer.structs import TopicPartition


class RoundRobinPartitionAssignor(AbstractPartitionAssignor):
    """Deals the partitions, sorted by topic and number, to the members in turn.

    A member that is not subscribed to a partition's topic is passed over; the turn goes on from the one that took it.
    With equal subscriptions no member has more than one partition more than another.
    """

    name = "roundrobin"

    @classmethod
    def assign(cls, cluster: TopicMetadata, members: Members) -> Assignments:
        """One round after another; see the class."""
        subscriptions = {member: set(data.subscription) for member, data in members.items()}
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        turn = cycle(sorted_members(members))
        for topic, numbers in topic_partitions(cluster, members).items():
            for number in numbers:
                # This ends: every listed topic has a subscriber.
                member = next(candidate for candidate in turn if topic in subscriptions[candidate])
                shares[member].append(TopicPartition(topic, number))
        return to_assignments(cls.version, shares)
