"""Writes a place of each kind, as a release leaves it: ``python make_kept.py TARGET``, with that release on the path.

The archives in ``kept/`` were made by it: ``0.2.0.tar.xz`` by release 0.2.0, ``two_fences.tar.xz`` by the last commit
at which stores and Spark's claims had back ends of their own. ``test_kept.py`` reads them. Paths in an Iceberg table
are relative here, so its reader works in the same directory.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from managedconsumer import spark
from managedconsumer.spark import ClaimStore, SqlClaims
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.stores import DeltaStore, DirectoryStore, IcebergStore, SQLStore
from managedconsumer.structs import TopicPartition

GROUP = "g"
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPIC_ID = bytes(range(16))
#: So many transactions, and claims, of one partition; the other one has one of each.
COUNT = {"directory": 60, "sqlite": 5, "delta": 4, "iceberg": 2}


def open_store(kind: str) -> Any:
    """The store of the working directory."""
    if kind == "directory":
        return DirectoryStore("store-directory")
    if kind == "sqlite":
        return SQLStore(lambda: sqlite3.connect("store.db"))
    import pyarrow as pa

    schema = pa.schema([("place", pa.int64())])
    if kind == "delta":
        return DeltaStore("store-delta", schema=schema)
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri="sqlite:///store-iceberg.db", warehouse="store-iceberg")
    catalog.create_namespace_if_not_exists("shop")
    return IcebergStore(catalog.create_table_if_not_exists("shop.orders", schema))


def open_claims(kind: str) -> Any:
    """The claim log of the working directory; None if the release does not know the kind."""
    if kind == "directory":
        return ClaimStore("claims-directory").log
    if kind == "sqlite":
        return SqlClaims("sqlite:///claims.db")
    if not hasattr(spark, "DeltaClaims"):
        return None
    if kind == "delta":
        return spark.DeltaClaims(f"delta://{Path.cwd()}/claims-delta")
    place = "type=sql&uri=sqlite:///claims-iceberg.db&warehouse=claims-iceberg"
    return spark.IcebergClaims(f"iceberg://lake/views.claims?{place}")


def write(handle: Any, place: int) -> None:
    """A result."""
    if isinstance(handle, Path):
        (handle / "place").write_text(str(place))
    elif hasattr(handle, "write"):
        import pyarrow as pa

        handle.write(pa.table({"place": pa.array([place], pa.int64())}))
    else:
        handle.execute("create table if not exists results (place integer)")
        handle.execute("insert into results values (?)", (place,))


def make(kind: str) -> None:
    """A store and a claim log in the working directory."""
    store, count = open_store(kind), COUNT[kind]
    if hasattr(store, "tell_topics"):
        store.tell_topics(GROUP, {T0: TOPIC_ID})
    store.claim(GROUP, [T0, T1], 3, "m")
    for n in range(count):
        with store.transaction({T0: (2 * n, 2 * n + 2)}, group=GROUP) as handle:
            write(handle, n)
    with store.transaction({T1: (7, 9)}, group=GROUP):
        pass
    store.close()
    log = open_claims(kind)
    if log is None:
        return
    for n in range(count):
        log.claim({T0: OffsetRange(10 * n, 10 * n + 10)}, f"b{n}")
        log.ends()
        if kind == "directory" and n % 25 == 24:
            log.snapshot(T0)
    if hasattr(log, "repeat"):
        log.repeat("planned", "planned-driver")
    log.claim({T1: OffsetRange(5, 8)}, "b0")


def main(target: str) -> None:
    path = Path(target).absolute()
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        for kind in COUNT:
            make(kind)
        with tarfile.open(path, "w:xz") as archive:
            archive.add(".")


if __name__ == "__main__":
    main(sys.argv[1])
