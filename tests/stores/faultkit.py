"""A group of processes that store what they read, faults that happen to them, and what must have come out."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from managedconsumer.structs import TopicPartition
from managedconsumer.testing import DevBroker
from tests.stores import kinds
from tests.stores.processes import PARTITIONS, Processes, closing
from tests.waiting import until

# Longer than the members' session of 6 s.
FROZEN = 9.0


class Fleet(Processes):
    """Workers of one group, and messages that go on coming."""

    #: False where one process has the storage to itself: then its members are threads, and nobody else goes on.
    side_by_side = True

    def __init__(
        self, kind: str, where: str, broker: DevBroker, topic: str, logs: Path, protocol: str = "classic"
    ) -> None:
        self.kind, self.where, self.group, self.protocol = kind, where, f"group-{topic}", protocol
        super().__init__(broker, topic, logs)

    # -- members ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Another member; returns when it is one."""
        self.spawn()
        self.wait_for("started", self.workers[-1])

    def spawn(self) -> None:
        """Another process; it need not be a member yet."""
        words = (self.kind, self.where, self.broker.bootstrap, self.topic, self.group, self.protocol)
        self.run("tests.stores.worker", *words)

    def wait_for(self, word: str, worker: subprocess.Popen[str], times: int = 1) -> None:
        """Until this worker has said it so often."""
        until(lambda: self.said(worker).count(word) >= times or worker.poll() is not None, 60)
        assert worker.poll() is None, self.said(worker)

    def kill(self) -> None:
        """kill -9 of the first process, and what it was replaced by."""
        self.workers[0].kill()
        self.start()

    def leave(self) -> None:
        """One member less."""
        self.ended(next(each for each in self.workers if each.poll() is None))

    def ended(self, worker: subprocess.Popen[str]) -> None:
        """It leaves the group and ends."""
        worker.send_signal(signal.SIGTERM)
        until(lambda: worker.poll() is not None, 60)
        assert worker.returncode == 0, self.said(worker)

    # -- what they have done ----------------------------------------------------------------------------

    def stored(self) -> list[tuple[int, int]]:
        """All results: (partition, offset)."""
        return kinds.stored(self.kind.partition("-")[0], self.where)

    def end(self) -> tuple[int, int, int]:
        """Let all messages be stored: how many there are, how many are missing, and how many results are too many."""
        self.stop_load()
        until(lambda: self.reached() == self.written or self.failed(), 120)
        self.terminate()
        wanted = {(partition, offset) for partition, end in enumerate(self.written) for offset in range(end)}
        found = self.stored()
        return len(wanted), len(wanted - set(found)), len(found) - len(wanted & set(found))

    def offsets(self) -> dict[TopicPartition, int]:
        """What the store holds."""
        store = kinds.open_store(self.kind, self.where)
        found = store.load(self.group, [TopicPartition(self.topic, n) for n in range(PARTITIONS)])
        store.close()
        return found


class House(Fleet):
    """For DuckDB: its members are threads of one process, since a second process would have to wait for the file."""

    side_by_side = False

    def start(self) -> None:
        """Another member, in the process that is there."""
        worker = self.workers[-1] if self.workers else None
        if worker is None or worker.poll() is not None:
            super().start()
            return
        there = self.said(worker).count("started")
        worker.send_signal(signal.SIGUSR1)
        self.wait_for("started", worker, there + 1)

    def kill(self) -> None:
        """All members at once."""
        self.workers[-1].kill()
        self.workers[-1].wait(60)
        for _ in range(2):
            self.start()

    def leave(self) -> None:
        """One thread less."""
        self.workers[-1].send_signal(signal.SIGUSR2)
        self.wait_for("left", self.workers[-1])


def kill(fleet: Fleet) -> None:
    """kill -9; another process takes its place."""
    fleet.kill()
    fleet.progress()


def freeze(fleet: Fleet) -> None:
    """A process stands still for longer than its session, with messages in flight."""
    worker = fleet.workers[-1]
    worker.send_signal(signal.SIGSTOP)
    time.sleep(FROZEN)
    if fleet.side_by_side:
        fleet.progress()
    worker.send_signal(signal.SIGCONT)
    fleet.progress()


def join(fleet: Fleet) -> None:
    """One more."""
    fleet.start()
    fleet.progress()


def leave(fleet: Fleet) -> None:
    """One less."""
    fleet.leave()
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


def files_away(fleet: Fleet, seconds: float) -> None:
    """The directory cannot be had, as when a server of files is gone. ``where`` is a link, so it goes in one step."""
    where, beside = Path(fleet.where), Path(f"{fleet.where}.new")
    real = where.readlink()
    for target in (Path("nowhere"), real):
        beside.symlink_to(target)
        os.replace(beside, where)
        if target != real:
            time.sleep(seconds)
    fleet.progress()


def duckdb_away(fleet: Fleet, seconds: float) -> None:
    """Another process has the file when the workers' process starts: it waits."""
    import duckdb

    fleet.ended(fleet.workers[-1])
    connection = duckdb.connect(fleet.where)
    fleet.spawn()
    time.sleep(seconds)
    connection.close()
    fleet.wait_for("started", fleet.workers[-1])
    fleet.start()
    fleet.progress()


def fleet(kind: str, *words: Any, **more: Any) -> contextlib.AbstractContextManager[Fleet]:
    """A fleet, ended afterwards."""
    return closing((House if kind == "duckdb" else Fleet)(kind, *words, **more))


def go_through(fleet: Fleet, away: Callable[[Fleet], None]) -> tuple[int, int, int]:
    """All five faults, one after the other; what :meth:`Fleet.end` says."""
    for _ in range(2):
        fleet.start()
    fleet.progress()
    for fault in (kill, freeze, join, away, leave):
        fault(fleet)
    return fleet.end()
