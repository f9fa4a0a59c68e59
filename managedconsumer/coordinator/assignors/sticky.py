"""Balanced first, then as few partitions changing hands as possible, after Kafka's StickyAssignor (KIP-54, KIP-341)."""

from __future__ import annotations

import struct

from managedconsumer.coordinator.assignors._sticky import decide
from managedconsumer.coordinator.assignors._sticky_input import NO_GENERATION, Claim
from managedconsumer.coordinator.assignors.abstract import (
    AbstractPartitionAssignor,
    Assignments,
    Members,
    TopicMetadata,
    to_assignments,
)
from managedconsumer.coordinator.protocol import (
    TOPICS,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    Schema,
    group_by_topic,
    topics_of,
)
from managedconsumer.errors import MalformedResponseError
from managedconsumer.structs import TopicPartition


class StickyPartitionAssignor(AbstractPartitionAssignor):
    """Keeps partitions where they are as far as balance allows.

    An eager assignor: members give everything up before they join, so what they had travels in the assignor's own user
    data.  An instance belongs to one member and remembers its last share; ``assign`` needs no memory.

    With equal subscriptions no member has more than one partition more than another, and no fewer partitions could move
    (where members tell their racks, partitions move into matching racks too).
    """

    name = "sticky"

    def __init__(self) -> None:
        self._owned: list[TopicPartition] | None = None
        self._generation = NO_GENERATION

    @classmethod
    def assign(cls, cluster: TopicMetadata, members: Members) -> Assignments:
        """See the class."""
        shares, _ = decide(cluster, members, _read_claim)
        return to_assignments(cls.version, {member: shares[member] for member in members})

    def user_data(self) -> bytes | None:
        """The last share and its generation (the schema's version 1), None before there was any."""
        return None if self._owned is None else encode_user_data(self._owned, self._generation)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember the share for the next rebalance."""
        self._owned = assignment.partitions()

    def on_generation_assignment(self, generation: int) -> None:
        """Remember the generation of the share."""
        self._generation = generation


_USER_DATA = Schema("user data of the sticky assignor", f"topics  {TOPICS}", needed=1)


def encode_user_data(owned: list[TopicPartition], generation: int) -> bytes:
    """Return version 1 of the assignor's user data: partitions by topic, generation."""
    return _USER_DATA.encode(topics_of(group_by_topic(owned))) + struct.pack(">i", generation)


def decode_user_data(data: bytes) -> Claim:
    """Read version 1, or 0 (without a generation). Malformed bytes are no claim: they must not stop the leader."""
    try:
        (topics,), rest = _USER_DATA.decode(data)
        owned = [TopicPartition(topic, n) for topic, numbers in _USER_DATA.partitions(topics) for n in numbers]
    except MalformedResponseError:
        return Claim((), NO_GENERATION)
    return Claim(owned, struct.unpack_from(">i", rest)[0] if len(rest) >= 4 else None)


def _read_claim(metadata: ConsumerProtocolMemberMetadata) -> Claim:
    return decode_user_data(metadata.user_data) if metadata.user_data else Claim()
