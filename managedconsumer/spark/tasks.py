"""Make Spark tasks of a batch's ranges: small ranges share a task, large ones are cut. Pure.

A Python task costs Spark some 26 ms of CPU before it has read a row (and over TCP 40 ms of waiting), then about a
microsecond for each row. So a range that is read in 0.1 s is not worth a task of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import ceil
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple

from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.structs import TopicPartition
from managedconsumer.values import each

#: Ranges of fewer offsets and fewer bytes than this share a task.
SMALL, SMALL_BYTES = 100_000, 16 * 1024 * 1024


class Slice(NamedTuple):
    """A range of one partition, read by one task."""

    topic: str
    partition: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.stop - self.start


class Task(NamedTuple):
    """The input of one task.

    ``ids``: the topics' ids (hex) when the batch was planned. ``member``: the id that must be in the group when the
    task ends (None: no check). ``data`` and ``ranges``: the values for the column ``range``.
    """

    parts: tuple[Slice, ...]
    ids: Mapping[str, str] = {}
    member: str | None = None
    data: str = ""
    ranges: Mapping[TopicPartition, OffsetRange] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A task may have thousands of parts; as columns they are pickled in a fifth of the time.
        return _unpickled, (tuple(zip(*self.parts, strict=True)), *self[1:])


def _unpickled(columns: tuple[tuple[Any, ...], ...], *others: Any) -> Task:
    return Task(tuple(each(Slice, zip(*columns, strict=True))), *others)


def split(ranges: Mapping[TopicPartition, OffsetRange], min_partitions: int | None = None) -> list[Slice]:
    """One slice for each range that is not empty; large ones are cut, by their size, into about ``min_partitions``."""
    wanted = sorted([tp + entry for tp, entry in ranges.items() if entry[0] < entry[1]])
    if min_partitions is None or min_partitions <= len(wanted):
        return [*each(Slice, wanted)]
    total = sum(stop - start for _, _, start, stop in wanted)
    slices = []
    for topic, partition, start, stop in wanted:
        pieces = max(1, min(stop - start, round((stop - start) / total * min_partitions)))
        bounds = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
        slices += [Slice(topic, partition, a, b) for a, b in pairwise(bounds) if b > a]
    return slices


def share_out(
    slices: list[Slice], slots: int, record_bytes: Mapping[str, float] = MappingProxyType({})
) -> list[list[Slice]]:
    """Return the slices of each task: slices below ``SMALL`` share tasks, each larger one has its own.

    ``record_bytes``: bytes per offset by topic, as far as known. There are ``slots`` tasks at least, unless there are
    fewer slices. Shared tasks get about the same work each.
    """
    by_topic = {name: max(1.0 / SMALL, size / SMALL_BYTES) for name, size in record_bytes.items()}
    least = 1.0 / SMALL
    works = [(stop - start) * by_topic.get(topic, least) for topic, _, start, stop in slices]
    largest = sorted(range(len(works)), key=works.__getitem__, reverse=True)
    big = bisect_right(largest, -1.0, key=lambda number: -works[number])
    tasks, small = [[slices[number]] for number in sorted(largest[:big])], largest[big:]
    if not small:
        return tasks
    wanted = max(slots - len(tasks), ceil(sum(map(works.__getitem__, small))), 1)
    turn = min(wanted, len(small))
    # Deal the slices out forwards and backwards in turn, largest first, so that no task gets all the larger ones.
    for place in range(turn):
        shared = small[place :: 2 * turn] + small[2 * turn - 1 - place :: 2 * turn]
        tasks.append([*map(slices.__getitem__, sorted(shared))])
    return tasks
