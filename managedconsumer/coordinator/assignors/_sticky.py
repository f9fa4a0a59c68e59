"""The decision that sticky and cooperative-sticky share."""

from __future__ import annotations

from managedconsumer.coordinator.assignors._sticky_constrained import ConstrainedAssignment
from managedconsumer.coordinator.assignors._sticky_general import GeneralAssignment
from managedconsumer.coordinator.assignors._sticky_input import ReadClaim, StickyInput
from managedconsumer.coordinator.assignors.abstract import Members, TopicMetadata
from managedconsumer.structs import TopicPartition

Shares = dict[str, set[TopicPartition]]


def decide(cluster: TopicMetadata, members: Members, read_claim: ReadClaim) -> tuple[Shares, set[TopicPartition]]:
    """Shares by member id, and the partitions among them that another member still has to give up first."""
    if not members:
        return {}, set()
    group = StickyInput(cluster, members, read_claim)
    if group.equal_subscriptions:
        constrained = ConstrainedAssignment(group)
        shares = {member: set(share) for member, share in constrained.build().items()}
        return shares, set(constrained.transferring)
    shares = GeneralAssignment(group).build()
    return shares, _changing_hands(members, shares)


def _changing_hands(members: Members, shares: Shares) -> set[TopicPartition]:
    """Partitions that are new to their owner while some member loses them."""
    gained: set[TopicPartition] = set()
    lost: set[TopicPartition] = set()
    for member, share in shares.items():
        owned = set(members[member].owned_partitions)
        gained |= share - owned
        lost |= owned - share
    return gained & lost
