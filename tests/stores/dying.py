"""A member that stores what it reads, and may die: ``python -m tests.stores.dying KIND WHERE HOST END [POINT NUMBER]``.

``HOST``: the bootstrap server. It ends when everything below the offset ``END`` is stored. ``POINT`` and ``NUMBER``:
``kill -9`` in the transaction of that number (from 1), at the point ``before`` (nothing is written), ``inside``
(written, not committed) or ``after`` (committed, and nobody has heard of it).
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from managedconsumer import ManagedBalancedConsumer, TopicPartition
from managedconsumer.stores import DirectoryStore, SQLStore, Store

TOPIC, GROUP = "orders", "billing"
TP = TopicPartition(TOPIC, 0)
# How many messages a transaction has at most.
BATCH = 10


def open_store(kind: str, where: Path) -> Store:
    if kind == "directory":
        return DirectoryStore(where / "results")
    if kind == "sqlite":
        return SQLStore(lambda: sqlite3.connect(where / "db", timeout=5))
    if kind == "duckdb":
        import duckdb

        return SQLStore(lambda: duckdb.connect(where / "duck"), "duckdb")
    import pyarrow as pa

    schema = pa.schema([("place", pa.int64())])
    if kind == "delta":
        from managedconsumer.stores import DeltaStore

        return DeltaStore(where / "delta", schema=schema)
    from pyiceberg.catalog.sql import SqlCatalog

    from managedconsumer.stores import IcebergStore

    catalog = SqlCatalog("test", uri=f"sqlite:///{where}/catalog", warehouse=f"file://{where}/warehouse")
    catalog.create_namespace_if_not_exists("shop")
    return IcebergStore(catalog.create_table_if_not_exists("shop.orders", schema))


def write(handle: Any, batch: list[Any]) -> None:
    places = [m.offset for m in batch]
    if isinstance(handle, Path):
        (handle / "rows").write_text(json.dumps(places))
    elif hasattr(handle, "write"):
        import pyarrow as pa

        handle.write(pa.table({"place": pa.array(places, pa.int64())}))
    else:
        handle.execute("create table if not exists results (place bigint)")
        handle.executemany("insert into results values (?)", [(place,) for place in places])


def stored(kind: str, where: Path) -> list[int]:
    """All results; nobody else may have the store open."""
    store: Any = open_store(kind, where)
    if kind == "directory":
        return sorted(place for at in store.data() for place in json.loads((at / "rows").read_text()))
    if kind in ("delta", "iceberg"):
        table = store.look()
        found = table.to_pyarrow_table() if kind == "delta" else table.scan().to_arrow()
        return sorted(found.column("place").to_pylist())
    connection = store.connect()
    try:
        return [place for (place,) in connection.execute("select place from results order by place").fetchall()]
    finally:
        connection.close()


def main(kind: str, where: str, bootstrap: str, end: str, point: str = "", number: str = "0") -> None:
    store, left = open_store(kind, Path(where)), int(number)

    def die(here: str) -> None:
        if here == point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_or_die(handle: Any, batch: list[Any]) -> None:
        die("before")
        write(handle, batch)
        die("inside")

    with ManagedBalancedConsumer(TOPIC, bootstrap, GROUP, auto_start=False) as consumer:
        store.attach(consumer)
        consumer.start()
        done = store.load(GROUP, [TP]).get(TP, 0)
        while done < int(end):
            batch = consumer.consume_batch(BATCH, 1000)
            if not batch:
                continue
            done, left = batch[-1].offset + 1, left - 1
            store.save(batch, write_or_die)
            die("after")


if __name__ == "__main__":
    main(*sys.argv[1:])
