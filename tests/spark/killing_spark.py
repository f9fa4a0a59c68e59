"""Two real Spark queries of a group: each kind of their processes is killed in turn, and each row counts once.

By hand: ``python -m tests.spark.killing_spark --minutes 20 group files sql``. Each query is a program of its own with a
JVM, one of them with two executors. What counts is judged as in ``tests/spark/killing.py``.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from managedconsumer.spark.claims.log import ClaimLog
from managedconsumer.spark.claims.sql import SqlClaims
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests import waiting
from tests.spark.killing import KINDS, claims_of, counted, log_of, total
from tests.spark.queries import Row
from tests.spark.trees import family, kill_family, send

#: Which process is killed; "zombie": all of them stand still until others have the partitions, and go on then.
VICTIMS = ("driver", "jvm", "reader", "worker", "executor", "tree", "zombie")
# What the command line of a process has in it, of those that the driver's program has below it.
_COMMANDS = {
    "jvm": "deploy.SparkSubmit",
    "reader": "python_streaming_source_runner",
    "worker": "pyspark.daemon pyspark.worker",
    "executor": "CoarseGrainedExecutorBackend",
}
_MASTERS = {"a": "local[2,4]", "b": "local-cluster[2,1,512]"}
_PARTITIONS, _BATCH, _BLOCK = 4, 400, 2400
_FROZEN = 8.0


def live(kind: str, path: Path, broker: str, topic: str, name: str) -> None:
    """A program with one query, which is started again when it has failed."""
    from pyspark.errors import StreamingQueryException

    from managedconsumer.spark import make_session

    conf = {"spark.executor.memory": "512m", "spark.testing.memory": "536870912", "spark.task.maxFailures": "4"}
    home = path / f"{name}-{os.getpid()}"
    spark = make_session(
        name, _MASTERS[name], driver_memory="512m", quick_start=True, log_file=home / "spark.log", conf=conf
    )
    options = {
        "kafka.bootstrap.servers": broker,
        "subscribe": topic,
        "group.id": topic,
        "startingOffsets": "earliest",
        "kafka.session.timeout.ms": "6000",
        "kafka.heartbeat.interval.ms": "200",
        "maxOffsetsPerTrigger": str(_BATCH),
        "columns": "topic,partition,offset,range",
        **claims_of(kind, path),
    }
    frame = spark.readStream.format("managedkafka").options(**options).load()
    writer = frame.writeStream.foreachBatch(sink(kind, path, name)).option(
        "checkpointLocation", str(path / f"point-{name}")
    )
    while True:
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            (home / "errors.log").open("a").write(f"{error}\n")


def sink(kind: str, path: Path, name: str) -> Callable[[Any, int], None]:
    """Rows appended to Parquet files of the query, or into a database in one transaction with the claim."""
    if kind == "sql":

        def insert(connection: Any, frame: Any) -> None:
            connection.execute("CREATE TABLE IF NOT EXISTS rows (part INTEGER, at INTEGER)")
            rows = [tuple(row) for row in frame.select("partition", "offset").collect()]
            connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)

        return SqlClaims(claims_of(kind, path)["store"]).foreach_batch(insert)

    def write(frame: Any, _number: int) -> None:
        rows = frame.select("range.data", "partition", "offset")
        rows.write.mode("append").parquet(str(path / f"rows-{name}"))

    return write


def appended(path: Path, log: ClaimLog) -> Counter[Row]:
    """What a reader of the Parquet files sees."""
    import pyarrow.dataset as ds

    winners = {(data, tp.partition) for data, ranges in log.winners().items() for tp in ranges}
    files = [str(file) for file in path.glob("rows-*/*.parquet")]
    rows = ds.dataset(files, format="parquet").to_table().to_pylist()
    return Counter((row["partition"], row["offset"]) for row in rows if (row["data"], row["partition"]) in winners)


class Run:
    """Two queries, what is written for them, and what was done to them."""

    def __init__(self, kind: str, path: Path, broker: DevBroker, topic: str) -> None:
        self.kind, self.path, self.broker, self.topic = kind, path, broker, topic
        broker.create_topic(topic, _PARTITIONS)
        self.log: ClaimLog = log_of(kind, path, broker.bootstrap, topic)
        self.written = 0
        self.done: Counter[str] = Counter()
        self.lives = {name: self.start(name) for name in _MASTERS}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        here = str(Path(__file__).parents[2])
        script = "import sys; from pathlib import Path; from tests.spark.killing_spark import live; a = sys.argv; "
        arguments = [self.kind, str(self.path), self.broker.bootstrap, self.topic, name]
        with (self.path / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-c", script + "live(a[1], Path(a[2]), *a[3:])", *arguments],
                env={**os.environ, "PYTHONPATH": here},
                cwd=here,
                stdout=out,
                stderr=out,
            )

    def write(self) -> None:
        with Producer(self.broker.bootstrap) as producer:
            for partition in range(_PARTITIONS):
                records = [Record(b"v", b"k", 1000)] * (_BLOCK // _PARTITIONS)
                producer.produce(self.topic, records, partition=partition)
        self.written += _BLOCK

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 180.0) -> Any:
        """Wait; a program that has ended is started again, as a supervisor does."""

        def supervised() -> Any:
            for name, process in self.lives.items():
                if process.poll() is not None:
                    self.lives[name] = self.start(name)
                    self.done["started again"] += 1
            return condition()

        return waiting.until(supervised, seconds, f"{what}; {self.topic}; {self.path}")

    def harm(self, victim: str, chance: random.Random) -> None:
        """Let the queries read, and do it somewhere in a batch."""
        claimed = total(self.log)
        self.write()
        self.until(lambda: total(self.log) > claimed, "a batch is claimed")
        time.sleep(chance.uniform(0, 1))
        name = "b" if victim == "executor" else chance.choice(sorted(self.lives))
        process = self.lives[name]
        if victim == "tree":
            kill_family(process.pid)
        elif victim == "zombie":
            frozen = list(family(process.pid))
            for each in frozen:
                send(each, signal.SIGSTOP)
            time.sleep(_FROZEN)
            for each in frozen:
                send(each, signal.SIGCONT)
        elif victim == "driver":
            process.kill()
        else:
            found = self.until(lambda: self.processes_at_work(name, victim), f"query {name} has a {victim}")
            send(chance.choice(found), signal.SIGKILL)
        self.done[victim] += 1

    def processes_at_work(self, name: str, victim: str) -> list[int]:
        """A query that has come late has no worker before it finds rows that the other one has not read."""
        found = self.processes(name, victim)
        if not found and total(self.log) == self.written:
            self.write()
        return found

    def processes(self, name: str, victim: str) -> list[int]:
        """The processes of that kind. The one that forks workers is none."""
        found = [pid for pid, command in family(self.lives[name].pid).items() if _COMMANDS[victim] in command]
        return found if victim in ("jvm", "executor") else [pid for pid in found if len(family(pid)) == 1]

    def check(self) -> None:
        self.until(lambda: total(self.log) == self.written, "all rows are claimed")
        sql = self.kind == "sql"
        found = counted(self.kind, self.path, self.log) if sql else appended(self.path, self.log)
        assert found == Counter((p, at) for p in range(_PARTITIONS) for at in range(self.written // _PARTITIONS))

    def stop(self) -> None:
        for process in self.lives.values():
            kill_family(process.pid)
            process.wait()


def run(kind: str, path: Path, broker: DevBroker, topic: str, victims: list[str], seed: int) -> Counter[str]:
    """One run; raises AssertionError if a row is missing or counts twice."""
    each = Run(kind, path, broker, topic)
    chance = random.Random(seed)
    try:
        for victim in victims:
            each.harm(victim, chance)
        each.check()
    finally:
        each.stop()
    return each.done


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kinds", nargs="*", default=list(KINDS), choices=[*KINDS, []])
    parser.add_argument("--minutes", type=float, default=20.0, help="no run begins after that")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    end = time.monotonic() + given.minutes * 60
    done = {kind: Counter[str]() for kind in given.kinds}
    with DevBroker("4.4.0") as broker:
        number = 0
        while time.monotonic() < end:
            kind = given.kinds[number % len(given.kinds)]
            path = Path(tempfile.mkdtemp(prefix="killing-"))  # it stays where a run fails: the logs are there
            victims = list(VICTIMS)
            random.Random(given.seed + number).shuffle(victims)
            began = time.monotonic()
            found = run(kind, path, broker, f"{kind}-{number}", victims, given.seed + number)
            shutil.rmtree(path, ignore_errors=True)
            done[kind].update({**found, "runs": 1})
            print(f"{kind} {number}: exact after {dict(found)} ({time.monotonic() - began:.0f} s)", flush=True)
            number += 1
    for kind, counts in done.items():
        print(f"{kind}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
