"""Writes to and reads from the stores of this package, for ``check_store``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterable

from managedconsumer.errors import ConfigurationError
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import Message

_TABLE = "check_store_results"


class Kind(NamedTuple):
    """``write(handle, messages)`` and ``read()``; ``keep()`` returns a function that restores the present content."""

    write: Callable[[Any, list[Message]], object]
    read: Callable[[], Iterable[bytes]]
    keep: Callable[[], Callable[[], object]] | None = None


def kind_of(store: Any) -> Kind:
    """The functions for one of our stores. Raises ConfigurationError for another one."""
    name = type(store).__name__
    made = {"SQLStore": _sql, "DirectoryStore": _directory, "DeltaStore": _delta, "IcebergStore": _iceberg}.get(name)
    if made is None:
        raise ConfigurationError(f"check_store does not know how to write to a {name}: give it write= and read=")
    return made(store)


def _sql(store: Any) -> Kind:
    connection = store.connect()
    connection.cursor().execute(f"create table if not exists {_TABLE} (value varchar(500))")
    connection.commit()
    connection.close()
    mark = "%s" if store.dialect == "postgresql" else "?"

    def write(handle: Any, messages: list[Message]) -> None:
        # DuckDB's cursors are connections, each with transactions of its own.
        cursor = handle if store.dialect == "duckdb" else handle.cursor()
        cursor.executemany(f"insert into {_TABLE} values ({mark})", [(m.value.decode(),) for m in messages])  # noqa: S608

    def read() -> list[bytes]:
        connection = store.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(f"select value from {_TABLE}")  # noqa: S608
            return [value.encode() for (value,) in cursor.fetchall()]
        finally:
            connection.close()

    tables = (_TABLE, store.table)

    def keep() -> Callable[[], None]:
        connection = store.connect()
        kept = {}
        for table in tables:
            cursor = connection.cursor()
            cursor.execute(f"select * from {table}")  # noqa: S608
            kept[table] = [tuple(row) for row in cursor.fetchall()]
        connection.close()

        def put_back() -> None:
            connection = store.connect()
            cursor = connection.cursor()
            if store.dialect == "duckdb":
                cursor.execute("begin transaction")
            for table, rows in kept.items():
                cursor.execute(f"delete from {table}")  # noqa: S608
                for row in rows:
                    cursor.execute(f"insert into {table} values ({', '.join([mark] * len(row))})", row)  # noqa: S608
            (cursor if store.dialect == "duckdb" else connection).commit()
            connection.close()

        return put_back

    return Kind(write, read, keep)


def _directory(store: Any) -> Kind:
    def write(handle: Path, messages: list[Message]) -> None:
        (handle / "values").write_bytes(b"\n".join(m.value for m in messages))

    return Kind(write, lambda: [v for at in store.data() for v in (at / "values").read_bytes().split(b"\n")])


def _arrow(store: Any, column: str, rows: Callable[[], Any]) -> Kind:
    del store

    def write(handle: Any, messages: list[Message]) -> None:
        import pyarrow as pa

        handle.write(pa.table({column: [m.value.decode() for m in messages]}))

    return Kind(write, lambda: [value.encode() for value in rows().column(column).to_pylist()])


def _delta(store: Any) -> Kind:
    return _arrow(store, store.look().schema().fields[0].name, lambda: store.look().to_pyarrow_table())


def _iceberg(store: Any) -> Kind:
    return _arrow(store, store.look().schema().fields[0].name, lambda: store.look().scan().to_arrow())
