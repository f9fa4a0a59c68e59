"""SQLStore: results and next offsets in one transaction of a database with a DB-API 2 connection."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Mapping, Protocol
from weakref import WeakMethod

from managedconsumer import errors as err
from managedconsumer.stores.dialects import DIALECTS, Dialect
from managedconsumer.stores.errors import ConflictError
from managedconsumer.stores.rows import Move, Row
from managedconsumer.stores.store import Store
from managedconsumer.structs import TopicPartition

# The most rows in one query.
_TOGETHER = 100
# How long (seconds) to retry a claim that conflicts with an uncommitted one, as in DuckDB.
_UNDECIDED = 1.0


class Connection(Protocol):
    """A connection of PEP 249: sqlite3's, psycopg's, duckdb's."""

    def cursor(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...
    def close(self) -> Any: ...


class SQLStore(Store):
    """Next offsets in a table of the user's database; a transaction yields the user's own connection to write with.

    The store makes the table (``managedconsumer_offsets``) if it is missing, and a connection for each thread. Only the
    store may call ``commit()`` and ``rollback()``: it raises an error where it sees that the block has done so.
    """

    keeps_topic_ids = True

    def __init__(
        self,
        connect: Callable[[], Connection],
        dialect: str = "sqlite",
        *,
        table: str = "managedconsumer_offsets",
        patience_ms: int = 60_000,
        idle_ms: int = 60_000,
        use_greenlets: bool = False,
    ) -> None:
        """``connect()`` makes a connection; ``dialect``: ``"sqlite"``, ``"postgresql"`` or ``"duckdb"``.

        ``idle_ms`` (PostgreSQL; 0: never): the server ends a transaction that is idle for so long, so that a process
        that stands still in one does not keep its locks. Raises ConfigurationError for an unknown dialect or a wrong
        table name, TypeError for a connection in place of the function.
        """
        if not callable(connect) or (hasattr(connect, "cursor") and not isinstance(connect, type)):
            raise TypeError(
                f"connect={connect!r}: a function that makes a connection is needed, such as lambda: "
                "sqlite3.connect(path), because each thread gets one of its own and a lost one is made again"
            )
        if dialect not in DIALECTS:
            raise err.ConfigurationError(f"dialect={dialect!r}: allowed are {', '.join(map(repr, DIALECTS))}")
        if not all(part.isidentifier() and part.isascii() for part in table.split(".")):
            raise err.ConfigurationError(f"table={table!r}: a name, or schema.name, of a-z A-Z 0-9 _")
        super().__init__(patience_ms=patience_ms, use_greenlets=use_greenlets)
        self.connect = connect
        self.dialect = dialect
        self.table = table
        self._dialect: Dialect = DIALECTS[dialect](table, idle_ms)
        self._connections: dict[tuple[int, int], Any] = {}
        # Threads whose end closes their connection.
        self._watched: set[tuple[int, int]] = set()
        self._made = False

    def __repr__(self) -> str:
        return f"<SQLStore {self._dialect.name}, table {self._dialect.table}>"

    def rows(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        try:
            return self._rows(self._connection(), group, list(tps))
        except BaseException:
            self._drop(self._key())
            raise

    def _rows(self, connection: Any, group: str, wanted: list[TopicPartition]) -> dict[TopicPartition, Row]:
        found = {}
        for start in range(0, len(wanted), _TOGETHER):
            part = wanted[start : start + _TOGETHER]
            for topic, number, *row in self._dialect.select(connection, group, part):
                found[TopicPartition(topic, number)] = Row(*row)
        return found

    def swap(self, group: str, changes: Mapping[TopicPartition, tuple[Row | None, Row]]) -> bool:
        refused: Exception | None = None
        for _ in self.tries(_UNDECIDED):
            try:
                return self._swap(group, changes)
            except Exception as error:
                if self._dialect.passing(error) or not self._dialect.conflict(error):
                    raise
                refused = error
            found = self.rows(group, changes)
            if any(found.get(tp) != old for tp, (old, _) in changes.items()):
                return False
        raise err.ConfigurationError(
            f"the database refuses a claim, though no other claim came: {type(refused).__name__}: {refused}. Does "
            f"the table {self.table} have a column, a check or a trigger of its own?"
        ) from refused

    def _swap(self, group: str, changes: Mapping[TopicPartition, tuple[Row | None, Row]]) -> bool:
        try:
            with self._committing() as connection:
                for tp, (old, new) in sorted(changes.items()):
                    owner = (new.claim, new.generation, new.member)
                    if old is None:
                        changed = self._dialect.insert(connection, (group, *tp), owner)
                    else:
                        changed = self._dialect.update_owner(connection, (group, *tp), owner, (old.claim, old.member))
                    if changed != 1:
                        raise ConflictError("a row has changed")
        except ConflictError:
            return False
        return True

    @contextmanager
    def writing(self, group: str, moves: Mapping[TopicPartition, Move]) -> Iterator[Any]:
        """See :meth:`Store.writing`; yields the connection, in a transaction."""
        with self._committing() as connection:
            mark = self._dialect.mark_of(connection)
            # If no other process can change the rows from here on, a zombie's block need not run.
            if self._dialect.alone and self._rows(connection, group, list(moves)) != {
                tp: move.row for tp, move in moves.items()
            }:
                raise ConflictError("the offsets were moved, or claimed by another member")
            yield connection
            if not self._dialect.same(connection, mark):
                raise err.IllegalStateError(
                    "the block has ended the store's transaction (commit(), rollback(), `with connection:`, "
                    "executescript()), or hidden its failure: its results may count without their offsets"
                )
            if self._dialect.move(connection, group, moves) != len(moves):
                raise ConflictError("the offsets were moved, or claimed by another member")

    def passing(self, error: BaseException) -> bool:
        """True for a lock, a lost connection, a server that restarts."""
        return isinstance(error, OSError) or self._dialect.passing(error)

    def close(self) -> None:
        """Close this process's connections, while no other thread uses the store. A later call connects again."""
        for key in list(self._connections):
            self._drop(key)

    def _key(self) -> tuple[int, int]:
        return os.getpid(), self._handler.ident()

    def _connection(self) -> Any:
        key = self._key()
        connection = self._connections.get(key)
        if connection is None:
            # Registered first, so that it is closed if the database refuses the next statements.
            connection = self._connections[key] = self.connect()
            self._dialect.prepare(connection)
            if not self._made:
                self._dialect.create(connection)
                self._made = True
            if key not in self._watched:
                self._watched.add(key)
                self._handler.at_end(partial(_call, WeakMethod(self._thread_ended), key))
        return connection

    def _drop(self, key: tuple[int, int]) -> None:
        if key[0] != os.getpid():
            return  # the parent's: to close it here could undo the parent's work
        connection = self._connections.pop(key, None)
        if connection is not None:
            with suppress(Exception):  # it may be lost
                connection.close()

    def _thread_ended(self, key: tuple[int, int]) -> None:
        self._watched.discard(key)
        self._drop(key)

    @contextmanager
    def _committing(self) -> Iterator[Any]:
        """A transaction; after an error its connection is closed if it may be lost."""
        connection = self.patiently(self._begin)
        try:
            yield connection
            self._dialect.commit(connection)
        except BaseException as error:
            self._undo(connection, error)
            raise

    def _begin(self) -> Any:
        try:
            connection = self._connection()
            self._dialect.begin(connection)
        except BaseException:
            self._drop(self._key())
            raise
        return connection

    def _undo(self, connection: Any, error: BaseException) -> None:
        key = self._key()
        try:
            if self._connections.get(key) is connection:
                self._dialect.rollback(connection)
        except Exception:  # noqa: BLE001 - the connection is lost, and with it the transaction
            self._drop(key)
        if self._dialect.passing(error):
            self._drop(key)


def _call(method: WeakMethod[Callable[[tuple[int, int]], None]], key: tuple[int, int]) -> None:
    """The store may have been collected before its threads end."""
    call = method()
    if call is not None:
        call(key)
