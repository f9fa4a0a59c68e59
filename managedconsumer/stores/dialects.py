"""The differences between databases: placeholders, how a transaction begins, which errors are transient.

``move`` and ``update_owner`` are conditional updates: the database locks the row, or refuses the commit if another
transaction has changed it. So a transaction that begins before a claim and ends after it changes no row.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Mapping, Sequence

from managedconsumer.stores.rows import Move
from managedconsumer.structs import TopicPartition

_Place = tuple[str, str, int]
_COLUMNS = """
    consumer_group varchar(512) not null,
    topic varchar(249) not null,
    kafka_partition integer not null,
    next_offset bigint,
    claim_number bigint not null,
    generation bigint not null,
    member varchar(512) not null,
    primary key (consumer_group, topic, kafka_partition)
"""
# The savepoint that shows whether a block has ended its transaction.
_OURS = "managedconsumer_block"
_WHERE = "consumer_group = ? and topic = ? and kafka_partition = ?"
# PostgreSQL: a setting of a session, in ms.
_IDLE = "idle_in_transaction_session_timeout"
# PostgreSQL: the codes of a server that stops, starts, or has ended the connection.
_SERVER_GONE = ("57P", "08", "40", "53", "55P03", "25P03")


class Dialect:
    """SQLite; the others override what differs. Each store has one; it keeps no connection."""

    name = "sqlite"
    mark = "?"
    #: The columns that a move sets besides the offset.
    also = ""
    #: The table's layout. In SQLite by its key alone, so that a row is found in one step.
    layout = " without rowid"
    #: True if a transaction locks out all other writers from its beginning.
    alone = True

    def __init__(self, table: str, idle_ms: int = 0, tables: Mapping[str, str] | None = None) -> None:
        """``tables``: the tables that :meth:`create` makes, with their columns; None: ``table``, of offsets."""
        self.table = table
        self.idle_ms = idle_ms
        self._tables = {table: _COLUMNS} if tables is None else tables

    def cursor(self, connection: Any) -> Any:
        """A cursor that yields tuples, also if the user's connection has another row type."""
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor

    def run(self, connection: Any, statement: str, values: Sequence[object] = ()) -> Any:
        """Execute a statement with question marks as placeholders, and return its cursor."""
        cursor = self.cursor(connection)
        cursor.execute(statement if self.mark == "?" else statement.replace("?", self.mark), values)
        return cursor

    def fetch(self, connection: Any, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        cursor = self.run(connection, statement, values)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        cursor.close()
        return found

    def changed(self, connection: Any, statement: str, values: Sequence[object]) -> int:
        """How many rows the statement has changed."""
        cursor = self.run(connection, statement, values)
        count = int(cursor.rowcount)
        cursor.close()
        return count

    def prepare(self, connection: Any) -> None:
        """Prepare a new connection: only the store begins and ends transactions on it."""
        if getattr(connection, "autocommit", True) is False:  # since Python 3.12
            connection.autocommit = True
        connection.isolation_level = None

    def create(self, connection: Any) -> None:
        for name, columns in self._tables.items():
            self.make(connection, name, columns)

    def make(self, connection: Any, name: str, columns: str) -> None:
        self.run(connection, f"create table if not exists {name} ({columns}){self.layout}")

    def begin(self, connection: Any) -> None:
        """Begin with the write lock: a transaction that reads before it writes could be refused half-way."""
        connection.execute("begin immediate")
        connection.execute(f"savepoint {_OURS}")

    def mark_of(self, connection: Any) -> object:
        """Return a mark of the transaction, for :meth:`same`."""
        del connection
        return None

    def same(self, connection: Any, mark: object) -> bool:
        """False if the transaction of ``mark`` has ended. Called once, after the block."""
        del mark
        try:
            connection.execute(f"release {_OURS}")
        except Exception as error:
            # A commit removes it, also if the block has begun another transaction.
            if "no such savepoint" in str(error):
                return False
            raise
        return True

    def commit(self, connection: Any) -> None:
        """Durable when it returns."""
        connection.execute("commit")

    def rollback(self, connection: Any) -> None:
        """Undo the transaction, if there is one."""
        if connection.in_transaction:
            connection.execute("rollback")

    def select(self, connection: Any, group: str, tps: Sequence[TopicPartition]) -> list[tuple[Any, ...]]:
        """The existing rows: (topic, partition, next, claim, generation, member)."""
        some = " or ".join(["(topic = ? and kafka_partition = ?)"] * len(tps))
        return self.fetch(
            connection,
            "select topic, kafka_partition, next_offset, claim_number, generation, member "  # noqa: S608 - a checked name
            f"from {self.table} where consumer_group = ? and ({some})",
            [group, *(part for tp in tps for part in tp)],
        )

    def insert(self, connection: Any, place: _Place, owner: tuple[int, int, str]) -> int:
        """Insert a first claim; returns 0 if there is a row already."""
        return self.changed(
            connection,
            f"insert into {self.table} (consumer_group, topic, kafka_partition, claim_number, generation, member) "  # noqa: S608
            "values (?, ?, ?, ?, ?, ?) on conflict do nothing",
            [*place, *owner],
        )

    def update_owner(self, connection: Any, place: _Place, owner: tuple[int, int, str], old: tuple[int, str]) -> int:
        """Replace a claim; returns 0 if the row is not as it was read."""
        return self.changed(
            connection,
            f"update {self.table} set claim_number = ?, generation = ?, member = ? "  # noqa: S608
            f"where {_WHERE} and claim_number = ? and member = ?",
            [*owner, *place, *old],
        )

    def move(self, connection: Any, group: str, moves: Mapping[TopicPartition, Move]) -> int:
        """Move offsets; returns the number of rows that were as they were read."""
        return sum(self._move_one(connection, (group, *tp), move) for tp, move in moves.items())

    def _move_one(self, connection: Any, place: _Place, move: Move) -> int:
        row = move.row
        unmoved = "next_offset is null" if row.next is None else "next_offset = ?"
        return self.changed(
            connection,
            f"update {self.table} set next_offset = ?, member = ?{self.also} "  # noqa: S608
            f"where {_WHERE} and claim_number = ? and member = ? and {unmoved}",
            [move.next, move.member, *place, row.claim, row.member, *([] if row.next is None else [row.next])],
        )

    def passing(self, error: BaseException) -> bool:
        """True for a transient error: another process has the lock, or the file is away."""
        text = str(error)
        return "OperationalError" in _kinds(error) and any(
            word in text for word in ("locked", "busy", "unable to open", "disk I/O error", "Conflict on", "conflict")
        )

    def conflict(self, error: BaseException) -> bool:
        """True if another transaction has changed the same rows."""
        return "IntegrityError" in _kinds(error)


# The codes of PostgreSQL's "create table if not exists" while another session makes the table: the table, the type of
# its rows, or their entries in the catalog exist.
_MADE_MEANWHILE = ("42P07", "42710", "23505")


class PostgreSQL(Dialect):
    """psycopg 3; the used part of psycopg2 is the same."""

    name = "postgresql"
    mark = "%s"
    layout = ""
    alone = False

    def cursor(self, connection: Any) -> Any:
        home = type(connection).__module__.partition(".")[0]
        if home == "psycopg":
            return connection.cursor(row_factory=import_module("psycopg.rows").tuple_row)
        if home == "psycopg2":
            return connection.cursor(cursor_factory=import_module("psycopg2.extensions").cursor)
        return connection.cursor()

    def prepare(self, connection: Any) -> None:
        connection.autocommit = True
        if self.idle_ms:
            self.run(connection, "select set_config(?, ?, false)", (_IDLE, str(self.idle_ms))).close()

    def make(self, connection: Any, name: str, columns: str) -> None:
        ((there,),) = self.fetch(connection, "select to_regclass(?) is not null", [name])
        if there:
            return  # no right to make tables is needed
        try:
            super().make(connection, name, columns)
        except Exception as error:
            if getattr(error, "sqlstate", None) not in _MADE_MEANWHILE:
                raise

    def begin(self, connection: Any) -> None:
        # An update checks its condition again when it has the row's lock: no higher level is needed.
        self.run(connection, "begin isolation level read committed").close()

    def mark_of(self, connection: Any) -> object:
        return connection.info.transaction_status  # libpq's: 2 in a transaction that has not failed, 0 outside

    def same(self, connection: Any, mark: object) -> bool:
        return self.mark_of(connection) == mark

    def commit(self, connection: Any) -> None:
        self.run(connection, "commit").close()

    def rollback(self, connection: Any) -> None:
        connection.rollback()

    def move(self, connection: Any, group: str, moves: Mapping[TopicPartition, Move]) -> int:
        if len(moves) == 1:
            return super().move(connection, group, moves)
        todo = sorted(moves.items())
        return sum(self._move_many(connection, group, todo[at : at + 1000]) for at in range(0, len(todo), 1000))

    def _move_many(self, connection: Any, group: str, moves: Sequence[tuple[TopicPartition, Move]]) -> int:
        values = ", ".join(["(?, ?::integer, ?::bigint, ?, ?::bigint, ?, ?::bigint)"] * len(moves))
        return self.changed(
            connection,
            f"update {self.table} as t set next_offset = v.next_offset, member = v.new from (values {values}) "  # noqa: S608
            "as v (topic, kafka_partition, next_offset, new, claim_number, member, old) "
            "where t.consumer_group = ? and t.topic = v.topic and t.kafka_partition = v.kafka_partition "
            "and t.claim_number = v.claim_number and t.member = v.member and t.next_offset is not distinct from v.old",
            [
                *(part for tp, m in moves for part in (*tp, m.next, m.member, m.row.claim, m.row.member, m.row.next)),
                group,
            ],
        )

    def passing(self, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state is None:  # the driver's own, such as a refused connection
            return bool(_kinds(error) & {"OperationalError", "InterfaceError"})
        return bool(state.startswith(_SERVER_GONE))

    def conflict(self, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        return state == "40001" or super().conflict(error)


class DuckDB(Dialect):
    """DuckDB: for one process at a time; a conflicting update fails at once."""

    name = "duckdb"
    layout = ""
    alone = False
    # A transaction sees the rows of its beginning, and two updates of one row conflict only if they set one column.
    # A move that began before a claim must conflict with it.
    also = ", claim_number = claim_number + 0"

    def prepare(self, connection: Any) -> None:
        """Nothing: DuckDB commits each statement outside of a transaction by itself."""

    def changed(self, connection: Any, statement: str, values: Sequence[object]) -> int:
        return int(connection.execute(statement, values).fetchone()[0])

    def run(self, connection: Any, statement: str, values: Sequence[object] = ()) -> Any:
        return connection.execute(statement, values)

    def fetch(self, connection: Any, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = connection.execute(statement, values).fetchall()
        return found

    def begin(self, connection: Any) -> None:
        connection.execute("begin transaction")

    def mark_of(self, connection: Any) -> object:
        return connection.execute("select txid_current()").fetchone()

    def same(self, connection: Any, mark: object) -> bool:
        return bool(self.mark_of(connection) == mark)

    def rollback(self, connection: Any) -> None:
        connection.execute("rollback")

    def passing(self, error: BaseException) -> bool:
        # Another process has the file, until it closes its last connection.
        return "Could not set lock on file" in str(error) or super().passing(error)

    def conflict(self, error: BaseException) -> bool:
        return bool(_kinds(error) & {"TransactionException", "ConstraintException"})


def _kinds(error: BaseException) -> set[str]:
    """The names of the error's classes, which PEP 249 makes the same in every driver."""
    return {kind.__name__ for kind in type(error).__mro__}


DIALECTS: dict[str, type[Dialect]] = {"sqlite": Dialect, "postgresql": PostgreSQL, "duckdb": DuckDB}
