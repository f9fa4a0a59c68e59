"""A past that comes back: what a restored backup, a fail-over to an old replica or a copied directory does to a store.

``keep(kind, where)`` remembers the storage as it is and returns a function that puts it back, whatever came after it.
Stores that are open stay open, as a consumer's does.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.stores import kinds

_TABLES = ("managedconsumer_offsets", "results")


def keep(kind: str, where: str) -> Callable[[], None]:
    """Works for every kind of :mod:`tests.stores.kinds`."""
    if kind == "sqlite":
        return _keep_file(where)
    if kind in ("postgresql", "duckdb"):
        return _keep_rows(kind, where)
    if kind == "iceberg":
        return _keep_catalog(where)
    return _keep_tree(where)


def _keep_file(where: str) -> Callable[[], None]:
    with contextlib.closing(sqlite3.connect(where)) as connection:
        kept = "\n".join(connection.iterdump())

    def restore() -> None:
        with (
            contextlib.closing(sqlite3.connect(":memory:")) as copy,
            contextlib.closing(sqlite3.connect(where)) as target,
        ):
            copy.executescript(kept)
            copy.backup(target)

    return restore


def _keep_rows(kind: str, where: str) -> Callable[[], None]:
    store = kinds._sql_store(kind, where)

    def rows(table: str) -> list[tuple[object, ...]]:
        with contextlib.closing(store.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"select * from {table}")
            return [tuple(row) for row in cursor.fetchall()]

    kept = {table: rows(table) for table in _TABLES}
    mark = "%s" if kind == "postgresql" else "?"

    def restore() -> None:
        with contextlib.closing(store.connect()) as connection:
            for table, found in kept.items():
                connection.cursor().execute(f"delete from {table}")
                for row in found:
                    marks = ", ".join([mark] * len(row))
                    connection.cursor().execute(f"insert into {table} values ({marks})", row)
            if kind == "postgresql":
                connection.commit()

    return restore


def _keep_tree(where: str) -> Callable[[], None]:
    number = len(list(Path(where).parent.glob("kept-*")))
    copy = Path(where).parent / f"kept-{number}"
    shutil.copytree(where, copy)

    def restore() -> None:
        shutil.rmtree(where)
        shutil.copytree(copy, where)

    return restore


def _keep_catalog(where: str) -> Callable[[], None]:
    """The catalog is a database of its own; the files that it names stay."""
    return _keep_file(f"{where}/catalog")
