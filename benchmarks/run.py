"""``run()`` beside a hand-written loop over a ``ThreadPoolExecutor``: time, rate, CPU, the price of a stuck message.

``python benchmarks/run.py [--rounds N] [--only WORD]`` starts a Kafka of its own and prints a table. Each measurement
is a process of its own; of several rounds the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import refuse_the_twin

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.processing import offset_map
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record


@dataclass(frozen=True)
class Row:
    """One measurement. ``way``: run, greenlets, pool or sleepers; ``work``: what the handler does.

    ``backend``: gevent's, if it is not to be its own choice.
    """

    name: str
    topic: str
    messages: int
    way: str
    workers: int
    work: str
    unit: str
    must: str
    backend: str = ""


SLOW, KEYS, MANY = "run-slow", "run-keys", "run-many"
ROWS = [
    Row("10,000 of 0 to 5 ms, one partition, 16 threads", SLOW, 10_000, "run", 16, "random", "s", "<= 1.75"),
    Row("the same, ThreadPoolExecutor", SLOW, 10_000, "pool", 16, "random", "s", ""),
    Row("100 keys, 5 ms each, 4 partitions, threads", KEYS, 20_000, "run", 100, "5ms", "/s", ">= 16,000"),
    Row("the same, greenlets", KEYS, 20_000, "greenlets", 100, "5ms", "/s", ">= 18,000"),
    Row("the same, greenlets, GEVENT_BACKEND=select", KEYS, 20_000, "greenlets", 100, "5ms", "/s", "", "select"),
    Row("100 greenlets that only sleep", KEYS, 20_000, "sleepers", 100, "5ms", "/s", ""),
    Row("the same, GEVENT_BACKEND=select", KEYS, 20_000, "sleepers", 100, "5ms", "/s", "", "select"),
    Row("100 keys, ThreadPoolExecutor without order", KEYS, 20_000, "pool", 100, "5ms", "/s", ""),
    Row("empty handler, 8 workers: CPU a message", MANY, 200_000, "run", 8, "none", "us", "<= 8"),
    Row("the same, ThreadPoolExecutor", MANY, 200_000, "pool", 8, "none", "us", ""),
    Row("the same, a plain for-loop", MANY, 200_000, "loop", 1, "none", "us", ""),
    Row("100,000 messages, none stuck", MANY, 100_000, "run", 8, "none", "/s", ""),
    Row("100,000 messages behind one that is stuck", MANY, 100_000, "run", 8, "stuck", "/s", ">= 90 % of that"),
]


# -- one measurement, in a process of its own ------------------------------------------------------------------------


class Handler:
    """Does the row's work, and knows when all is done."""

    def __init__(self, row: Row, sleep: Callable[[float], None]) -> None:
        self._row, self._sleep = row, sleep
        chance = random.Random(1)
        self._times = [chance.random() * 0.005 for _ in range(row.messages)]
        self._left = iter(range(row.messages - 1))
        self.done, self.release = threading.Event(), threading.Event()

    def __call__(self, message: Any) -> None:
        work = self._row.work
        if work == "random":
            self._sleep(self._times[message.offset])
        elif work == "5ms":
            self._sleep(0.005)
        elif work == "stuck" and message.offset == 0 and message.partition_id == 0:
            self.release.wait()
            return
        # One step, whichever thread it is: the iterator counts. A stuck message does not count.
        if next(self._left, None) is None:
            self.done.set()


def by_pool(consumer: Any, handler: Handler, row: Row) -> None:
    """The loop that people write: a bounded pool, and a commit of what is finished without a gap, once a second."""
    free, lock = threading.Semaphore(1000), threading.Lock()
    open_: dict[int, dict[int, None]] = {}
    following: dict[int, int] = {}

    def work(message: Any) -> None:
        try:
            handler(message)
        finally:
            with lock:
                del open_[message.partition_id][message.offset]
            free.release()

    due = time.monotonic() + 1
    with ThreadPoolExecutor(row.workers) as pool:
        while not handler.done.is_set():
            message = consumer.consume()
            if message is None:
                continue
            free.acquire()
            with lock:
                open_.setdefault(message.partition_id, {})[message.offset] = None
                following[message.partition_id] = message.offset + 1
            pool.submit(work, message)
            if time.monotonic() > due:
                due = time.monotonic() + 1
                with lock:
                    safe = [(number, next(iter(open_[number]), following[number])) for number in following]
                consumer.commit_offsets(safe)


