"""The driver's side of a stream: its start and its batches. Imports no Spark."""

from __future__ import annotations

import logging
from operator import itemgetter
from typing import Any, Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.coordinator.committing import Committing, RetryPolicy, without_group
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.spark import positions as pos
from managedconsumer.spark import ranges
from managedconsumer.spark.alone import TopicHolds
from managedconsumer.spark.claiming import claiming_of
from managedconsumer.spark.member import QueryMember
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.pace import Pace
from managedconsumer.spark.positions import Author
from managedconsumer.spark.protocols import How
from managedconsumer.spark.ranges import OffsetRange, StreamOffset
from managedconsumer.spark.sizes import RecordSizes
from managedconsumer.spark.topics import LOOK_EVERY, Offsets, TopicView, partition_names
from managedconsumer.spark.watch import LogWatch
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

_POSITIONS_PATIENCE = 30.0
# How long (seconds) the first call of a query waits for the group, so that the first trigger has something to read.
_FIRST_JOIN = 5.0
# group.mode=progress: the time-out (seconds) of a commit, which must not delay the query, and the pause after an error.
_PROGRESS_PATIENCE, _PROGRESS_PAUSE = 1.0, 5.0


class StreamDriver:
    """Plans the batches of one query, one call at a time; nothing is opened before the first call."""

    def __init__(self, options: SourceOptions, listener: Any = None, query: str = "") -> None:
        """``query``: the query's name in its checkpoint, if it has one already."""
        self._query = query or ThreadingHandler().new_id().replace("-", "")[:16]
        self.options = options = options.in_own_group(self._query)
        self.view = TopicView(options)
        self.member: QueryMember | None = None
        self.claims = claiming_of(self.view, self._claim)
        self.watch = LogWatch(self.view)
        self.sizes = RecordSizes(self.view)
        self._pace = Pace(options.min_offsets, options.max_delay)
        self._positions: Offsets | None = None
        self._listener = listener
        self._start = StreamOffset({})
        self._planned: StreamOffset | None = None
        self._read: list[TopicPartition] = []
        self._planned_as: str | None = None
        self._limit: Offsets | None = None
        self._last_boundary: float | None = None
        self._history: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self._progress: Offsets = {}
        self._progress_at = float("-inf")
        self._refused: err.KafkaException | None = None
        self._how = How.of(options)
        self._holds = TopicHolds(self.view)

    # -- what Spark asks ------------------------------------------------------------------------------

    def initial(self) -> StreamOffset:
        """Return where a query without a checkpoint starts. Does not join the group."""
        tps = self.view.partitions()
        self._holds.hold()
        found = self.view.resolve(self.options.starting, tps)
        begin = {tp: OffsetRange(offset, offset) for tp, offset in found.items()}
        return StreamOffset(begin, initial=True, query=self._query)

    def next(self, start: StreamOffset, max_rows: int | None) -> StreamOffset:
        """Plan the next batch; everything up to ``start`` is done. Returns ``start`` itself if there is no new record.

        Waits for the group in the first call only, for ``_FIRST_JOIN``; the batch has the partitions that are assigned
        by then. With Trigger.AvailableNow, where an empty answer ends the query, it waits until the group has settled.
        """
        first = self._last_boundary is None
        self._note_boundary()
        self._start, done = start, start == self._planned
        self._query = start.query or self._query
        if first:
            self.watch.remember(start)
        deadline = Deadline(self.view.handler.now(), self.options.patience)
        positions, settled = self._look(start, done, _FIRST_JOIN if first else 0.0)
        while True:
            planned = self._planned = self._plan(positions, max_rows)
            if planned is not None:
                self.claims.planned(planned)
                member = None if self.claims.decide else self.member
                self._planned_as = None if member is None else member.generation.member_id
                return planned
            if self._limit is None or settled:
                break
            if deadline.expired(self.view.handler.now()):
                raise err.RequestTimedOut(self._why_not_settled())
            positions, settled = self._look(start, False, deadline.remaining(self.view.handler.now()) or 0.0)
        if self._limit is None:  # otherwise the query ends with this answer
            self._nap()
        return start

    def freeze_ends(self) -> None:
        """Read nothing that is written from now on (Trigger.AvailableNow)."""
        tps = self.view.partitions()
        ends = self.view.ends(tps, fresh=True)
        missing = [tp for tp in tps if tp not in ends]
        if missing:
            ends.update(self.view.resolve(self.options.ending, missing))
        self._limit = ends

    def member_of(self, end: StreamOffset) -> str | None:
        """Return the member id to which the group assigned the partitions of the last planned batch."""
        return self._planned_as if end == self._planned else None

    def to_read(self, end: StreamOffset) -> ranges.Ranges:
        """Return the ranges of the batch that ends at ``end``, the same after a crash.

        A batch that another process planned leaves out what other members of the group have committed since.
        """
        follows = self.options.conflict in (pos.AUTO, pos.GROUP)
        if end == self._planned or not self.options.is_member or self.claims.decide or not follows:
            return end.ranges
        commits = self.view.commits(list(end.ranges), _POSITIONS_PATIENCE)
        left = pos.left_to_read(end.ranges, commits, end.query)
        less = {tp: entry.start for tp, entry in left.items() if entry != end.ranges[tp]}
        if less:
            log.warning(
                "group %s: the repeated batch leaves out what other members have committed since: %s",
                self.options.group_id,
                pos.places(less),
            )
        return left

    def stop(self) -> None:
        """Leave the group and close the connections. Idempotent."""
        member, self.member = self.member, None
        try:
            if member is not None:
                member.stop()
        finally:
            self._holds.release()
            self.sizes.close()
            self.view.close()

    # -- where we are ---------------------------------------------------------------------------------

    def _look(self, start: StreamOffset, done: bool, patience: float) -> tuple[Offsets, bool]:
        """Return the positions to plan from, and whether the group has settled."""
        if self.options.is_member:
            return self._group_positions(start, done, patience)
        found = self._own_positions(start, done)
        if self.options.group_id is not None:
            self._commit_progress(start, found)
        return found, True

    def _group_positions(self, start: StreamOffset, done: bool, patience: float) -> tuple[Offsets, bool]:
        if self.member is None:
            self.view.partitions()
            self._holds.hold()
            self.member = QueryMember(self.view, self._find_positions, self._listener, self._how, self._query)
        member = self.member
        self.view.partitions()
        author, claims = self._author(start), self.claims
        member.metadata = lambda tp: author._replace(data=claims.last(tp)).text()
        try:
            member.finished(claims.done(start, member.positions, here=done))
            settled = member.at_boundary(patience)
        except err.FencedInstanceId as error:
            raise err.FencedInstanceId(
                f"group {self.options.group_id!r}: another query has taken the place of this one "
                f"({member.config.group_instance_id!r}). Has it the same checkpoint, or a copy of it? A checkpoint "
                "belongs to one query at a time"
            ) from error
        except err.ProtocolClientError as error:
            self._fall_back(member, error)
            return {}, False
        member.finished(self.watch.moved(member.positions))
        # A query whose claims are the group's commits must not end before its last commit.
        return member.positions, settled and (not claims.by_group or member.saved)

    def _fall_back(self, member: QueryMember, error: err.ProtocolClientError) -> None:
        """Join again with the protocol or the assignor of the group, unless the user chose ours. Raises ``error``."""
        instead = self._how.instead(self.options, error)
        if instead is None:
            raise error
        self._how, why = instead
        log.warning("group %s: %s. (%s)", self.options.group_id, why, error)
        self.member = None
        member.stop()

    def _claim(self, ends: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Commit as a member of the group; return the partitions whose commit stands."""
        if self.member is None:
            return set()
        self.member.finished(ends)
        self.member.commit()
        return {tp for tp, end in ends.items() if self.member.committed(tp) == end}

    def _author(self, start: StreamOffset) -> Author:
        return Author(self._query, start.batch, pos.start_word(self.options.starting.said))

    def _find_positions(self, tps: Collection[TopicPartition]) -> tuple[Offsets, Offsets]:
        """Return where newly assigned partitions are read from, and their committed offsets."""
        start, where, member = self._start, self.options.starting, self.member
        commits = self.view.commits(tps, _POSITIONS_PATIENCE)
        explicit = where.kind != "committed" and bool(where.said)
        shared = member is None or member.shared
        query = pos.Query(self._author(start), start.initial, explicit, shared, self.options.conflict)
        ends = start.ends
        choices = {}
        claimed = self.claims.found(tps, commits, start)
        for tp in tps:
            own = ends.get(tp)
            known = pos.Known(
                claimed.get(tp), None if start.initial else own, own if start.initial else None, commits.get(tp)
            )
            # startingOffsets outrank the commit that was there at the first assignment, and no later one.
            told = explicit and self._history.setdefault(tp, known.committed) == known.committed
            choices[tp] = pos.choose(known, query._replace(explicit=told), has_store=self.claims.decide)
        found = {tp: choice.offset for tp, choice in choices.items() if choice.offset is not None}
        found.update(self.view.starts([tp for tp in tps if tp not in found]))
        found = self.watch.inside(found)
        for line in pos.lines(choices, found):
            log.info("group %s: %s", self.options.group_id, line)
        found.update(self.watch.moved(found))
        return found, {tp: entry.offset for tp, entry in commits.items()}

    def _own_positions(self, start: StreamOffset, done: bool) -> Offsets:
        """Return the positions of all partitions (without a membership)."""
        tps = self.view.partitions()
        if self._positions is not None and not done and tps is self._read and not self.claims.decide:
            self._positions.update(self.watch.moved(self._positions))
            return self._positions
        positions = self._positions
        if positions is None:
            positions = self._fitting(start.ends, tps, first=True)
        else:
            positions = {**positions, **start.moved} if done else positions
            if tps is not self._read:
                positions = self._fitting(positions, tps, first=False)
        self._read = tps
        if self.claims.decide:
            positions = {**positions, **self.claims.done(start, positions, here=done)}
        self._positions = {**positions, **self.watch.moved(positions)}
        return self._positions

    def _fitting(self, positions: Offsets, tps: list[TopicPartition], *, first: bool) -> Offsets:
        """Return ``positions`` without partitions that are gone, and with new ones."""
        read = set(tps)
        gone = [tp for tp in positions if tp not in read]
        if gone:
            self.watch.lost(f"{partition_names(gone)} do not exist any more")
            positions = {tp: offset for tp, offset in positions.items() if tp in read}
        if first:
            positions = self.watch.inside(positions)
        new = [tp for tp in tps if tp not in positions]
        if new:
            log.info("new partitions are read from their start: %s", partition_names(new))
            positions = {**positions, **self.view.starts(new)}
        return positions

    def _commit_progress(self, start: StreamOffset, positions: Offsets) -> None:
        """Commit the positions to the group without being a member, so that monitors see the lag."""
        metadata = self._author(start).text()
        news = {tp: OffsetAndMetadata(at, metadata) for tp, at in positions.items() if self._progress.get(tp) != at}
        group, handler = self.options.group_id or "", self.view.handler
        if not news or handler.now() < self._progress_at:
            return
        patience = RetryPolicy(_PROGRESS_PATIENCE)
        decision = Committing(group, lambda: without_group(news), patience, handler.now(), handler.random)
        result = self.view.offsets.carry_out(decision)
        self._progress.update({tp: entry.offset for tp, entry in result.committed.items()})
        self._progress_at = handler.now() + (0.0 if result.error is None else _PROGRESS_PAUSE)
        if result.error is not None and not isinstance(result.error, type(self._refused)):
            log.warning(
                "group %s: the progress is not committed: %s. With group.mode=progress the group must have no members",
                group,
                result.error,
            )
        self._refused = result.error

    # -- the batch ------------------------------------------------------------------------------------

    def _plan(self, positions: Offsets, max_rows: int | None) -> StreamOffset | None:
        ends = ranges.cap(self.view.ends(positions), self._limit)
        available = ranges.behind(positions, ends)
        offsets = sum(available.values())
        if not offsets or (self._limit is None and not self._pace.wants(offsets, self.view.handler.now())):
            return None
        planned = ranges.plan(positions, available, max_rows, self._start.ranges)
        topics = set(map(itemgetter(0), planned))
        now = self.member.generation if self.member is not None else None
        return StreamOffset(
            planned,
            group=(now.id, now.member_id) if now is not None else None,
            query=self._query,
            batch=self._start.batch + 1,
            ids={topic: known for topic, known in self.watch.ids.items() if topic in topics},
            epochs=self._epochs_of(planned),
            data=f"{self._start.batch + 1:06d}-{self.view.handler.new_id().replace('-', '')[:12]}",
        )

    def _epochs_of(self, planned: ranges.Ranges) -> Mapping[TopicPartition, int]:
        """Return the leaders' epochs; the mapping of the batch before if nothing changed, as is usual."""
        before, epochs = self._start, self.view.epochs
        if before.epochs == epochs and ranges.alike(before.ranges, planned):
            return before.epochs
        return {tp: epoch for tp in planned if (epoch := epochs.get(tp, -1)) >= 0}

    def _nap(self) -> None:
        seconds = self.view.look_again_in()
        if self.member is not None:
            self.member.wait(seconds or LOOK_EVERY)
        elif seconds > 0:
            self.view.handler.sleep(seconds)

    def _note_boundary(self) -> None:
        """Warn of a batch that took more than half of the rebalance timeout."""
        now, before = self.view.handler.now(), self._last_boundary
        self._last_boundary = now
        if self.member is None or before is None:
            return
        allowed = self.member.config.rebalance_timeout_ms / 1000.0
        if now - before > allowed / 2:
            log.warning(
                "group %s: %.0f s between two micro-batches; a rebalance waits %.0f s for this query and then goes on "
                "without it: raise kafka.max.poll.interval.ms or lower maxOffsetsPerTrigger",
                self.options.group_id,
                now - before,
                allowed,
            )

    def _why_not_settled(self) -> str:
        return (
            f"group {self.options.group_id!r} has not given this query its partitions within "
            f"{self.options.patience:.0f} s (kafkaConsumer.pollTimeoutMs): another member is slow to give them up, or "
            "has died without leaving. Two sources of one query in one group need "
            "kafka.partition.assignment.strategy=cooperative-sticky (the default), or a group.id each"
        )
