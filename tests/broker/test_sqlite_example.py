"""The example of exactly-once results in SQLite, proven: twenty rebalances and more, five of them by kill -9."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.broker.groupkit import Load
from tests.waiting import until

PARTITIONS = 6
ROOT = Path(__file__).parents[2]


class Worker:
    """One process of the example; ``assigned`` counts its callbacks."""

    def __init__(self, *arguments: str) -> None:
        program = [sys.executable, str(ROOT / "examples" / "sqlite_exactly_once.py"), *arguments]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True)
        self.assigned = 0
        self.complaints: list[str] = []
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._count, self._complain)]
        for thread in self._threads:
            thread.start()

    def _count(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.assigned += 1

    def _complain(self) -> None:
        assert self.process.stderr is not None
        self.complaints += self.process.stderr

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        code = self.process.wait(20)
        for thread in self._threads:
            thread.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


def counts(path: Path) -> Counter[str]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as db:
        return Counter(dict(db.execute("SELECT word, number FROM counts").fetchall()))


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_every_message_counts_once(
    assignor: str, kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, database, chance = topic(kafka44, PARTITIONS), tmp_path / "counts.sqlite", random.Random(4)
    arguments = [kafka44.bootstrap, name, str(database), "--group", unique("group"), "--assignor", assignor]
    workers: list[Worker] = []
    everybody: list[Worker] = []

    def start() -> None:
        workers.append(Worker(*arguments, "--session-timeout-ms", "2000"))
        everybody.append(workers[-1])
        until(lambda: workers[-1].assigned, 40, lambda: f"not assigned: {workers[-1].complaints}")

    try:
        with Load(kafka44, name, PARTITIONS) as load:
            start()
            start()
            for step in range(10):
                start()
                leaving = workers.pop(chance.randrange(len(workers)))
                code = leaving.end(signal.SIGKILL if step % 2 else signal.SIGTERM)
                assert code == (-signal.SIGKILL if step % 2 else 0), leaving.complaints
            acked = load.stop()
        until(lambda: counts(database).total() >= len(acked), 30, lambda: f"{counts(database).total()} of {len(acked)}")
        for worker in workers:
            assert worker.end() == 0, worker.complaints
        assert counts(database) == Counter(value.decode() for value in acked)
        assert sum(worker.assigned for worker in everybody) >= 20
    finally:
        for worker in everybody:
            if worker.process.poll() is None:
                worker.end(signal.SIGKILL)
