"""Claims as rows of a table in Delta Lake or Iceberg, with which SQL can join the results.

The table is one of :mod:`managedconsumer.stores`: each claim is a commit for one version. It fails if there is a newer
one; then the ends are read again. A commit carries the new ends besides the rows, so a claim reads no rows.
"""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timezone
from typing import Any, Collection, Iterator, Sequence

from managedconsumer.spark.claims.log import History, Won
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import Rows, Tables, VersionedStore
from managedconsumer.structs import TopicPartition


class TableClaims(History):
    """A claim log in a table of its own, one row (see :func:`schema`) for each claim. Used by one thread."""

    _store: VersionedStore | None = None

    @abstractmethod
    def _find(self, *, make: bool) -> VersionedStore | None:
        """Return the table, as a store whose rows have the partitions' ends. Without one: None, or a new one."""

    @abstractmethod
    def _columns(self, version: Any, names: Sequence[str]) -> Any:
        """Return these columns of all rows, as a ``pyarrow.Table``."""

    @abstractmethod
    def vacuum(self, older_than: float) -> int:
        """Merge all rows into one file, and delete the files that it replaces; returns their number.

        Files that were in the table less than ``older_than`` seconds ago stay, for readers.
        """

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        store = self._open(make=False)
        if store is None:
            return {}
        version = store.look()
        if tps is None:
            found = self._columns(version, ["topic", "partition"]).to_pydict()
            tps = sorted({TopicPartition(*each) for each in zip(found["topic"], found["partition"], strict=True)})
        rows = store.read(version, "", tps)
        return {tp: row.next for tp, row in rows.items() if row.next is not None}

    def repeat(self, data: str, name: str) -> None:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeat`. The note is kept like a partition's end."""
        mark = _repeat(data)
        self._open(make=True).change("", [mark], lambda found: ({} if found[mark].next else {mark: end_at(1)}, None))

    def repeated(self, data: str) -> bool:
        return bool(self.ends([_repeat(data)]))

    def _move(self, ranges: Ranges, data: str) -> Ranges:
        won: Ranges = {}

        def decide(found: Rows) -> tuple[Rows, Tables | None]:
            won.clear()
            won.update({tp: entry for tp, entry in ranges.items() if found[tp].next in (None, entry.start)})
            return {tp: end_at(entry.stop) for tp, entry in won.items()}, _notes(won, data) if won else None

        self._open(make=True).change("", ranges, decide)
        return won

    def _noted(self, data: str | None = None) -> Iterator[Won]:
        store = self._open(make=False)
        columns = ["topic", "partition", "start", "stop", "data"]
        for row in () if store is None else self._columns(store.look(), columns).to_pylist():
            yield TopicPartition(row["topic"], row["partition"]), OffsetRange(row["start"], row["stop"]), row["data"]

    def _open(self, *, make: bool) -> Any:
        """Return the :class:`VersionedStore`; None without a table, unless ``make``."""
        if self._store is None:
            self._store = self._find(make=make)
        return self._store


def end_at(offset: int | None) -> Row:
    """Return the row of a partition that ends at ``offset``; None: nothing of it is claimed."""
    return Row(offset, 0, 0, "")


def _repeat(data: str) -> TopicPartition:
    """Return a key that is no partition, as no topic has a / in its name."""
    return TopicPartition(f"repeats/{data}", 0)


def schema() -> Any:
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


def _notes(ranges: Ranges, data: str) -> Tables:
    import pyarrow as pa

    made = datetime.now(timezone.utc)
    rows = [(*tp, *entry, data, made) for tp, entry in sorted(ranges.items())]
    notes = Tables()
    notes.write(pa.Table.from_pylist([dict(zip(schema().names, row, strict=True)) for row in rows], schema()))
    return notes
