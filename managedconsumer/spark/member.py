"""A streaming query as a member of a consumer group: rebalances happen between two micro-batches and nowhere else.

Micro-batches run one after the other, so when Spark asks for the next one, the last is done: its offsets are committed,
then a rebalance that the group wants is gone through, then the next batch is planned for what is ours. Heartbeats go on
in a thread of their own the whole time. Executors read explicit ranges and know nothing of the group.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.coordinator import assignors
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.committing import Committing, Patience, Wanted
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.coordinator.requests import waiting_text
from managedconsumer.runtime.member import GroupMember
from managedconsumer.spark.topics import TopicView
from managedconsumer.structs import Generation, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

_COMMIT_PATIENCE = 5.0
_POSITIONS_PATIENCE = 30.0
_LEAVE_TIMEOUT = 2.0

Found = tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]
FindPositions = Callable[[Collection[TopicPartition]], Found]


class QueryMember:
    """The group membership of one query. Used by one thread; the heartbeat thread only touches the machine."""

    def __init__(self, view: TopicView, find_positions: FindPositions, listener: Any = None) -> None:
        """``find_positions``: where partitions that were just assigned are read from, and what is committed."""
        if view.link is None:
            raise err.IllegalStateError("a member needs a group")
        self.view = view
        self.positions: dict[TopicPartition, int] = {}
        self.config = view.options.membership()
        self._find_positions = find_positions
        self._listener = listener
        self._committed: dict[TopicPartition, int] = {}
        self._unsaved: dict[TopicPartition, int] = {}
        self._led: dict[str, set[int]] | None = None
        self._subscribed: set[str] = set()
        self._trouble = ""
        self._fenced = False
        offered = [getattr(assignors, name)() for name in view.options.assignor_names()]
        self._negotiation = Negotiation(offered, view.options.kafka.get("client.rack") or None)
        machine = Membership(self.config, self._protocols, view.handler.random, view.handler.now)
        self.member = GroupMember(machine, view.link, view.handler, self)

    def _protocols(self) -> list[tuple[str, bytes]]:
        self._subscribed = self.view.topics()
        return self._negotiation.protocols(self._subscribed, self.positions, self.member.generation.id)

    # -- what the query calls, between two batches ------------------------------------------------------

    def finished(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything before these offsets is done; it is committed by :meth:`at_boundary`."""
        for tp, offset in offsets.items():
            if tp in self.positions:
                self.positions[tp] = offset
                self._unsaved[tp] = offset

    def at_boundary(self) -> None:
        """Commit what is finished, go through a rebalance if one is wanted, and commit what was left over.

        Blocks while the group is being joined. Raises what ends a membership for good (authorization, fencing).
        """
        self.member.start()
        self._check_metadata()
        self.commit()
        self.member.poll(None)
        if self._unsaved:
            self.commit()

    def commit(self) -> bool:
        """Commit what is finished and not committed yet; True when nothing is left. Never raises what may pass."""
        wanted = {
            tp: OffsetAndMetadata(offset)
            for tp, offset in self._unsaved.items()
            if tp in self.positions and self._committed.get(tp) != offset
        }
        generation = self.member.generation
        if not wanted or not generation.joined or self._fenced:
            return not wanted
        view, group = self.view, self.config.group_id
        decision = Committing(
            group,
            lambda: Wanted(generation, wanted),
            Patience(_COMMIT_PATIENCE),
            view.handler.now(),
            view.handler.random,
            instance_id=self.config.group_instance_id,
        )
        result = view.offsets.carry_out(decision, expelled=self.member.fence)
        self._committed.update({tp: entry.offset for tp, entry in result.committed.items()})
        if result.error is None:
            self._unsaved.clear()
            return True
        if classify(result.error) is Verdict.FATAL:
            raise result.error
        log.warning("group %s: offsets are not committed (yet): %s", group, result.error)
        return False

    def wait(self, seconds: float) -> None:
        """Sleep, but not through a rebalance."""
        if seconds > 0:
            self.member.wait(seconds)

    def stop(self) -> None:
        """Tell the listener, leave the group (static members stay in it), end the heartbeats. Idempotent."""
        held = list(self.positions)
        if held:
            try:
                self._call("on_partitions_lost" if self._fenced else "on_partitions_revoked", held)
            except Exception:
                log.exception("group %s: the listener raised while the query stops", self.config.group_id)
        self.positions.clear()
        self.member.leave("query stopped", _LEAVE_TIMEOUT)

    # -- what the membership asks (see managedconsumer.runtime.member.Owner) ----------------------------

    def prepare_join(self, event: ev.PrepareJoin) -> bool:
        """An eager assignor wants everything back before the join; a cooperative one lets us keep it."""
        if self._negotiation.cooperative:
            return bool(self.positions)
        if event.generation.joined:
            self._revoke(list(self.positions))
        self.positions.clear()
        return False

    def elect(self, event: ev.Elected) -> Mapping[str, bytes]:
        """We lead: assign from fresh metadata."""
        topics = self._negotiation.topics_of(event)
        snapshot = self.view.cluster.refresh_until(topics, _POSITIONS_PATIENCE)
        self._led = {topic: snapshot.partitions_for_topic(topic) or set() for topic in topics}
        return self._negotiation.assign(event, snapshot)

    def take_over(self, event: ev.Assigned) -> str | None:
        """Our share is here."""
        generation = event.generation
        if not event.is_leader:
            self._led = None
        assigned, _ = self._negotiation.accept(event, self.view.cluster.snapshot)
        share = [tp for tp in assigned if tp.topic in self._subscribed]
        rejoin = None
        gone = [tp for tp in self.positions if tp not in share]
        if gone:
            self._revoke(gone)
            rejoin = f"gave up {len(gone)} partitions"
        new = [tp for tp in share if tp not in self.positions]
        try:
            found, committed = self._find_positions(new) if new else ({}, {})
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            if not getattr(error, "retriable", False):
                raise
            log.warning("group %s: where to read from is not known yet: %s", self.config.group_id, error)
            return "committed offsets could not be fetched"
        if not self.member.current(generation):
            return None
        self._fenced = False
        self.positions.update(found)
        self._committed = {tp: offset for tp, offset in self._committed.items() if tp in share and tp not in new}
        self._committed.update(committed)
        self._unsaved.update(found)
        moved = self._call("on_partitions_assigned", new if self._negotiation.cooperative else share)
        for tp, offset in (moved or {}).items():
            if tp in self.positions:
                self.positions[tp] = self._unsaved[tp] = int(offset)
        log.info("group %s: generation %d, %d partitions are ours", self.config.group_id, generation.id, len(share))
        return rejoin

    def drop(self, event: ev.MembershipLost) -> None:  # noqa: ARG002
        """We were thrown out: forget the partitions, commit nothing."""
        lost = list(self.positions)
        self.positions.clear()
        self._unsaved.clear()
        self._committed.clear()
        if lost:
            self._call("on_partitions_lost", lost)

    def fence(self, event: ev.MembershipLost) -> None:  # noqa: ARG002
        """From any thread: commits are of no use any more."""
        self._fenced = True

    def observe(self, event: ev.Event) -> None:
        """One line in the log for each change."""
        group = self.config.group_id
        if isinstance(event, ev.Transition):
            log.info("group %s: %s -> %s (%s)", group, event.old.value, event.new.value, event.reason)
        elif isinstance(event, ev.MembershipLost):
            log.warning("group %s: the membership is lost: %s", group, event.error)
        elif isinstance(event, ev.Waiting) and not event.over:
            log.warning("group %s: %s", group, waiting_text(event.api))
        elif isinstance(event, ev.Retrying) and str(event.error) != self._trouble:
            self._trouble = str(event.error)
            log.warning("group %s: cannot join yet: %s", group, event.error)

    # -- steps ----------------------------------------------------------------------------------------

    def _revoke(self, tps: list[TopicPartition]) -> None:
        """Give partitions up: the offsets are committed, the generation is still valid, no task reads them."""
        self.commit()
        if tps:
            self._call("on_partitions_revoked", tps)
        for tp in tps:
            self.positions.pop(tp, None)
            self._unsaved.pop(tp, None)

    def _call(self, method: str, tps: list[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        if self._listener is None:
            return None
        found = getattr(self._listener, method)(list(tps))
        return found if isinstance(found, Mapping) else None

    def _check_metadata(self) -> None:
        """Ask for a rebalance when a topic or a partition has come or gone."""
        snapshot = self.view.cluster.snapshot
        if self._subscribed and self.view.topics() != self._subscribed:
            self.member.request_rejoin("other topics match the pattern now")
        elif self._led is not None:
            now = {topic: snapshot.partitions_for_topic(topic) or set() for topic in self._led}
            if now != self._led:
                self._led = None
                self.member.request_rejoin("the number of partitions has changed")

    @property
    def generation(self) -> Generation:
        """The group's generation that we are in."""
        return self.member.generation
