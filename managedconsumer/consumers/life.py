"""One life of a group member: machine, driver, hand-over and worker, which are replaced together.

:class:`managedconsumer.coordinator.handover.HandOver` decides which partitions to revoke, in which order, and which
callbacks to call; :class:`GroupLife` carries its steps out with the engine. Retained partitions keep their buffer and
position.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.config import GroupOptions
from managedconsumer.consumers.machines import CLASSIC, CONSUMER, AssignorChoice, build_machine
from managedconsumer.consumers.positioning import LONGEST_DELAY
from managedconsumer.consumers.session import Session
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator import handover as ho
from managedconsumer.coordinator.handover import HandOver, Rules, carry_out
from managedconsumer.coordinator.requests import NOTHING_YET, assignment_is_due
from managedconsumer.coordinator.states import MemberState
from managedconsumer.runtime.engine.callbacks import CallbackNotDelivered, ListenerCalls
from managedconsumer.runtime.engine.commits.committer import MemberIdentity
from managedconsumer.runtime.engine.troubles import GROUP, GroupLog
from managedconsumer.runtime.engine.watchdog import ProcessingWatchdog
from managedconsumer.runtime.member import GroupMember, Lease
from managedconsumer.runtime.waiting.primitives import Worker
from managedconsumer.structs import ClusterSnapshot, Generation, TopicPartition
from managedconsumer.subscription_state import FetchState

log = logging.getLogger(__name__)

# How often (seconds) the membership worker checks the watchdog, its session, and whether its consumer was deleted.
_TICK = 1.0
# How long (seconds) it pauses while a consumer that polls too rarely is out of the group.
_PAUSE = 0.1
# The share of a stop's time that a rebalance may take to end. Other members may delay a JoinGroup for long, and the
# broker accepts commits meanwhile; a SyncGroup ends soon.
_FOR_A_ROUND = {MemberState.PREPARING_REBALANCE: 0.02, MemberState.COMPLETING_REBALANCE: 0.2}
# After this long (seconds) without a partition a KIP-848 member logs what it may wait for.
_TELL_AFTER = 5.0
# The commit at a rebalance may take this share of the rebalance time-out, and this long (seconds) at most.
_COMMIT_SHARE, _COMMIT_LONGEST = 0.3, 5.0
# The next rebalance may wait for this share of the rebalance time-out for the positions of this one's partitions.
_POSITION_SHARE = 0.3
# How long (seconds) one attempt to get metadata lasts before the leader checks whether it still leads.
_METADATA_PATIENCE = 5.0
# How long (seconds) the commit of a stop may take, and that of an interpreter that ends without stop().
_LAST_COMMIT_PATIENCE, _EXIT_PATIENCE = 2.0, 1.0
# How long (seconds) a rebalance waits for the positions of new partitions, and the first one, for which start() waits.
# After that the listener gets the partitions without; their messages follow once the positions are known.
_POSITION_PATIENCE, _FIRST_POSITION_PATIENCE = 5.0, 30.0

PostRebalance = Callable[[dict[Any, int], dict[Any, int]], None]


class GroupLife:
    """One membership, complete once it is constructed. It owns the partitions (``runtime.owner.Owner``).

    The membership worker carries it out, but for :meth:`fence` and the end in the thread that calls ``stop()``.
    """

    def __init__(
        self,
        protocol: str,
        session: Session,
        options: GroupOptions,
        assignors: AssignorChoice,
        listener: Any,
        post_rebalance: PostRebalance,
    ) -> None:
        engine = session.engine
        if engine.link is None:
            raise err.IllegalStateError("a managed consumer needs a group")
        negotiation = assignors.negotiation(protocol, session.options.client_rack)
        self.protocol = protocol
        self.engine, self._session, self._auto = engine, session, assignors.auto
        self._post_rebalance = post_rebalance
        self._drain = options.revoke_drain_ms / 1000.0
        longest = options.rebalance_timeout_ms / 1000.0
        self._commit_seconds = min(_COMMIT_LONGEST, _COMMIT_SHARE * longest)
        self._position_delay = min(LONGEST_DELAY, _POSITION_SHARE * longest)
        self._reset_on_start = session.options.reset_offset_on_start
        self.listener_calls = ListenerCalls(listener, engine, options.rebalance_timeout_ms)
        self.machine = build_machine(protocol, engine, options, negotiation, assignors)
        rules = Rules(keeps=True, commits_after_callback=self.listener_calls.listens)
        self._hand_over = HandOver(engine.group_id or "", negotiation, self, rules)
        self._log = GroupLog(engine.history, engine.troubles)
        #: The offsets last consumed before a hand-over, for the post_rebalance_callback.
        self._old: dict[Any, int] = {}
        #: The number of assignments that were taken over.
        self.assignments = 0
        #: True while a stop lets a rebalance end.
        self.finishing = False
        self.member = GroupMember(
            self.machine, engine.link, engine.handler, self, on_death=engine.life.fail, before_exit=self._before_exit
        )
        self.identity = MemberIdentity(
            lambda: self.machine.generation,
            self.settled,
            self.member.fence,
            self.member.await_fence,
            self.metadata_changed,
            options.group_instance_id,
            Lease(self.member),
        )
        self._watchdog = ProcessingWatchdog(engine, options.max_processing_ms)
        self._worker: Worker | None = None
        # Since when (handler's clock) this member has had no partition; None: it has had one.
        self._idle_since: float | None = engine.handler.now() if protocol == CONSUMER else None

    # -- the worker -------------------------------------------------------------------------------------

    def begin(self, work: Callable[[GroupLife], None]) -> None:
        """Start the heartbeats, and the membership worker, which runs ``work``."""
        self.member.start()
        self._worker = self.engine.handler.spawn("membership", work, self)

    def tick(self) -> bool:
        """Do one round of the membership worker; False when it has to end."""
        engine, member = self.engine, self.member
        if engine.life.closed or (engine.life.stopping and not self.finishing) or member.leaving:
            return False
        if self._watchdog.check(member):
            # This drops the lost partitions and calls the listener; the next join waits for the user.
            member.poll(_TICK, lambda: member.state is MemberState.UNJOINED)
            engine.handler.sleep(_PAUSE)
        else:
            member.poll(_TICK)
            member.wait(_TICK)
        if self._idle_since is not None and member.state is MemberState.STABLE:
            self._tell_why_idle(self._idle_since)
        return True

    def assignment_is_due(self) -> bool:
        """True if this is a KIP-848 member without partitions for which the broker has some that nobody else holds."""
        engine = self.engine
        busy = engine.delivery.tasks_waiting or engine.life.no_more or not engine.life.running
        if self._idle_since is None or busy or engine.life.stop_wanted:
            return False
        due = False
        try:
            if not engine.subscription.assignment:
                (group,) = self.member.describe_group(modern=True)["groups"]
                due = not group["error_code"] and assignment_is_due(group, self.member.generation.member_id)
        except err.KafkaException as problem:  # not allowed, or no coordinator now: start() only returns earlier
            engine.log_fields.tell(log.debug, "ConsumerGroupDescribe failed: %s", problem)
        return due or bool(engine.subscription.assignment)  # which may have come meanwhile, and is being taken over

    def _tell_why_idle(self, since: float) -> None:
        """Log once why this member may have had no partition yet."""
        engine = self.engine
        if not engine.subscription.assignment:
            if engine.handler.now() - since < _TELL_AFTER:
                return
            engine.log_fields.tell(log.info, "%s", NOTHING_YET)
        self._idle_since = None

    def refused(self, error: BaseException) -> bool:
        """True if broker or group refuse this protocol with ``error``, and may accept the other one."""
        if self.machine.error is not error:  # another request than the membership's has failed
            return False
        if self.protocol == CLASSIC:
            return self._auto and isinstance(error, err.InconsistentGroupProtocol)
        groups = isinstance(error, (err.GroupIdNotFound, err.UnreleasedInstanceId)) and self._auto
        return groups or isinstance(error, (err.UnsupportedVersion, err.UnsupportedBrokerError))

    def _finish_round(self, timeout: float) -> None:
        """Let a rebalance end in a part of the stop's ``timeout``: until then brokers refuse each commit."""
        handler, member = self.engine.handler, self.member
        began = handler.now()
        while handler.now() - began < timeout * _FOR_A_ROUND.get(member.state, 0.0):
            handler.sleep(0.01)
        self.finishing = False

    def give_up(self, timeout: float) -> None:
        """End the worker, commit, and call the listener for the partitions. ``timeout`` in seconds."""
        self._finish_round(timeout)
        self.member.interrupt()
        if self._worker is not None:
            self._worker.join(timeout)
        # Drain, commit and call the listener, in this thread.
        seconds = 0.6 * self._left(timeout)
        until = self.engine.handler.now() + seconds
        carry_out(self._hand_over.leave(self.member.generation), lambda step: self._do_at_stop(step, seconds, until))

    def leave(self, reason: str, timeout: float) -> None:
        """Leave the group in the rest of the stop's ``timeout`` seconds."""
        self.member.leave(reason, self._left(timeout), self._session.leaving)

    def _left(self, timeout: float) -> float:
        return max(timeout / 4, self.engine.life.stop_by - self.engine.handler.now())

    def _before_exit(self) -> None:
        if self._session.committer.automatic:
            self._session.committer.commit_finished(_EXIT_PATIENCE, "exit")

    def settled(self) -> bool:
        """False while the assignment in a new generation is not known or not taken over yet."""
        return self._hand_over.settled(self.member.generation)

    # -- calls of the membership -----------------------------------------------------------------------

    def prepare_join(self, event: ev.PrepareJoin) -> bool:
        """Prepare a join: an eager assignor revokes all partitions, though their buffers stay for now."""
        return carry_out(self._hand_over.prepare_join(event), self._do)

    def elect(self, event: ev.Elected) -> Mapping[str, bytes]:
        """Compute the group's assignment from fresh metadata of every topic that a member subscribes to."""
        return carry_out(self._hand_over.elect(event), self._do)

    def take_over(self, event: ev.Assigned) -> str | None:
        """Take the assignment over."""
        self._old = self._session.consumed(self._session.assigned())
        return carry_out(self._hand_over.take_over(event), self._do)

    def drop(self, event: ev.MembershipLost) -> None:
        """Drop the partitions of a lost membership: call the listener, commit nothing."""
        carry_out(self._hand_over.lost(event), self._do)

    def fence(self, event: ev.MembershipLost) -> None:
        """Deliver no more messages of the lost partitions, at once."""
        self.engine.collector.lane.leave()  # without the lock, which another thread may have
        owned = self._session.assigned()
        self.engine.assignment.fence(owned)
        self._session.committer.fenced(event.error)
        self._log.note("suspended", event.generation, owned, event.reason)

    def observe(self, event: ev.Event) -> None:
        """Log the event; wake the threads that wait for it."""
        self._log.observe(event, self.member.generation)
        with self.engine.lock:
            self.engine.lock.notify_all()

    # -- calls of the hand-over -------------------------------------------------------------------------

    def owned(self) -> list[TopicPartition]:
        """Return the present assignment."""
        return self._session.assigned()

    def current(self, generation: Generation) -> bool:
        """False when ``generation`` is over, or the consumer stops."""
        life = self.engine.life
        return (life.running or (life.stopping and self.finishing)) and self.member.current(generation)

    def joined(self) -> bool:
        """True while this is a member of the group."""
        return self.member.joined

    def subscribed(self, topic: str) -> bool:
        """True if the consumer reads ``topic``."""
        with self.engine.lock:
            subscription = self.engine.subscription
            return topic in (subscription.subscription or ()) or subscription.matches(topic)

    def snapshot(self) -> ClusterSnapshot:
        """Return the newest metadata."""
        return self.engine.cluster.snapshot

    # -- the steps of a hand-over -----------------------------------------------------------------------

    def _do(self, step: ho.Step) -> Any:
        """Carry one step out."""
        match step:
            case ho.Suspend():
                self._suspend(step)
                self.engine.delivery.drain(set(step.partitions), self._drain)
            case ho.Commit():
                if self._session.committer.automatic:
                    self._session.committer.commit_finished(self._commit_seconds, "rebalance")
            case ho.CallListener():
                return self._tell(step)
            case ho.Drop():
                self.engine.assignment.drop(step.partitions)
            case ho.TakeOver():
                self._take_over(step)
            case ho.Deliver():
                return self._hand_out(step)
            case ho.RefreshMetadata():
                return self._look(step.topics)
            case ho.Describe():
                return self.member.describe_group()
            case ho.Record():
                self._log.note(step.kind, step.generation, step.partitions, step.reason)
            case ho.LogProblem():
                self.engine.troubles.note(GROUP, step.text)
        return None

    def _do_at_stop(self, step: ho.Step, seconds: float, until: float) -> None:
        """Carry one step out in the thread that calls ``stop()``; all of them take about ``seconds``."""
        match step:
            case ho.Suspend():
                self._suspend(step)
                self.engine.delivery.drain(set(step.partitions), min(self._drain, seconds))
            case ho.Commit():
                patience = min(_LAST_COMMIT_PATIENCE, max(0.0, until - self.engine.handler.now()))
                self._session.committer.drain(patience, auto=self._session.committer.automatic)
            case ho.CallListener():
                try:
                    self.listener_calls.call_here(step.method, step.partitions)
                except Exception:
                    text = "group %s: the listener raised during stop()"
                    log.exception(text, self.engine.group_id, extra=self.engine.log_fields())
            case _:
                self._do(step)

    def _suspend(self, step: ho.Suspend) -> None:
        self.engine.assignment.suspend(step.partitions)
        self._log.note("suspended", step.generation, step.partitions)

    def _tell(self, step: ho.CallListener) -> bool:
        """Call the listener, then pykafka's callback; leave the group if no thread runs the callback in time."""
        generation = step.generation
        if generation is None:  # the lost-callback waits as long as the consumer lives
            return self.listener_calls.call(step.method, step.partitions, lambda: True, step.begin, for_ever=True)
        told = False
        try:
            told = self.listener_calls.call(step.method, step.partitions, lambda: self.current(generation), step.begin)
        except CallbackNotDelivered as error:
            self.engine.log_fields.tell(log.warning, "leaving the group: %s", error)
            self.member.leave_as_fenced(error, generation)
        if step.method == ho.ASSIGNED and self.current(generation):
            self._post_rebalance(self._old, self._session.consumed(self._session.assigned()))
        return told

    def _take_over(self, step: ho.TakeOver) -> None:
        """Take over the assignment and look up its positions, for a bounded time."""
        engine = self.engine

        def over() -> bool:
            return not self.current(step.generation)

        with engine.lock:
            if over():  # lost in the meantime: all partitions stay suspended
                return
            engine.assignment.take_over(step.share, retain=True)
            engine.assignment.suspend(step.fresh)
            unplaced = sorted(engine.subscription.partitions_in(FetchState.INITIALIZING))
        self._session.positioning.find(
            unplaced,
            reset=self._reset_on_start,
            patience=_POSITION_PATIENCE if self.assignments else _FIRST_POSITION_PATIENCE,
            interrupted=lambda: over() or self.member.machine.rejoin_reason is not None,
            over=over,
            delay=self._position_delay,
        )
        self._reset_on_start = False

    def _hand_out(self, step: ho.Deliver) -> bool:
        """Start to deliver. Not after a loss: the thread that notices it suspends all partitions."""
        with self.engine.lock:
            if not self.current(step.generation):
                return False
            self.engine.assignment.release(step.share)
        self._log.note("handed out", step.generation, step.share)
        self.assignments += 1
        if step.share:
            self._idle_since = None
        self._log.taken_over()
        return True

    # -- metadata -------------------------------------------------------------------------------------

    def _look(self, topics: Collection[str] | None) -> ClusterSnapshot | None:
        engine = self.engine
        if topics is None:
            engine.assignment.refresh_metadata()
            return engine.cluster.snapshot
        with engine.lock:
            engine.subscription.group_subscribe(topics)
        generation = self.member.generation
        while self.current(generation):
            try:
                return engine.cluster.refresh_until(topics, _METADATA_PATIENCE)
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                # Try until brokers are back, or the session is over: then the next join elects again.
                engine.troubles.note(GROUP, f"no metadata to assign partitions by: {error}")
        return None

    def metadata_changed(self) -> None:
        """Rejoin if a refresh found new topics for the pattern, or new partitions while this member leads."""
        engine = self.engine
        with engine.lock:
            changed_topics = engine.subscription.update_pattern_subscription(engine.cluster.snapshot)
        if changed_topics:
            self.member.request_rejoin("the topics that match the pattern changed")
        outgrown = self._hand_over.outgrown()
        if outgrown is not None:
            self.member.request_rejoin(outgrown)
