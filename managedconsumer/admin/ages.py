"""The age of the first message that a group has not committed, by reading one message for each place in a log.

One request reads all partitions of a leader, and answers all places in the batches that it returns. The rest (a large
batch, a leader that has moved) is read partition by partition.
"""

from __future__ import annotations

from typing import Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.fetch_ranges import Range, fetch_first
from managedconsumer.runtime.waiting.parallel import Parallel
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import RecordChunk

#: How much to read of a partition at a time, and how long (seconds) to retry: for one partition, and in all.
_LIMITS = RangeLimits(partition_max_bytes=16 * 1024, max_wait_ms=100, patience=5.0)
_PATIENCE = 30.0
#: How many partitions one request names (their batches fit in one response), and how many are read in parallel.
_PARTITIONS, _WORKERS = 400, 8
#: Messages that are read per round, before the stop condition is checked.
_LOT = 16

#: An offset in a partition.
Place = tuple[TopicPartition, int]


def ages(
    cluster: Cluster, places: Iterable[Place], ends: Mapping[TopicPartition, tuple[int, int]]
) -> dict[Place, float]:
    """The age (seconds) of the first message at or after each place; 0.0 where there is none up to the log's end.

    ``ends``: the first offset and the end of each log. Places that cannot be read now are left out. A timestamp in the
    future counts as now.
    """
    now = cluster.handler.wall_time()
    found: dict[Place, int | None] = {}
    logs: dict[TopicPartition, _Log] = {}
    for tp, offset in sorted(set(places), reverse=True):
        if offset >= ends[tp][1]:
            found[tp, offset] = None
        else:
            logs.setdefault(tp, _Log(tp, *ends[tp], found)).places.append(offset)
    _together(cluster, list(logs.values()))
    _one_by_one(cluster, [each for each in logs.values() if each.places])
    return {place: 0.0 if at is None else max(0.0, now - at / 1000.0) for place, at in dict(found).items()}


class _Log:
    """The open places in one log, the lowest one at the end."""

    def __init__(self, tp: TopicPartition, start: int, stop: int, found: dict[Place, int | None]) -> None:
        """``found`` gets the timestamps (ms); None where there is no message."""
        self.tp, self._start, self._stop, self._found = tp, start, stop, found
        self.places: list[int] = []

    def next_range(self) -> Range:
        """The range from the lowest place on, without the deleted start of the log."""
        return Range(*self.tp, max(self.places[-1], self._start), self._stop)

    def answer(self, timestamp: int | None) -> None:
        """Note the timestamp of the first message for the lowest place."""
        self._found[self.tp, self.places.pop()] = timestamp

    def take(self, chunk: RecordChunk) -> bool:
        """Answer places by ``chunk``; False: it has no message for the lowest place. Raises CorruptRecordError."""
        before = len(self.places)
        while self.places and self.places[-1] < chunk.next_fetch_offset:
            messages = chunk.take(_LOT, self._stop)
            if not messages:
                break
            for message in messages:
                while self.places and self.places[-1] <= message.offset:
                    self.answer(int(message.timestamp))
        return len(self.places) < before


def _together(cluster: Cluster, logs: list[_Log]) -> None:
    """Read the lowest places of all ``logs`` together, then the next ones; leave out a log without an answer."""
    while logs := [each for each in logs if each.places]:
        going_on = []
        for first in range(0, len(logs), _PARTITIONS):
            some = {each.next_range(): each for each in logs[first : first + _PARTITIONS]}
            for part, chunk in fetch_first(cluster, list(some), _LIMITS, fewest=1).items():
                try:
                    if some[part].take(chunk):
                        going_on.append(some[part])
                except err.CorruptRecordError:
                    continue
        logs = going_on


def _one_by_one(cluster: Cluster, logs: list[_Log]) -> None:
    def work() -> None:
        while logs:
            try:
                log = logs.pop()
            except IndexError:  # another worker was faster
                return
            try:
                while log.places:
                    _read(cluster, log)
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException:
                continue

    parallel = Parallel(cluster.handler, "ages")
    for _ in range(min(_WORKERS, len(logs))):
        parallel.start(work)
    parallel.wait(_PATIENCE, lambda: False)


def _read(cluster: Cluster, log: _Log) -> None:
    """Answer the lowest place, and the places near it."""
    part = log.next_range()
    chunks = fetch_range(
        cluster, part.topic, part.partition, part.start, part.stop, _LIMITS, on_lost=lambda _first, _behind: None
    )
    try:
        if not any(map(log.take, chunks)):
            log.answer(None)
    finally:
        chunks.close()
