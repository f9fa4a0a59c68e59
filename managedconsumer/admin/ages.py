"""How old the first message is that a group has not committed: one message of each partition is read."""

from __future__ import annotations

from typing import Mapping

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.connection_pool import ConnectionPool
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.waiting.together import Together
from managedconsumer.structs import TopicPartition

#: How many partitions are read at a time, how much of each, and for how long (seconds) trouble is waited for.
_WORKERS = 8
_LIMITS = RangeLimits(partition_max_bytes=16 * 1024, max_wait_ms=100, patience=5.0)
_PATIENCE = 30.0


def ages(
    cluster: Cluster,
    pool: ConnectionPool,
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, float]:
    """The age (seconds) of the first message at or after each offset; 0.0 where there is none up to the log's end.

    A partition that cannot be read now is left out. A timestamp in the future counts as now.
    """
    now = cluster.handler.wall_time()
    found: dict[TopicPartition, float] = {}
    todo = [tp for tp, offset in committed.items() if offset < ends[tp][1]]
    found.update(dict.fromkeys((tp for tp in committed if tp not in todo), 0.0))

    def work() -> None:
        while todo:
            try:
                tp = todo.pop()
            except IndexError:  # another worker was faster
                return
            try:
                timestamp = _timestamp(pool, tp, max(committed[tp], ends[tp][0]), ends[tp][1])
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException:
                continue
            found[tp] = 0.0 if timestamp is None else max(0.0, now - timestamp / 1000.0)

    together = Together(cluster.handler, "ages")
    for _ in range(min(_WORKERS, len(todo))):
        together.start(work)
    together.wait(_PATIENCE, lambda: False)
    return found


def _timestamp(pool: ConnectionPool, tp: TopicPartition, start: int, stop: int) -> int | None:
    chunks = fetch_range(pool, *tp, start, stop, _LIMITS, on_lost=lambda _first, _behind: None)
    try:
        for chunk in chunks:
            for message in chunk.take(1, stop):
                return int(message.timestamp)
    finally:
        chunks.close()  # type: ignore[attr-defined]
    return None
