"""One table (or directory) of results for each kind of store: made, opened as a new process does, written and read."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from managedconsumer.stores import DirectoryStore, SQLStore, Store
from managedconsumer.structs import TopicPartition

_DDL = "create table if not exists results (number integer, place bigint)"


def make(kind: str, where: str) -> None:
    """Where results go. ``where``: a file (SQLite, DuckDB), a directory, or PostgreSQL's address."""
    if kind in ("sqlite", "postgresql", "duckdb"):
        connection = _sql_store(kind, where).connect()
        connection.cursor().execute(_DDL)
        if kind != "duckdb":  # it has committed
            connection.commit()
        connection.close()
    elif kind == "iceberg":
        Path(where).mkdir(exist_ok=True)
        catalog = _catalog(where)
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table_if_not_exists("shop.orders", _schema())
        catalog.close()
    else:
        store = open_store(kind, where)
        store.load("nobody", [TopicPartition("orders", 0)])
        store.close()


def open_store(kind: str, where: str, **more: Any) -> Store:
    """``more``: options of the store; ``busy``: see :func:`_catalog`."""
    if kind == "directory":
        return DirectoryStore(where, **more)
    if kind == "delta":
        from managedconsumer.stores import DeltaStore

        return DeltaStore(where, schema=_schema(), **more)
    if kind == "iceberg":
        from managedconsumer.stores import IcebergStore

        return IcebergStore(_catalog(where, more.pop("busy", 1)).load_table("shop.orders"), **more)
    return _sql_store(kind, where, **more)


def _sql_store(kind: str, where: str, **more: Any) -> SQLStore:
    if kind == "sqlite":
        return SQLStore(lambda: sqlite3.connect(where, timeout=1), **more)
    if kind == "duckdb":
        import duckdb

        return SQLStore(lambda: duckdb.connect(where), "duckdb", **more)
    import psycopg

    return SQLStore(lambda: psycopg.connect(where, connect_timeout=5), "postgresql", **more)


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([("number", pa.int64()), ("place", pa.int64())])


def _catalog(where: str, busy: int = 1) -> Any:
    """``busy``: how long (seconds) SQLite waits for a lock."""
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog("test", uri=f"sqlite:///{where}/catalog?timeout={busy}", warehouse=f"file://{where}/warehouse")


def write(handle: Any, batch: list[Any]) -> None:
    """What ``Store.save`` is given."""
    rows = [(m.partition_id, m.offset) for m in batch]
    if isinstance(handle, Path):
        (handle / "rows").write_text(json.dumps(rows))
    elif hasattr(handle, "write"):
        import pyarrow as pa

        handle.write(pa.Table.from_pylist([{"number": n, "place": place} for n, place in rows], _schema()))
    else:
        # DuckDB's cursors are connections, each with transactions of its own.
        duckdb = type(handle).__module__.startswith(("duckdb", "_duckdb"))
        mark = "%s" if type(handle).__module__.startswith("psycopg") else "?"
        cursor = handle if duckdb else handle.cursor()
        cursor.executemany(f"insert into results values ({mark}, {mark})", rows)


def stored(kind: str, where: str) -> list[tuple[int, int]]:
    """All results, as partition and offset. Of DuckDB only while no other process has it open."""
    store: Any = open_store(kind, where)
    if kind == "directory":
        return [tuple(row) for at in store.data() for row in json.loads((at / "rows").read_text())]
    if kind in ("delta", "iceberg"):
        table = store.look()
        found = table.to_pyarrow_table() if kind == "delta" else table.scan().to_arrow()
        return list(zip(*(found.column(name).to_pylist() for name in ("number", "place")), strict=True))
    with contextlib.closing(store.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("select number, place from results")
        return [tuple(row) for row in cursor.fetchall()]
