"""The input of both sticky algorithms: current owners and racks.

Source: Kafka's AbstractStickyAssignor (KIP-54, KIP-341, KIP-792, KIP-881).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from managedconsumer.coordinator.assignors._java_hash import hash_map_order
from managedconsumer.coordinator.assignors.abstract import (
    Members,
    TopicMetadata,
    member_racks,
    partition_racks,
    racks_matter,
    topic_partitions,
)
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberMetadata
from managedconsumer.structs import TopicPartition
from managedconsumer.values import NamedTuple

NO_GENERATION = -1


class Claim(NamedTuple):
    """The partitions that a member claims, and their generation (None: not given)."""

    partitions: Sequence[TopicPartition] = ()
    generation: int | None = None


ReadClaim = Callable[[ConsumerProtocolMemberMetadata], Claim]


class Racks:
    """The racks of members and partitions; empty where they make no difference."""

    def __init__(self, cluster: TopicMetadata, members: Members, partitions: dict[str, list[int]]) -> None:
        of_member = member_racks(members)
        of_partition = partition_racks(cluster, partitions) if of_member else {}
        members_in = Counter(of_member.values())
        # Java orders by these counts as soon as any member tells its rack, even if racks then make no difference.
        self._nearby = {tp: sum(members_in[rack] for rack in racks) for tp, racks in of_partition.items()}
        self.matter = racks_matter(of_member.values(), of_partition)
        self._of_member = of_member if self.matter else {}
        self._of_partition = of_partition if self.matter else {}

    def mismatch(self, member: str, tp: TopicPartition) -> bool:
        """Return True if the member's rack is known and has no replica."""
        rack = self._of_member.get(member)
        return rack is not None and rack not in self._of_partition.get(tp, ())

    def match(self, member: str, tp: TopicPartition) -> bool:
        """Return True if the member's rack is known and has a replica."""
        rack = self._of_member.get(member)
        return rack is not None and rack in self._of_partition.get(tp, ())

    def hardest_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return partitions with few members in their racks before those with many."""
        return sorted(partitions, key=lambda tp: self._nearby.get(tp, 0))


class StickyInput:
    """The group for the sticky algorithms; member ids in ``members`` and ``owned`` are in Java's order."""

    def __init__(self, cluster: TopicMetadata, members: Members, read_claim: ReadClaim) -> None:
        self.partitions = topic_partitions(cluster, members)
        self.members = {member: members[member] for member in hash_map_order(members)}
        self.topics = {member: frozenset(data.subscription) for member, data in self.members.items()}
        self.racks = Racks(cluster, members, self.partitions)
        self.claims = {member: read_claim(data) for member, data in self.members.items()}
        self.owned: dict[str, dict[TopicPartition, None]] = {member: {} for member in self.members}
        self.contested: set[TopicPartition] = set()
        self._settle_claims()

    @property
    def equal_subscriptions(self) -> bool:
        """True if all members subscribe to the same topics.

        (If Java's hash table yields members without any topic first, Java counts them as equal and assigns to them.)
        """
        return len(set(self.topics.values())) == 1

    def exists(self, tp: TopicPartition) -> bool:
        """Return True if a member subscribes to its topic and the cluster has it."""
        return tp.partition in self._numbers.get(tp.topic, ())

    def _settle_claims(self) -> None:
        """Decide between claims: the one of the later generation wins; two of the same generation cancel out.

        Partitions that do not exist are left out (Java checks the topic only). As in Java, the earlier claimant's
        generation is that of its subscription, even where the assignor has one in the user data: with members older
        than KIP-792 a later claim wins.
        """
        self._numbers = {topic: frozenset(numbers) for topic, numbers in self.partitions.items()}
        owner: dict[TopicPartition, str] = {}
        for member, claim in self.claims.items():
            generation = NO_GENERATION if claim.generation is None else claim.generation
            for tp in filter(self.exists, claim.partitions):
                rival = owner.get(tp)
                if rival is None:
                    self.owned[member][tp] = None
                    owner[tp] = member
                    continue
                rivals = self.members[rival].generation_id
                if generation == rivals:
                    self.contested.add(tp)
                if generation > rivals:
                    self.owned[member][tp] = None
                if generation >= rivals:
                    if rival != member or generation == rivals:
                        self.owned[rival].pop(tp, None)
                    owner[tp] = member

    def previous_owners(self) -> dict[TopicPartition, str]:
        """Return the owners of one generation back, from the claims of members that have missed the latest one."""
        known = [claim.generation for claim in self.claims.values() if claim.generation is not None]
        latest = max([*known, NO_GENERATION])
        found: dict[TopicPartition, tuple[int, str]] = {}
        for member, claim in self.claims.items():
            generation = NO_GENERATION if claim.generation is None else claim.generation
            if generation >= latest:
                continue
            for tp in claim.partitions:
                if tp not in found or generation > found[tp][0]:
                    found[tp] = (generation, member)
        return {tp: member for tp, (_, member) in found.items()}
