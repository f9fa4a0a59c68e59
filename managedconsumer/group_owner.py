"""Who holds the partitions of a managed consumer: carries out what the membership asks for, in the right order.

Order of a rebalance: stop handing out what is to be given up, wait for the messages in hand, commit what is finished
(if commits are automatic), revoked-callback, join, sync, positions from committed offsets, assigned-callback, first
fetch. Retained partitions keep their buffer and position.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.negotiation import Negotiation, assigned_in_group
from managedconsumer.coordinator.requests import waiting_text
from managedconsumer.coordinator.states import MemberState
from managedconsumer.group_machine import Machine
from managedconsumer.runtime.callbacks import CallbackNotDelivered, ListenerCalls
from managedconsumer.runtime.coordinator_link import CoordinatorLink
from managedconsumer.runtime.member import MEMBERSHIP, GroupMember
from managedconsumer.runtime.troubles import COORDINATOR, GROUP, WAITING
from managedconsumer.session import Session
from managedconsumer.structs import ClusterSnapshot, Generation, TopicPartition
from managedconsumer.subscription_state import FetchState
from managedconsumer.wire import schemas

log = logging.getLogger(__name__)

# The commit at a rebalance may take this share of the time that the group grants for the rebalance, and at most (s).
_COMMIT_SHARE, _COMMIT_LONGEST = 0.3, 5.0
# How long (seconds) one attempt to get metadata lasts before the leader looks whether it still leads.
_METADATA_PATIENCE = 5.0
# How long (ms) the coordinator may take to say what all members have.
_DESCRIBE_MS = 5000
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
        machine: Machine,
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
        self._negotiation = negotiation
        self._listener = listener
        self._post_rebalance = post_rebalance
        self._drain = drain_ms / 1000.0
        self._commit_seconds = min(_COMMIT_LONGEST, _COMMIT_SHARE * rebalance_timeout_ms / 1000.0)
        self._reset_on_start = session.options.reset_offset_on_start
        self._led: dict[str, set[int]] | None = None
        self._settled_in: Generation | None = None
        #: What the listener has been told that it has, whatever has become of it since.
        self._told: set[TopicPartition] = set()
        self._retry_noted: str | None = None
        self.assignments = 0
        self.member = GroupMember(
            machine, link, self._engine.handler, self, on_death=self._engine.fail, before_exit=self._before_exit
        )

    @property
    def told(self) -> list[TopicPartition]:
        """The partitions of which the listener knows as assigned: those that it must hear the end of."""
        return sorted(self._told)

    def settled(self) -> bool:
        """False while there is a new generation and what is held is still the share of the old one.

        With a cooperative assignor what is held stays ours until we give it up.
        """
        return self._negotiation.cooperative or self._settled_in == self.member.generation

    def _before_exit(self) -> None:
        if self._engine.options.auto_commit_enable:
            self._session.committer.commit_finished(_EXIT_PATIENCE, "exit")

    # -- what the membership asks ----------------------------------------------------------------------

    def prepare_join(self, event: ev.PrepareJoin) -> bool:
        """Before a join: under an eager assignor everything is given up, though its buffer is kept for now."""
        held = self._session.assigned()
        if self._negotiation.cooperative:
            return bool(held)
        self._give_up(held, event.generation.joined)
        return False

    def elect(self, event: ev.Elected) -> Mapping[str, bytes]:
        """Compute the group's assignment from fresh metadata of every topic that a member subscribes to."""
        topics = self._negotiation.topics_of(event)
        with self._engine.lock:
            self._engine.subscription.group_subscribe(topics)
        generation = self.member.generation
        while self._current(generation):
            try:
                snapshot = self._engine.cluster.refresh_until(topics, _METADATA_PATIENCE)
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                # Until brokers are back, or the session is over: then the next join elects again.
                self._engine.troubles.note(GROUP, f"no metadata to assign partitions by: {error}")
                continue
            self._led = self._partition_counts(snapshot, topics)
            if not event.skip_assignment:
                return self._negotiation.assign(event, snapshot)
            self._led = self._assigned_to_all(topics) or self._led
            return {}
        return {}

    def _assigned_to_all(self, topics: Collection[str]) -> dict[str, set[int]] | None:
        """For a static leader that is back (KIP-814): what the group goes on with may be older than the topics are."""
        link, body = self._engine.link, {"groups": [self._engine.group_id]}
        try:
            described = link.request(MEMBERSHIP, schemas.DESCRIBE_GROUPS, body, _DESCRIBE_MS) if link else None
            assigned = assigned_in_group(described) if described else None
        except err.KafkaException as error:  # whatever it is: the group goes on as it does without the answer
            log.info(
                "group %s: no description of the group, new partitions may come late: %s", self._engine.group_id, error
            )
            return None
        return None if assigned is None else {topic: assigned.get(topic, set()) for topic in topics}

    def take_over(self, event: ev.Assigned) -> str | None:
        """Our share is here."""
        engine, generation = self._engine, event.generation
        if not event.is_leader:
            self._led = None
        share, unresolved = self._resolve(event)
        before = self._session.assigned()
        old = self._session.held(before)
        rejoin = self._reconcile(event, before, share)
        self._settled_in = generation
        # Not only what is new: an earlier attempt may have ended before it had found positions, or told the user.
        fresh = [tp for tp in share if tp not in self._told]
        with engine.lock:
            if not self._current(generation):  # lost in the meantime: everything stays on hold
                return None
            engine.take_over(share, retain=True)
            engine.hold(fresh)
            unplaced = sorted(engine.subscription.partitions_in(FetchState.INITIALIZING))
        reset = self._reset_on_start
        try:
            self._session.positioning.find(
                unplaced,
                reset=reset,
                patience=_POSITION_PATIENCE if self.assignments else _FIRST_POSITION_PATIENCE,
                interrupted=lambda: not self._current(generation) or self.member.machine.rejoin_reason is not None,
            )
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            if not self._current(generation):
                return None
            if classify(error) is Verdict.FATAL:
                raise
            engine.troubles.note(GROUP, f"committed offsets cannot be had yet: {error}")
            return "committed offsets could not be fetched"
        self._reset_on_start = False
        assigned = fresh if self._negotiation.cooperative else share
        self._announce(assigned, old, share, generation)
        self._note("assigned", generation, assigned)
        if not self._release(share, generation):
            return None
        self.assignments += 1
        engine.troubles.over(GROUP)
        return "topics of the assignment are not in the metadata yet" if unresolved else rejoin or self._outgrown()

    def _release(self, share: list[TopicPartition], generation: Any) -> bool:
        """Start to hand out, unless the membership was lost meanwhile: whoever learns that holds everything."""
        with self._engine.lock:
            if not self._current(generation):
                return False
            self._engine.release(share)
        self._note("handed out", generation, share)
        return True

    def drop(self, event: ev.MembershipLost) -> None:
        """The membership is lost: the user hears of it, nothing is committed."""
        lost = self.told
        if lost and not self._listener.call("on_partitions_lost", lost, lambda: True, self._told.clear, for_ever=True):
            return  # stop() calls it, in the thread that stops
        self._told.clear()
        self._note("lost", event.generation, self._session.assigned(), event.reason)
        self._engine.drop(self._session.assigned())

    def say_goodbye(self, seconds: float) -> None:
        """Drain, commit, tell the listener: in the thread that calls ``stop()``, when the worker has ended.

        A silent broker keeps it for about ``seconds`` at most.
        """
        generation, held = self.member.generation, self._session.assigned()
        self._engine.hold(held)
        self._note("held", generation, held)
        until = self._engine.handler.now() + seconds
        self._engine.drain(set(held), min(self._drain, seconds))
        patience = min(_LAST_COMMIT_PATIENCE, max(0.0, until - self._engine.handler.now()))
        self._session.committer.drain(patience, auto=self._engine.options.auto_commit_enable)
        # Asked after the commit, which may have learnt that the membership is lost.
        joined = self.member.generation.joined and self.member.state is not MemberState.LOSING
        told = self.told
        self._told.clear()
        if told:
            try:
                self._listener.call_here("on_partitions_revoked" if joined else "on_partitions_lost", told)
            except Exception:
                log.exception("group %s: the listener raised during stop()", self._engine.group_id)
        self._note("revoked" if joined else "lost", generation, held, "stop")

    def fence(self, event: ev.MembershipLost) -> None:
        """At once: nothing of the lost partitions is handed out from here on."""
        held = self._session.assigned()
        self._engine.hold(held)
        self._session.committer.fenced(event.error)
        self._note("held", event.generation, held, event.reason)

    def observe(self, event: ev.Event) -> None:
        """Log what happens; wake whoever waits for it."""
        add = self._engine.history.add
        if isinstance(event, ev.Transition):
            noted = add("state", event.generation, old=event.old.value, new=event.new.value, reason=event.reason)
            log.info("%s", noted)
        elif isinstance(event, ev.CoordinatorLost):
            add("coordinator", self.member.generation, reason=event.reason)
            self._engine.troubles.note(COORDINATOR, f"the coordinator is away: {event.reason}")
        elif isinstance(event, ev.CoordinatorBack):
            self._engine.troubles.over(COORDINATOR)
        elif isinstance(event, ev.Retrying):
            add("retry", self.member.generation, reason=str(event.error))
            self._engine.troubles.note(GROUP, f"cannot join yet: {event.error}")
        elif isinstance(event, ev.Waiting):
            if event.over:
                self._engine.troubles.over(WAITING)
            else:
                self._engine.troubles.note(WAITING, waiting_text(event.api))
        elif isinstance(event, ev.MembershipLost):
            self._engine.troubles.note(GROUP, f"membership lost: {event.error}")
        with self._engine.lock:
            self._engine.lock.notify_all()

    def _note(self, kind: str, generation: Generation, tps: Collection[TopicPartition], reason: str = "") -> None:
        log.debug("%s", self._engine.history.add(kind, generation, tps, reason=reason))

    def _resolve(self, event: ev.Assigned) -> tuple[list[TopicPartition], bool]:
        """Our share, and whether some of it cannot be named yet."""
        share, unknown = self._negotiation.accept(event, self._engine.cluster.snapshot)
        if unknown:
            self._engine.refresh_metadata()
            share, unknown = self._negotiation.accept(event, self._engine.cluster.snapshot)
        return self._subscribed(share), bool(unknown)

    # -- steps ----------------------------------------------------------------------------------------

    def _give_up(self, tps: Collection[TopicPartition], joined: bool) -> None:
        """Drain, commit, tell the user; the generation is still valid while this runs."""
        generation = self.member.generation
        self._engine.hold(tps)
        self._note("held", generation, tps)
        self._engine.drain(set(tps), self._drain)
        if not joined or not self._current(generation):
            return
        if self._engine.options.auto_commit_enable and tps:
            self._session.committer.commit_finished(self._commit_seconds, "rebalance")
        known = [tp for tp in tps if tp in self._told]
        if known or not self._negotiation.cooperative:
            self._call("on_partitions_revoked", known, generation, lambda: self._told.difference_update(tps))
        if self._listener.listens and self._engine.options.auto_commit_enable and tps and self._current(generation):
            # The thread that came for the callback has finished its message by coming.
            self._session.committer.commit_finished(self._commit_seconds, "rebalance")
        self._note("revoked", generation, tps)

    def _reconcile(self, event: ev.Assigned, before: list[TopicPartition], share: list[TopicPartition]) -> str | None:
        """Let go of what we held and do not hold any more."""
        if event.target is None and not self._negotiation.cooperative:
            gone = before if not event.continuous else [tp for tp in before if tp not in share]
            self._engine.drop(gone)
            return None
        gone = [tp for tp in before if tp not in share]
        if not gone:
            return None
        self._give_up(gone, True)
        self._engine.drop(gone)
        # KIP-429: what was given up can be assigned in a second round. The KIP-848 broker needs no asking.
        return None if event.target is not None else f"gave up {len(gone)} partitions"

    def _announce(
        self,
        assigned: list[TopicPartition],
        old: dict[Any, int],
        share: list[TopicPartition],
        generation: Any,
    ) -> None:
        self._call("on_partitions_assigned", assigned, generation, lambda: self._told.update(assigned))
        if self._current(generation):
            self._post_rebalance(old, self._session.held(share))

    def _call(
        self, method: str, tps: Collection[TopicPartition], generation: Generation, on_begin: Callable[[], None]
    ) -> None:
        """Call the listener, unless ``generation`` is over before the callback begins.

        Without anybody to run it in time the member gives its place up.
        """
        try:
            self._listener.call(method, tps, lambda: self._current(generation), on_begin)
        except CallbackNotDelivered as error:
            log.warning("group %s: leaving the group: %s", self._engine.group_id, error)
            self.member.forfeit(error, generation)

    def _current(self, generation: Any) -> bool:
        return not self._engine.closing and not self._engine.stopping and self.member.current(generation)

    def _subscribed(self, share: list[TopicPartition]) -> list[TopicPartition]:
        """What of our share we can read; a leader of another program may assign topics that we never asked for."""
        with self._engine.lock:
            wanted = self._engine.subscription.subscription or set()
            good = [tp for tp in share if tp.topic in wanted or self._engine.subscription.matches(tp.topic)]
        for tp in share:
            if tp not in good:
                log.error(
                    "group %s: ignoring %s-%d: the leader assigned a topic that we did not subscribe to",
                    self._engine.group_id,
                    *tp,
                )
        return good

    # -- metadata -------------------------------------------------------------------------------------

    @staticmethod
    def _partition_counts(snapshot: ClusterSnapshot, topics: Collection[str]) -> dict[str, set[int]]:
        return {topic: snapshot.partitions_for_topic(topic) or set() for topic in topics}

    def metadata_changed(self) -> None:
        """Called after each metadata refresh: new topics for a pattern, new partitions for a leader."""
        engine = self._engine
        with engine.lock:
            changed_topics = engine.subscription.update_pattern_subscription(engine.cluster.snapshot)
        if changed_topics:
            self.member.request_rejoin("the topics that match the pattern changed")
        outgrown = self._outgrown()
        if outgrown is not None:
            self.member.request_rejoin(outgrown)

    def _outgrown(self) -> str | None:
        """Why the leader has to assign again: topics have other partitions than the group has shared out."""
        led = self._led
        if led is None:
            return None
        now = self._partition_counts(self._engine.cluster.snapshot, list(led))
        changed = sorted(topic for topic in led if led[topic] != now[topic])
        if not changed:
            return None
        self._led = None
        return f"partitions of {', '.join(changed)} changed"
