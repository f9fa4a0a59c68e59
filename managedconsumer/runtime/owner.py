"""The interface between a group member and the object that holds its partitions."""

from __future__ import annotations

from typing import Mapping, Protocol

from managedconsumer.coordinator import events as ev


class Owner(Protocol):
    """The holder of the partitions. All but ``fence`` run inside :meth:`GroupMember.poll`, one at a time."""

    def prepare_join(self, event: ev.PrepareJoin) -> bool:
        """Give up the partitions that must be given up; True if others are kept through the rebalance."""

    def elect(self, event: ev.Elected) -> Mapping[str, bytes]:
        """Compute the assignment as the group's leader (with ``skip_assignment`` it is not used)."""

    def take_over(self, event: ev.Assigned) -> str | None:
        """Take the assignment over; a returned reason asks for a follow-up rebalance."""

    def drop(self, event: ev.MembershipLost) -> None:
        """The partitions are lost: forget them, tell the user."""

    def fence(self, event: ev.MembershipLost) -> None:
        """Stop delivering. Called from any thread as soon as the loss is known. Must not block."""

    def observe(self, event: ev.Event) -> None:
        """Every event as it happens, for the log and the recorder. Must not block."""
