"""Bugs to plant: each is a mistake that a change to the member or its driver could make, one line in most cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.committing import Committing
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.states import IN_GROUP
from managedconsumer.group_owner import GroupOwner
from managedconsumer.runtime.assignment_part import AssignmentPart
from managedconsumer.runtime.committer import Committer
from managedconsumer.structs import OffsetAndMetadata
from managedconsumer.testing.simulate_group import ClassicGroup


def no_generation_fence(patch: pytest.MonkeyPatch) -> None:
    """The coordinator takes commits of any generation and any member."""
    patch.setattr(ClassicGroup, "check_commit", lambda _self, _body: 0)


def commits_beyond_finished(patch: pytest.MonkeyPatch) -> None:
    """Automatic commits cover what is still in the user's hands."""

    def finished(self: Committer) -> dict[Any, OffsetAndMetadata]:
        states = self._engine.subscription.assignment.items()
        return {tp: OffsetAndMetadata(s.position) for tp, s in states if s.position not in (None, s.committed)}

    patch.setattr(Committer, "finished", finished)


def retains_buffers_over_a_gap(patch: pytest.MonkeyPatch) -> None:
    """Partitions keep buffer and position although a generation was missed, in which another may have had them."""
    take_over = GroupOwner.take_over
    patch.setattr(GroupOwner, "take_over", lambda self, event: take_over(self, replace(event, continuous=True)))
    patch.setattr(GroupOwner, "drop", lambda self, _event: self._told.clear())


def loses_commits(patch: pytest.MonkeyPatch) -> None:
    """A commit whose answer says "try again" counts as done."""
    judge = Committing._judge

    def careless(self: Committing, errors: Any, generation: Any, now: float) -> Any:
        passing = [tp for tp in errors if classify(errors[tp]) in (Verdict.RETRY, Verdict.FIND_COORDINATOR)]
        self.result.committed.update({tp: self.result.left.pop(tp) for tp in passing})
        return judge(self, {tp: error for tp, error in errors.items() if tp not in passing}, generation, now)

    patch.setattr(Committing, "_judge", careless)


def accepts_old_heartbeats(patch: pytest.MonkeyPatch) -> None:
    """The answer to a heartbeat counts in whatever generation it arrives."""
    receive = Membership.receive

    def trusting(self: Membership, request: Any, response: Any, now: float) -> Any:
        if request is self._beat_in_flight and self.state in IN_GROUP:
            request = self._beat_in_flight = replace(request, generation=self.generation, stamp=self._stamp)
        return receive(self, request, response, now)

    patch.setattr(Membership, "receive", trusting)


def hands_out_after_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A member that learns of its loss goes on handing out until its partitions are dropped."""
    patch.setattr(GroupOwner, "fence", lambda _self, _event: None)


def forgets_the_revoked_callback(patch: pytest.MonkeyPatch) -> None:
    """What a cooperative rebalance takes away is dropped without a word."""
    patch.setattr(GroupOwner, "_give_up", lambda self, tps, _joined: self._engine.hold(tps))


def keeps_what_it_lost(patch: pytest.MonkeyPatch) -> None:
    """A cooperative member goes on with partitions that are not in its share any more."""
    take_over = AssignmentPart.take_over

    def greedy(self: Any, tps: Any, **options: Any) -> Any:
        kept = [tp for tp in self.subscription.assignment if tp not in tps]
        return take_over(self, [*tps, *kept], **options)

    patch.setattr(AssignmentPart, "take_over", greedy)
    patch.setattr(GroupOwner, "_reconcile", lambda _self, _event, _before, _share: None)


def never_rejoins(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that says "rebalancing" is overheard."""
    patch.setattr(Membership, "request_rejoin", lambda _self, _reason: None)


PLANTED = [
    no_generation_fence,
    commits_beyond_finished,
    retains_buffers_over_a_gap,
    loses_commits,
    accepts_old_heartbeats,
    hands_out_after_the_fence,
    forgets_the_revoked_callback,
    keeps_what_it_lost,
    never_rejoins,
]
