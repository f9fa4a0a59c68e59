"""A group of processes that store what they read, faults that happen to them, and what must have come out."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from managedconsumer.stores import DirectoryStore
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.stores.worker import open_store
from tests.waiting import until

PARTITIONS = 4
# Longer than the members' session of 6 s.
FROZEN = 9.0


class Fleet:
    """Workers of one group, and messages that go on coming."""

    def __init__(
        self, kind: str, where: str, broker: DevBroker, topic: str, logs: Path, protocol: str = "classic"
    ) -> None:
        self.kind, self.where, self.broker, self.topic = kind, where, broker, topic
        self.group, self.protocol = f"group-{topic}", protocol
        self.logs = logs
        self.workers: list[subprocess.Popen[str]] = []
        self.written = [0] * PARTITIONS
        self._over = threading.Event()
        self._load = threading.Thread(target=self._produce)
        self._load.start()

    def _produce(self) -> None:
        with Producer(self.broker.bootstrap) as producer:
            while not self._over.is_set():
                for partition in range(PARTITIONS):
                    producer.produce(self.topic, [Record(b"x", b"k")] * 10, partition=partition)
                    self.written[partition] += 10
                self._over.wait(0.2)

    def start(self) -> subprocess.Popen[str]:
        """Another worker; returns when it is a member."""
        log = self.logs / f"{self.topic}-{len(self.workers)}"
        with log.open("w") as out:
            words = [self.kind, self.where, self.broker.bootstrap, self.topic, self.group, self.protocol]
            worker = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.stores.worker", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.workers.append(worker)
        until(lambda: "started" in log.read_text() or worker.poll() is not None, 60)
        assert worker.poll() is None, log.read_text()
        return worker

    def progress(self, rows: int = 40) -> None:
        """Wait until so many more messages are stored."""
        before = len(self.stored())
        until(lambda: len(self.stored()) >= before + rows, 90)

    def stored(self) -> list[tuple[int, int]]:
        """All results: (partition, offset)."""
        kind = self.kind.partition("-")[0]
        if kind == "directory":
            return [
                tuple(row) for at in DirectoryStore(self.where).data() for row in json.loads((at / "rows").read_text())
            ]
        store: Any = open_store(kind, self.where)
        with contextlib.closing(store.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("select * from results")
            found: list[tuple[int, int]] = cursor.fetchall()
        return found

    def end(self) -> tuple[int, int, int]:
        """Let all messages be stored: how many there are, how many are missing, and how many results are too many."""
        self._over.set()
        self._load.join(60)
        wanted = {(partition, offset) for partition, end in enumerate(self.written) for offset in range(end)}
        until(lambda: wanted <= set(self.stored()), 120)
        found = self.stored()
        return len(wanted), len(wanted - set(found)), len(found) - len(wanted)

    def offsets(self) -> dict[TopicPartition, int]:
        """What the store holds."""
        store = open_store(self.kind, self.where)
        found = store.load(self.group, [TopicPartition(self.topic, n) for n in range(PARTITIONS)])
        store.close()
        return found

    def said(self, word: str) -> int:
        """In how many lines of the workers ``word`` is."""
        return sum(word in line for log in self.logs.glob(f"{self.topic}-*") for line in log.read_text().splitlines())

    def close(self) -> None:
        """End what is left."""
        self._over.set()
        self._load.join(60)
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait(60)


def kill(fleet: Fleet) -> None:
    """kill -9; another process takes its place."""
    fleet.workers[0].kill()
    fleet.start()
    fleet.progress()


def freeze(fleet: Fleet) -> None:
    """A process stands still for longer than its session, with messages in hand."""
    worker = fleet.workers[-1]
    worker.send_signal(signal.SIGSTOP)
    time.sleep(FROZEN)
    fleet.progress()
    worker.send_signal(signal.SIGCONT)
    fleet.progress()


def join(fleet: Fleet) -> None:
    """One more."""
    fleet.start()
    fleet.progress()


def leave(fleet: Fleet) -> None:
    """One less."""
    worker = next(each for each in fleet.workers if each.poll() is None)
    worker.send_signal(signal.SIGTERM)
    until(lambda: worker.poll() is not None, 60)
    fleet.progress()


def sqlite_away(fleet: Fleet, seconds: float) -> None:
    """Somebody else has the database's lock."""
    connection = sqlite3.connect(fleet.where, isolation_level=None, timeout=60)
    connection.execute("begin exclusive")
    time.sleep(seconds)
    connection.execute("rollback")
    connection.close()
    fleet.progress()


def postgresql_away(fleet: Fleet, server: Any, seconds: float) -> None:
    """The server stops at once, as by a power cut, and starts again."""
    server.stop()
    time.sleep(seconds)
    server.start()
    fleet.progress()


@contextlib.contextmanager
def fleet(*words: Any, **more: Any) -> Iterator[Fleet]:
    """A fleet, ended afterwards."""
    made = Fleet(*words, **more)
    try:
        yield made
    finally:
        made.close()


def go_through(fleet: Fleet, away: Callable[[Fleet], None]) -> tuple[int, int, int]:
    """All five faults, one after the other; what :meth:`Fleet.end` says."""
    for _ in range(2):
        fleet.start()
    fleet.progress()
    for fault in (kill, freeze, join, away, leave):
        fault(fleet)
    return fleet.end()
