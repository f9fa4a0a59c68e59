"""Claims in a database, together with the rows: both in one transaction, so that a crash leaves nothing behind.

The end of each partition is one row, which a claim moves from the range's start to its stop. A second writer waits for
the transaction of the first one, and then finds the end moved. Works with SQLite, and with PostgreSQL by psycopg.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any, Callable, Collection, Iterator
from urllib.parse import unquote, urlparse

from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.results import check_result
from managedconsumer.shown import without_secrets
from managedconsumer.spark.claims.log import History, Won
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.stores.dialects import DIALECTS, Dialect
from managedconsumer.structs import TopicPartition

#: The schemes of ``store`` that are databases.
SCHEMES = ("sqlite", "postgresql")
_TABLES = {
    "managedconsumer_ends": """claims TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, stop BIGINT NOT NULL,
        data TEXT NOT NULL, PRIMARY KEY (claims, topic, part)""",
    "managedconsumer_claims": """claims TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL,
        start BIGINT NOT NULL, stop BIGINT NOT NULL, data TEXT NOT NULL, made BIGINT NOT NULL,
        PRIMARY KEY (claims, topic, part, start)""",
    "managedconsumer_repeats": """claims TEXT NOT NULL, data TEXT NOT NULL, run TEXT NOT NULL,
        PRIMARY KEY (claims, data)""",
}
_BEGIN = "INSERT INTO managedconsumer_ends VALUES (?, ?, ?, ?, '') ON CONFLICT DO NOTHING"
_MOVE = """UPDATE managedconsumer_ends SET stop = ?, data = ?
    WHERE claims = ? AND topic = ? AND part = ? AND stop = ?"""
_NOTE = "INSERT INTO managedconsumer_claims VALUES (?, ?, ?, ?, ?, ?, ?)"
_NOTES = "SELECT topic, part, start, stop, data FROM managedconsumer_claims WHERE claims = ?"
_REPEAT = "INSERT INTO managedconsumer_repeats VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
# How long (seconds) SQLite waits for another writer's transaction.
_BUSY = 60.0


class SqlClaims(History):
    """A claim log in three tables, which it makes.

    ``url``: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, or ``postgresql://user@host/database``; a connection
    is made for each transaction. ``name`` tells apart the claims of several pipelines in one database.
    """

    def __init__(self, url: str, name: str = "default") -> None:
        self.name = name
        self._connect, self._dialect = _driver(url)
        self._ready = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a DB-API connection and a transaction: commit when the block ends, roll back when it raises."""
        connection = self._connect()
        try:
            self._dialect.prepare(connection)
            if not self._ready:
                self._dialect.create(connection)
                self._ready = True
            self._dialect.begin(connection)
            yield connection
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()

    def claim_in(self, connection: Any, ranges: Ranges, data: str) -> Ranges:
        """Claim in a transaction of :meth:`transaction`; returns the ranges that its commit claims.

        Write the rows of these ranges, and no others, in the same transaction. A range that ``data`` claimed before is
        not in the result: its rows are there already.
        """
        # The order is always the same, so that two writers do not deadlock.
        wanted = sorted((tp, entry) for tp, entry in ranges.items())
        return {tp: entry for tp, entry in wanted if entry.size <= 0 or self._claim(connection, tp, entry, data)}

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        rows = self._rows("SELECT topic, part, stop FROM managedconsumer_ends WHERE claims = ?")
        found = {TopicPartition(topic, int(part)): int(stop) for topic, part, stop in rows}
        return found if tps is None else {tp: found[tp] for tp in tps if tp in found}

    def repeat(self, data: str, name: str) -> None:
        with self.transaction() as connection:
            self._dialect.changed(connection, _REPEAT, (self.name, data, name))

    def repeated(self, data: str) -> bool:
        return bool(self._rows("SELECT data FROM managedconsumer_repeats WHERE claims = ? AND data = ?", data))

    def vacuum(self, older_than: float) -> int:
        """Delete the notes of claims older than ``older_than`` seconds; returns their number.

        Rows that were written in the transaction of their claim do not need these notes.
        """
        with self.transaction() as connection:
            delete = "DELETE FROM managedconsumer_claims WHERE claims = ? AND made < ?"
            return self._dialect.changed(connection, delete, (self.name, int(time.time() - older_than)))

    def foreach_batch(self, write: Callable[[Any, Any], object]) -> Callable[[Any, int], None]:
        """Return a function for ``foreachBatch`` that writes rows and claims in one transaction.

        ``write(connection, frame)`` gets the transaction's connection, and the batch's rows without the partitions that
        another query has claimed. It must use that connection (``frame.collect()`` and ``executemany``, say) and must
        not commit. The stream needs the columns ``topic``, ``partition`` and ``range``, and this log as ``store``.
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
                        rows = frame if len(won) == len(ranges) else _only(frame, won)
                        check_result("write", write(connection, rows))
            finally:
                frame.unpersist()

        return write_batch

    def _move(self, ranges: Ranges, data: str) -> Ranges:
        with self.transaction() as connection:
            return self.claim_in(connection, ranges, data)

    def _claim(self, connection: Any, tp: TopicPartition, entry: OffsetRange, data: str) -> bool:
        change, key = self._dialect.changed, (self.name, *tp)
        change(connection, _BEGIN, (*key, entry.start))
        if change(connection, _MOVE, (entry.stop, data, *key, entry.start)) != 1:
            return False
        change(connection, _NOTE, (*key, *entry, data, int(time.time())))
        return True

    def _noted(self, data: str | None = None) -> Iterator[Won]:
        rows = self._rows(_NOTES) if data is None else self._rows(f"{_NOTES} AND data = ?", data)
        for topic, part, start, stop, run in rows:
            yield TopicPartition(topic, part), OffsetRange(start, stop), run

    def _rows(self, query: str, *more: str) -> list[Any]:
        with self.transaction() as connection:
            return self._dialect.fetch(connection, query, (self.name, *more))


def ranges_of(frame: Any) -> tuple[str, Ranges]:
    """Return a batch's name and ranges, from the columns ``topic``, ``partition`` and ``range`` of its rows."""
    rows = frame.select("topic", "partition", "range").distinct().collect()
    ranges = {TopicPartition(row.topic, row.partition): OffsetRange(row.range.start, row.range.stop) for row in rows}
    return (rows[0].range.data if rows else ""), ranges


