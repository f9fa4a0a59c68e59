"""The memory of one micro-batch of many gigabytes, by sink: its rows must not have to fit into any process.

::

    python benchmarks/spark_memory.py
    python benchmarks/spark_memory.py --gigabytes 0.5,2 --sinks files

Messages of 1 kB in 8 partitions; a session as a user makes it (``local[2]``, 3 GB of heap); a member of a group. One
trigger reads all of it. Each size and sink is a process tree of its own, whose memory is looked at each second. The
sinks: *files*, Parquet written by the executors, with ``claims``; *store*, ``SQLStore.foreach_batch`` into SQLite with
``max_offsets``, through the driver. Every row must arrive once.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import results  # noqa: E402
import spark  # noqa: E402
from spark_jobs import tree_memory  # noqa: E402
from workload import send_first  # noqa: E402

from managedconsumer.testing.kafka.devbroker import DevBroker  # noqa: E402
from managedconsumer.testing.kafka.producer import Producer, encode_plain  # noqa: E402

_PARTITIONS, _BYTES, _PER_BATCH, _VARIETY = 8, 1000, 800, 16
_PIECE = 100_000


class Watch(threading.Thread):
    """Looks at the memory of the process tree each second, until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.total, self.python = [0.0], [0.0]
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1.0):
            total, python = tree_memory()
            self.total.append(total)
            self.python.append(python)

    def stop(self) -> None:
        self._over.set()
        self.join()


def to_files(session: Any, reader: Any, home: Path) -> tuple[Any, Any]:
    """The query, and a function that counts its rows."""
    rows = str(home / "rows")
    return reader.load().writeStream.format("parquet").option("path", rows), lambda: session.read.parquet(rows).count()


def to_store(_session: Any, reader: Any, home: Path) -> tuple[Any, Any]:
    """See :func:`to_files`."""
    from managedconsumer.stores import SQLStore

    database = home / "db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table rows (part integer, place integer, value blob)")

    def insert(handle: Any, table: Any) -> None:
        columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
        handle.executemany("insert into rows values (?, ?, ?)", zip(*columns, strict=True))

    store = SQLStore(lambda: sqlite3.connect(database))
    frame = reader.option("columns", "topic,partition,offset,value").load()
    writer = frame.writeStream.foreachBatch(store.foreach_batch(insert, group="rows", max_offsets=_PIECE))
    return writer, lambda: connection.execute("select count(*) from rows").fetchone()[0]


SINKS = {"files": to_files, "store": to_store}


def batch(sink: str, bootstrap: str, topic: str) -> None:
    """One query with one batch; prints what it took as a line of JSON."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        home = Path(place)
        session = spark.session([], home / "log", plain=True)
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        options |= {"group.id": f"{topic}-{sink}"}
        if sink == "files":
            options |= {"claims": str(home / "claims"), "columns": "key,value,topic,partition,range"}
        writer, count = SINKS[sink](session, session.readStream.format("managedkafka").options(**options), home)
        watch = Watch()
        watch.start()
        began = time.monotonic()
        query = writer.option("checkpointLocation", f"{home}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        took = time.monotonic() - began
        watch.stop()
        batches = sum(1 for each in query.recentProgress if each["numInputRows"])
        found = {"seconds": took, "total": max(watch.total), "python": max(watch.python), "batches": batches}
        print(json.dumps({**found, "rows": count()}), flush=True)
        session.stop()


def write(broker: DevBroker, topic: str, messages: int) -> int:
    """Write at least ``messages``, that no codec makes smaller; how many there are."""
    chance = random.Random(7)
    now = int(time.time() * 1000)
    batches = [
        encode_plain([(b"user", chance.randbytes(_BYTES), now) for _ in range(_PER_BATCH)]) for _ in range(_VARIETY)
    ]
    broker.create_topic(topic, _PARTITIONS, {"retention.ms": -1})
    number = -(-messages // _PER_BATCH)
    with Producer(broker.bootstrap) as producer:
        for partition in range(_PARTITIONS):
            send_first(producer, topic, partition, batches[0])
        for each in range(_PARTITIONS, number):
            producer.send(topic, each % _PARTITIONS, batches[each % _VARIETY])
        producer.flush()
    return max(number, _PARTITIONS) * _PER_BATCH


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", default="1,10", help="sizes of the batch (default 1,10)")
    parser.add_argument("--sinks", default=",".join(SINKS), help=f"some of {', '.join(SINKS)}")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        batch(*options.child)
        return
    table = []
    with DevBroker(heap_mb=512) as broker:
        for size in map(float, options.gigabytes.split(",")):
            topic = f"gigabytes-{size:g}"
            written = write(broker, topic, int(size * 1e9) // _BYTES)
            for sink in options.sinks.split(","):
                command = [sys.executable, __file__, "--child", sink, broker.bootstrap, topic]
                said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                found = json.loads(said.strip().splitlines()[-1])
                if (found["batches"], found["rows"]) != (1, written):
                    raise ValueError(f"{found['rows']:,} of {written:,} rows in {found['batches']} batches: {sink}")
                memory = [f"{found[name]:,.0f}" for name in ("total", "python")]
                table.append([f"{size:g}", sink, f"{written:,}", f"{found['seconds']:.0f}", *memory])
                print(table[-1], flush=True)
    print(results.simple_table(["GB", "sink", "rows", "seconds", "peak, MB", "Python alone"], table))


if __name__ == "__main__":
    main()
