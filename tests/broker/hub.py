"""Consumes on greenlets beside one that ticks, and says how long the hub was kept from it; a process of its own.

``python -m tests.broker.hub '{"patch": false, "bootstrap": ..., "topics": [...], "way": "consume", ...}'`` prints a
line of JSON. The time that the operating system gave to others is taken off: what is left is what this process did.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

TICK_S = 0.01


class Ticker:
    """A greenlet that wakes every 10 ms; ``worst`` is the longest time (seconds) that it came late, and when."""

    def __init__(self) -> None:
        import gevent

        self.worst = 0.0
        self.ticks = 0
        self._sleep = gevent.sleep
        self._statistics = open("/proc/thread-self/schedstat", encoding="ascii")  # noqa: SIM115 - for the whole process
        self._start, self._stolen = time.monotonic(), self._waited_for_a_processor()
        self._greenlet = gevent.spawn(self._run)

    def _waited_for_a_processor(self) -> float:
        self._statistics.seek(0)
        return int(self._statistics.read().split()[1]) / 1e9

    def _run(self) -> None:
        while True:
            self._start, self._stolen = time.monotonic(), self._waited_for_a_processor()
            self._sleep(TICK_S)
            self.look()
            self.ticks += 1

    def stop(self) -> None:
        """No more ticks."""
        self._greenlet.kill()
        self.look()
        self._statistics.close()

    def look(self) -> None:
        """Also at the end: the hub may have been kept since the last tick."""
        late = time.monotonic() - self._start - TICK_S - (self._waited_for_a_processor() - self._stolen)
        self.worst = max(self.worst, late)


class Work:
    """Members that consume until ``count`` messages have come."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.seen = 0
        self.consumers: list[Any] = []
        self.end = time.monotonic() + 120

    def member(self) -> None:
        from managedconsumer import ManagedBalancedConsumer

        given = self.given
        options = {"consumer_timeout_ms": 300, "heartbeat_interval_ms": 300, **given["options"]}
        consumer = ManagedBalancedConsumer(
            given["topics"], given["bootstrap"], given["group"], use_greenlets=True, **options
        )
        self.consumers.append(consumer)
        while self.seen < given["count"]:
            got = self.take(consumer)  # not in the same line: the other member counts meanwhile
            self.seen += got
            if time.monotonic() > self.end:
                raise SystemExit(f"only {self.seen} of {given['count']} messages: {consumer.health()}")

    def take(self, consumer: Any) -> int:
        if self.given["way"] == "consume":
            return 0 if consumer.consume() is None else 1
        if self.given["way"] == "batch":
            return len(consumer.consume_batch(5000, 300))
        columns = consumer.consume_arrow(300)
        return 0 if columns is None else int(columns.num_rows)

    def run(self) -> None:
        import gevent

        workers = [gevent.spawn(self.member)]
        while len(workers) < self.given["members"]:
            gevent.sleep(TICK_S)
            if self.seen > self.given["count"] // 4:
                workers.append(gevent.spawn(self.member))
        gevent.joinall(workers, raise_error=True)
        for consumer in self.consumers:
            consumer.stop()


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["patch"]:
        from gevent import monkey

        monkey.patch_all()
    # Importing takes its time, and is not what is measured.
    for name in ("ManagedBalancedConsumer", "SimpleConsumer"):
        getattr(importlib.import_module("managedconsumer"), name)
    for name in ("cramjam", "pyarrow", "confluent_kafka"):
        importlib.import_module(name)
    ticker, work = Ticker(), Work(given)
    work.run()
    ticker.look()
    shares = [consumer.health()["handed_out"] for consumer in work.consumers]
    result = {"seen": work.seen, "worst": ticker.worst, "ticks": ticker.ticks, "shares": shares}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
