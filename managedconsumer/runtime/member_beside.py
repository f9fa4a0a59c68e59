"""A member whose caller never waits for the group: a worker joins, and the caller hands partitions over when it can.

For an owner that may give partitions up at certain moments only, and must not wait in a join at these moments: a Spark
query between two micro-batches. The worker (:meth:`BesideMember.converse`) sends the JoinGroups and SyncGroups and
assigns as the leader. Only :meth:`BesideMember.hand_over` gives and takes partitions, in the caller's thread. A member
that keeps its partitions through a rebalance (cooperative) joins without the caller: no member waits for its batch.
"""

from __future__ import annotations

from typing import Any

from managedconsumer.clock import Deadline
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.states import MemberState
from managedconsumer.runtime.member import MEMBERSHIP, GroupMember
from managedconsumer.runtime.waiting.primitives import Worker

# The longest sleep (seconds) of a thread: a missed wake-up costs at most this much.
_LONGEST_NAP = 5.0
# How long (seconds) the end waits for the worker after it has cancelled the worker's request.
_END_SECONDS = 2.0


class BesideMember(GroupMember):
    """One member of a group, driven by a worker and by one caller. ``keeps``: it keeps its partitions in a join."""

    def __init__(self, *args: Any, keeps: bool, **named: Any) -> None:
        super().__init__(*args, **named)
        self._keeps = keeps
        self._beside = (ev.Elected, ev.PrepareJoin) if keeps else (ev.Elected,)
        self._worker: Worker | None = None
        self._trouble: BaseException | None = None

    def start(self) -> None:
        """Start the heartbeats and the worker that joins."""
        if self._worker is None:
            super().start()
            self._worker = self._handler.spawn(MEMBERSHIP, self.converse)

    def hand_over(self) -> bool:
        """Carry out the owner's present part of the rebalance; True when no work is left.

        Sends no request that waits for other members. Raises the membership's last error, or the worker's.
        """
        while not self._closing:
            self._feed(self._step_here)
            with self._lock:
                event = self._todo.popleft() if self._due_here() else None
            if event is None:
                break
            self._hand_to_owner(event)
        if self._trouble is not None:
            raise self._trouble
        if self.machine.state is MemberState.FAILED and self.machine.error is not None:
            raise self.machine.error
        return self.stable

    def wait_here(self, timeout: float, *, settled: bool = False) -> None:
        """Sleep until :meth:`hand_over` has work, ``timeout`` is over, or (``settled``) no rebalance is left."""
        deadline = Deadline(self._handler.now(), timeout)
        with self._lock:
            while not (self._closing or self._trouble or self._due_here() or self._begins_here()):
                remaining = deadline.remaining(self._handler.now()) or 0.0
                failed = self.machine.state is MemberState.FAILED
                if remaining <= 0.0 or failed or (settled and self.stable):
                    return
                self._lock.wait(min(remaining, _LONGEST_NAP))

    def _step_here(self) -> list[ev.Event]:
        lost = self.machine.check_session(self._handler.now())
        return lost if self._keeps else [*lost, *self.machine.poll()]

    def _due_here(self) -> bool:
        return bool(self._todo) and not isinstance(self._todo[0], self._beside)

    def _begins_here(self) -> bool:
        """True for an eager member, which gives its partitions up before it joins: the caller has to begin."""
        begins = self.machine.state in (MemberState.UNJOINED, MemberState.STABLE)
        return not self._keeps and begins and self.machine.rejoin_reason is not None

    def converse(self) -> None:
        """Join, sync and assign whenever that is due, until the member leaves; the caller raises its errors."""
        try:
            while not self._closing:
                self._converse_once()
        except BaseException as error:  # a worker's death must reach the user
            self._trouble = error
            self.wake()

    def _converse_once(self) -> None:
        # Each thread takes its own kinds of events only, so the first event in the queue waits for its thread.
        if self._todo and isinstance(self._todo[0], self._beside):
            self._hand_to_owner(self._todo.popleft())
            return
        with self._lock:
            now = self._handler.now()
            events = [*self._pass_over(), *self.machine.poll()] if self._keeps else []
            request = None if events or self._closing else self.machine.next_request(now)
            if not events and request is None and not self._closing and not self._due_beside():
                self._lock.wait(self._nap(now))
        self._dispatch(events)
        if request is not None:
            self._send(MEMBERSHIP, request)

    def _pass_over(self) -> list[ev.Event]:
        """Join with the present partitions when the group rebalances before the caller has taken its assignment over.

        No other member has the revoked partitions yet: a cooperative assignor hands them on only after this member has
        given them up. So a member in a long batch does not delay the others.
        """
        machine = self.machine
        if not isinstance(machine, Membership) or machine.rejoin_reason is None or len(self._todo) != 1:
            return []
        if not isinstance(self._todo[0], ev.Assigned):
            return []
        self._todo.clear()
        return machine.reconciled()

    def _due_beside(self) -> bool:
        return bool(self._todo) and isinstance(self._todo[0], self._beside)

    def _nap(self, now: float) -> float:
        """Return the rest of the pause before the next attempt; everything else wakes the worker."""
        at = self.machine.next_deadline(now) if self.machine.state is MemberState.PREPARING_REBALANCE else None
        return _LONGEST_NAP if at is None else min(_LONGEST_NAP, max(0.001, at - now))

    def leave(self, reason: str, timeout: float, wish: bool | None = None) -> None:
        """Cancel a waiting join, leave the group, end both workers; ``timeout``: seconds for the leave."""
        self.interrupt()
        super().leave(reason, timeout, wish)
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.join(_END_SECONDS)
