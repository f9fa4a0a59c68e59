"""A streaming query as a member of a consumer group: partitions change hands between two micro-batches only.

Micro-batches run one after the other, so when Spark asks for the next one, the last is done: its offsets are committed,
then partitions are given up and taken over as far as the group wants that at this moment, then the next batch is
planned for what is ours. The query never waits for the group: heartbeats and joins go on in threads of their own, and
with a cooperative assignor what is kept is read on meanwhile. Executors read explicit ranges and join no group.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator import handover
from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.committing import Committing, RetryPolicy, Wanted
from managedconsumer.coordinator.handover import HandOver, Rules, carry_out
from managedconsumer.coordinator.history import History
from managedconsumer.logs import LogFields
from managedconsumer.runtime.cluster.offsets import COMMIT
from managedconsumer.runtime.engine.troubles import GROUP, GroupLog, Troubles
from managedconsumer.runtime.member_beside import BesideMember
from managedconsumer.spark.protocols import How
from managedconsumer.spark.sharing import SharingLog, group_members, subscribed
from managedconsumer.spark.topics import TopicView
from managedconsumer.structs import ClusterSnapshot, Generation, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

_COMMIT_PATIENCE = 5.0
_POSITIONS_PATIENCE = 30.0
_LEAVE_TIMEOUT = 2.0
_DESCRIBE_MS = 5000
# For how long (seconds) a member without partitions waits for the group in each call.
_NOTHING_KEPT = 1.0

Found = tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]
FindPositions = Callable[[Collection[TopicPartition]], Found]


class QueryMember:
    """The group membership of one query. Used by one thread; workers send heartbeats, join, and assign as leader."""

    def __init__(
        self,
        view: TopicView,
        find_positions: FindPositions,
        listener: Any = None,
        how: How | None = None,
        query: str = "",
    ) -> None:
        """``find_positions``: returns where newly assigned partitions are read from, and what is committed.

        ``how``: protocol and assignors, if not those of the options. ``query``: the query's name in its checkpoint. It
        makes a static member unless the options disagree: a restart takes the place of a killed driver at once.
        """
        if view.link is None:
            raise err.IllegalStateError("a member needs a group")
        self.view = view
        self.positions: dict[TopicPartition, int] = {}
        self._find_positions = find_positions
        self._listener = listener
        self._committed: dict[TopicPartition, int] = {}
        self._unsaved: dict[TopicPartition, int] = {}
        self._subscribed: set[str] = set()
        #: Returns the metadata of a partition's commit, which names its author.
        self.metadata: Callable[[TopicPartition], str] = lambda _tp: ""
        self._others: set[str] | None = None
        how = How.of(view.options) if how is None else how
        self.config = how.membership(view.options, query)
        self._sharing = SharingLog(self.config.group_id)
        self._negotiation = how.negotiation(view.options)
        machine = how.machine(self.config, view.options, view.handler, self._protocols, self._topics)
        keeps = self._negotiation.cooperative
        self.member = BesideMember(machine, view.link, view.handler, self, keeps=keeps)
        group = self.config.group_id
        self._log = GroupLog(
            History(group, view.handler.now, view.handler.wall_time), Troubles(f"group {group}", LogFields(group))
        )
        self._hand_over = HandOver(group, self._negotiation, self, Rules())

    def _topics(self) -> list[str]:
        self._subscribed = self.view.topics()
        return sorted(self._subscribed)

    def _protocols(self) -> list[tuple[str, bytes]]:
        return self._negotiation.protocols(self._topics(), self.positions, self.member.generation.id)

    # -- what the query calls, between two batches ------------------------------------------------------

    def finished(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that everything before ``offsets`` is done; :meth:`at_boundary` commits it."""
        for tp, offset in offsets.items():
            if tp in self.positions:
                self.positions[tp] = offset
                self._unsaved[tp] = offset

    def at_boundary(self, patience: float = 0.0) -> bool:
        """Commit, hand over what the group wants, and commit what was left over. True when the group has settled.

        The join itself goes on in a worker while the query reads what it keeps. ``patience``: how long (seconds) to
        wait for it all the same. Raises what ends a membership for good (authorization, fencing).
        """
        self.member.start()
        self._check_metadata()
        self.commit()
        began = self.view.handler.now()
        while not (settled := self.member.hand_over()):
            least = 0.0 if self.positions else _NOTHING_KEPT  # waiting costs nothing without partitions
            left = began + max(patience, least) - self.view.handler.now()
            if left <= 0.0:
                break
            self.member.wait_here(left, settled=True)
        if self._unsaved:
            self.commit()
        return settled

    @property
    def shared(self) -> bool:
        """False if certainly no other member of the group reads our topics."""
        return self._others is None or bool(self._others)

    @property
    def saved(self) -> bool:
        return all(self._committed.get(tp) == offset for tp, offset in self._unsaved.items())

    def committed(self, tp: TopicPartition) -> int | None:
        return self._committed.get(tp)

    def commit(self) -> bool:
        """Commit what is finished and not committed yet; True when nothing is left. Transient errors are logged."""
        wanted = {
            tp: OffsetAndMetadata(offset, self.metadata(tp))
            for tp, offset in self._unsaved.items()
            if tp in self.positions and self._committed.get(tp) != offset
        }
        generation = self.member.generation
        if not wanted or not self.joined() or not self.current(generation):
            return not wanted
        view, group = self.view, self.config.group_id
        decision = Committing(
            group,
            # A worker may join a new generation meanwhile; our partitions stay ours until we give them up.
            lambda: Wanted(self.generation, wanted) if self.current_member(generation) else Wanted(generation, {}),
            RetryPolicy(_COMMIT_PATIENCE),
            view.handler.now(),
            view.handler.random,
            instance_id=self.config.group_instance_id,
        )
        result = view.offsets.carry_out(decision, expelled=self.member.fence)
        self._committed.update({tp: entry.offset for tp, entry in result.committed.items()})
        if result.error is None:
            self._unsaved.clear()
            return True
        verdict = classify(result.error)
        if verdict is Verdict.FATAL:
            raise result.error
        if verdict is Verdict.REJOINING or (self.joined() and self.generation != generation):
            # The worker has joined meanwhile: the next call commits in the new generation.
            log.debug("group %s: offsets are not committed yet: %s", group, result.error)
            return False
        log.warning("group %s: offsets are not committed (yet): %s", group, result.error)
        return False

    def wait(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until partitions can be handed over."""
        if seconds > 0:
            self.member.wait_here(seconds)

    def stop(self) -> None:
        """Tell the listener, leave the group (static members stay in it), end the heartbeats. Idempotent."""
        try:
            carry_out(self._hand_over.leave(self.generation, commit=False), self._do)
        except Exception:
            log.exception("group %s: the listener raised while the query stops", self.config.group_id)
        self._drop(list(self.positions))
        self.member.leave("query stopped", _LEAVE_TIMEOUT)

    # -- what the membership asks (see managedconsumer.runtime.member.Owner) ----------------------------

    def prepare_join(self, event: ev.PrepareJoin) -> bool:
        """Give everything up before the join (eager assignors), or keep it (cooperative ones)."""
        return carry_out(self._hand_over.prepare_join(event), self._do)

    def elect(self, event: ev.Elected) -> Mapping[str, bytes]:
        """Assign as the group's leader, from fresh metadata. The joining worker calls it."""
        self._note_others(subscribed((each.member_id, each.group_instance_id, each.metadata) for each in event.members))
        return carry_out(self._hand_over.elect(event), self._do)

    def take_over(self, event: ev.Assigned) -> str | None:
        if self._others is None and not event.is_leader:
            self._look_around()
        return carry_out(self._hand_over.take_over(event), self._do)

    def drop(self, event: ev.MembershipLost) -> None:
        """Forget the partitions after an eviction, without a commit."""
        carry_out(self._hand_over.lost(event), self._do)

    def fence(self, event: ev.MembershipLost) -> None:
        """Do nothing: no record is handed out between two batches, and a commit checks the membership."""

    def observe(self, event: ev.Event) -> None:
        self._log.observe(event, self.generation)

    # -- what the hand-over asks ------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        return self.member.generation

    def owned(self) -> list[TopicPartition]:
        return sorted(self.positions)

    def current(self, generation: Generation) -> bool:
        """False when ``generation`` has ended, or the query stops."""
        return self.member.current(generation)

    def current_member(self, generation: Generation) -> bool:
        return self.joined() and self.generation.member_id == generation.member_id

    def joined(self) -> bool:
        return self.member.joined

    def subscribed(self, topic: str) -> bool:
        return self.view.wants(topic)

    def snapshot(self) -> ClusterSnapshot:
        return self.view.cluster.snapshot

    # -- the steps of a hand-over -----------------------------------------------------------------------

    def _do(self, step: handover.Step) -> Any:
        """Carry one step out. Between two batches no task reads, so there is nothing to hold or to drain."""
        match step:
            case handover.Commit():
                self.commit()
            case handover.CallListener():
                step.begin()
                self._tell(step)
            case handover.Drop():
                self._drop(step.partitions)
            case handover.TakeOver():
                self._place(step)
            case handover.Deliver():
                self._log.taken_over()
            case handover.RefreshMetadata():
                return self._look(step.topics)
            case handover.Describe():
                return self.member.describe_group()
            case handover.Record():
                self._log.note(step.kind, step.generation, step.partitions, step.reason)
            case handover.LogProblem():
                self._log.troubles.note(GROUP, step.text)
        return None

    def _tell(self, step: handover.CallListener) -> None:
        """Call the listener; its assigned-callback may return positions."""
        if self._listener is None:
            return
        moved = getattr(self._listener, step.method)(list(step.partitions))
        if step.method == handover.ASSIGNED and isinstance(moved, Mapping):
            for tp, offset in moved.items():
                if tp in self.positions:
                    self.positions[tp] = self._unsaved[tp] = int(offset)

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            for known in (self.positions, self._unsaved, self._committed):
                known.pop(tp, None)

    def _place(self, step: handover.TakeOver) -> None:
        new = [tp for tp in step.share if tp not in self.positions]
        found, committed = self._find_positions(new) if new else ({}, {})
        if self.current(step.generation):
            self.positions.update(found)
            self._unsaved.update(found)
            self._committed.update(committed)

    def _look_around(self) -> None:
        """Ask the coordinator for the other members, once: only the leader learns of them by itself."""
        link = self.view.link
        assert link is not None  # a member has a group
        try:
            found = group_members(self.config.group_id, lambda api, body: link.request(COMMIT, api, body, _DESCRIBE_MS))
        except err.KafkaException as error:
            log.debug("group %s: no description of the group: %s", self.config.group_id, error)
            return
        if found is not None and None not in found.values():
            self._note_others({member: topics or set() for member, topics in found.items()})

    def _note_others(self, members: Mapping[str, set[str]]) -> None:
        topics = self.view.topics()
        self._others = {
            member
            for member, read in members.items()
            if member != self.generation.member_id and not read.isdisjoint(topics)
        }
        self._sharing.note(self._others, topics)

    def _look(self, topics: Collection[str] | None) -> ClusterSnapshot:
        if topics is None:
            return self.view.cluster.refresh_until(None, _POSITIONS_PATIENCE)
        self.view.watched = frozenset(topics)
        return self.view.cluster.refresh_until(topics, _POSITIONS_PATIENCE)

    def _check_metadata(self) -> None:
        """Ask for a rebalance when topics or partitions were added or removed."""
        if self._subscribed and self.view.topics() != self._subscribed:
            self.member.request_rejoin("other topics match the pattern now")
        elif (outgrown := self._hand_over.outgrown()) is not None:
            self.member.request_rejoin(outgrown)
