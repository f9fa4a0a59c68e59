"""Read a checkpoint of Spark's own Kafka source, so that a query goes on where that source was."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer.spark.ranges import OffsetRange, Ranges, StreamOffset
from managedconsumer.structs import TopicPartition


def from_connector(value: Any) -> StreamOffset | None:
    """Parse the next offsets that Spark's own source keeps, ``{"topic": {"0": 23}}``; None for anything else."""
    if not isinstance(value, Mapping) or not value or "version" in value:
        return None
    ranges: Ranges = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, Mapping):
            return None
        for number, offset in partitions.items():
            if not str(number).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                return None
            ranges[TopicPartition(str(topic), int(number))] = OffsetRange(offset, offset)
    return StreamOffset(ranges) if ranges else None


def read(value: Mapping[str, Any]) -> StreamOffset:
    """Parse an offset of this source or of Spark's own. Raises ConfigurationError for anything else."""
    return from_connector(value) or StreamOffset.from_json(value)


def batch_between(
    start: Mapping[str, Any], end: Mapping[str, Any], ours: Callable[[Mapping[str, Any]], StreamOffset] = read
) -> StreamOffset:
    """Return the batch that ends at ``end``; ``ours`` parses an offset of this source.

    A batch that Spark's own source has planned begins where ``start`` ends. A partition that is not in ``start`` was
    new, and that source reads it from offset 0.
    """
    theirs = from_connector(end)
    if theirs is None:
        return ours(end)
    begin = read(start).ends
    return StreamOffset({tp: OffsetRange(min(begin.get(tp, 0), stop), stop) for tp, stop in theirs.ends.items()})
