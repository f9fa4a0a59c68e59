"""The ranges of a batch read (``spark.read``), looked up once."""

from __future__ import annotations

from dataclasses import replace

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.spark.topics import Offsets, TopicView
from managedconsumer.spark.watch import LogWatch
from managedconsumer.spark.where import EARLIEST, LATEST
from managedconsumer.structs import TopicPartition


def batch_ranges(view: TopicView) -> Ranges:
    """Return the ranges that the options of ``view`` ask for.

    Raises OffsetOutOfRangeError for a start that its log does not reach, or for an end whose records are all deleted,
    unless ``failOnDataLoss`` is false: then such a partition has an empty range. Raises ConfigurationError for a start
    behind the end.
    """
    options, watch, tps = view.options, LogWatch(view), view.partitions()
    starts, ends = view.resolve(options.starting, tps), view.resolve(options.ending, tps)
    begins = view.starts(tps)
    for tp, at in _beyond(view, watch, starts).items():
        watch.lost(f"{tp.topic}-{tp.partition} ends at offset {at}, and startingOffsets begin at {starts[tp]}")
        ends[tp] = starts[tp]
    for tp in tps:
        if starts[tp] < begins[tp] and not options.fail_on_data_loss:
            starts[tp] = begins[tp]
            ends[tp] = max(ends[tp], begins[tp])
        if starts[tp] > ends[tp]:
            _check_behind(view, watch, tp, starts[tp], ends[tp])
            ends[tp] = starts[tp]
    return {tp: OffsetRange(starts[tp], ends[tp]) for tp in tps}


def _beyond(view: TopicView, watch: LogWatch, starts: Offsets) -> Offsets:
    """Return the ends of those logs that end before their start offset."""
    found = watch.still_beyond(starts, view.ends(list(starts), fresh=True))
    if not found or not view.options.isolation_level:
        return found
    # With read_committed the end is the start of the oldest open transaction; the log may go on behind it.
    plain = TopicView(replace(view.options, kafka={**view.options.kafka, "isolation.level": "read_uncommitted"}))
    try:
        plain.partitions()
        ends = plain.ends(list(found), fresh=True)
        return {tp: ends.get(tp, end) for tp, end in found.items() if starts[tp] > ends.get(tp, end)}
    finally:
        plain.close()


def _check_behind(view: TopicView, watch: LogWatch, tp: TopicPartition, start: int, end: int) -> None:
    """Raise for a start behind the end, unless the user did not name that start."""
    where, to = view.options.starting, view.options.ending
    # The group has read it all, or what is behind the end belongs to an open transaction.
    if where.kind == "committed" or to.kind == "latest" or to.by_partition.get(tp) == LATEST:
        return
    if where.kind == "earliest" or where.by_partition.get(tp) == EARLIEST:
        watch.lost(f"the log of {tp.topic}-{tp.partition} begins at offset {start}, and the batch is to end at {end}")
        return
    raise ConfigurationError(
        f"the batch would begin behind its end: {tp.topic}-{tp.partition} from offset {start} to {end}; see the "
        "options startingOffsets and endingOffsets (or the timestamps)"
    )
