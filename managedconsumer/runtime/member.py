"""Drives a membership machine over real connections.

Joins, syncs and the owner's hand-over happen only inside :meth:`GroupMember.poll`. A consumer's membership worker calls
it in a loop; a Spark reader calls it at micro-batch boundaries. A worker of its own sends heartbeats over its own
connection, whatever the caller does in the meantime.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import Any, Callable, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.states import MemberState
from managedconsumer.runtime.cluster.coordinator_link import HEARTBEAT, CoordinatorLink
from managedconsumer.runtime.open_requests import OpenRequests
from managedconsumer.runtime.owner import Owner
from managedconsumer.runtime.waiting import process
from managedconsumer.runtime.waiting.conditions import wait_until
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.runtime.waiting.primitives import Worker
from managedconsumer.structs import Generation
from managedconsumer.wire.protocol import schemas

log = logging.getLogger(__name__)

MEMBERSHIP = "membership"
# How long an idle driver sleeps at most, so that a missed wake-up can only cost this much (seconds).
_LONGEST_NAP = 5.0
# A join may wait for minutes, so it does not use a connection that has been silent for this long (seconds).
_TRUSTED_IDLE = 3.0
# No era of a link.
_KNOWN = -1
# How long (seconds) the interpreter's end may wait for the coordinator.
_EXIT_SECONDS, _EXIT_MS = 1.0, 1000
# The longest wait (seconds) of a worker for another one that fences.
_LONGEST_FENCE = 1.0
# How long (ms) the coordinator may take to describe the group.
_DESCRIBE_MS = 5000


class GroupMember:
    """One member of a group: a machine, a link to the coordinator, a heartbeat worker, an owner."""

    def __init__(
        self,
        machine: Membership | ConsumerGroupMembership,
        link: CoordinatorLink,
        handler: Handler,
        owner: Owner,
        *,
        on_death: Callable[[BaseException], None] = lambda error: log.error("heartbeats ended", exc_info=error),
        before_exit: Callable[[], object] = lambda: None,
    ) -> None:
        """``on_death`` gets an error of the heartbeat worker; ``before_exit`` runs if the interpreter ends."""
        self.machine = machine
        self._link = link
        self._handler = handler
        self._owner = owner
        self._lock = handler.Condition()
        self._todo: deque[ev.Event] = deque()
        self._closing = False
        self._pid = os.getpid()
        self._beat_worker: Worker | None = None
        self._members: dict[str, bytes] = {}
        self._open = OpenRequests(owner.observe, machine.heartbeat.timeout)
        self._on_death = on_death
        self._before_exit = before_exit
        self._exiting = False
        # How many of the machine's losses the owner has been told of.
        self._fenced = 0
        # True from a loss of the coordinator to its next response.
        self._away = False

    # -- state ----------------------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        """The present generation (id -1: none)."""
        return self.machine.generation

    @property
    def state(self) -> MemberState:
        """The machine's state."""
        return self.machine.state

    @property
    def joined(self) -> bool:
        """True while this is a member of the group."""
        return self.generation.joined and self.state is not MemberState.LOSING

    @property
    def stable(self) -> bool:
        """True when no rebalance is in progress or wanted, and no hand-over is left."""
        return not self._todo and not self.machine.need_rejoin()

    @property
    def leaving(self) -> bool:
        """True when the member leaves, or has left: :meth:`poll` has no work any more."""
        return self._closing

    def current(self, generation: Generation) -> bool:
        """False when the rebalance of ``generation`` is over, or the member closes."""
        return not self._closing and self.machine.is_current(generation)

    @property
    def unfenced(self) -> int:
        """Number of the machine's losses that the owner has not been told of yet."""
        return self.machine.losses - self._fenced

    def await_session(self) -> None:
        """Wait until a worker has noticed that the session has run out, a second at most. Call it without a lock.

        For the user's threads, which must not drive the machine themselves: an exception of a signal handler could come
        between the machine's step and the delivery of its events.
        """
        now = self._handler.now
        with self._lock:
            self._lock.notify_all()
            wait_until(self._lock, now, lambda: now() <= self.deliver_until(), _LONGEST_FENCE)

    def deliver_until(self) -> float:
        """Until when (handler's clock) messages may be delivered, as far as it is known here. Takes no lock."""
        end = self.machine.session_end()  # before the losses: after a loss in between there is no session any more
        if self.unfenced:
            return float("-inf")
        # The response to a join may come at any moment, and its session lasts at least as long.
        return end if end < float("inf") else self._handler.now() + self.machine.heartbeat.timeout

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance; it happens in the next :meth:`poll`."""
        with self._lock:
            self.machine.request_rejoin(reason)
            self._lock.notify_all()

    def fence(self, error: BaseException, generation: Generation) -> None:
        """Note that the response to another request, sent under ``generation``, expelled this member."""
        self._feed(lambda: self.machine.fence(error, generation))
        self.await_fence()

    def await_fence(self) -> None:
        """Wait a second at most until known losses are fenced, perhaps by another worker. Call it without a lock."""
        with self._lock:
            wait_until(self._lock, self._handler.now, lambda: not self.unfenced, _LONGEST_FENCE)

    def leave_as_fenced(self, error: BaseException, generation: Generation) -> None:
        """Leave the group and treat the partitions as lost; the owner calls it inside :meth:`poll`."""
        with self._lock:
            leave_request = self.machine.leave_request(str(error)) if self.machine.is_current(generation) else None
            events = self.machine.fence(error, generation)
        self._dispatch(events)
        if leave_request is not None:
            try:
                self._link.request_within(MEMBERSHIP, leave_request.api, leave_request.body, leave_request.timeout)
            except err.KafkaException as problem:
                log.info("leaving the group was not confirmed: %s", problem, extra=self.machine.log_fields())

    def describe_group(self, timeout_ms: int = _DESCRIBE_MS, *, modern: bool = False) -> Mapping[str, Any]:
        """The coordinator's response to a DescribeGroups of this group; raises any KafkaException. Thread-safe.

        ``modern``: to a ConsumerGroupDescribe, which knows the groups of KIP-848.
        """
        api, names = (schemas.CONSUMER_GROUP_DESCRIBE, "group_ids") if modern else (schemas.DESCRIBE_GROUPS, "groups")
        return self._link.request(MEMBERSHIP, api, {names: [self.machine.group_id]}, timeout_ms)

    def wake(self) -> None:
        """Make a waiting :meth:`wait` check again."""
        with self._lock:
            self._lock.notify_all()

    # -- driving --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the heartbeat worker."""
        if self._beat_worker is None:
            self._closing = False
            self._beat_worker = self._handler.spawn("heartbeat", self._beat_forever)
            if self._handler.real:
                process.at_exit.add(self)

    def poll(self, timeout: float | None = None, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Carry out a wanted rebalance; True when stable, False after ``timeout`` seconds or when closing.

        Raises the error that ended the membership. Calls ``give_up`` between steps.
        """
        deadline = Deadline(self._handler.now(), timeout)
        while not self._closing and not give_up():
            # The heartbeat worker alone is not enough: while it looks for the coordinator the session may run out.
            self._feed(lambda: [*self.machine.check_session(self._handler.now()), *self.machine.poll()])
            handed = bool(self._todo)
            while self._todo:
                self._hand_to_owner(self._todo.popleft())
            if self.machine.state is MemberState.FAILED and self.machine.error is not None:
                raise self.machine.error
            if self.stable:
                return True
            if deadline.expired(self._handler.now()):
                return False
            if handed:  # the machine may need a further step, as a join after a loss
                continue
            request = self._next_request(deadline)
            if request is not None:
                self._send(MEMBERSHIP, request)
        return False

    def join(self) -> dict[str, bytes]:
        """Carry out a rebalance up to JoinGroup; returns the members' metadata for the leader, otherwise nothing."""
        self._members = {}
        before = (MemberState.UNJOINED, MemberState.REVOKING, MemberState.PREPARING_REBALANCE)
        self.poll(None, lambda: self.machine.state not in before and self.machine.rejoin_reason is None)
        return self._members

    def sync(self, assignments: Mapping[str, bytes]) -> bool:
        """Continue up to the taken-over assignment; uses a leader's ``assignments`` if none were computed yet."""
        self._feed(lambda: self.machine.provide_assignments(assignments) if assignments else [])
        return self.poll(None)

    def heartbeat_age(self) -> float:
        """Seconds since the coordinator's last response."""
        return self._handler.now() - self.machine.heartbeat.last_heard()

    def wait(self, timeout: float | None = None) -> None:
        """Sleep until :meth:`poll` has work, or for ``timeout`` seconds."""
        deadline = Deadline(self._handler.now(), timeout)
        with self._lock:
            while not self._closing and self.stable and not deadline.expired(self._handler.now()):
                remaining = deadline.remaining(self._handler.now())
                self._lock.wait(_LONGEST_NAP if remaining is None else min(remaining, _LONGEST_NAP))
                if remaining is not None:
                    return

    def _next_request(self, deadline: Deadline) -> ev.Request | None:
        with self._lock:
            if self._closing:
                return None
            now = self._handler.now()
            request = self.machine.next_request(now)
            if request is None and not self._todo:
                at = self.machine.next_deadline(now)
                pauses = [_LONGEST_NAP, deadline.remaining(now), None if at is None else max(0.0, at - now)]
                self._lock.wait(max(0.001, min(p for p in pauses if p is not None)))
            return request

    def _send(self, purpose: str, request: ev.Request) -> bool:
        era, idle = self._link.era, _TRUSTED_IDLE if purpose == MEMBERSHIP else None
        self._open.sent(purpose, request.api.name, self._handler.now())
        try:
            answer = self._link.request(purpose, request.api, request.body, int(request.timeout * 1000), idle_s=idle)
        except err.KafkaException as error:
            self._failed(request, error, _KNOWN)
            return False
        finally:
            self._open.answered(purpose)
        if self._away:
            self._away = False
            self._owner.observe(ev.CoordinatorBack())
        self._feed(lambda: self.machine.receive(request, answer, self._handler.now()), era)
        self.wake()  # the response to a heartbeat may ask for a rebalance without an event
        return True

    def _failed(self, request: ev.Request, error: err.KafkaException, era: int | None = None) -> None:
        self._feed(lambda: self.machine.failed(request, error, self._handler.now()), era)

    def _hand_to_owner(self, event: ev.Event) -> None:
        if isinstance(event, ev.PrepareJoin):
            holding = self._owner.prepare_join(event)
            self._feed(lambda: self.machine.prepared(holding))
        elif isinstance(event, ev.Elected):
            self._members = {m.member_id: m.metadata for m in event.members}
            # KIP-814: a static leader that came back assigns nothing, but watches the topics as any leader does.
            elected = self._owner.elect(event)
            assignments = {} if event.skip_assignment else elected
            self._feed(lambda: self.machine.provide_assignments(assignments))
        elif isinstance(event, ev.Assigned) and self.machine.is_current(event.generation):
            rejoin = self._owner.take_over(event)
            self._feed(lambda: self.machine.reconciled(rejoin))
        elif isinstance(event, ev.MembershipLost):
            self._owner.drop(event)
            self._feed(lambda: self.machine.forgotten())

    def _feed(self, step: Callable[[], list[ev.Event]], era: int | None = None) -> list[ev.Event]:
        """Let the machine take a step, and deliver its events."""
        with self._lock:
            events = step()
        self._dispatch(events, era)
        return events

    def _dispatch(self, events: list[ev.Event], era: int | None = None) -> None:
        """Deliver the machine's events; never under the lock.

        ``era``: the link's era when the request was sent; ``_KNOWN``: the link has noted the failure itself.
        """
        for event in events:
            if isinstance(event, ev.MembershipLost):
                self._fence(event)  # first, as the other steps take time
            self._owner.observe(event)
            if isinstance(event, ev.CoordinatorLost):
                self._away = True
                self._link.lost(event.reason, era)
            if isinstance(event, (ev.PrepareJoin, ev.Elected, ev.Assigned, ev.MembershipLost)):
                self._todo.append(event)
        if events:
            self.wake()

    def _fence(self, event: ev.MembershipLost) -> None:
        try:
            self._owner.fence(event)
        finally:
            with self._lock:
                self._fenced += 1
                self._lock.notify_all()

    # -- heartbeats -----------------------------------------------------------------------------------

    def _beat_forever(self) -> None:
        try:
            self._beat()
        except BaseException as error:  # a worker's death must reach the user
            self._on_death(error)
        if self._exiting:  # the interpreter waits no longer for a silent coordinator
            self._handler.sleep(_EXIT_SECONDS)
            self._link.close()

    def _beat(self) -> None:
        backoff = Backoff(0.05, 1.0, self._handler.random)
        while not self._closing:
            self._open.tell_what_lasts(self._handler.now())
            if self._feed(lambda: self.machine.check_session(self._handler.now())):
                continue
            with self._lock:
                if self.leaving:  # since the check above: no thread would wake this one again
                    return
                now = self._handler.now()
                request = self.machine.next_heartbeat(now)
                if request is None:
                    at = self.machine.next_deadline(now)
                    self._lock.wait(_LONGEST_NAP if at is None else min(_LONGEST_NAP, max(0.001, at - now)))
                    continue
            if self._send(HEARTBEAT, request):
                backoff.succeed()
            elif not self._closing:
                self._handler.sleep(backoff.fail(self._handler.now()))

    # -- the end --------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Make :meth:`poll` return soon: wake it, and cancel a join that waits for the other members."""
        self._closing = True
        self._link.interrupt(MEMBERSHIP)
        self.wake()

    def leave(self, reason: str, timeout: float, wish: bool | None = None) -> None:
        """Leave the group (KIP-800 reason) and stop the heartbeats; never raises for an unreachable broker.

        ``timeout``: seconds for both together. ``wish`` (KIP-1092): True to send a LeaveGroup; None: a static member
        sends none and stays a member.
        """
        deadline = Deadline(self._handler.now(), timeout)
        with self._lock:
            self._closing = True
            events = self.machine.leave(reason, wish)
            request = self.machine.next_request(self._handler.now())
        self._dispatch(events)
        self.wake()
        if request is not None:
            bounded = ev.Request(request.api, request.body, min(timeout, request.timeout), request.generation)
            # In a separate worker: the look-up of a coordinator that has just moved may take longer than the time-out.
            self._handler.run_beside("leave", timeout, self._leave_within, request, bounded)
        self._link.interrupt(HEARTBEAT)
        if self._beat_worker is not None:
            self._beat_worker.join(deadline.remaining(self._handler.now()))
            self._beat_worker = None

    def leave_at_exit(self) -> None:
        """Leave at the interpreter's end without a ``stop()``, in the calling thread and without a new thread.

        Only if the coordinator has responded lately, so that the process ends within a second or two.
        """
        beat = self.machine.heartbeat
        with self._lock:
            generation, leave_request = self.machine.generation, self.machine.leave_request("the interpreter ends")
            fresh = self.heartbeat_age() < beat.interval + _EXIT_SECONDS and os.getpid() == self._pid
            if self._closing or not fresh or not (generation.joined or leave_request):
                return
            self._closing = self._exiting = True
            self._lock.notify_all()
        text = "group %s: the interpreter ends without stop(): the member leaves"
        log.info(text, self.machine.group_id, extra=self.machine.log_fields())
        self._link.interrupt(HEARTBEAT)
        if generation.joined:
            self._before_exit()
            # A daemon thread that still consumes gets no more messages.
            self._owner.fence(ev.MembershipLost("the interpreter ends", None, generation))
        if leave_request is not None:
            self._link.interrupt(MEMBERSHIP)
            self._link.request(MEMBERSHIP, leave_request.api, leave_request.body, _EXIT_MS, connect_ms=_EXIT_MS)

    def _leave_within(self, request: ev.Request, bounded: ev.Request) -> None:
        try:
            answer = self._link.request_within(MEMBERSHIP, bounded.api, bounded.body, bounded.timeout)
            self._feed(lambda: self.machine.receive(request, answer, self._handler.now()))
        except err.KafkaException as error:
            # Best effort: without it the session time-out removes the member.
            log.info("leaving the group was not confirmed: %s", error, extra=self.machine.log_fields())
            self._failed(request, error)


class Lease:
    """Limits how long a member may deliver messages: as long as its session lasts, by its own clock.

    A thread checks it right before it takes messages: after a freeze of the process any thread may run first.

    After its end it is a task of the consuming thread (:class:`managedconsumer.runtime.engine.delivery.Task`).
    """

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def until(self) -> float:
        """Until when (handler's clock) messages may be delivered; after that call :meth:`run`. Takes no lock."""
        return self._member.deliver_until()

    def run(self) -> None:
        """Wait, a second at most, until the membership knows that its session is over; then :meth:`until` changes."""
        self._member.await_session()

    async def run_async(self) -> None:
        """:meth:`run` on an event loop, which does not wait for another thread."""
        import asyncio  # here: the import is slow, and few users consume from a loop

        await asyncio.to_thread(self.run)
