"""DeltaStore: rows appended to a Delta table, and next offsets in the same commit. Needs the package deltalake."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from typing import Any, Iterable, Mapping

from managedconsumer.errors import ConfigurationError, IllegalStateError
from managedconsumer.stores.rows import Row, topic_bytes, topic_text, with_topic
from managedconsumer.stores.versioned import Rows, Tables, VersionedStore, need
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

# A transaction's number cannot be removed: this one stands for no next offset, after a RESTORE to before the first one.
_NOTHING = -1
_PARTS = ("next", "claim", "generation", "member")
# The id of the offset's topic, as two numbers, and the claim that wrote it. Version 0.2.0 claims without it: the topic
# is unknown then.
_TOPIC_PARTS = ("topic claim", "topic id, first half", "topic id, second half")
# The most commits that are read when a table is opened.
_MOST = 1000


class DeltaStore(VersionedStore):
    """A transaction's ``write(arrow_table)`` appends rows, which one commit adds together with the offsets.

    Offsets and claims are application transactions of the Delta protocol (``txn``), so they outlive checkpoints and
    clean-ups of the log, and Spark reads the table as any other. A commit is for one version of the table; it is
    repeated if another writer was faster. The table keeps a member as a number, which errors show. ``RESTORE`` takes
    rows back and leaves ``txn``: the store takes the offsets back, too, if the log has both versions.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Any = None,
        storage_options: Mapping[str, str] | None = None,
        patience_ms: int = 60_000,
        use_greenlets: bool = False,
    ) -> None:
        """``path`` or URL of the table; ``schema`` (a ``pyarrow.Schema``) makes it now if it is missing.

        ``storage_options`` go to deltalake. Raises ConfigurationError where there is no table and no ``schema``,
        MissingPackageError without deltalake or pyarrow, and what deltalake raises.
        """
        need("DeltaStore", "deltalake", "delta")
        from deltalake import DeltaTable

        super().__init__(patience_ms=patience_ms, use_greenlets=use_greenlets)
        self._path = os.fspath(path)
        self._options = dict(storage_options or {})
        # The RESTORE commits up to this version.
        self._restores: tuple[int, list[tuple[int, int | str]]] = (-1, [])
        # Never later: a table that existed once and is missing is away, and must not be created again.
        if not DeltaTable.is_deltatable(self._path, self._options):
            self._make(schema)
        self.look()

    def _make(self, schema: Any) -> None:
        """Create the table. Several processes may do so at the same moment."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError

        if schema is None:
            raise ConfigurationError(
                f"{self._path!r}: there is no Delta table. If it is to be made, say which columns it has: "
                "DeltaStore(path, schema=pyarrow.schema([(name, type), ...])); otherwise look at the path, and whether "
                "it is mounted"
            )
        try:
            DeltaTable.create(self._path, schema, mode="ignore", storage_options=self._options)
        except CommitFailedError:
            log.debug("%s: another process has created the table at the same moment", self._path)

    def __repr__(self) -> str:
        return f"DeltaStore({self._path!r})"

    def look(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self._path, storage_options=self._options)

    def read(self, version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        looked, restores = self._restores
        newest = version.version()
        if newest < looked:  # an older copy of the table
            looked, restores = -1, []
        if newest > looked:
            restores = _restores(version, looked) + restores
            self._restores = newest, restores
        return self._read(version, group, tps, restores)

    def _read(
        self, version: Any, group: str, tps: Iterable[TopicPartition], restores: list[tuple[int, int | str]]
    ) -> dict[TopicPartition, Row]:
        found = _rows(version, group, tps)
        for number, restored in restores if found else ():
            if number <= version.version():
                then = _rows(self._at(number), group, found)
                # A row that was not written since the RESTORE is stale: the next offset of the restored version counts.
                stale = [tp for tp, row in found.items() if then.get(tp) == row]
                past = self._read(self._at(restored), group, stale, restores) if stale else {}
                for tp in stale:
                    found[tp] = found[tp].back_at(past.get(tp))
                break
        return found

    def _at(self, place: int | str) -> Any:
        from deltalake import DeltaTable

        try:
            table = DeltaTable(self._path, storage_options=self._options)
            table.load_as_version(place)
        except Exception as error:
            if self.passing(error):
                raise
            raise IllegalStateError(
                f"{self._path!r} was put back by RESTORE, and its log does not have {place} any more: the "
                "offsets of its rows are unknown. Use another group, and begin where the rows end"
            ) from error
        return table

    def append(self, version: Any, group: str, rows: Rows, output: Tables | None) -> bool:
        marks: dict[str, int] = {}
        for tp, row in rows.items():
            names = _names(group, tp)
            marks.update(zip(names[1:], (row.claim, row.generation, int(row.owner)), strict=True))
            if row.topic:
                halves = struct.unpack(">qq", topic_bytes(row.topic))
                marks.update(zip(_names(group, tp, _TOPIC_PARTS), (row.claim, *halves), strict=True))
            elif version.transaction_version(claimed := _names(group, tp, _TOPIC_PARTS)[0]) == row.claim:
                marks[claimed] = _NOTHING
            if row.next is not None or version.transaction_version(names[0]) is not None:
                marks[names[0]] = _NOTHING if row.next is None else row.next
        return commit(version, marks, None if output is None else output.table())

    def output(self) -> Tables:
        return Tables()

    def passing(self, error: BaseException) -> bool:
        """True for storage that does not answer, and for a table that is missing now."""
        return super().passing(error) or type(error).__name__ == "TableNotFoundError"

    def member_name(self, member: str) -> str:
        """A number of 63 bits: the table keeps numbers only."""
        return str(int.from_bytes(hashlib.sha256(member.encode()).digest()[:8], "big") >> 1)


def _rows(version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
    found = {}
    for tp in tps:
        values = [version.transaction_version(name) for name in _names(group, tp)]
        if values[1] is not None:
            claim, *halves = (version.transaction_version(name) for name in _names(group, tp, _TOPIC_PARTS))
            topic = topic_text(struct.pack(">qq", *halves)) if claim == values[1] else ""
            member = with_topic(str(values[3]), topic)
            found[tp] = Row(None if values[0] == _NOTHING else values[0], values[1], values[2], member)
    return found


def _names(group: str, tp: TopicPartition, parts: tuple[str, ...] = _PARTS) -> list[str]:
    return [f"managedconsumer/{group}/{tp.topic}/{tp.partition}/{part}" for part in parts]


def commit(version: Any, marks: Mapping[str, int], rows: Any) -> bool:
    """Make ``rows`` (a ``pyarrow.Table``; None: none) and ``marks`` the version after ``version``.

    ``marks`` are application transactions of the Delta protocol (``txn``), by name. False, without a change, if there
    is a version after ``version`` already. Raises what deltalake raises; CommitFailedError only without a newer
    version, as for a table with features that deltalake cannot write.
    """
    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError

    # Otherwise deltalake commits again behind a concurrent commit, which may be a claim.
    marked = [Transaction(name, number) for name, number in marks.items()]
    properties = CommitProperties(app_transactions=marked, max_commit_retries=0)
    try:
        if rows is None:
            version.create_write_transaction([], "append", version.schema(), commit_properties=properties)
        else:
            write_deltalake(version, rows, mode="append", commit_properties=properties)
    except CommitFailedError:
        number = version.version()
        version.update_incremental()
        if version.version() == number:
            raise
        return False
    return True


def _restores(version: Any, since: int) -> list[tuple[int, int | str]]:
    """The logged versions after ``since`` that a RESTORE made, the newest first, with the version or time restored."""
    found: list[tuple[int, int | str]] = []
    for commit in version.history(min(_MOST, version.version() - since)):
        if commit.get("operation") == "RESTORE":
            told = commit.get("operationParameters", {})
            number = str(told.get("version") or "")
            found.append((commit["version"], int(number) if number.isdecimal() else str(told.get("timestamp"))))
    return found
