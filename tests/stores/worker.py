"""A program that stores what it reads: ``python -m tests.stores.worker KIND WHERE BOOTSTRAP TOPIC GROUP PROTOCOL``.

``KIND`` is ``sqlite``, ``postgresql`` or ``directory``; with ``-unfenced`` behind it the offsets are committed to Kafka
instead, after each batch. SIGTERM lets it leave the group.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import CommitFailedError
from managedconsumer.stores import DirectoryStore, FencedStoreError, SQLStore, Store

# How long (seconds) a batch is worked on: a process that is frozen has one in hand.
WORK = 0.1


def open_store(kind: str, where: str) -> Store:
    if kind == "directory":
        return DirectoryStore(where)
    if kind == "sqlite":
        return SQLStore(lambda: sqlite3.connect(where, timeout=1))
    import psycopg

    return SQLStore(lambda: psycopg.connect(where, connect_timeout=5), "postgresql")


def rows_of(batch: list[Any]) -> list[tuple[int, int]]:
    return [(m.partition_id, m.offset) for m in batch]


def write(handle: Any, batch: list[Any]) -> None:
    if isinstance(handle, Path):
        (handle / "rows").write_text(json.dumps(rows_of(batch)))
        return
    mark = "?" if isinstance(handle, sqlite3.Connection) else "%s"
    handle.cursor().executemany(f"insert into results values ({mark}, {mark})", rows_of(batch))


def main(kind: str, where: str, bootstrap: str, topic: str, group: str, protocol: str) -> None:
    kind, _, unfenced = kind.partition("-")
    store = open_store(kind, where)
    consumer = ManagedBalancedConsumer(
        topic,
        bootstrap,
        group,
        auto_start=False,
        group_protocol=protocol,
        consumer_timeout_ms=200,
        **({"session_timeout_ms": 6000, "heartbeat_interval_ms": 500} if protocol == "classic" else {}),
    )
    if not unfenced:
        store.attach(consumer)
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    with consumer:
        consumer.start()
        print("started", flush=True)
        while not over:
            batch = consumer.consume_batch(20, 200)
            if not batch:
                continue
            time.sleep(WORK)
            try:
                if unfenced:
                    with sqlite3.connect(where) as handle:
                        write(handle, batch)
                    consumer.commit_offsets()
                else:
                    store.save(batch, write)
            except (FencedStoreError, CommitFailedError) as error:
                print(f"fenced: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
