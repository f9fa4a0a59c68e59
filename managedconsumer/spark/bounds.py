"""Where a batch read (``spark.read``) begins and ends in each partition, looked up once."""

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
    """The ends of the logs that end before they are to be read."""
    found = watch.still_beyond(starts, view.ends(list(starts), fresh=True))
    if not found or not view.options.isolation_level:
        return found
    # The end for read_committed is where the oldest open transaction begins; the log may go on behind it.
    plain = TopicView(replace(view.options, kafka={**view.options.kafka, "isolation.level": "read_uncommitted"}))
    try:
        plain.partitions()
        ends = plain.ends(list(found), fresh=True)
        return {tp: ends.get(tp, end) for tp, end in found.items() if starts[tp] > ends.get(tp, end)}
    finally:
        plain.close()


def _check_behind(view: TopicView, watch: LogWatch, tp: TopicPartition, start: int, end: int) -> None:
    """The start is behind the end: a mistake, unless nobody has named that start."""
    where, to = view.options.starting, view.options.ending
    if where.kind == "committed":
        return  # the group has done all of it
    if to.kind == "latest" or to.by_partition.get(tp) == LATEST:
        return  # what is behind it belongs to a transaction that is open
    if where.kind == "earliest" or where.by_partition.get(tp) == EARLIEST:
        watch.lost(f"the log of {tp.topic}-{tp.partition} begins at offset {start}, and the batch is to end at {end}")
        return
    raise ConfigurationError(
        f"the batch would begin behind its end: {tp.topic}-{tp.partition} from offset {start} to {end}; see the "
        "options startingOffsets and endingOffsets (or the timestamps)"
    )
