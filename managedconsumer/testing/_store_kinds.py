"""Writes to and reads from the stores of this package, for ``check_store``."""

from __future__ import annotations

from contextlib import closing
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
    kinds: dict[str, Callable[[], Kind]] = {
        "SQLStore": lambda: _sql(store),
        "DirectoryStore": lambda: _directory(store),
        "DeltaStore": lambda: _arrow(store, lambda: store.look().to_pyarrow_table()),
        "IcebergStore": lambda: _arrow(store, lambda: store.look().scan().to_arrow()),
    }
    if name not in kinds:
        raise ConfigurationError(f"check_store does not know how to write to a {name}: give it write= and read=")
    return kinds[name]()


def _sql(store: Any) -> Kind:
    duckdb = store.dialect == "duckdb"
    mark = "%s" if store.dialect == "postgresql" else "?"
    with closing(store.connect()) as connection:
        connection.cursor().execute(f"create table if not exists {_TABLE} (value varchar(500))")
        connection.commit()

    def write(handle: Any, messages: list[Message]) -> None:
        # DuckDB's cursors are connections, each with transactions of its own.
        cursor = handle if duckdb else handle.cursor()
        cursor.executemany(f"insert into {_TABLE} values ({mark})", [(m.value.decode(),) for m in messages])  # noqa: S608

    def rows(table: str) -> list[tuple[Any, ...]]:
        with closing(store.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"select * from {table}")  # noqa: S608
            return [tuple(row) for row in cursor.fetchall()]

    def keep() -> Callable[[], None]:
        kept = {table: rows(table) for table in (_TABLE, store.table)}

        def put_back() -> None:
            with closing(store.connect()) as connection:
                cursor = connection.cursor()
                if duckdb:
                    cursor.execute("begin transaction")
                for table, content in kept.items():
                    cursor.execute(f"delete from {table}")  # noqa: S608
                    for row in content:
                        cursor.execute(f"insert into {table} values ({', '.join([mark] * len(row))})", row)  # noqa: S608
                (cursor if duckdb else connection).commit()

        return put_back

    return Kind(write, lambda: [value.encode() for (value,) in rows(_TABLE)], keep)


def _directory(store: Any) -> Kind:
    def write(handle: Path, messages: list[Message]) -> None:
        (handle / "values").write_bytes(b"\n".join(m.value for m in messages))

    return Kind(write, lambda: [v for at in store.data() for v in (at / "values").read_bytes().split(b"\n")])


def _arrow(store: Any, rows: Callable[[], Any]) -> Kind:
    column = store.look().schema().fields[0].name

    def write(handle: Any, messages: list[Message]) -> None:
        import pyarrow as pa

        handle.write(pa.table({column: [m.value.decode() for m in messages]}))

    return Kind(write, lambda: [value.encode() for value in rows().column(column).to_pylist()])
