"""Counting words exactly once: results and offsets go into SQLite in one transaction.

Kafka's own offsets are not used: a member that gets a partition reads on where the database says that its results end.
Run it as often as you like, at the same time, and kill it as you like; every message counts once.

    python sqlite_exactly_once.py localhost:9092 my-topic counts.sqlite

Three things make it exact:

* a batch's results and the offset behind it are one transaction (``Store.save``);
* ``on_partitions_revoked`` saves what is left before the next owner asks, ``on_partitions_assigned`` seeks;
* an offset is only moved on from where this process believes it to be: a process that was frozen and has lost its
  partitions without knowing it yet finds that somebody else has moved on, and its results go nowhere.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing, suppress

from managedconsumer import (
    ConsumerRebalanceListener,
    ManagedBalancedConsumer,
    Message,
    TopicPartition,
    stop_on_signals,
)
from managedconsumer.errors import KafkaException

SCHEMA = """
CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (topic TEXT, part INTEGER, next INTEGER NOT NULL, PRIMARY KEY (topic, part));
"""


class Store:
    """The database: word counts, and the next offset of every partition."""

    def __init__(self, path: str) -> None:
        # The listener runs in the thread that consumes, or in the one that stops: one at a time.
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        self._db.close()

    def next_offset(self, tp: TopicPartition) -> int:
        self._db.execute("INSERT OR IGNORE INTO offsets VALUES (?, ?, 0)", tp)
        row = self._db.execute("SELECT next FROM offsets WHERE topic = ? AND part = ?", tp).fetchone()
        return int(row[0])

    def save(self, tp: TopicPartition, start: int, messages: list[Message]) -> bool:
        """Count ``messages``, whose predecessors end at ``start``; False if somebody else has counted them already."""
        behind = messages[-1].offset + 1
        self._db.execute("BEGIN IMMEDIATE")
        try:
            moved = self._db.execute(
                "UPDATE offsets SET next = ? WHERE topic = ? AND part = ? AND next = ?", (behind, *tp, start)
            )
            if moved.rowcount == 1:
                self._db.executemany(
                    "INSERT INTO counts VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET number = number + 1",
                    [((message.value or b"").decode(),) for message in messages],
                )
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return moved.rowcount == 1


class SaveOffsetsOnRebalance(ConsumerRebalanceListener):
    """Keeps what is read and not saved yet, and saves it before a partition goes to somebody else."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.consumer: ManagedBalancedConsumer | None = None
        self._saved: dict[TopicPartition, int] = {}
        self._unsaved: dict[TopicPartition, list[Message]] = {}

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._unsaved.setdefault(TopicPartition(message.topic, message.partition_id), []).append(message)

    def save(self, partitions: Collection[TopicPartition] | None = None) -> None:
        for tp in list(self._unsaved) if partitions is None else partitions:
            messages = self._unsaved.pop(tp, [])
            if messages and self.store.save(tp, self._saved[tp], messages):
                self._saved[tp] = messages[-1].offset + 1
            elif messages and partitions is None:
                # The owner before has saved once more since we asked; or the partition is not ours any more.
                with suppress(KafkaException):
                    self._begin(tp)

    def _begin(self, tp: TopicPartition) -> None:
        self._saved[tp] = self.store.next_offset(tp)
        if self.consumer is not None:
            self.consumer.seek(tp.partition, self._saved[tp])

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        for tp in assigned:
            self._begin(tp)
        print("assigned", [tp.partition for tp in assigned], flush=True)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.save(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        for tp in lost:  # the new owner reads them again
            self._unsaved.pop(tp, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("database")
    parser.add_argument("--group", default="sqlite-exactly-once")
    parser.add_argument("--assignor", default="cooperative-sticky")
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    args = parser.parse_args()

    with closing(Store(args.database)) as store:
        listener = SaveOffsetsOnRebalance(store)
        consumer = listener.consumer = ManagedBalancedConsumer(
            args.topic,
            args.brokers,
            args.group,
            listener=listener,
            membership_protocol=args.assignor,
            session_timeout_ms=args.session_timeout_ms,
            heartbeat_interval_ms=args.session_timeout_ms // 10,
            auto_start=False,
        )
        # After a signal the loop ends, and then the consumer. A stop() in a signal's own handler would call the
        # listener in the middle of add() or save().
        with stop_on_signals(consumer), consumer:
            while messages := consumer.consume_batch(max_messages=200, timeout_ms=-1):
                listener.add(messages)
                listener.save()


if __name__ == "__main__":
    main()
