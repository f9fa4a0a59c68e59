"""Claims in a database, together with the rows: both in one transaction, so that a crash leaves nothing behind.

The end of each partition is one row, which a claim moves from the range's start to its stop. A second writer waits for
the first one's transaction, and then finds that the end has moved. Works with SQLite, and with PostgreSQL by psycopg.
"""

from __future__ import annotations

import importlib
import sqlite3
import time
from contextlib import contextmanager
from typing import Any, Callable, Collection, Iterator
from urllib.parse import unquote, urlparse

from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.shown import without_secrets
from managedconsumer.spark.claims.log import Winners
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.structs import TopicPartition

#: The schemes of ``store`` that are databases.
SCHEMES = ("sqlite", "postgresql")
_TABLES = (
    """CREATE TABLE IF NOT EXISTS managedconsumer_ends (
        claims TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, stop BIGINT NOT NULL, data TEXT NOT NULL,
        PRIMARY KEY (claims, topic, part))""",
    """CREATE TABLE IF NOT EXISTS managedconsumer_claims (
        claims TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, start BIGINT NOT NULL, stop BIGINT NOT NULL,
        data TEXT NOT NULL, made BIGINT NOT NULL,
        PRIMARY KEY (claims, topic, part, start))""",
    """CREATE TABLE IF NOT EXISTS managedconsumer_repeats (
        claims TEXT NOT NULL, data TEXT NOT NULL, run TEXT NOT NULL, PRIMARY KEY (claims, data))""",
)
_BEGIN = """INSERT INTO managedconsumer_ends (claims, topic, part, stop, data) VALUES (?, ?, ?, ?, '')
    ON CONFLICT DO NOTHING"""
_MOVE = """UPDATE managedconsumer_ends SET stop = ?, data = ?
    WHERE claims = ? AND topic = ? AND part = ? AND stop = ?"""
_NOTE = "INSERT INTO managedconsumer_claims VALUES (?, ?, ?, ?, ?, ?, ?)"
_AGAIN = """SELECT 1 FROM managedconsumer_claims
    WHERE claims = ? AND topic = ? AND part = ? AND start = ? AND stop = ? AND data = ?"""
_REPEAT = "INSERT INTO managedconsumer_repeats VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
# How long (seconds) SQLite waits for another writer's transaction.
_BUSY = 60.0


