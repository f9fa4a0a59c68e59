"""What planning a trigger costs with thousands of partitions: the reader on a simulated broker, without Spark."""

from __future__ import annotations

import json
import pickle
import statistics
import subprocess
import sys
import time
from typing import Any

_BROKER = """
import sys
from managedconsumer.testing import MemoryBroker
topics, each = int(sys.argv[1]), int(sys.argv[2])
with MemoryBroker({f"topic-{n}": each for n in range(topics)}) as broker:
    print(broker.bootstrap, flush=True)
    for line in sys.stdin:
        for number in range(topics):
            for partition in range(0, each, int(line)):
                broker.produce(f"topic-{number}", [b"v"], partition=partition)
        print("written", flush=True)
"""


def measure(topics: int = 10, each: int = 1000, runs: int = 6) -> list[list[str]]:
    """Lines of a table: which partitions have news; ms of CPU of our planning, and with Spark's JSON around it."""
    broker = subprocess.Popen(
        [sys.executable, "-c", _BROKER, str(topics), str(each)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert broker.stdin is not None
    assert broker.stdout is not None
    try:
        query = _Query(broker.stdout.readline().strip())

        def produce(step: int) -> None:
            assert broker.stdin is not None
            assert broker.stdout is not None
            broker.stdin.write(f"{step}\n")
            broker.stdin.flush()
            broker.stdout.readline()
            time.sleep(0.15)  # a reader looks ten times a second

        produce(1)
        lines = [["the first trigger", *_shown([query.trigger()])]]
        for said, step in (("all", 1), ("every tenth", 10), ("every thousandth", 1000)):
            query.settle()
            found = []
            for number in range(runs + 1):
                produce(step)
                found.append(query.trigger())
                if not number:
                    found.clear()  # the batch before was another one
            lines.append([said, *_shown(found)])
        query.settle()
        time.sleep(0.15)
        lines.append(["none", *_shown([query.look()])])
        query.reader.stop()
        return lines
    finally:
        broker.kill()
        broker.wait()


def _shown(found: list[tuple[float, float]]) -> list[str]:
    return [f"{statistics.median(each) * 1000:.0f}" for each in zip(*found, strict=True)]


class _Query:
    """Spark's calls to the reader, with their JSON."""

    def __init__(self, bootstrap: str) -> None:
        from managedconsumer.spark.source import ManagedKafkaStreamReader

        options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribePattern": "topic-.*",
            "startingOffsets": "earliest",
        }
        self.reader = ManagedKafkaStreamReader(options)
        self._limit = self.reader.getDefaultReadLimit()
        self._start = json.dumps(self.reader.initialOffset())
        self._ours = 0.0

    def _call(self, function: Any, *arguments: Any) -> Any:
        began = time.process_time()
        try:
            return function(*arguments)
        finally:
            self._ours += time.process_time() - began

    def look(self) -> tuple[float, float]:
        """Ask for the next batch once."""
        self._ours, began = 0.0, time.process_time()
        end = json.dumps(self._call(self.reader.latestOffset, json.loads(self._start), self._limit))
        json.dumps(self._call(self.reader.reportLatestOffset))
        if end != self._start:
            tasks = self._call(self.reader.partitions, json.loads(self._start), json.loads(end))
            pickle.dumps(tasks)
            self._start = end
        return self._ours, time.process_time() - began

    def trigger(self) -> tuple[float, float]:
        """Seconds of CPU of one batch: ours, and in all."""
        before = self._start
        while True:
            found = self.look()
            if self._start != before:
                return found

    def settle(self) -> None:
        """Until there is no news."""
        before = ""
        while before != self._start:
            before = self._start
            time.sleep(0.15)
            self.look()


if __name__ == "__main__":
    for line in measure():
        print(*line, sep="\t")
