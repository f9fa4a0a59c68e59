"""The ranges of a micro-batch: planning, limits, and the offsets in Spark's checkpoint. Pure.

An offset of this source is not a position but the *ranges* of the batch that ends there: ``{"version": 2, "query":
"6f1c...", "batch": 7, "ranges": {"page-views": {"3": [18730, 19480, 5]}}, "ids": {"page-views": "..."}}``. So a batch
that is run again after a crash reads exactly what it read before, whatever the group's assignment has become, and the
partitions may differ from batch to batch. (Spark stores the JSON before it runs the batch.) The third number is the
leader's epoch when the log's end was read, ``ids`` are the topics' ids: with them the query finds a log that was
truncated, and a topic that was created again. ``query`` is the name that the query gave itself (see
:mod:`managedconsumer.spark.positions`); ``data`` names the batch in claims (:mod:`managedconsumer.spark.claims.log`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from operator import add
from typing import Any, Callable, Collection, Iterable, Mapping, NamedTuple

from managedconsumer.errors import ConfigurationError
from managedconsumer.structs import TopicPartition
from managedconsumer.values import each

VERSION = 2
_READABLE = (1, 2)


class OffsetRange(NamedTuple):
    """Offsets ``start`` <= offset < ``stop`` of one partition."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of offsets. There may be fewer records: compaction and transactions leave gaps."""
        return self.stop - self.start


Ranges = dict[TopicPartition, OffsetRange]


