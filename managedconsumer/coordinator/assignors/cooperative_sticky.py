"""The sticky assignment in two steps, so that nobody stops what it may go on doing.

Source: Kafka's CooperativeStickyAssignor (KIP-429): a partition that changes hands is given to nobody at first.  Its
owner sees that it is gone, gives it up and joins again, and in that second rebalance the new owner gets it.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from managedconsumer.coordinator.assignors._sticky import decide
from managedconsumer.coordinator.assignors._sticky_input import NO_GENERATION, Claim
from managedconsumer.coordinator.assignors.abstract import (
    AbstractPartitionAssignor,
    Assignments,
    Members,
    RebalanceProtocol,
    TopicMetadata,
    to_assignments,
)
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from managedconsumer.structs import TopicPartition


class CooperativeStickyPartitionAssignor(AbstractPartitionAssignor):
    """StickyPartitionAssignor's decision, given out in two rebalances where partitions change hands.

    What a member owns is in its subscription (KIP-429), and the generation of that too (KIP-792, or the assignor's user
    data from older members).  An instance belongs to one member; ``assign`` needs no memory.
    """

    name = "cooperative-sticky"
    version: ClassVar[int] = 1

    def __init__(self) -> None:
        self._owned: list[TopicPartition] = []
        self._generation = NO_GENERATION

    @classmethod
    def supported_protocols(cls) -> tuple[RebalanceProtocol, ...]:
        """Both: under EAGER (while a group is being moved over, KIP-429) nobody owns anything when it joins."""
        return (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    @classmethod
    def assign(cls, cluster: TopicMetadata, members: Members) -> Assignments:
        """See the class.  Partitions that change hands are missing from the answer."""
        shares, changing_hands = decide(cluster, members, _read_claim)
        return to_assignments(cls.version, {member: shares[member] - changing_hands for member in members})

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """This member's subscription, with the share of its last rebalance as what it owns."""
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), self.user_data(), self._owned)

    def user_data(self) -> bytes | None:
        """The generation, for leaders from before KIP-792."""
        return struct.pack(">i", self._generation)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember the share for the next rebalance."""
        self._owned = assignment.partitions()

    def on_generation_assignment(self, generation: int) -> None:
        """Remember the generation of the share."""
        self._generation = generation


def _read_claim(metadata: ConsumerProtocolMemberMetadata) -> Claim:
    if metadata.generation_id >= 0:
        return Claim(metadata.owned_partitions, metadata.generation_id)
    if metadata.user_data is None:
        return Claim(metadata.owned_partitions, None)
    if len(metadata.user_data) < 4:
        return Claim(metadata.owned_partitions, NO_GENERATION)
    return Claim(metadata.owned_partitions, int(struct.unpack_from(">i", metadata.user_data)[0]))
