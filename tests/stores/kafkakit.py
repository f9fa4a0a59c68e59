"""A group of processes that copy one topic to another, are killed and frozen, and what must have come out."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from managedconsumer import SimpleConsumer
from managedconsumer.testing import DevBroker
from tests.stores.kafka_worker import FENCED
from tests.stores.processes import PARTITIONS, Processes, closing
from tests.waiting import until

SESSION_MS = 3000
# How long (seconds) a process stands still: longer than the session, which is 6 s in a KIP-848 group.
FROZEN = 8.0
#: Where a process may die: before its offsets are sent, behind that, while its commit is on its way, behind that.
PLACES = ("produced", "sent", "ending", "ended")
ALIVE = ("never", 0)


class Pipeline(Processes):
    """Processes from ``topic`` to ``sink``, in slots: each has a transactional id for all its processes."""

    ends = (*Processes.ends, FENCED)

    def __init__(self, broker: DevBroker, source: str, sink: str, logs: Path, **options: Any) -> None:
        self.sink = sink
        self.options = {"way": "transaction", "kind": "confluent", "protocol": "classic", **options}
        super().__init__(broker, source, logs)

    def start(
        self, slot: int, die: tuple[str, int] = ALIVE, *, timeout_ms: int | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """A process; it is a member soon."""
        told = {
            "assignor": "cooperative-sticky",
            **self.options,
            **options,
            "bootstrap": self.broker.bootstrap,
            "source": self.topic,
            "sink": self.sink,
            "group": f"group-{self.topic}",
            "id": f"{self.topic}-{slot}",
            "session_ms": SESSION_MS,
            "timeout_ms": 60_000 if timeout_ms is None else timeout_ms,
            "die": die,
        }
        return self.run("tests.stores.kafka_worker", json.dumps(told))

    def dies(self, worker: subprocess.Popen[str]) -> None:
        """Wait until it is dead."""
        until(lambda: worker.poll() is not None, 90, lambda: self.said(worker))
        assert worker.returncode == -signal.SIGKILL, self.said(worker)

    def zombie(self, slot: int, **options: Any) -> subprocess.Popen[str]:
        """A process that stands still in its third transaction, for longer than its session, while others go on."""
        worker = self.start(slot, ("stands", 3), **options)
        stands = psutil.Process(worker.pid)
        until(lambda: stands.status() == psutil.STATUS_STOPPED or self.failed(), 60, lambda: self.said(worker))
        time.sleep(FROZEN)
        self.progress()
        worker.send_signal(signal.SIGCONT)
        return worker

    def fenced(self, worker: subprocess.Popen[str]) -> None:
        """Wait until it has learnt that it is a zombie: by the fence of its store, or before that by its heartbeat."""

        def knows() -> bool:
            said = self.said(worker)
            return "fenced:" in said or "membership lost" in said

        until(knows, 60, lambda: self.said(worker))

    def end(self, seconds: float = 120.0) -> None:
        """No more messages: wait until all are through, and end the processes."""
        self.stop_load()
        committed = f"group-{self.topic}"

        ends: dict[int, int] = {}

        def through() -> bool:
            with SimpleConsumer(self.topic, self.broker.bootstrap, committed, consumer_timeout_ms=50) as consumer:
                ends.update((number, entry.offset) for number, entry in consumer.fetch_offsets())
            return [ends[number] for number in range(PARTITIONS)] == self.written or bool(self.failed())

        def standing() -> str:
            return f"{ends} of {self.written}\n" + "\n---\n".join(map(self.said, self.workers))

        until(through, seconds, standing, sleep=lambda _: time.sleep(0.3))
        self.terminate()

    def output(self) -> list[tuple[bytes, int, int]]:
        """What a reader of committed messages gets by now: key, partition and offset of the source."""
        found = []
        with SimpleConsumer(self.sink, self.broker.bootstrap, isolation_level="read_committed") as consumer:
            ends = consumer.end_offsets(consumer.partitions)
            while any(consumer.position(number) < end for number, end in ends.items()):
                for message in consumer.consume_batch(1000, 200):
                    number, offset = message.value.split(b":")
                    found.append((message.partition_key, int(number), int(offset)))
        return found

    def result(self) -> tuple[int, int, int, int]:
        """How many messages there were; how many are missing, too many, and out of order by key."""
        output = self.output()
        counts = Counter((number, offset) for _, number, offset in output)
        wanted = Counter((number, offset) for number, size in enumerate(self.written) for offset in range(size))
        last: dict[bytes, int] = {}
        disorder = 0
        for key, _, offset in output:
            disorder += offset < last.get(key, -1)
            last[key] = offset
        return wanted.total(), (wanted - counts).total(), (counts - wanted).total(), disorder


def pipeline(*words: Any, **options: Any) -> contextlib.AbstractContextManager[Pipeline]:
    """Ended afterwards."""
    return closing(Pipeline(*words, **options))


def killed(made: Pipeline, kills: int, slots: int = 3, seed: int = 1) -> Counter[str]:
    """So many processes die by kill -9, one after the other in each slot; how often where."""
    chance, died = random.Random(seed), Counter[str]()
    # What each slot's process is to do: the next place in turn.
    fates: dict[int, str] = {}
    running: dict[int, subprocess.Popen[str]] = {}
    begun = 0

    def replace(slot: int) -> None:
        nonlocal begun
        die = ALIVE
        if begun < kills:
            die = (PLACES[begun % len(PLACES)], chance.randint(2, 8))
            begun += 1
        fates[slot] = die[0]
        running[slot] = made.start(slot, die)

    for slot in range(slots):
        replace(slot)
    while died.total() < kills:
        gone = until(lambda: [slot for slot, each in running.items() if each.poll() is not None], 120)
        for slot in gone:
            if running[slot].returncode == FENCED:  # a transaction that took too long
                running[slot] = made.start(slot, (fates[slot], 2))
                continue
            made.dies(running[slot])
            died[fates[slot]] += 1
            replace(slot)
    return died
