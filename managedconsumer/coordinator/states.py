"""The states of a group member and every legal move between them.

Rule: a move that is not in :data:`TRANSITIONS` raises; nothing else in the package changes a member's state.

========================  ==============================================================================
state                     what is true in it
========================  ==============================================================================
``UNJOINED``              No place in the group, no partitions. A join may start at once.
``REVOKING``              A rebalance is needed. The owner gives up what the protocol asks for (drain,
                          commit, revoked-callback) while the old generation is still valid; heartbeats go on.
``PREPARING_REBALANCE``   JoinGroup is to be sent or in flight; the coordinator waits for the others.
``COMPLETING_REBALANCE``  We are in the new generation, our assignment is not here yet (SyncGroup; the
                          leader computes first). Heartbeats go on under the new generation.
``ASSIGNING``             The assignment is here; the owner takes over (positions, assigned-callback).
``STABLE``                Nothing to do but heartbeats.
``LOSING``                Expelled (session expiry, unknown member, old generation, fenced). The owner drops
                          its partitions (lost-callback, no commit); then ``UNJOINED``.
``LEAVING``               LeaveGroup is to be sent or in flight.
``LEFT``                  Out of the group by our own will; ``restart`` makes it ``UNJOINED``.
``FAILED``                An error that cannot heal by itself; the cause is kept. The coordinator may still hold
                          our place, which ``stop()`` leaves.
========================  ==============================================================================
"""

from __future__ import annotations

from enum import Enum

from managedconsumer.errors import IllegalStateError


class MemberState(Enum):
    """The states of a group member (Java's four, and the moments when the owner is at work)."""

    UNJOINED = "unjoined"
    REVOKING = "revoking"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    ASSIGNING = "assigning"
    STABLE = "stable"
    LOSING = "losing"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


_S = MemberState
_ANYWHERE = frozenset({_S.LEAVING, _S.LEFT, _S.FAILED})

TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    _S.UNJOINED: _ANYWHERE | {_S.REVOKING, _S.PREPARING_REBALANCE},
    _S.REVOKING: _ANYWHERE | {_S.PREPARING_REBALANCE, _S.LOSING},
    _S.PREPARING_REBALANCE: _ANYWHERE | {_S.COMPLETING_REBALANCE, _S.LOSING, _S.UNJOINED},
    _S.COMPLETING_REBALANCE: _ANYWHERE | {_S.ASSIGNING, _S.PREPARING_REBALANCE, _S.LOSING},
    _S.ASSIGNING: _ANYWHERE | {_S.STABLE, _S.LOSING},
    _S.STABLE: _ANYWHERE | {_S.REVOKING, _S.ASSIGNING, _S.LOSING},
    _S.LOSING: _ANYWHERE | {_S.UNJOINED},
    _S.LEAVING: frozenset({_S.LEFT, _S.FAILED}),
    _S.LEFT: frozenset({_S.UNJOINED, _S.FAILED}),
    _S.FAILED: frozenset({_S.LEAVING, _S.LEFT, _S.UNJOINED}),
}

#: States in which the coordinator holds a place for us under a generation that we know.
IN_GROUP = frozenset({_S.REVOKING, _S.COMPLETING_REBALANCE, _S.ASSIGNING, _S.STABLE})


def check_transition(old: MemberState, new: MemberState) -> None:
    """Raise ``IllegalStateError`` unless ``old`` -> ``new`` is in the table."""
    if new not in TRANSITIONS[old]:
        raise IllegalStateError(f"a group member cannot go from {old.name} to {new.name}")