def _only(frame: Any, won: Ranges) -> Any:
    from pyspark.sql import functions as F

    ours = ((F.col("topic") == tp.topic) & (F.col("partition") == tp.partition) for tp in won)
    return frame.where(reduce(or_, ours))


def _driver(url: str) -> tuple[Callable[[], Any], Dialect]:
    """Return a function that connects, and the database's dialect."""
    parsed = urlparse(url)
    if parsed.scheme not in SCHEMES:
        raise ConfigurationError(
            f"{without_secrets(url)!r}: claims can be kept in sqlite:/// and postgresql:// databases"
        )
    dialect = DIALECTS[parsed.scheme]("managedconsumer_ends", tables=_TABLES)
    if parsed.scheme == "sqlite":
        path = unquote(parsed.path).removeprefix("/")
        if parsed.netloc or not path:
            raise ConfigurationError(
                f"{without_secrets(url)!r}: a SQLite database is sqlite:////absolute/path.db or sqlite:///relative.db"
            )
        return lambda: sqlite3.connect(path, timeout=_BUSY), dialect
    try:
        psycopg: Any = import_module("psycopg")
    except ImportError:
        raise MissingPackageError("claims in PostgreSQL need psycopg: pip install 'psycopg[binary]>=3'") from None
    try:
        psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its text holds the whole URL
        raise ConfigurationError(
            f"{without_secrets(url)!r}: PostgreSQL's library cannot read this URL. Special characters in user and "
            "password have to be quoted (urllib.parse.quote)"
        ) from None
    return lambda: psycopg.connect(url), dialect
