"""Sticky assignment when all members subscribe to the same topics: linear in the number of partitions.

Each member gets ``low`` or ``low + 1`` partitions. Members keep what they own up to that; the rest is dealt round
robin, to members in a partition's racks first. Source: Kafka's ConstrainedAssignmentBuilder (KIP-441, KIP-881).
"""

from __future__ import annotations

from managedconsumer.coordinator.assignors._sticky_input import StickyInput
from managedconsumer.coordinator.assignors.abstract import java_order
from managedconsumer.structs import TopicPartition


class ConstrainedAssignment:
    """One run; :meth:`build` makes the assignment, ``transferring`` then has the partitions that others still own."""

    def __init__(self, group: StickyInput) -> None:
        self._group = group
        self._racks = group.racks
        self.shares: dict[str, list[TopicPartition]] = {member: [] for member in group.members}
        #: ``{partition: new owner}`` where another member has to give the partition up first.
        self.transferring: dict[TopicPartition, str] = {}
        total = sum(len(numbers) for numbers in group.partitions.values())
        self._low, self._expected_over = divmod(total, len(group.members))
        self._high = self._low + 1
        self._over = 0  # members that have more than the lower quota
        self._below_low: list[str] = []
        self._at_low: list[str] = []  # candidates for one partition more
        self._given_up: dict[TopicPartition, str] = {}

    def build(self) -> dict[str, list[TopicPartition]]:
        """The complete assignment."""
        for member, owned in self._group.owned.items():
            self._keep(member, owned)
        taken = {tp for share in self.shares.values() for tp in share}
        everything = [TopicPartition(topic, n) for topic, numbers in self._group.partitions.items() for n in numbers]
        left = self._racks.hardest_first([tp for tp in everything if tp not in taken])
        self._below_low.sort(key=java_order)
        self._at_low.sort(key=java_order)
        if self._racks.matter:
            left = self._deal_by_rack(left)
        self._deal(left)
        return self.shares

    def _keep(self, member: str, owned: dict[TopicPartition, None]) -> None:
        """Let a member keep what it owns, up to the quota that is still open to it."""
        for tp in owned:
            if self._racks.mismatch(member, tp):
                self._given_up[tp] = member
        mine = [tp for tp in owned if tp not in self._group.contested and not self._racks.mismatch(member, tp)]
        mine.sort(key=lambda tp: (tp.partition, java_order(tp.topic)))
        if len(mine) < self._low:
            self.shares[member] += mine
            self._below_low.append(member)
            return
        quota = self._low
        if len(mine) >= self._high and self._over < self._expected_over:
            quota = self._high
            self._one_more_over()
        elif self._over < self._expected_over:
            self._at_low.append(member)
        self.shares[member] += mine[:quota]
        self._given_up.update((tp, member) for tp in mine[quota:])

    def _one_more_over(self) -> None:
        self._over += 1
        if self._over == self._expected_over:
            self._at_low.clear()  # no other member may get one more

    def _deal_by_rack(self, left: list[TopicPartition]) -> list[TopicPartition]:
        """Give partitions to members in their racks as far as the quotas allow; return those that are left."""
        unmatched = []
        turn = 0
        for tp in left:
            at = self._next_in_rack(tp, self._below_low, turn)
            if at is not None:
                member = self._below_low[at]
                size = len(self.shares[member]) + 1
                if size >= self._low:
                    del self._below_low[at]
                    if size < self._high and self._over < self._expected_over:
                        self._at_low.append(member)
                else:
                    at += 1
                turn = at % len(self._below_low) if self._below_low else 0
                self._give(tp, member)
                continue
            at = self._next_in_rack(tp, self._at_low, 0)
            if at is None:
                unmatched.append(tp)
                continue
            member = self._at_low[at]
            if len(self.shares[member]) + 1 == self._high:
                del self._at_low[at]
                self._one_more_over()
            self._give(tp, member)
        return unmatched

    def _next_in_rack(self, tp: TopicPartition, members: list[str], start: int) -> int | None:
        for step in range(len(members)):
            at = (start + step) % len(members)
            if self._racks.match(members[at], tp):
                return at
        return None

    def _deal(self, left: list[TopicPartition]) -> None:
        """Round robin over the members below the lower quota, then one more each to those that may have it."""
        turn = 0
        waiting = iter(self._at_low)  # grows while it is used
        for tp in left:
            if not self._below_low:
                self._give(tp, next(waiting))
                continue
            turn = turn if turn < len(self._below_low) else 0
            member = self._below_low[turn]
            self._give(tp, member)
            if len(self.shares[member]) == self._low:
                del self._below_low[turn]
                self._at_low.append(member)
            else:
                turn += 1

    def _give(self, tp: TopicPartition, member: str) -> None:
        """Assign a partition that the member did not keep: it is new to it, or was claimed by several."""
        self.shares[member].append(tp)
        if self._given_up.get(tp, member) != member or tp in self._group.contested:
            self.transferring[tp] = member
