"""The part that sticky and cooperative-sticky share: a member's memory of its last assignment, and the decision."""

from __future__ import annotations

from managedconsumer.coordinator.assignors._sticky_constrained import ConstrainedAssignment
from managedconsumer.coordinator.assignors._sticky_general import GeneralAssignment
from managedconsumer.coordinator.assignors._sticky_input import NO_GENERATION, ReadClaim, StickyInput
from managedconsumer.coordinator.assignors.abstract import AbstractPartitionAssignor, Members, TopicMetadata
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment
from managedconsumer.structs import TopicPartition

Shares = dict[str, set[TopicPartition]]


class AbstractStickyAssignor(AbstractPartitionAssignor):
    """Remembers its member's last assignment for the next rebalance; ``assign`` needs no memory."""

    def __init__(self) -> None:
        self._owned: list[TopicPartition] | None = None
        self._generation = NO_GENERATION

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember the assigned partitions."""
        self._owned = assignment.partitions()

    def on_generation_assignment(self, generation: int) -> None:
        """Remember their generation."""
        self._generation = generation


def decide(cluster: TopicMetadata, members: Members, read_claim: ReadClaim) -> tuple[Shares, set[TopicPartition]]:
    """Return the assignment by member id, and the partitions in it that another member has to give up first."""
    if not members:
        return {}, set()
    group = StickyInput(cluster, members, read_claim)
    if group.equal_subscriptions:
        constrained = ConstrainedAssignment(group)
        shares = {member: set(share) for member, share in constrained.build().items()}
        return shares, set(constrained.transferring)
    shares = GeneralAssignment(group).build()
    owned = {member: set(members[member].owned_partitions) for member in shares}
    gained = {tp for member, share in shares.items() for tp in share - owned[member]}
    return shares, {tp for member, share in shares.items() for tp in owned[member] - share} & gained
