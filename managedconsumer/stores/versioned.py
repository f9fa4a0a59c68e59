"""Stores in which each change is a new version of one thing: a log of files, a Delta or an Iceberg table.

A change names the version that it was computed from and fails if there is a newer one. Then the store reads the rows
again: it retries the change if they are as they must be, and refuses it otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping

from managedconsumer.errors import MissingPackageError
from managedconsumer.stores.errors import ConflictError
from managedconsumer.stores.rows import Move, Row
from managedconsumer.stores.store import Store
from managedconsumer.structs import TopicPartition

Rows = Mapping[TopicPartition, Row]


class VersionedStore(Store):
    """The rows and the data in one chain of versions."""

    keeps_topic_ids = True

    @abstractmethod
    def look(self) -> Any:
        """The newest version, as :meth:`read` and :meth:`append` take it."""

    @abstractmethod
    def read(self, version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        """The rows of those partitions that have one."""

    @abstractmethod
    def append(self, version: Any, group: str, rows: Rows, output: Any) -> bool:
        """Make ``rows`` and ``output`` (None: none) the next version, durably. False: there is one already."""

    @abstractmethod
    def output(self) -> Any:
        """A new handle for a user's results."""

    def discard(self, output: Any) -> None:
        """The transaction was undone: remove the results in ``output``."""

    def rows(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        return self.read(self.look(), group, tps)

    def swap(self, group: str, changes: Mapping[TopicPartition, tuple[Row | None, Row]]) -> bool:
        def decide(found: Rows) -> tuple[Rows, None]:
            new = {}
            for tp, (old, row) in changes.items():
                now = found.get(tp)
                # The member's whole text counts: it has the id of the offset's topic.
                if _claim_of(now) != _claim_of(old):
                    raise ConflictError("a row has changed")
                new[tp] = row._replace(next=None if now is None else now.next)
            return new, None

        try:
            self.change(group, list(changes), decide)
        except ConflictError:
            return False
        return True

    @contextmanager
    def writing(self, group: str, moves: Mapping[TopicPartition, Move]) -> Iterator[Any]:
        def decide(found: Rows) -> tuple[Rows, Any]:
            for tp, move in moves.items():
                now = found.get(tp)
                if now is None or not now.same_owner(move.row) or now.next != move.row.next:
                    raise ConflictError("the offsets were moved, or claimed by another member")
            return {tp: found[tp]._replace(next=move.next, member=move.member) for tp, move in moves.items()}, output

        output = self.patiently(self.output)
        try:
            yield output
        except BaseException:
            self.discard(output)
            raise
        try:
            self.change(group, list(moves), decide)
        except ConflictError:
            self.discard(output)
            raise

    def change(self, group: str, tps: Collection[TopicPartition], decide: Callable[[Rows], tuple[Rows, Any]]) -> None:
        """Make the next version by ``decide(newest rows)``, which returns new rows and an output to commit with them.

        Calls ``decide`` again if another writer was faster. No rows and None: no change is needed. Raises what
        ``decide`` and :meth:`newest` raise.
        """
        for version in self.newest():
            rows, output = decide(self.read(version, group, tps))
            if (not rows and output is None) or self.append(version, group, rows, output):
                return

    def newest(self) -> Iterator[Any]:
        """Yield the newest version for each try of a change. Raises TimeoutError when ``patience_ms`` are over."""
        for _ in self.tries():
            yield self.look()
        raise TimeoutError(f"{self!r}: other writers were faster each time, for {self._patience:.0f} s")


def _claim_of(row: Row | None) -> tuple[int, str] | None:
    return None if row is None else (row.claim, row.member)


def need(name: str, package: str, extra: str) -> None:
    """Raise MissingPackageError where ``name`` lacks ``package`` or pyarrow."""
    if find_spec(package) is None or find_spec("pyarrow") is None:
        raise MissingPackageError(
            f"{name}: this needs the packages {package} and pyarrow: pip install 'managedconsumer[{extra}]'"
        )


class Tables:
    """The handle of a table's transaction: Arrow data is appended with the offsets, in one commit."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def write(self, data: Any) -> None:
        """Append a ``pyarrow.Table`` or ``RecordBatch`` (several: one after the other, of one schema)."""
        import pyarrow as pa

        self._parts.append(data if isinstance(data, pa.Table) else pa.Table.from_batches([data]))

    def table(self) -> Any:
        """All that was written; None: nothing."""
        import pyarrow as pa

        return pa.concat_tables(self._parts) if self._parts else None
