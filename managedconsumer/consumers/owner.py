"""The owner of a managed consumer's partitions: carries out the steps of a hand-over with the engine.

:class:`managedconsumer.coordinator.handover.HandOver` decides which partitions are given up, in which
order, and which listeners are called. Retained partitions keep their buffer and position.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.consumers.machines import AnyMembership
from managedconsumer.consumers.positioning import LONGEST_DELAY
from managedconsumer.consumers.session import Session
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator import handover as ho
from managedconsumer.coordinator.handover import HandOver, Rules, carry_out
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.engine.callbacks import CallbackNotDelivered, ListenerCalls
from managedconsumer.runtime.engine.group_log import GroupLog
from managedconsumer.runtime.engine.troubles import GROUP
from managedconsumer.runtime.member import GroupMember
from managedconsumer.structs import ClusterSnapshot, Generation, TopicPartition
from managedconsumer.subscription_state import FetchState

log = logging.getLogger(__name__)

# The commit at a rebalance may take this share of the time that the group grants for the rebalance, and at most (s).
_COMMIT_SHARE, _COMMIT_LONGEST = 0.3, 5.0
# The next rebalance may wait for this share of that time until it is known where the partitions of this one start.
_POSITION_SHARE = 0.3
# How long (seconds) one attempt to get metadata lasts before the leader looks whether it still leads.
_METADATA_PATIENCE = 5.0
# How long (seconds) the commit of a stop may take, and that of an interpreter that ends without stop().
_LAST_COMMIT_PATIENCE, _EXIT_PATIENCE = 2.0, 1.0

# How long (seconds) a rebalance waits for leaders to say where new partitions start, and the first one, for which
# start() waits. What is not known then is announced all the same, and handed out once it is known.
_POSITION_PATIENCE, _FIRST_POSITION_PATIENCE = 5.0, 30.0

PostRebalance = Callable[[dict[Any, int], dict[Any, int]], None]


class GroupOwner:
    """Implements :class:`managedconsumer.runtime.member.Owner`; used by the membership worker only."""

    def __init__(
        self,
        session: Session,
        machine: AnyMembership,
        link: CoordinatorLink,
        negotiation: Negotiation,
        listener: ListenerCalls,
        post_rebalance: PostRebalance,
        *,
        drain_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        """``machine``: the membership; ``link``: its way to the coordinator."""
        self._session = session
        self._engine = session.engine
        self._listener = listener
        self._post_rebalance = post_rebalance
        self._drain = drain_ms / 1000.0
        self._commit_seconds = min(_COMMIT_LONGEST, _COMMIT_SHARE * rebalance_timeout_ms / 1000.0)
        self._position_delay = min(LONGEST_DELAY, _POSITION_SHARE * rebalance_timeout_ms / 1000.0)
        self._reset_on_start = session.options.reset_offset_on_start
        rules = Rules(keeps=True, commits_after_callback=listener.listens)
        self._hand_over = HandOver(self._engine.group_id or "", negotiation, self, rules)
        self._log = GroupLog(self._engine.history, self._engine.troubles)
        #: The partitions before a hand-over, for the post_rebalance_callback: offsets last consumed.
        self._old: dict[Any, int] = {}
        self.assignments = 0
        #: True while a stop lets a rebalance end.
        self.finishing = False
        self.member = GroupMember(
            machine, link, self._engine.handler, self, on_death=self._engine.fail, before_exit=self._before_exit
        )

    def _before_exit(self) -> None:
        if self._session.committer.automatic:
            self._session.committer.commit_finished(_EXIT_PATIENCE, "exit")

    def settled(self) -> bool:
        """False while there is a new generation and what is held is still the share of the old one."""
        return self._hand_over.settled(self.member.generation)

    # -- what the membership asks ----------------------------------------------------------------------

    def prepare_join(self, event: ev.PrepareJoin) -> bool:
        """Before a join: under an eager assignor everything is given up, though its buffer is kept for now."""
        return carry_out(self._hand_over.prepare_join(event), self._do)

    def elect(self, event: ev.Elected) -> Mapping[str, bytes]:
        """Compute the group's assignment from fresh metadata of every topic that a member subscribes to."""
        return carry_out(self._hand_over.elect(event), self._do)

    def take_over(self, event: ev.Assigned) -> str | None:
        """Our share is here."""
        self._old = self._session.held(self._session.assigned())
        return carry_out(self._hand_over.take_over(event), self._do)

    def drop(self, event: ev.MembershipLost) -> None:
        """The membership is lost: the user hears of it, nothing is committed."""
        carry_out(self._hand_over.lost(event), self._do)

    def say_goodbye(self, seconds: float) -> None:
        """Drain, commit, tell the listener: in the thread that calls ``stop()``, when the worker has ended.

        A silent broker keeps it for about ``seconds`` at most.
        """
        until = self._engine.handler.now() + seconds
        carry_out(self._hand_over.leave(self.member.generation), lambda step: self._do_at_stop(step, seconds, until))

    def fence(self, event: ev.MembershipLost) -> None:
        """At once: nothing of the lost partitions is handed out from here on."""
        self._engine.collector.lane.leave()  # without the lock, which another thread may have
        held = self._session.assigned()
        self._engine.fence(held)
        self._session.committer.fenced(event.error)
        self._log.note("held", event.generation, held, event.reason)

    def observe(self, event: ev.Event) -> None:
        """Log what happens; wake the threads that wait for it."""
        self._log.observe(event, self.member.generation)
        with self._engine.lock:
            self._engine.lock.notify_all()

    # -- what the hand-over asks ------------------------------------------------------------------------

    def held(self) -> list[TopicPartition]:
        """Return the present assignment."""
        return self._session.assigned()

    def current(self, generation: Generation) -> bool:
        """False when ``generation`` is over, or the consumer stops."""
        stopping = self._engine.stopping and not self.finishing
        return not self._engine.closing and not stopping and self.member.current(generation)

    def joined(self) -> bool:
        """True while the group counts us as a member."""
        return self.member.joined

    def subscribed(self, topic: str) -> bool:
        """True if the consumer reads ``topic``."""
        with self._engine.lock:
            subscription = self._engine.subscription
            return topic in (subscription.subscription or ()) or subscription.matches(topic)

    def snapshot(self) -> ClusterSnapshot:
        """The metadata as last seen."""
        return self._engine.cluster.snapshot

    # -- the steps of a hand-over -----------------------------------------------------------------------

    def _do(self, step: ho.Step) -> Any:
        """Carry one step out."""
        match step:
            case ho.Suspend():
                self._hold(step)
                self._engine.drain(set(step.partitions), self._drain)
            case ho.Commit():
                if self._session.committer.automatic:
                    self._session.committer.commit_finished(self._commit_seconds, "rebalance")
            case ho.CallListener():
                return self._tell(step)
            case ho.Drop():
                self._engine.drop(step.partitions)
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
                self._engine.troubles.note(GROUP, step.text)
        return None

    def _do_at_stop(self, step: ho.Step, seconds: float, until: float) -> None:
        """Carry one step out in the thread that calls ``stop()``; all of them take about ``seconds``."""
        match step:
            case ho.Suspend():
                self._hold(step)
                self._engine.drain(set(step.partitions), min(self._drain, seconds))
            case ho.Commit():
                patience = min(_LAST_COMMIT_PATIENCE, max(0.0, until - self._engine.handler.now()))
                self._session.committer.drain(patience, auto=self._session.committer.automatic)
            case ho.CallListener():
                try:
                    self._listener.call_here(step.method, step.partitions)
                except Exception:
                    log.exception(
                        "group %s: the listener raised during stop()",
                        self._engine.group_id,
                        extra=self._engine.log_fields(),
                    )
            case _:
                self._do(step)

    def _hold(self, step: ho.Suspend) -> None:
        self._engine.hold(step.partitions)
        self._log.note("held", step.generation, step.partitions)

    def _tell(self, step: ho.CallListener) -> bool:
        """Call the listener, and pykafka's callback after its assigned-callback.

        Without anybody to run it in time the member gives its place up.
        """
        generation = step.generation
        if generation is None:  # the listener hears of lost partitions as long as the consumer lives
            return self._listener.call(step.method, step.partitions, lambda: True, step.begin, for_ever=True)
        told = False
        try:
            told = self._listener.call(step.method, step.partitions, lambda: self.current(generation), step.begin)
        except CallbackNotDelivered as error:
            log.warning(
                "group %s: leaving the group: %s", self._engine.group_id, error, extra=self._engine.log_fields()
            )
            self.member.leave_as_fenced(error, generation)
        if step.method == ho.ASSIGNED and self.current(generation):
            self._post_rebalance(self._old, self._session.held(self._session.assigned()))
        return told

    def _take_over(self, step: ho.TakeOver) -> None:
        """Positions are looked up in place, for a bounded time."""
        engine = self._engine

        def over() -> bool:
            return not self.current(step.generation)

        with engine.lock:
            if over():  # lost in the meantime: everything stays on hold
                return
            engine.take_over(step.share, retain=True)
            engine.hold(step.fresh)
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
        """Start to hand out. Not after a loss: the thread that learns of it holds everything."""
        with self._engine.lock:
            if not self.current(step.generation):
                return False
            self._engine.release(step.share)
        self._log.note("handed out", step.generation, step.share)
        self.assignments += 1
        self._log.taken_over()
        return True

    # -- metadata -------------------------------------------------------------------------------------

    def _look(self, topics: Collection[str] | None) -> ClusterSnapshot | None:
        engine = self._engine
        if topics is None:
            engine.refresh_metadata()
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
                # Until brokers are back, or the session is over: then the next join elects again.
                engine.troubles.note(GROUP, f"no metadata to assign partitions by: {error}")
        return None

    def metadata_changed(self) -> None:
        """Called after each metadata refresh: new topics for a pattern, new partitions for a leader."""
        engine = self._engine
        with engine.lock:
            changed_topics = engine.subscription.update_pattern_subscription(engine.cluster.snapshot)
        if changed_topics:
            self.member.request_rejoin("the topics that match the pattern changed")
        outgrown = self._hand_over.outgrown()
        if outgrown is not None:
            self.member.request_rejoin(outgrown)
