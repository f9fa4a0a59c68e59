"""Consumes on greenlets beside one that ticks, and says how long the hub was kept from it; a process of its own.

``python -m tests.broker.hub '{"patch": false, "bootstrap": ..., "topics": [...], "way": "consume", ...}'`` prints a
line of JSON. The time that the operating system gave to other processes is taken off, also where a thread with the
interpreter's lock had to wait: what is left is what this process did.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TICK_S = 0.01


class Ticker:
    """A greenlet that wakes every 10 ms; ``worst`` is the longest time (seconds) that it came late."""

    def __init__(self) -> None:
        import gevent

        self.worst = 0.0
        self.ticks = 0
        self._sleep = gevent.sleep
        self._hub = threading.get_native_id()
        self._begin()
        self._greenlet = gevent.spawn(self._run)

    def _begin(self) -> None:
        self._start, self._computed, self._waited = time.monotonic(), time.thread_time(), waits_for_a_processor()

    def _run(self) -> None:
        while True:
            self._begin()
            self._sleep(TICK_S)
            self.look()
            self.ticks += 1

    def stop(self) -> None:
        """No more ticks."""
        self._greenlet.kill()
        self.look()

    def look(self) -> None:
        """Also at the end: the hub may have been kept since the last tick."""
        lasted, computed = time.monotonic() - self._start, time.thread_time() - self._computed
        if lasted - TICK_S <= self.worst:
            return
        waited = {task: time - self._waited.get(task, 0.0) for task, time in waits_for_a_processor().items()}
        own = waited.pop(self._hub)
        # While the hub stood still, another thread may have had the interpreter's lock, and no processor.
        excused = min(max(waited.values(), default=0.0), max(0.0, lasted - own - computed))
        self.worst = max(self.worst, lasted - TICK_S - own - excused)


def waits_for_a_processor() -> dict[int, float]:
    """How long (seconds) each thread of this process has been ready to run while others had the processors."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            found[int(task.name)] = int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return found


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
    # Importing takes its time, and is not what is measured. The first consumer loads the engine.
    from managedconsumer import ManagedBalancedConsumer

    ManagedBalancedConsumer("t", "127.0.0.1:1", "g", use_greenlets=True, auto_start=False, **given["options"])
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
