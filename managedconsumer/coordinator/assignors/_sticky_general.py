"""Sticky assignment when subscriptions differ.

Members keep the partitions that they own and still subscribe to; the rest goes to members with the fewest. Then
partitions move, one at a time, from members with more to members with fewer until no move helps. A move against an
earlier one of the same topic moves that earlier partition back, so that partitions do not swap owners (KIP-54).
Source: Kafka's GeneralAssignmentBuilder.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict

from managedconsumer.coordinator.assignors._java_hash import PartitionHashSet
from managedconsumer.coordinator.assignors._sticky_input import StickyInput
from managedconsumer.coordinator.assignors.abstract import java_order
from managedconsumer.structs import TopicPartition

Pair = tuple[str, str]


class _Movements:
    """The moves so far: partition, old owner, new owner."""

    def __init__(self) -> None:
        self._of_partition: dict[TopicPartition, Pair] = {}
        self._of_topic: dict[str, dict[Pair, PartitionHashSet]] = defaultdict(dict)

    def record(self, tp: TopicPartition, source: str, target: str) -> None:
        """Note a move; moves of one partition add up, and back to the start means none."""
        earlier = self._of_partition.pop(tp, None)
        if earlier is not None:
            moved = self._of_topic[tp.topic][earlier]
            moved.remove(tp)
            if not moved:
                del self._of_topic[tp.topic][earlier]
            source = earlier[0]
            if source == target:
                return
        self._of_partition[tp] = (source, target)
        self._of_topic[tp.topic].setdefault((source, target), PartitionHashSet()).add(tp)

    def instead_of(self, tp: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return the partition to move in place of ``tp``: one of its topic that moved the other way, or ``tp``."""
        earlier = self._of_partition.get(tp)
        opposite = self._of_topic[tp.topic].get((target, earlier[0] if earlier else source))
        return opposite.first() if opposite else tp


