"""``store.foreach_batch`` in PySpark: a lost checkpoint brings every row again, and the store has each once."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import TopicPartition
from managedconsumer.results import UnusedResultError
from managedconsumer.spark.claims.sql import SqlClaims
from managedconsumer.stores import SQLStore
from tests.spark.conftest import run_to_end

pytestmark = pytest.mark.spark
RANGE = "struct<data: string, start: bigint, stop: bigint>"
SCHEMA = "topic string, partition int, offset bigint, value string"


def insert(handle: Any, table: Any) -> None:
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    handle.executemany("insert into results values (?, ?, ?)", list(zip(*columns, strict=True)))


@pytest.mark.parametrize("size", [None, 8])
def test_each_row_is_stored_once(spark: Any, tmp_path: Path, size: int | None) -> None:
    source, checkpoint, database = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "db"
    source.mkdir()
    with sqlite3.connect(database) as connection:
        connection.execute("create table results (partition integer, place integer, value text)")

    def add(name: str, first: int, end: int) -> None:
        lines = [
            json.dumps({"topic": "orders", "partition": partition, "offset": n, "value": f"v{n}"})
            for n in range(first, end)
            for partition in range(2)
        ]
        (source / name).write_text("\n".join(lines))

    def run() -> None:
        store = SQLStore(lambda: sqlite3.connect(database))
        frame = spark.readStream.schema(SCHEMA).json(str(source))
        writer = frame.writeStream.foreachBatch(store.foreach_batch(insert, group="query", max_offsets=size))
        run_to_end(writer.option("checkpointLocation", str(checkpoint)))
        offsets.append(store.load("query", [TopicPartition("orders", n) for n in range(2)]))
        store.close()

    offsets: list[dict[TopicPartition, int]] = []
    add("first.json", 0, 20)
    run()
    shutil.rmtree(checkpoint)  # the next query reads all of it again, in one batch
    add("second.json", 20, 35)
    run()
    assert [sorted(each.values()) for each in offsets] == [[20, 20], [35, 35]]
    found = connection.execute("select partition, place, value from results order by partition, place").fetchall()
    connection.close()
    assert found == [(partition, n, f"v{n}") for partition in range(2) for n in range(35)]


class Refused(Exception):
    pass


def test_a_micro_batch_in_pieces_is_one_transaction(spark: Any, tmp_path: Path) -> None:
    """The driver never has the whole of it, and a piece that fails undoes those before it."""
    database = tmp_path / "db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table results (partition integer, place integer, value text)")
    rows = [("orders", partition, n, f"v{n}") for partition in range(3) for n in range(40)]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(4, "offset")
    sizes: list[int] = []
    order: list[tuple[int, int]] = []
    broken = [True]

    def write(handle: Any, table: Any) -> None:
        insert(handle, table)
        sizes.append(table.num_rows)
        order.extend(sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)))
        if broken and len(sizes) == 3:
            raise Refused

    def found() -> list[Any]:
        return connection.execute("select partition, place, value from results order by partition, place").fetchall()

    store = SQLStore(lambda: sqlite3.connect(database))
    try:
        store_batch = store.foreach_batch(write, group="query", max_offsets=7)
        with pytest.raises(Refused):
            store_batch(frame, 0)
        assert (found(), store.load("query", [TopicPartition("orders", 0)])) == ([], {})
        broken.clear()
        store_batch(frame.where("offset < 25 and partition < 2"), 0)
        sizes.clear()
        order.clear()
        store_batch(frame, 0)  # the batch runs again, and was planned with more
    finally:
        store.close()
    assert found() == [(partition, n, f"v{n}") for partition in range(3) for n in range(40)]
    assert sizes == [7] * 10
    assert order == [(partition, n) for partition in range(3) for n in range(25 if partition < 2 else 0, 40)]
    connection.close()


def test_a_coroutine_stores_nothing(spark: Any, tmp_path: Path) -> None:
    """Nobody would await it, and the offsets would move without the rows."""

    async def write(_handle: Any, _table: Any) -> None:
        """It does not run."""

    frame = spark.createDataFrame([("orders", 0, 0, "v", ("run", 0, 1))], f"{SCHEMA}, range {RANGE}")
    store = SQLStore(lambda: sqlite3.connect(tmp_path / "db"))
    claims = SqlClaims(f"sqlite:///{tmp_path}/claims")
    try:
        for store_batch in (store.foreach_batch(write, group="query", max_offsets=5), claims.foreach_batch(write)):
            with pytest.raises(UnusedResultError):
                store_batch(frame, 0)
        assert (store.load("query", [TopicPartition("orders", 0)]), claims.ends()) == ({}, {})
    finally:
        store.close()
