"""Messages of a topic between two places, in the order of time, without a group."""

from __future__ import annotations

import heapq
from typing import Callable, Iterator, Mapping

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.connection_pool import ConnectionPool
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

_BATCH = 100
Damaged = Callable[[err.KafkaException], object]


def read_ranges(
    pool: ConnectionPool,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    damaged: Damaged,
    limits: RangeLimits | None = None,
) -> Iterator[Message]:
    """The messages of ``{partition: (first offset, offset behind the last)}``.

    Within a partition they come in order; across partitions the oldest timestamp comes first. ``damaged`` is told of
    records that cannot be read, which are passed over. Raises what :func:`fetch_range` raises.
    """
    each = [_read(pool, tp, start, stop, damaged, limits) for tp, (start, stop) in sorted(ranges.items())]
    return heapq.merge(*each, key=lambda message: message.timestamp)


def _read(
    pool: ConnectionPool, tp: TopicPartition, start: int, stop: int, damaged: Damaged, limits: RangeLimits | None
) -> Iterator[Message]:
    for chunk in fetch_range(pool, *tp, start, stop, limits, on_lost=lambda _first, _behind: None):
        while True:
            try:
                messages = chunk.take(_BATCH, stop)
            except err.CorruptRecordError as error:
                damaged(error)
                chunk.skip_corrupt()
                continue
            if not messages:
                break
            yield from messages
