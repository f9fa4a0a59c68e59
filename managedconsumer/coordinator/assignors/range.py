"""Ranges per topic, aware of racks. Source: Kafka's RangeAssignor and KIP-881; the decisions are the same.

pykafka's ``range`` sorts partitions by the text ``topic-leader-id``, so "10" comes before "2" and a new leader moves
partitions. The group's leader decides for all members, so mixed groups are consistent.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

from managedconsumer.coordinator.assignors.abstract import (
    AbstractPartitionAssignor,
    Assignments,
    Members,
    TopicMetadata,
    member_racks,
    partition_racks,
    racks_matter,
    sorted_members,
    to_assignments,
    topic_partitions,
)
from managedconsumer.structs import TopicPartition


class RangePartitionAssignor(AbstractPartitionAssignor):
    """Gives each member one run of neighbouring partitions of every topic it subscribes to.

    With ``p`` partitions and ``n`` members the first ``p % n`` members get one more. Topics with as many partitions
    and the same members are divided alike (co-partitioning), so that equal keys of such topics meet in one member.

    When members report their racks and replicas are not everywhere, partitions go first to members in a rack with a
    replica, as far as balance and co-partitioning allow; those are not always runs.
    """

    name = "range"

    @classmethod
    def assign(cls, cluster: TopicMetadata, members: Members) -> Assignments:
        """Topic by topic; see the class."""
        partitions = topic_partitions(cluster, members)
        racks = member_racks(members)
        where = partition_racks(cluster, partitions) if racks else {}
        subscribers: dict[str, list[str]] = defaultdict(list)
        for member in sorted_members(members):
            for topic in set(members[member].subscription):
                subscribers[topic].append(member)
        states = [_Topic(name, numbers, subscribers[name], racks, where) for name, numbers in partitions.items()]
        if any(state.rack_aware for state in states):
            _assign_by_rack(states)
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for state in states:
            state.deal()
            for member, share in state.shares.items():
                shares[member] += [TopicPartition(state.name, number) for number in share]
        return to_assignments(cls.version, shares)


class _Topic:
    """One topic during the assignment: the partitions left, and how many each subscriber may still get."""

    def __init__(
        self,
        name: str,
        numbers: list[int],
        subscribers: list[str],
        racks: dict[str, str],
        where: dict[TopicPartition, frozenset[str]],
    ) -> None:
        self.name = name
        self.shares: dict[str, list[int]] = {member: [] for member in subscribers}
        self._left = dict.fromkeys(numbers)  # an ordered set
        self._quota, self._extras = divmod(len(numbers), len(subscribers))
        self._racks = {member: racks[member] for member in subscribers if member in racks}
        # Known only where a subscriber reports its rack, as in Java.
        self._where = {n: where[TopicPartition(name, n)] for n in numbers} if self._racks else {}
        self.rack_aware = racks_matter(
            self._racks.values(), {TopicPartition(name, n): held for n, held in self._where.items()}
        )

    @property
    def rack_partitions(self) -> int:
        """The number of partitions with known racks; co-partitioned topics have the same."""
        return len(self._where)

    def fits(self, member: str, number: int) -> bool:
        """Return True if the partition is left and has a replica in the member's rack, or that rack is not known."""
        rack = self._racks.get(member)
        return number in self._left and (rack is None or rack in self._where.get(number, ()))

    def room(self, member: str) -> int:
        """Return how many partitions more the member may get."""
        return max(0, self._quota + (self._extras > 0) - len(self.shares[member]))

    def give(self, member: str, numbers: list[int]) -> None:
        """Assign; a member that goes over the quota uses up one of the extras."""
        self.shares[member] += numbers
        if len(self.shares[member]) > self._quota:
            self._extras -= 1
        for number in numbers:
            del self._left[number]

    def deal(self, by_rack: bool = False) -> None:
        """Fill up the members in order, from what is left; ``by_rack``: only with partitions that fit."""
        for member in self.shares:
            if not self._left:
                return
            candidates = (n for n in self._left if not by_rack or self.fits(member, n))
            if numbers := list(islice(candidates, self.room(member))):
                self.give(member, numbers)


def _assign_by_rack(topics: list[_Topic]) -> None:
    """First pass of KIP-881: match by rack what leaves balance and co-partitioning as they are."""
    alike: dict[tuple[tuple[str, ...], int], list[_Topic]] = defaultdict(list)
    for topic in topics:
        alike[tuple(topic.shares), topic.rack_partitions].append(topic)
    for (members, partitions), group in alike.items():
        if len(group) > 1:
            _assign_copartitioned(members, partitions, group)
        elif group[0].rack_aware:
            group[0].deal(by_rack=True)


def _assign_copartitioned(members: tuple[str, ...], partitions: int, topics: list[_Topic]) -> None:
    """Give partition n of all these topics to the first member with room whose rack fits each of them."""
    remaining = list(members)
    for number in range(partitions):
        for member in remaining:
            if all(topic.fits(member, number) and topic.room(member) > 0 for topic in topics):
                for topic in topics:
                    topic.give(member, [number])
                if all(topic.room(member) == 0 for topic in topics):
                    remaining.remove(member)
                break
        if not remaining:
            return
