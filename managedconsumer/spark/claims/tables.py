"""Claims as rows of a table in Delta Lake or Iceberg: who reads the results in SQL joins them with it.

Each claim is a commit, made for one version of the table, which fails if there is a newer one. Then the ends are looked
at again. The commit carries the new ends besides the rows, so no row has to be read to claim.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Collection, Iterator, Mapping, Sequence

from managedconsumer.spark.claims.log import Winners
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.structs import TopicPartition

Ends = dict[TopicPartition, int]
# For how long (seconds) a commit is made again behind those of other writers, and the first pause.
_PATIENCE, _PAUSE = 60.0, 0.001


class TableClaims(ABC):
    """A :class:`~managedconsumer.spark.claims.log.ClaimLog` in a table of its own. Used by one thread.

    Its columns: ``topic``, ``partition``, ``start`` and ``stop`` (offsets), ``data`` (the run's name), ``made``.
    """

    # -- what a kind of table does ----------------------------------------------------------------------

    @abstractmethod
    def _look(self, *, make: bool) -> Any:
        """The newest version, as the other methods take it. Without a table: None, or a new one with ``make``."""

    @abstractmethod
    def _marks(self, version: Any, tps: Collection[TopicPartition]) -> Ends:
        """The ends that were committed; partitions without a claim are left out."""

    @abstractmethod
    def _append(self, version: Any, ends: Ends, rows: Any) -> bool:
        """Make ``ends`` and ``rows`` (a ``pyarrow.Table``, or None) the next version; False if there is one already."""

    @abstractmethod
    def _rows(self, version: Any, columns: Sequence[str]) -> Any:
        """Those columns of all rows, as a ``pyarrow.Table``."""

    @abstractmethod
    def vacuum(self, older_than: float) -> int:
        """Put all rows into one file, and delete the files that it repeats; how many.

        Files are kept that were in the table less than ``older_than`` seconds ago: somebody may read them still.
        """

    # -- the log ----------------------------------------------------------------------------------------

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.claim`."""
        wanted = {tp: entry for tp, entry in ranges.items() if entry.size > 0}
        new: dict[TopicPartition, OffsetRange] = {}
        for _ in tries("nothing was claimed"):
            version = self._look(make=True)
            ends = self._marks(version, wanted)
            new = {tp: entry for tp, entry in wanted.items() if ends.get(tp, entry.start) == entry.start}
            if not new or self._append(version, {tp: entry.stop for tp, entry in new.items()}, _new_rows(new, data)):
                break
        before = self._winners(version).get(data, {}) if len(new) < len(wanted) else {}
        return {tp: e for tp, e in ranges.items() if e.size <= 0 or tp in new or before.get(tp) == e}

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.ends`."""
        version = self._look(make=False)
        if version is None:
            return {}
        return self._marks(version, self._partitions(version) if tps is None else tps)

    def repeat(self, data: str, name: str) -> None:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeat`. It is kept as the end of a partition is."""
        mark = _repeat(data)
        for _ in tries("the name of a batch that runs again was not kept"):
            version = self._look(make=True)
            if self._marks(version, [mark]) or self._append(version, {mark: 1}, None):
                break

    def repeated(self, data: str) -> bool:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeated`."""
        version = self._look(make=False)
        return version is not None and bool(self._marks(version, [_repeat(data)]))

    def winners(self) -> Winners:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.winners`."""
        version = self._look(make=False)
        return {} if version is None else self._winners(version)

    def _partitions(self, version: Any) -> list[TopicPartition]:
        found = self._rows(version, ["topic", "partition"]).to_pydict()
        return sorted({TopicPartition(*each) for each in zip(found["topic"], found["partition"], strict=True)})

    def _winners(self, version: Any) -> Winners:
        found: Winners = {}
        for row in self._rows(version, ["topic", "partition", "start", "stop", "data"]).to_pylist():
            tp = TopicPartition(row["topic"], row["partition"])
            found.setdefault(row["data"], {})[tp] = OffsetRange(row["start"], row["stop"])
        return found


def _repeat(data: str) -> TopicPartition:
    """No partition: no topic has a / in its name."""
    return TopicPartition(f"repeats/{data}", 0)


def tries(what: str) -> Iterator[None]:
    """Once for each try of a commit, with pauses. Raises TimeoutError, which says ``what``, after a minute."""
    began, pause = time.monotonic(), _PAUSE
    while time.monotonic() - began < _PATIENCE:
        yield
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
    raise TimeoutError(f"{what}: other writers of the table were faster each time, for {_PATIENCE:.0f} s")


def schema() -> Any:
    """The columns of a table of claims."""
    import pyarrow as pa

    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("start", pa.int64()),
            ("stop", pa.int64()),
            ("data", pa.string()),
            ("made", pa.timestamp("us", tz="UTC")),
        ]
    )


def _new_rows(ranges: Mapping[TopicPartition, OffsetRange], data: str) -> Any:
    import pyarrow as pa

    now = time.time_ns() // 1000
    columns = zip(*((*tp, *entry, data, now) for tp, entry in sorted(ranges.items())), strict=True)
    kinds = schema()
    arrays = [pa.array(values, field.type) for values, field in zip(columns, kinds, strict=True)]
    return pa.Table.from_arrays(arrays, schema=kinds)
