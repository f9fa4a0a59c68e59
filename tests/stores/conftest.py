"""Stores of every kind, and a real PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.stores import DirectoryStore, SQLStore, Store
from tests.stores import kinds

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
PACKAGES = {"duckdb": "duckdb", "delta": "deltalake", "iceberg": "pyiceberg", "postgresql": "psycopg"}


def messages(first: int, end: int, tp: TopicPartition = TP, topic_id: bytes | None = None) -> list[Message]:
    """Messages with these offsets; the value of each says its offset."""
    return [
        Message(b"%d" % n, offset=n, topic=tp.topic, partition_id=tp.partition, topic_id=topic_id)
        for n in range(first, end)
    ]


@pytest.fixture
def postgresql_database(request: pytest.FixtureRequest, postgresql: Any) -> str:
    """The address of a database of the test's own."""
    psycopg = pytest.importorskip("psycopg")
    name = f"test_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(postgresql.get_uri(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
    return str(postgresql.get_uri(database=name))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where a test's SQLite database is."""
    return tmp_path / "database"


def slow(kind: str) -> Any:
    """A parameter whose store takes seconds to start or to commit."""
    return pytest.param(kind, marks=pytest.mark.slow)


KINDS = ["sqlite", "directory", *map(slow, ("postgresql", "duckdb", "delta", "iceberg"))]


class Storage:
    """A place of one kind for results and offsets, and stores that open it as new processes would."""

    def __init__(self, kind: str, where: str) -> None:
        self.kind, self.where = kind, where
        self._opened: list[Store] = []

    def open(self, **more: Any) -> Store:
        self._opened.append(kinds.open_store(self.kind, self.where, **more))
        return self._opened[-1]

    def rows(self) -> list[int]:
        """The offsets of all results; DuckDB's while nobody has it open in another process."""
        return sorted(offset for _, offset in kinds.stored(self.kind, self.where))

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """An empty storage of each kind; its stores are closed after the test."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
    postgresql = request.param == "postgresql"
    where = request.getfixturevalue("postgresql_database") if postgresql else str(tmp_path / "store")
    made = Storage(request.param, where)
    kinds.make(made.kind, where)
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Makes stores as new processes would; those of one test have the same storage."""
    yield from closing(FACTORIES[request.param](request, tmp_path))


@pytest.fixture(params=["sqlite", slow("postgresql")])
def sql_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., SQLStore]]:
    """The same for the databases that most people have; takes SQLStore's options."""
    yield from closing(FACTORIES[request.param](request, tmp_path))


def closing(factories: Iterator[Callable[..., Any]]) -> Iterator[Callable[..., Any]]:
    """The factory, whose stores are closed after the test."""
    made: list[Any] = []
    for factory in factories:

        def make(factory: Callable[..., Any] = factory, **more: Any) -> Any:
            made.append(factory(**more))
            return made[-1]

        yield make
        for store in made:
            store.close()


def _sqlite(_: pytest.FixtureRequest, at: Path) -> Iterator[Callable[..., SQLStore]]:
    yield lambda **more: SQLStore(lambda: sqlite3.connect(at / "database", timeout=1), "sqlite", **more)


def _postgresql(request: pytest.FixtureRequest, _: Path) -> Iterator[Callable[..., SQLStore]]:
    psycopg = pytest.importorskip("psycopg")
    uri = request.getfixturevalue("postgresql_database")
    yield lambda **more: SQLStore(lambda: psycopg.connect(uri), "postgresql", **more)


def _duckdb(_: pytest.FixtureRequest, at: Path) -> Iterator[Callable[..., SQLStore]]:
    duckdb = pytest.importorskip("duckdb")
    # The database lives as long as a connection to it: with the last one it would be closed and opened again.
    with duckdb.connect(at / "duck"):
        yield lambda **more: SQLStore(lambda: duckdb.connect(at / "duck"), "duckdb", **more)


def _directory(_: pytest.FixtureRequest, at: Path) -> Iterator[Callable[[], DirectoryStore]]:
    yield lambda: DirectoryStore(at / "results")


def _delta(_: pytest.FixtureRequest, at: Path) -> Iterator[Callable[[], Any]]:
    pytest.importorskip("deltalake")
    import pyarrow as pa

    from managedconsumer.stores import DeltaStore

    yield lambda: DeltaStore(at / "delta", schema=pa.schema([("value", pa.string())]))


def _iceberg(_: pytest.FixtureRequest, at: Path) -> Iterator[Callable[[], Any]]:
    pytest.importorskip("pyiceberg")
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    from managedconsumer.stores import IcebergStore

    catalog = SqlCatalog("test", uri=f"sqlite:///{at}/catalog", warehouse=f"file://{at}/warehouse")
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", pa.schema([("value", pa.string())]))
    yield lambda: IcebergStore(catalog.load_table("shop.orders"))
    catalog.close()


FACTORIES: dict[str, Any] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "duckdb": _duckdb,
    "directory": _directory,
    "delta": _delta,
    "iceberg": _iceberg,
}