def by_sleepers(row: Row) -> dict[str, float]:
    """Greenlets that do nothing but sleep as often as there are messages: nothing can be faster than this."""
    import gevent

    def work() -> None:
        for _ in range(row.messages // row.workers):
            gevent.sleep(0.005)

    began, cpu = time.perf_counter(), time.process_time()
    gevent.joinall([gevent.spawn(work) for _ in range(row.workers)])
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "map": 0.0}


def measure(row: Row, bootstrap: str) -> dict[str, float]:
    """Seconds and CPU from the first message to the last, and the length of the map that was committed at the end."""
    if row.way == "sleepers":
        return by_sleepers(row)
    green = row.way == "greenlets"
    group = uuid.uuid4().hex
    consumer = ManagedBalancedConsumer(
        row.topic, bootstrap, group, auto_offset_reset="earliest", use_greenlets=green, consumer_timeout_ms=200
    )
    sleep: Callable[[float], None] = time.sleep
    if green:
        import gevent

        sleep = gevent.sleep
    handler = Handler(row, sleep)
    began, cpu = time.perf_counter(), time.process_time()
    found: dict[str, float] = {}

    def end() -> None:
        handler.done.wait()
        found.update(seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)
        consumer.end_soon()

    if row.way in ("run", "greenlets"):
        handler_called = handler
        if green:  # an event of threads would stop the hub

            def handler_called(message: Any) -> None:  # type: ignore[no-redef]
                handler(message)
                if handler.done.is_set() and not found:
                    end()

        else:
            threading.Thread(target=end, daemon=True).start()
        consumer.run(handler_called, workers=row.workers, grace_ms=100)
    else:
        if row.way == "pool":
            by_pool(consumer, handler, row)
        else:
            for message in consumer:
                handler(message)
                if handler.done.is_set():
                    break
        found.update(seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)
        consumer.stop()
    handler.release.set()
    found["map"] = longest_map(row.topic, bootstrap, group)
    return found


def longest_map(topic: str, bootstrap: str, group: str) -> int:
    """In characters; 0 without one."""
    reader = SimpleConsumer(topic, bootstrap, group, reset_offset_on_fetch=False)
    try:
        return max(len(offset_map.map_in(entry.metadata.decode())) for _, entry in reader.fetch_offsets())
    finally:
        reader.stop()


# -- all of them -----------------------------------------------------------------------------------------------------


def write(broker: DevBroker) -> None:
    """The topics: one partition with keys that differ, four with 100 keys, four with many messages."""
    with Producer(broker.bootstrap) as producer:
        for topic, partitions, count, keys in (
            (SLOW, 1, 10_000, 10_000),
            (KEYS, 4, 20_000, 100),
            (MANY, 4, 200_000, 10_000),
        ):
            broker.create_topic(topic, partitions=partitions)
            for number in range(partitions):
                mine = range(number, count, partitions)
                records = [Record(b"x" * 100, b"%d" % (n % keys), 1, ()) for n in mine]
                producer.produce(topic, records, partition=number, batch_records=500)


def rounds(broker: DevBroker, row: Row, count: int) -> Iterator[dict[str, float]]:
    """Each of so many measurements."""
    environment = {**os.environ, "GEVENT_BACKEND": row.backend} if row.backend else dict(os.environ)
    for _ in range(count):
        command = [sys.executable, __file__, "--child", json.dumps(asdict(row)), broker.bootstrap]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600, env=environment)
        yield json.loads(done.stdout.splitlines()[-1])


def shown(row: Row, each: list[dict[str, float]]) -> str:
    """The row's line."""
    seconds = statistics.median(one["seconds"] for one in each)
    cpu = statistics.median(one["cpu"] for one in each) / row.messages * 1e6
    value = {"s": f"{seconds:.2f} s", "/s": f"{row.messages / seconds:,.0f}/s", "us": f"{cpu:.2f} us"}[row.unit]
    longest = max(one["map"] for one in each)
    return f"{row.name:50} {value:>12} {row.must:>16} {cpu:8.2f} us CPU {longest:6.0f} characters of map"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description="run() beside a hand-written loop.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    refuse_the_twin()
    if given.child:
        print(json.dumps(measure(Row(**json.loads(given.child[0])), given.child[1])))
        return
    print(f"{Path(__file__).name}: {given.rounds} rounds")
    with DevBroker("4.3.0") as broker:
        write(broker)
        for row in ROWS:
            if given.only in row.name:
                print(shown(row, list(rounds(broker, row, given.rounds))), flush=True)


if __name__ == "__main__":
    main()
