"""Filters of a batch query that save reading: on topic, partition and offset, and the earliest timestamp. Pure.

PySpark's filters are known by the names of their classes, as PySpark 4.0 does not have them.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, Iterable, Mapping, NamedTuple

from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.structs import TopicPartition

_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Narrowing(NamedTuple):
    """What of the topics is read; None: no limit. ``since``: no earlier timestamp (ms) is wanted."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    stop: int | None = None
    since: int | None = None

    def of(self, ranges: Ranges) -> Ranges:
        """``ranges`` as far as they can hold what is wanted; ``since`` is not looked at."""
        narrowed: Ranges = {}
        for tp, (start, stop) in ranges.items():
            if self.topics is not None and tp.topic not in self.topics:
                continue
            if self.partitions is not None and tp.partition not in self.partitions:
                continue
            end = stop if self.stop is None else min(stop, self.stop)
            begin = max(start, self.first)
            if begin < end:
                narrowed[tp] = OffsetRange(begin, end)
        return narrowed

    def behind(self, ranges: Ranges, found: Mapping[TopicPartition, int]) -> Ranges:
        """``ranges`` without what is before the offsets in ``found``."""
        return Narrowing().of({tp: OffsetRange(max(start, found[tp]), stop) for tp, (start, stop) in ranges.items()})


def narrow(filters: Iterable[Any]) -> tuple[Narrowing, list[Any]]:
    """What the filters (all of which must hold) leave to be read, and those that Spark has to look at itself.

    Records are not in the order of their timestamps: before the first one that is as new as wanted there is none, but
    behind it there may be older ones. So a filter on timestamps saves reading, and is looked at all the same.
    """
    found, left = Narrowing(), []
    for each in filters:
        narrowed = _one(found, each)
        if narrowed is None or narrowed.since != found.since:
            left.append(each)
        found = found if narrowed is None else narrowed
    return found, left


def _one(found: Narrowing, condition: Any) -> Narrowing | None:
    """``found`` with one more filter; None if it saves nothing."""
    kind, column = type(condition).__name__, ".".join(getattr(condition, "attribute", ()))
    if kind == "IsNotNull":
        return found if column in _NEVER_NULL else None
    wanted = condition.value if kind == "In" else (getattr(condition, "value", None),)
    if kind in ("EqualTo", "EqualNullSafe", "In") and column in ("topic", "partition"):
        if not all(type(value) is (str if column == "topic" else int) for value in wanted):
            return None
        if column == "topic":
            return found._replace(topics=_both(found.topics, wanted))
        return found._replace(partitions=_both(found.partitions, wanted))
    if column == "offset" and type(wanted[0]) is int:
        return _offsets(found, kind, wanted[0])
    if column == "timestamp" and kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo", "EqualNullSafe"):
        return _since(found, wanted[0])
    return None


def _both(known: frozenset[Any] | None, wanted: Iterable[Any]) -> frozenset[Any]:
    return frozenset(wanted) if known is None else known.intersection(wanted)


def _offsets(found: Narrowing, kind: str, value: int) -> Narrowing | None:
    limits = {
        "EqualTo": (value, value + 1),
        "EqualNullSafe": (value, value + 1),
        "GreaterThan": (value + 1, None),
        "GreaterThanOrEqual": (value, None),
        "LessThan": (0, value),
        "LessThanOrEqual": (0, value + 1),
    }
    if kind not in limits:
        return None
    first, stop = limits[kind]
    stops = [each for each in (found.stop, stop) if each is not None]
    return found._replace(first=max(found.first, first), stop=min(stops, default=None))


def _since(found: Narrowing, value: Any) -> Narrowing | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = max(0, (value - _EPOCH) // timedelta(milliseconds=1), found.since or 0)
    return found._replace(since=since)