class GeneralAssignment:
    """One run; :meth:`build` makes the assignment."""

    def __init__(self, group: StickyInput) -> None:
        self._group = group
        self._racks = group.racks
        self._known = {m: [t for t in topics if t in group.partitions] for m, topics in group.topics.items()}
        self._takers: dict[str, list[str]] = {topic: [] for topic in group.partitions}
        for member, topics in self._known.items():
            for topic in topics:
                self._takers[topic].append(member)
        self._shares: dict[str, set[TopicPartition]] = {member: set() for member in group.members}
        self._owner: dict[TopicPartition, str] = {}
        self._owners_of: dict[str, Counter[str]] = {topic: Counter() for topic in group.partitions}
        self._order: list[tuple[int, bytes, str]] = []  # members that may still change, fewest partitions first
        self._is_balanced: bool | None = None
        self._movements = _Movements()
        self._previous = group.previous_owners()

    def build(self) -> dict[str, set[TopicPartition]]:
        """The complete assignment."""
        revoked = self._keep_owned()
        self._order = sorted((len(share), java_order(member), member) for member, share in self._shares.items())
        topics = sorted(self._takers, key=lambda topic: (len(self._takers[topic]), java_order(topic)))
        everything = [TopicPartition(topic, n) for topic in topics for n in self._group.partitions[topic]]
        unassigned = [tp for tp in everything if tp not in self._owner]
        starting = self._order[-1][0] == 0
        for tp in unassigned:
            if self._racks.matter:
                self._give_to_least(tp, by_rack=True)
        for tp in unassigned:
            if tp not in self._owner:
                self._give_to_least(tp, by_rack=False)
        self._set_fixed_members_aside()
        before = {member: set(share) for member, share in self._shares.items()}
        if not revoked:
            self._improve([tp for tp in unassigned if self._is_shared(tp.topic)])
        moved = self._improve([tp for tp in everything if self._is_shared(tp.topic)])
        changing = [member for _, _, member in self._order]
        if moved and not starting and self._score(self._shares, changing) >= self._score(before, changing):
            return before
        return self._shares

    def _keep_owned(self) -> bool:
        """Let members keep what they own; return True if a member has to lose a partition in any case."""
        revoked = False
        for member, owned in self._group.owned.items():
            for tp in owned:
                if tp.topic not in self._group.topics[member] or self._racks.mismatch(member, tp):
                    revoked = True
                else:
                    self._put(tp, member)
        return revoked

    def _put(self, tp: TopicPartition, member: str) -> None:
        self._shares[member].add(tp)
        self._owner[tp] = member
        self._owners_of[tp.topic][member] += 1
        self._is_balanced = None

    def _take(self, tp: TopicPartition, member: str) -> None:
        self._shares[member].remove(tp)
        self._owners_of[tp.topic][member] -= 1
        if not self._owners_of[tp.topic][member]:
            del self._owners_of[tp.topic][member]

    def _leave_order(self, member: str) -> None:
        """Call before the member's share changes: the order is by its size."""
        del self._order[bisect_left(self._order, (len(self._shares[member]), java_order(member), member))]

    def _enter_order(self, member: str) -> None:
        insort(self._order, (len(self._shares[member]), java_order(member), member))

    def _give_to_least(self, tp: TopicPartition, by_rack: bool) -> None:
        for _, _, member in self._order:
            if tp.topic in self._group.topics[member] and not (by_rack and self._racks.mismatch(member, tp)):
                self._leave_order(member)
                self._put(tp, member)
                self._enter_order(member)
                return

    def _is_shared(self, topic: str) -> bool:
        return len(self._takers[topic]) >= 2

    def _set_fixed_members_aside(self) -> None:
        """Do not balance members with all partitions they can get, of topics that only they subscribe to."""
        for member, topics in self._known.items():
            possible = sum(len(self._group.partitions[topic]) for topic in topics)
            if len(self._shares[member]) >= possible and not any(
                self._is_shared(tp.topic) for tp in self._shares[member]
            ):
                self._leave_order(member)

    def _balanced(self) -> bool:
        """Return True if no partition can move to a member that has at least two fewer than its owner."""
        if self._order[0][0] >= self._order[-1][0] - 1:
            return True
        if self._is_balanced is None:
            most = {
                topic: max((len(self._shares[owner]) for owner in owners), default=0)
                for topic, owners in self._owners_of.items()
            }
            self._is_balanced = not any(
                most[topic] > size + 1 for size, _, member in self._order for topic in self._known[member]
            )
        return self._is_balanced

    def _improve(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions while that improves the balance; return True if any moved."""
        # Every move evens the sizes out, except one that :meth:`instead_of` makes with another partition. Java relies
        # on an end; a bound costs nothing.
        moves_left = len(partitions) * len(self._order) + 1
        moved = False
        improved = True
        while improved and moves_left > 0:
            improved = False
            for tp in partitions:
                if self._balanced() or moves_left <= 0:
                    break
                target = self._better_owner(tp)
                if target is not None:
                    self._move(self._movements.instead_of(tp, self._owner[tp], target), target)
                    moved = improved = True
                    moves_left -= 1
        return moved

    def _better_owner(self, tp: TopicPartition) -> str | None:
        """Return the better owner of the partition: its owner of one generation back, or the member with the fewest."""
        enough = len(self._shares[self._owner[tp]]) - 1
        previous = self._previous.get(tp)
        # Java does not check that this member still subscribes to the topic.
        if previous in self._takers[tp.topic] and len(self._shares[previous]) < enough:
            return previous
        for size, _, member in self._order:
            if size >= enough:
                return None
            if tp.topic in self._group.topics[member]:
                return member
        return None

    def _move(self, tp: TopicPartition, target: str) -> None:
        source = self._owner[tp]
        self._leave_order(source)
        self._leave_order(target)
        self._movements.record(tp, source, target)
        self._take(tp, source)
        self._put(tp, target)
        self._enter_order(target)
        self._enter_order(source)

    @staticmethod
    def _score(shares: dict[str, set[TopicPartition]], members: list[str]) -> int:
        """Sum of the differences in size between all pairs of members; 0 is perfect balance."""
        sizes = sorted(len(shares[member]) for member in members)
        return sum(size * (2 * at - len(sizes) + 1) for at, size in enumerate(sizes))