def plain_offsets(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Return offsets in Spark's usual form, ``{"topic": {"0": 42}}``, by partition."""
    return {TopicPartition(topic, int(number)): int(at) for topic, ats in nested.items() for number, at in ats.items()}


def reported(offset: Any) -> dict[str, Any]:
    """An offset of a progress report; {} if there is none, or if it is no JSON object, as the rate source's."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            offset = _as_python_writes_it(offset)
    return offset if isinstance(offset, dict) else {}


def _as_python_writes_it(text: str) -> Any:
    """An offset that PySpark 4.0 and 4.1 report as ``str()`` of a dict: to clients of Spark Connect, for example."""
    from ast import literal_eval

    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def log_ends(latest: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The ends of the logs in a report's ``latestOffset``, which is the last batch in PySpark 4.0 and 4.1."""
    if "version" not in latest:
        return plain_offsets(latest)
    return StreamOffset.from_json(latest).ends | plain_offsets(latest.get("logs") or {})


@dataclass(frozen=True)
class StreamOffset:
    """One offset in Spark's log. ``initial``: nothing has been read yet, and the ranges say where to begin.

    ``query`` planned it as its batch number ``batch``. ``ids``: topic ids (hex) by name. ``epochs``: the leader's epoch
    in which each range's end was seen. ``data``: the batch's unique name. ``group``: generation and member id at the
    time of planning, for monitors.
    """

    ranges: Ranges
    initial: bool = False
    query: str = ""
    batch: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    data: str = ""
    group: tuple[int, str] | None = None

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The next offset to read after this batch, by partition."""
        return {tp: entry.stop for tp, entry in self.ranges.items()}

    @property
    def moved(self) -> dict[TopicPartition, int]:
        """:attr:`ends` of those partitions that the batch reads."""
        return {tp: stop for tp, (start, stop) in self.ranges.items() if start != stop}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark stores."""
        return self._around(self._nested(sorted(self.ranges), {}))

    def to_json_after(self, before: StreamOffset, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return :meth:`to_json`, made from ``told``, the JSON of ``before``, most of which is unchanged."""
        if not alike(before.ranges, self.ranges) or told.get("version") != VERSION:
            return self.to_json()
        known, epochs, old = before.ranges, self.epochs, before.epochs
        changed = [tp for tp, entry in self.ranges.items() if entry is not known[tp]]
        if epochs is not old and epochs != old:
            changed = [tp for tp, entry in self.ranges.items() if entry != known[tp] or epochs.get(tp) != old.get(tp)]
        return self._around(self._nested(changed, {topic: dict(parts) for topic, parts in told["ranges"].items()}))

    def _nested(
        self, tps: Iterable[TopicPartition], nested: dict[str, dict[str, list[int]]]
    ) -> dict[str, dict[str, list[int]]]:
        ranges, epochs = self.ranges, self.epochs
        last, parts = "", {}
        for tp in tps:
            topic, partition = tp
            if topic != last:  # they come topic by topic
                last, parts = topic, nested.setdefault(topic, {})
            start, stop = ranges[tp]
            parts[str(partition)] = [start, stop, epochs[tp]] if tp in epochs else [start, stop]
        return nested

    def _around(self, nested: dict[str, dict[str, list[int]]]) -> dict[str, Any]:
        made: dict[str, Any] = {"version": VERSION, "query": self.query, "batch": self.batch, "ranges": nested}
        if self.ids:
            made["ids"] = dict(sorted(self.ids.items()))
        if self.initial:
            made["initial"] = True
        if self.data:
            made["data"] = self.data
        if self.group is not None:
            made["group"] = {"generation": self.group[0], "member": self.group[1]}
        return made

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Read the result of :meth:`to_json`, of this or an earlier release. Raises ConfigurationError for others."""
        try:
            if value["version"] not in _READABLE:
                raise ConfigurationError(
                    f"the checkpoint holds offsets of version {value['version']!r}, this release reads {VERSION}: "
                    "use the release that wrote it, or a new checkpointLocation with startingOffsets=committed"
                )
            return cls._read(value)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                f"{str(value)[:200]!r} is no offset of this source: was the checkpointLocation made by a query on "
                "another one, such as Spark's own Kafka source? Give this query a checkpointLocation of its own"
            ) from error

    @classmethod
    def _read(cls, value: Mapping[str, Any]) -> StreamOffset:
        ranges: Ranges = {}
        group = value.get("group")
        epochs: dict[TopicPartition, int] = {}
        for topic, partitions in value["ranges"].items():
            for number, (start, stop, *epoch) in partitions.items():
                tp = TopicPartition(topic, int(number))
                ranges[tp] = OffsetRange(int(start), int(stop))
                if epoch:
                    epochs[tp] = int(epoch[0])
        return cls(
            ranges,
            bool(value.get("initial", False)),
            str(value.get("query", "")),
            int(value.get("batch", 0)),
            {str(topic): str(known) for topic, known in value.get("ids", {}).items()},
            epochs,
            str(value.get("data", "")),
            (int(group["generation"]), str(group["member"])) if group else None,
        )


# -- the checkpoint of Spark's own Kafka source, with which a query goes on where that source was --------------


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


def read_offset(value: Mapping[str, Any]) -> StreamOffset:
    """Parse an offset of this source or of Spark's own. Raises ConfigurationError for anything else."""
    return from_connector(value) or StreamOffset.from_json(value)


def batch_between(
    start: Mapping[str, Any], end: Mapping[str, Any], ours: Callable[[Mapping[str, Any]], StreamOffset] = read_offset
) -> StreamOffset:
    """Return the batch that ends at ``end``; ``ours`` parses an offset of this source.

    A batch that Spark's own source has planned begins where ``start`` ends. A partition that is not in ``start`` was
    new, and that source reads it from offset 0.
    """
    theirs = from_connector(end)
    if theirs is None:
        return ours(end)
    begin = read_offset(start).ends
    return StreamOffset({tp: OffsetRange(min(begin.get(tp, 0), stop), stop) for tp, stop in theirs.ends.items()})


class OffsetMemory:
    """The last offsets as JSON and as values: Spark passes the same ones several times in every batch."""

    def __init__(self) -> None:
        self._known: list[tuple[Mapping[str, Any], StreamOffset]] = []

    def read(self, value: Mapping[str, Any]) -> StreamOffset:
        """Return ``value`` parsed, once for each of the last values."""
        for told, offset in self._known:
            if told == value:
                return offset
        return self._keep(value, read_offset(value))

    def write(self, offset: StreamOffset, before: StreamOffset | None = None) -> dict[str, Any]:
        """Return ``offset`` as JSON. ``before``: the last result of :meth:`read`, if any."""
        told = next((told for told, known in self._known if known is before), None)
        made = offset.to_json() if before is None or told is None else offset.to_json_after(before, told)
        self._keep(made, offset)
        return made

    def _keep(self, told: Mapping[str, Any], offset: StreamOffset) -> StreamOffset:
        self._known = [(told, offset), *self._known[:1]]
        return offset


_NOTHING: Ranges = {}


def alike(one: Collection[TopicPartition], other: Collection[TopicPartition]) -> bool:
    """True if both name the same partitions. The order is nearly always the same, which is checked first."""
    return len(one) == len(other) and (list(one) == list(other) or set(one) == set(other))


def behind(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the number of offsets from each position to the log's end, of the partitions that have any."""
    return {tp: end - start for tp, start in positions.items() if (end := ends.get(tp, start)) > start}


def plan(
    positions: Mapping[TopicPartition, int],
    available: dict[TopicPartition, int],
    max_rows: int | None = None,
    known: Ranges = _NOTHING,
) -> Ranges:
    """Plan the next batch: ``available`` offsets (see :func:`behind`) from each position on, ``max_rows`` at most.

    A partition without new records gets an empty range, so that the checkpoint keeps its position. ``known``: the
    ranges of the batch before; the result shares the empty ones that did not change.
    """
    granted = available if max_rows is None else share(available, max_rows)
    planned: Ranges = {}
    empty: list[TopicPartition] = []
    if len(granted) < len(positions) and alike(known, positions):
        planned = dict(known)
        empty = [tp for tp, (start, stop) in known.items() if not start == stop == positions[tp] and tp not in granted]
    elif len(granted) < len(positions):
        empty = list(positions)  # in this order
    at = list(map(positions.__getitem__, empty))
    planned.update(zip(empty, each(OffsetRange, zip(at, at, strict=True)), strict=True))
    starts = [*positions.values()] if [*granted] == [*positions] else [*map(positions.__getitem__, granted)]
    stops = map(add, starts, granted.values())
    planned.update(zip(granted, each(OffsetRange, zip(starts, stops, strict=True)), strict=True))
    return planned


def share(available: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide exactly ``limit`` offsets in proportion to ``available``; one at least for each partition, if possible."""
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    # The largest first; of equals those that come first.
    waiting = sorted((tp for tp, size in available.items() if size), key=available.__getitem__, reverse=True)
    granted = dict.fromkeys(available, 0)
    if limit < len(waiting):
        granted.update(dict.fromkeys(waiting[:limit], 1))
        return granted
    # One each, so that a small partition beside a large one is not forgotten; the rest in proportion.
    spare, rest = limit - len(waiting), total - len(waiting)
    granted.update({tp: 1 + (available[tp] - 1) * spare // rest for tp in waiting})
    left = limit - sum(granted.values())
    for tp in waiting:
        if not left:
            break
        if granted[tp] < available[tp]:
            granted[tp] += 1
            left -= 1
    return granted


def cap(ends: Mapping[TopicPartition, int], limit: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
    """Return ``ends``, none beyond ``limit``. Partitions that ``limit`` does not name are newer, and left out."""
    if limit is None:
        return dict(ends)
    return {tp: min(end, limit[tp]) for tp, end in ends.items() if tp in limit}
