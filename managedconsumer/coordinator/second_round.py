"""The second round of a cooperative rebalance, which the leader begins if nobody else does. Pure.

A partition that changes hands is given to nobody at first. Its owner gives it up and begins the second round (KIP-429).
A static member may be killed before that and come back. Its successor gets the smaller share without a round (KIP-345)
and knows nothing of the rest, which then belongs to nobody. Only the leader knows what it has kept back.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from managedconsumer.coordinator.events import GroupMemberInfo
from managedconsumer.coordinator.protocol import ConsumerProtocol, ConsumerProtocolMemberAssignment
from managedconsumer.structs import TopicPartition


class SecondRound:
    """Whether our assignment was the first of two rounds, and when we have waited long enough for the other."""

    def __init__(self, patience: float) -> None:
        """``patience``: seconds. After a session, a member that was killed is expelled, or its successor is there."""
        self._patience = patience
        self._held: set[TopicPartition] = set()
        self._kept_back = False
        self._due_at: float | None = None

    def joined(self, members: Sequence[GroupMemberInfo] = ()) -> None:
        """A round begins. ``members``: all of them if we are the leader and assign, otherwise none."""
        subscriptions, _ = ConsumerProtocol.decode_members(
            (m.member_id, m.group_instance_id, m.metadata) for m in members
        )
        self._held = {tp for metadata in subscriptions.values() for tp in metadata.owned_partitions}
        self._kept_back, self._due_at = False, None

    def assigned(self, assignments: Mapping[str, bytes]) -> None:
        """Take note of the assignment that we made as the leader."""
        for blob in assignments.values() if self._held else ():
            self._held.difference_update(ConsumerProtocolMemberAssignment.decode(blob).partitions())
        self._kept_back = bool(self._held)
        self._held.clear()

    def synced(self, now: float) -> None:
        """The group has the assignment."""
        self._due_at = now + self._patience if self._kept_back else None

    def due(self, now: float) -> bool:
        """Whether we have to begin the second round. It is said once."""
        if self._due_at is None or now < self._due_at:
            return False
        self._due_at = None
        return True
