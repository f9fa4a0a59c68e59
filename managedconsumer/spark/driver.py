"""The driver's side of a stream: where it starts, what the next batch reads. Knows nothing of Spark's classes."""

from __future__ import annotations

import logging
from typing import Any, Collection

from managedconsumer import errors as err
from managedconsumer.spark import ranges
from managedconsumer.spark.member import QueryMember
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.ranges import OffsetRange, StreamOffset
from managedconsumer.spark.store import ClaimStore
from managedconsumer.spark.topics import Offsets, TopicView
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

_POSITIONS_PATIENCE = 30.0
# A leader that has just changed may not know the end of the log yet; look this often before data counts as lost.
_LOOKS_BEFORE_LOSS, _LOOK_PAUSE = 5, 0.4


class StreamDriver:
    """Plans the batches of one query, one call at a time; nothing is opened before the first call.

    Where a partition is read from, strongest first: the end of the claims in ``store``; what this query has done (its
    checkpoint) or, if further, what the group has committed; ``startingOffsets``; the log's start for a partition that
    is new.
    """

    def __init__(self, options: SourceOptions, listener: Any = None) -> None:
        self.options = options
        self.view = TopicView(options)
        self.store = ClaimStore(options.store) if options.store is not None else None
        self.member: QueryMember | None = None
        self._positions: Offsets = {}
        self._listener = listener
        self._start = StreamOffset({})
        self._planned: StreamOffset | None = None
        self._limit: Offsets | None = None
        self._last_boundary: float | None = None

    # -- what Spark asks ------------------------------------------------------------------------------

    def initial(self) -> StreamOffset:
        """Where a query without a checkpoint starts; joins nothing."""
        tps = self.view.partitions()
        found = self.view.resolve(self.options.starting, tps)
        return StreamOffset({tp: OffsetRange(offset, offset) for tp, offset in found.items()}, initial=True)

    def next(self, start: StreamOffset, max_rows: int | None) -> StreamOffset:
        """The next batch, given that everything up to ``start`` is done; ``start`` itself when there is no news."""
        self._note_boundary()
        self._start = start
        positions = self._group_positions(start) if self.options.group_id is not None else self._own_positions(start)
        self._planned = None
        planned = self._plan(positions, max_rows)
        if planned is None:
            self._nap()
            planned = self._plan(positions, max_rows)
        if planned is None:
            return start
        self._planned = planned
        return planned

    def freeze_ends(self) -> None:
        """Read nothing that is written from now on (Trigger.AvailableNow)."""
        tps = self.view.partitions()
        ends = self.view.ends(tps, fresh=True)
        missing = [tp for tp in tps if tp not in ends]
        if missing:
            ends.update(self.view.resolve(self.options.ending, missing))
        self._limit = ends

    def latest(self) -> dict[str, dict[str, int]] | None:
        """The logs' ends as last seen, for the progress report."""
        ends = self.view.known_ends()
        return ranges.nest(ends) if ends else None

    def stop(self) -> None:
        """Leave the group and close the connections. Idempotent."""
        member, self.member = self.member, None
        try:
            if member is not None:
                member.stop()
        finally:
            self.view.close()

    # -- where we are ---------------------------------------------------------------------------------

    def _group_positions(self, start: StreamOffset) -> Offsets:
        if self.member is None:
            self.member = QueryMember(self.view, self._find_positions, self._listener)
        self.view.partitions()
        done = start.ends if start == self._planned else {}
        if self.store is not None:
            done = {tp: end for tp in self.member.positions if (end := self.store.end(tp)) is not None}
        self.member.finished(done)
        self.member.at_boundary()
        self._check_known(self.member.positions)
        return self.member.positions

    def _find_positions(self, tps: Collection[TopicPartition]) -> tuple[Offsets, Offsets]:
        """For partitions that the group has just given us: where to read from, and what is committed."""
        start = self._start
        committed = self.view.committed(tps, _POSITIONS_PATIENCE)
        found: Offsets = {}
        for tp in tps:
            done = None if start.initial else start.ends.get(tp)
            claimed = self.store.end(tp) if self.store is not None else None
            known = [offset for offset in (committed.get(tp), done) if offset is not None]
            if claimed is not None:
                found[tp] = claimed
            elif self.store is not None:
                known = [] if done is None else [done]
            if tp not in found and known:
                found[tp] = max(known)
            elif tp not in found and start.initial and tp in start.ranges:
                found[tp] = start.ranges[tp].start
        found.update(self.view.starts([tp for tp in tps if tp not in found]))
        return self._check_starts(found), committed

    def _own_positions(self, start: StreamOffset) -> Offsets:
        """Without a group all partitions are ours."""
        tps = self.view.partitions()
        before = self._positions
        positions = {tp: end for tp, end in start.ends.items() if tp in set(tps)}
        gone = [tp for tp in start.ends if tp not in positions]
        if gone:
            self._lost(f"{_names(gone)} do not exist any more")
        new = [tp for tp in tps if tp not in positions]
        if new:
            log.info("new partitions are read from their start: %s", _names(new))
            positions.update(self.view.starts(new))
        if self.store is not None:
            positions.update({tp: end for tp in tps if (end := self.store.end(tp)) is not None})
        fresh = {tp: offset for tp, offset in positions.items() if tp not in before and tp not in new}
        self._positions = {**positions, **self._check_starts(fresh)}
        return self._positions

    # -- the batch ------------------------------------------------------------------------------------

    def _plan(self, positions: Offsets, max_rows: int | None) -> StreamOffset | None:
        ends = ranges.cap(self.view.ends(list(positions)), self._limit)
        planned = ranges.plan(positions, ends, max_rows)
        return StreamOffset(planned) if any(entry.size > 0 for entry in planned.values()) else None

    def _nap(self) -> None:
        """Nothing new: do not ask the brokers again at once."""
        seconds = self.view.look_again_in()
        if self.member is not None:
            self.member.wait(seconds)
        elif seconds > 0:
            self.view.handler.sleep(seconds)

    def _note_boundary(self) -> None:
        """Warn when a batch takes so long that a rebalance could not wait for it."""
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

    # -- what is not there any more ---------------------------------------------------------------------

    def _check_starts(self, positions: Offsets) -> Offsets:
        """``positions`` that were found, none of them outside of its log."""
        if not positions:
            return {}
        starts = self.view.starts(list(positions))
        checked = dict(positions)
        for tp, offset in positions.items():
            if offset < starts[tp]:
                self._lost(f"offsets {offset} to {starts[tp] - 1} of {tp.topic}-{tp.partition} have been deleted")
                checked[tp] = starts[tp]
        self._check_known(checked)
        return checked

    def _check_known(self, positions: Offsets) -> None:
        """No position may be behind the end of its log: then the topic was made anew, or truncated."""
        for look in range(_LOOKS_BEFORE_LOSS):
            ends = self.view.ends(list(positions), fresh=look > 0)
            beyond = {tp: end for tp, end in ends.items() if positions[tp] > end}
            if not beyond:
                return
            if look:
                self.view.handler.sleep(_LOOK_PAUSE)
        for tp, end in beyond.items():
            self._lost(
                f"{tp.topic}-{tp.partition} ends at offset {end}, but {positions[tp]} were read or committed already: "
                "was the topic made anew?"
            )
            positions[tp] = self.view.starts([tp])[tp]

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise err.OffsetOutOfRangeError(
                f"data may have been lost: {what}. With the option failOnDataLoss=false the query goes on behind it"
            )
        log.warning("data may have been lost, going on (failOnDataLoss=false): %s", what)


def _names(tps: Collection[TopicPartition]) -> str:
    return ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps))