class SqlClaims:
    """A :class:`~managedconsumer.spark.claims.log.ClaimLog` in three tables, which it makes.

    ``url``: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, or ``postgresql://user@host/database``; a connection
    is made for each transaction. ``name`` tells apart the claims of several pipelines in one database.
    """

    def __init__(self, url: str, name: str = "default") -> None:
        self.name = name
        self._connect, self._mark = _driver(url)
        self._ready = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A DB-API connection with a transaction, which is committed if the block ends well, and undone otherwise."""
        connection = self._connect()
        try:
            cursor = connection.cursor()
            if not self._ready:
                self._make_tables(connection)
            if self._mark == "?":
                cursor.execute("BEGIN IMMEDIATE")  # or two readers that want to write would block each other
            yield connection
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()

    def _make_tables(self, connection: Any) -> None:
        for attempt in (1, 2):
            try:
                for statement in _TABLES:
                    connection.cursor().execute(statement)
                connection.commit()
            except Exception:
                # PostgreSQL refuses one of two that make the same table at the same moment; it is there then.
                connection.rollback()
                if attempt == 2:
                    raise
            else:
                break
        self._ready = True

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.claim`."""
        with self.transaction() as connection:
            won = self.claim_in(connection, ranges, data)
            cursor = connection.cursor()
            again = {tp: entry for tp, entry in ranges.items() if tp not in won and self._has(cursor, tp, entry, data)}
        return {**won, **again}

    def claim_in(self, connection: Any, ranges: Ranges, data: str) -> Ranges:
        """Claim in a transaction of :meth:`transaction`; what is claimed for the first time when it is committed.

        The rows of these ranges are to be written in the same transaction, and no others. What ``data`` itself has
        claimed before is not in the answer: its rows are there already.
        """
        cursor = connection.cursor()
        # Always in the same order: two writers must not wait for each other.
        wanted = sorted((tp, entry) for tp, entry in ranges.items())
        return {tp: entry for tp, entry in wanted if entry.size <= 0 or self._claim(cursor, tp, entry, data)}

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.ends`."""
        rows = self._rows("SELECT topic, part, stop FROM managedconsumer_ends WHERE claims = ?")
        found = {TopicPartition(topic, int(part)): int(stop) for topic, part, stop in rows}
        return found if tps is None else {tp: found[tp] for tp in tps if tp in found}

    def repeat(self, data: str, name: str) -> None:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeat`."""
        with self.transaction() as connection:
            connection.cursor().execute(self._sql(_REPEAT), (self.name, data, name))

    def repeated(self, data: str) -> bool:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeated`."""
        return bool(self._rows("SELECT data FROM managedconsumer_repeats WHERE claims = ? AND data = ?", data))

    def winners(self) -> Winners:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.winners`; what :meth:`vacuum` removed is not in it."""
        found: Winners = {}
        query = "SELECT topic, part, start, stop, data FROM managedconsumer_claims WHERE claims = ?"
        for topic, part, start, stop, data in self._rows(query):
            found.setdefault(data, {})[TopicPartition(topic, int(part))] = OffsetRange(int(start), int(stop))
        return found

    def vacuum(self, older_than: float) -> int:
        """Forget which batches counted more than ``older_than`` seconds ago; how many rows were deleted.

        Rows that were written in the transaction of their claim do not need that knowledge.
        """
        with self.transaction() as connection:
            cursor = connection.cursor()
            query = "DELETE FROM managedconsumer_claims WHERE claims = ? AND made < ?"
            cursor.execute(self._sql(query), (self.name, int(time.time() - older_than)))
            return int(cursor.rowcount)

    def foreach_batch(self, write: Callable[[Any, Any], None]) -> Callable[[Any, int], None]:
        """A function for ``foreachBatch`` that writes rows and claims in one transaction.

        ``write(connection, frame)`` gets the transaction's connection, and the batch's rows without the partitions that
        another query has claimed. It must use that connection (``frame.collect()`` and ``executemany``, say), and leave
        the commit to us. The stream needs the columns ``topic``, ``partition`` and ``range``, and this log as its
        ``store``.
        """

        def write_batch(frame: Any, _batch: int) -> None:
            frame = frame.persist()
            try:
                data, ranges = ranges_of(frame)
                if not ranges:
                    return  # no rows; the source claims the ranges by itself
                with self.transaction() as connection:
                    won = self.claim_in(connection, ranges, data)
                    if won:
                        write(connection, frame if len(won) == len(ranges) else _only(frame, won))
            finally:
                frame.unpersist()

        return write_batch

    def _claim(self, cursor: Any, tp: TopicPartition, entry: OffsetRange, data: str) -> bool:
        key = (self.name, *tp)
        cursor.execute(self._sql(_BEGIN), (*key, entry.start))
        cursor.execute(self._sql(_MOVE), (entry.stop, data, *key, entry.start))
        if cursor.rowcount != 1:
            return False
        cursor.execute(self._sql(_NOTE), (*key, *entry, data, int(time.time())))
        return True

    def _has(self, cursor: Any, tp: TopicPartition, entry: OffsetRange, data: str) -> bool:
        cursor.execute(self._sql(_AGAIN), (self.name, *tp, *entry, data))
        return cursor.fetchone() is not None

    def _rows(self, query: str, *more: Any) -> list[Any]:
        with self.transaction() as connection:
            cursor = connection.cursor()
            cursor.execute(self._sql(query), (self.name, *more))
            return list(cursor.fetchall())

    def _sql(self, statement: str) -> str:
        return statement.replace("?", self._mark)


def ranges_of(frame: Any) -> tuple[str, Ranges]:
    """The name of a batch and its ranges, from the columns ``topic``, ``partition`` and ``range`` of its rows."""
    rows = frame.select("topic", "partition", "range").distinct().collect()
    ranges = {TopicPartition(row.topic, row.partition): OffsetRange(row.range.start, row.range.stop) for row in rows}
    return (rows[0].range.data if rows else ""), ranges


def _only(frame: Any, won: Ranges) -> Any:
    from functools import reduce

    from pyspark.sql import functions as F  # as everybody calls it

    ours = [(F.col("topic") == tp.topic) & (F.col("partition") == tp.partition) for tp in won]
    return frame.where(reduce(lambda a, b: a | b, ours))


def _driver(url: str) -> tuple[Callable[[], Any], str]:
    """How to connect, and how a statement marks its values."""
    parsed = urlparse(url)
    if parsed.scheme == "sqlite":
        path = unquote(parsed.path).removeprefix("/")
        if parsed.netloc or not path:
            raise ConfigurationError(
                f"{without_secrets(url)!r}: a SQLite database is sqlite:////absolute/path.db or sqlite:///relative.db"
            )
        return lambda: sqlite3.connect(path, timeout=_BUSY, isolation_level=None), "?"
    if parsed.scheme == "postgresql":
        try:
            psycopg: Any = importlib.import_module("psycopg")
        except ImportError:
            raise MissingPackageError("claims in PostgreSQL need psycopg: pip install 'psycopg[binary]>=3'") from None
        try:
            psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError:  # its text holds the whole URL
            raise ConfigurationError(
                f"{without_secrets(url)!r}: PostgreSQL's library cannot read this URL. Special characters in user and "
                "password have to be quoted (urllib.parse.quote)"
            ) from None
        return lambda: psycopg.connect(url), "%s"
    raise ConfigurationError(f"{without_secrets(url)!r}: claims can be kept in sqlite:/// and postgresql:// databases")
