"""Claims as rows of a table in Delta Lake or Iceberg: who reads the results in SQL joins them with it.

The table is one of :mod:`managedconsumer.stores`: each claim is a commit, made for one version, which fails if there is
a newer one. Then the ends are looked at again. The commit carries the new ends besides the rows, so no row has to be
read to claim.
"""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timezone
from typing import Any, Collection, Iterator, Literal, Sequence, overload

from managedconsumer.spark.claims.log import History, Won
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import Rows, Tables, VersionedStore
from managedconsumer.structs import TopicPartition


class TableClaims(History):
    """A :class:`~managedconsumer.spark.claims.log.ClaimLog` in a table of its own. Used by one thread.

    Its columns: ``topic``, ``partition``, ``start`` and ``stop`` (offsets), ``data`` (the run's name), ``made``.
    """

    _store: VersionedStore | None = None

    @abstractmethod
    def _find(self, *, make: bool) -> VersionedStore | None:
        """The table, of which a row says where a partition ends, and nothing else. Without one: None, or a new one."""

    @abstractmethod
    def _columns(self, version: Any, names: Sequence[str]) -> Any:
        """Those columns of all rows, as a ``pyarrow.Table``."""

    @abstractmethod
    def vacuum(self, older_than: float) -> int:
        """Put all rows into one file, and delete the files that it repeats; how many.

        Files are kept that were in the table less than ``older_than`` seconds ago: somebody may read them still.
        """

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.ends`."""
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
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeat`. It is kept as the end of a partition is."""
        mark = _repeat(data)
        self._open(make=True).change("", [mark], lambda found: ({} if found[mark].next else {mark: end_at(1)}, None))

    def repeated(self, data: str) -> bool:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeated`."""
        return bool(self.ends([_repeat(data)]))

    def _move(self, ranges: Ranges, data: str) -> Ranges:
        """See :meth:`History._move`."""
        won: Ranges = {}

        def decide(found: Rows) -> tuple[Rows, Tables | None]:
            won.clear()
            won.update({tp: entry for tp, entry in ranges.items() if found[tp].next in (None, entry.start)})
            return {tp: end_at(entry.stop) for tp, entry in won.items()}, _notes(won, data) if won else None

        self._open(make=True).change("", ranges, decide)
        return won

    def _noted(self, data: str | None = None) -> Iterator[Won]:
        """See :meth:`History._noted`."""
        store = self._open(make=False)
        columns = ["topic", "partition", "start", "stop", "data"]
        for row in () if store is None else self._columns(store.look(), columns).to_pylist():
            yield TopicPartition(row["topic"], row["partition"]), OffsetRange(row["start"], row["stop"]), row["data"]

    @overload
    def _open(self, *, make: Literal[True]) -> VersionedStore: ...

    @overload
    def _open(self, *, make: bool) -> VersionedStore | None: ...

    def _open(self, *, make: bool) -> VersionedStore | None:
        if self._store is None:
            self._store = self._find(make=make)
        return self._store


def end_at(offset: int | None) -> Row:
    """The row of a partition that ends there; None: nothing of it is claimed."""
    return Row(offset, 0, 0, "")


def _repeat(data: str) -> TopicPartition:
    """No partition: no topic has a / in its name."""
    return TopicPartition(f"repeats/{data}", 0)


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


def _notes(ranges: Ranges, data: str) -> Tables:
    import pyarrow as pa

    made = datetime.now(timezone.utc)
    rows = [(*tp, *entry, data, made) for tp, entry in sorted(ranges.items())]
    notes = Tables()
    notes.write(pa.Table.from_pylist([dict(zip(schema().names, row, strict=True)) for row in rows], schema()))
    return notes
