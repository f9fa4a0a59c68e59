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

# A next offset cannot be taken away: this stands for none, where rows were taken back to before the first one.
_NOTHING = -1
_PARTS = ("next", "claim", "generation", "member")
# The id of the topic of the next offset, as two numbers, and the claim under which it was written: version 0.2.0 claims
# without it, and what it stores then is not known to be of this topic.
_TOPIC_PARTS = ("topic claim", "topic id, first half", "topic id, second half")
# At most so many commits are looked at when a table is opened.
_MOST = 1000


class DeltaStore(VersionedStore):
    """A transaction's ``write(arrow_table)`` appends rows; they are committed together with the offsets.

    Offsets and claims are application transactions of the Delta protocol (``txn``), so they outlive checkpoints and
    clean-ups of the log, and Spark reads the table as any other. Every commit is made for one version of the table
    and made again if another writer was faster. The table keeps a member as a number, so errors name it so. ``RESTORE``
    takes rows back and leaves offsets; here they go back with the rows, as far as the table's log knows both versions.
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
        # Up to which version it is known what RESTORE has done, and that.
        self._restores: tuple[int, list[tuple[int, int | str]]] = (-1, [])
        # Never later: a table that was there once and cannot be found is away, and must not be made anew.
        if not DeltaTable.is_deltatable(self._path, self._options):
            self._make(schema)
        self.look()

    def _make(self, schema: Any) -> None:
        """Of several that make the table at the same moment all find it afterwards."""
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
            log.debug("%s: somebody else has made the table at the same moment", self._path)

    def __repr__(self) -> str:
        return f"DeltaStore({self._path!r})"

    def look(self) -> Any:
        """See :meth:`VersionedStore.look`."""
        from deltalake import DeltaTable

        return DeltaTable(self._path, storage_options=self._options)

    def read(self, version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        """See :meth:`VersionedStore.read`."""
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
                # What nobody has written since is of rows that went: the next offsets are those of the rows that came.
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
                f"{self._path!r} was put back by RESTORE, and its log does not have {place} any more: it is not known "
                "which offsets belong to its rows. Use another group, and begin where the rows end"
            ) from error
        return table

    def append(self, version: Any, group: str, rows: Rows, output: Tables | None) -> bool:
        """See :meth:`VersionedStore.append`."""
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
        """See :meth:`VersionedStore.output`."""
        return Tables()

    def passing(self, error: BaseException) -> bool:
        """Storage that does not answer, or a table that was there and cannot be found."""
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

    ``marks`` are application transactions of the Delta protocol (``txn``), by name. False if there is a version after
    ``version`` already; then nothing has changed. Raises what deltalake raises, its CommitFailedError too where there
    is no newer version: as for a table with features that deltalake cannot write.
    """
    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError

    # Otherwise deltalake tries again by itself behind a concurrent append, and a claim may have come before.
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
    """Which versions after ``since`` a RESTORE has made, the newest first, and what it has restored: a version, a time.

    As far as the table's log says, and of the last thousand commits.
    """
    found: list[tuple[int, int | str]] = []
    for commit in version.history(min(_MOST, version.version() - since)):
        if commit.get("operation") == "RESTORE":
            told = commit.get("operationParameters", {})
            number = str(told.get("version") or "")
            found.append((commit["version"], int(number) if number.isdecimal() else str(told.get("timestamp"))))
    return found
