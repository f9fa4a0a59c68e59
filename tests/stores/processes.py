"""Processes that read a topic to which messages go on coming: their load, their logs, and their ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.waiting import until

PARTITIONS = 4


class Processes:
    """Worker processes, which say ``at PARTITION NEXT`` after each batch, and the load of their topic."""

    #: How a process may end (None: it has not): by itself, or by kill -9.
    ends: tuple[int | None, ...] = (None, 0, -signal.SIGKILL)

    def __init__(self, broker: DevBroker, topic: str, logs: Path) -> None:
        self.broker, self.topic, self.logs = broker, topic, logs
        self.workers: list[subprocess.Popen[str]] = []
        #: How many messages each partition has.
        self.written = [0] * PARTITIONS
        self._over = threading.Event()
        self._load = threading.Thread(target=self._produce)
        self._load.start()

    def _produce(self) -> None:
        with Producer(self.broker.bootstrap) as producer:
            while not self._over.is_set():
                for number in range(PARTITIONS):
                    # Each key is in one partition.
                    records = [Record(b"x", b"%d-%d" % (number, each % 3)) for each in range(10)]
                    producer.produce(self.topic, records, partition=number)
                    self.written[number] += 10
                self._over.wait(0.2)

    def stop_load(self) -> None:
        """No more messages."""
        self._over.set()
        self._load.join(60)

    def run(self, module: str, *words: str) -> subprocess.Popen[str]:
        """Another process; it need not be a member yet."""
        with self._log(len(self.workers)).open("w") as out:
            command = [sys.executable, "-W", "ignore", "-m", module, *words]
            self.workers.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True))
        return self.workers[-1]

    def _log(self, number: int) -> Path:
        return self.logs / f"{self.topic}-{number}"

    def said(self, worker: subprocess.Popen[str]) -> str:
        """All that this process has printed."""
        return self._log(self.workers.index(worker)).read_text()

    def reached(self) -> list[int]:
        """The next offset of each partition, as the processes have said it."""
        found = [0] * PARTITIONS
        for worker in self.workers:
            for line in self.said(worker).splitlines():
                if line.startswith("at "):
                    partition, end = map(int, line.split()[1:])
                    found[partition] = max(found[partition], end)
        return found

    def failed(self) -> str:
        """What the processes have said that ended in another way than they may; empty: none did."""
        return "".join(self.said(each) for each in self.workers if each.poll() not in self.ends)

    def progress(self, messages: int = 40) -> None:
        """Wait until so many more messages are through."""
        before = sum(self.reached())
        until(lambda: sum(self.reached()) >= before + messages or self.failed(), 90)
        assert not self.failed(), self.failed()

    def terminate(self) -> None:
        """Let all processes leave the group and end."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        until(lambda: all(each.poll() is not None for each in self.workers), 60)
        assert not self.failed(), self.failed()

    def close(self) -> None:
        """End what is left."""
        self.stop_load()
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait(60)


P = TypeVar("P", bound=Processes)


@contextlib.contextmanager
def closing(made: P) -> Iterator[P]:
    """``made``, closed afterwards."""
    try:
        yield made
    finally:
        made.close()
