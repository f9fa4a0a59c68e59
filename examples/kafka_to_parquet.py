"""A topic to Parquet files, exactly once: a file and the offset behind it are one transaction of a DirectoryStore.

    python kafka_to_parquet.py --bootstrap localhost:9092 --topic orders --group export --to results
    python kafka_to_parquet.py --to results --show

Start it as often as you like, at the same time, and kill it as you like: each message is in one file, and the files of
a partition are in order. A file is on the disk before its offset counts. What a process that was killed has left behind
does not count: read the files that ``--show`` prints (those in ``DirectoryStore.data()``), not all that lie there.

Needs pip install 'managedconsumer[arrow]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.stores import DirectoryStore

SCHEMA = pa.schema(
    {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.int64(), "key": pa.binary(), "value": pa.binary()}
)


def write(directory: Path, batch: list) -> None:
    """``batch``: messages of one partition, in order; all of them in one file of the transaction's own directory."""
    rows = [
        dict(zip(SCHEMA.names, (m.partition_id, m.offset, m.timestamp, m.partition_key, m.value), strict=True))
        for m in batch
    ]
    name = f"{batch[0].partition_id:05d}-{batch[0].offset:020d}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), directory / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a topic to Parquet files, exactly once.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic")
    parser.add_argument("--group", default="kafka-to-parquet")
    parser.add_argument("--to", required=True, help="the directory")
    parser.add_argument("--rows", type=int, default=50_000, help="the most rows of a file")
    parser.add_argument("--wait-ms", type=int, default=10_000, help="how long a file waits for so many")
    parser.add_argument("--show", action="store_true", help="print the files that count, in order, and end")
    arguments = parser.parse_args()

    store = DirectoryStore(arguments.to)
    if arguments.show:
        for directory in store.data():
            print(*directory.glob("*.parquet"))
        return
    consumer = ManagedBalancedConsumer(arguments.topic, arguments.bootstrap, arguments.group, auto_start=False)
    store.attach(consumer)
    consumer.start()
    summary = consumer.run(
        lambda batch: store.save(batch, write),
        order="partition",
        batch=(arguments.rows, arguments.wait_ms),
        max_in_flight=4 * arguments.rows,
    )
    print(f"{summary.done} messages")


if __name__ == "__main__":
    main()
