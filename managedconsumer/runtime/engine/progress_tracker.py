"""The progress of one consumer's partitions: read on request, and noted now and then by the position worker.

It sends no request. It holds the consumer's lock for a short time only, and reads bytes without it.
"""

from __future__ import annotations

import logging
from typing import Any, Collection

from managedconsumer.errors import KafkaException
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.fetch.progress import Oldest, PartitionProgress, PartitionSample, Track, oldest_of
from managedconsumer.fetch.stuck import MOVES, STANDS
from managedconsumer.partition_state import TopicPartitionState, log_end
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

# The most chunks to read of a partition: the first nearly always has a message.
_CHUNKS = 4


class SampledPartition:
    """A snapshot of one partition, which can be read without the lock."""

    __slots__ = ("chunks", "sight", "stamps", "state", "tp", "track")

    def __init__(self, tp: TopicPartition, state: TopicPartitionState, sight: PartitionSample, track: Track) -> None:
        self.tp, self.state, self.sight, self.track = tp, state, sight, track
        self.chunks: list[Any] = []
        self.stamps: dict[int, int] = {}

    def read(self) -> Oldest | None:
        """Return the oldest unfinished message, if it is known."""
        if self.sight.start is None:
            return None
        try:
            return oldest_of(self.chunks, self.sight.start, self.stamps)
        except (KafkaException, MemoryError):  # damage: the consuming call raises that error
            return None


class ProgressTracker:
    """Thread-safe. Keeps the history of assigned partitions only."""

    def __init__(self, engine: Assignment) -> None:
        """``engine``: each call takes its lock for a short time, to copy numbers."""
        self._engine = engine
        self._tracks: dict[TopicPartition, tuple[TopicPartitionState, Track]] = {}

    def sample(self) -> None:
        """Sample all partitions, and log those that stand still. Partitions that move get no closer check."""
        looks = self.look(closely=False)
        self.note(looks)
        now = self._engine.handler.now()
        for look in looks:
            self._tell(look, look.track.stuck_for(now))

    def _tell(self, look: SampledPartition, stuck_for: float) -> None:
        said, sight, tell_of = look.track.alarm.look(stuck_for), look.sight, self._engine.log_fields.tell_of
        if said == MOVES:
            tell_of(look.tp, log.info, "moves again")
        elif said == STANDS and look.state.active and sight.end is not None and sight.start is not None:
            text = "has not moved for %.0f s: it is at offset %s, %d behind the end"
            tell_of(look.tp, log.warning, text, stuck_for, sight.position, sight.end - sight.start)

    def progress(self) -> dict[TopicPartition, PartitionProgress]:
        """Return the progress of each assigned partition, sorted."""
        looks = self.look()
        self.note(looks)
        now, wall = self._engine.handler.now(), self._engine.handler.wall_time()
        with self._engine.lock:
            return {look.tp: look.track.progress(look.sight, now, wall) for look in looks}

    def look(self, tps: Collection[TopicPartition] | None = None, *, closely: bool = True) -> list[SampledPartition]:
        """Take snapshots of ``tps`` (None: all); ``closely``: also of their oldest messages."""
        engine = self._engine
        with engine.lock:
            engine.collector.settle_lane()
            engine.collector.in_flight.settle_kept()
            assigned, now = engine.subscription.assignment, engine.handler.now()
            for tp in [tp for tp in self._tracks if tp not in assigned]:
                del self._tracks[tp]
            looks = []
            for queue in engine.buffer:
                if tps is None or queue.tp in tps:
                    sight = self._sight(queue)
                    look = SampledPartition(queue.tp, queue.state, sight, self._track(queue, now))
                    if (sight.behind and look.track.known(sight) is None) if closely else look.track.needs_look(sight):
                        self._gather(queue, look)
                    looks.append(look)
        return sorted(looks, key=lambda look: look.tp)

    def note(self, looks: list[SampledPartition]) -> None:
        """Read the snapshots, and keep the results."""
        found = [look.read() for look in looks]
        engine = self._engine
        with engine.lock:
            now, wall = engine.handler.now(), engine.handler.wall_time()
            for look, oldest in zip(looks, found, strict=True):
                if look.state.active:
                    look.track.look(look.sight, oldest, now, wall)

    def note_pause(self, looks: list[SampledPartition]) -> None:
        """Note partitions right after a pause, which dropped their fetched messages; the snapshots are from before."""
        with self._engine.lock:
            queues = self._engine.buffer.queues
            for look in looks:
                if look.tp in queues:
                    look.sight = look.sight._replace(paused=True, version=queues[look.tp].version)
        self.note(looks)

    def _track(self, queue: PartitionQueue, now: float) -> Track:
        state, track = self._tracks.get(queue.tp, (None, None))
        if track is None or state is not queue.state:
            track = Track(now)
            self._tracks[queue.tp] = queue.state, track
        return track

    def _sight(self, queue: PartitionQueue) -> PartitionSample:
        state = queue.state
        position, end = state.position, log_end(state, self._engine.options.isolation)
        # The fetched messages may be ahead of the log's end in the same response.
        if end is not None and position is not None:
            end = max(end, position)
        # Retention deletes unfetched messages; buffered ones and those in flight are still delivered and finished.
        empty = queue.fetch_offset == position == state.finished
        start = state.log_start if empty and state.log_start is not None else -1
        return PartitionSample(position, state.finished, state.committed, end, start, state.paused, queue.version)

    def _gather(self, queue: PartitionQueue, look: SampledPartition) -> None:
        start = look.sight.start
        chunks, look.stamps = self._engine.collector.in_sight(queue)
        if start is None or start in look.stamps:
            return
        for chunk in [each for each in chunks if each.next_fetch_offset > start][:_CHUNKS]:
            fresh = chunk.again(max(start, chunk.fetch_offset))
            if fresh is None:
                return
            look.chunks.append(fresh)
