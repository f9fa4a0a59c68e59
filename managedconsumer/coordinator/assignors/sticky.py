"""Balanced first, then as few partitions changing hands as possible, after Kafka's StickyAssignor (KIP-54, KIP-341)."""

from __future__ import annotations

import struct

from managedconsumer.coordinator.assignors._sticky import AbstractStickyAssignor, decide
from managedconsumer.coordinator.assignors._sticky_input import NO_GENERATION, Claim
from managedconsumer.coordinator.assignors.abstract import (
    Assignments,
    Members,
    TopicMetadata,
    to_assignments,
)
from managedconsumer.coordinator.protocol import (
    TOPICS,
    ConsumerProtocolMemberMetadata,
    Schema,
    group_by_topic,
    topics_of,
)
from managedconsumer.errors import MalformedResponseError
from managedconsumer.structs import TopicPartition


class StickyPartitionAssignor(AbstractStickyAssignor):
    """Keeps partitions where they are as far as balance allows. An instance belongs to one member.

    It is eager: members give everything up before they join, so the assignor's user data say what they owned.

    With equal subscriptions no member has more than one partition more than another, and no fewer partitions could move
    (except that partitions move into racks of members that report theirs).
    """

    name = "sticky"

    @classmethod
    def assign(cls, cluster: TopicMetadata, members: Members) -> Assignments:
        """See the class."""
        shares, _ = decide(cluster, members, _read_claim)
        return to_assignments(cls.version, {member: shares[member] for member in members})

    def user_data(self) -> bytes | None:
        """Return the last assignment and its generation (the schema's version 1), None before there was one."""
        return None if self._owned is None else encode_user_data(self._owned, self._generation)


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
