"""The sticky assignment in two rebalances, so that members keep consuming the partitions that stay.

Source: Kafka's CooperativeStickyAssignor (KIP-429): in the first rebalance a partition that moves is assigned to no
member. Its old owner gives it up and joins again; in that second rebalance the new owner gets it.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from managedconsumer.coordinator.assignors._sticky import AbstractStickyAssignor, decide
from managedconsumer.coordinator.assignors._sticky_input import NO_GENERATION, Claim
from managedconsumer.coordinator.assignors.abstract import (
    Assignments,
    Members,
    RebalanceProtocol,
    TopicMetadata,
    to_assignments,
)
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberMetadata


class CooperativeStickyPartitionAssignor(AbstractStickyAssignor):
    """StickyPartitionAssignor's decision, in two rebalances where partitions move. An instance belongs to one member.

    Subscriptions have the owned partitions (KIP-429) and their generation (KIP-792; from older members in the
    assignor's user data).
    """

    name = "cooperative-sticky"
    version: ClassVar[int] = 1

    @classmethod
    def supported_protocols(cls) -> tuple[RebalanceProtocol, ...]:
        """Both: under EAGER (while a group migrates, KIP-429) members own no partitions when they join."""
        return (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    @classmethod
    def assign(cls, cluster: TopicMetadata, members: Members) -> Assignments:
        """See the class. Partitions that another member has to give up first are not assigned."""
        shares, moving = decide(cluster, members, _read_claim)
        return to_assignments(cls.version, {member: shares[member] - moving for member in members})

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return this member's subscription; it owns its last assignment."""
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), self.user_data(), self._owned or ())

    def user_data(self) -> bytes | None:
        """Return the generation, for leaders from before KIP-792."""
        return struct.pack(">i", self._generation)


def _read_claim(metadata: ConsumerProtocolMemberMetadata) -> Claim:
    if metadata.generation_id >= 0:
        return Claim(metadata.owned_partitions, metadata.generation_id)
    if metadata.user_data is None:
        return Claim(metadata.owned_partitions, None)
    if len(metadata.user_data) < 4:
        return Claim(metadata.owned_partitions, NO_GENERATION)
    return Claim(metadata.owned_partitions, int(struct.unpack_from(">i", metadata.user_data)[0]))
