"""The second round of a cooperative rebalance, which the leader begins if no other member does. Pure.

A partition that moves is not assigned in the first round. Its old owner gives it up and begins the second (KIP-429).
If that owner is a static member that is killed before, its successor gets the smaller assignment without a round
(KIP-345) and does not know of the rest, which no member owns then. Only the leader knows which partitions these are.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from managedconsumer.coordinator.events import GroupMemberInfo
from managedconsumer.coordinator.protocol import ConsumerProtocol, ConsumerProtocolMemberAssignment
from managedconsumer.structs import TopicPartition


class SecondRound:
    """Knows as the leader whether our assignment was the first of two rounds, and when the second one is overdue."""

    def __init__(self, session: float) -> None:
        """``session``: seconds. After it a member that was killed is expelled, or its successor has joined."""
        self._session = session
        self._owned: set[TopicPartition] = set()
        self._kept_back = False
        self._due_at: float | None = None

    def joined(self, members: Sequence[GroupMemberInfo] = ()) -> None:
        """A round begins. ``members``: all of them if we are the leader and assign, else none."""
        subscriptions, _ = ConsumerProtocol.decode_members(members)
        self._owned = {tp for metadata in subscriptions.values() for tp in metadata.owned_partitions}
        self._kept_back, self._due_at = False, None

    def assigned(self, assignments: Mapping[str, bytes]) -> None:
        """Note the assignment that we made as the leader."""
        for blob in assignments.values() if self._owned else ():
            self._owned.difference_update(ConsumerProtocolMemberAssignment.decode(blob).partitions())
        self._kept_back = bool(self._owned)
        self._owned.clear()

    def synced(self, now: float) -> None:
        """The group has the assignment."""
        self._due_at = now + self._session if self._kept_back else None

    def due(self, now: float) -> bool:
        """Return whether we have to begin the second round; True once only."""
        if self._due_at is None or now < self._due_at:
            return False
        self._due_at = None
        return True
