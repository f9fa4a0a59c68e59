"""A program with two queries on a cluster of its own. In the middle of a batch of both, something happens to a task.

One query writes Parquet files. The other one writes rows and claims into a database, in one transaction, from a frame
that the executors keep meanwhile: what they lose is read again. Each batch has one message whose value is the name of
the fault, and the task that comes to it waits until the fault is over. ``test_local_cluster.py`` runs this.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from managedconsumer.testing.kafka.producer import Producer, Record
from tests.spark.trees import family
from tests.waiting import until

PARTITIONS, ROWS = 4, 1000  # of each partition, in each batch
QUERIES = ("files", "claims")
FILLER = b"." * 4000  # of 4 MB for each task: it has not read all of it when the fault comes
_EXECUTOR = re.compile(r"CoarseGrainedExecutorBackend .*--executor-id (\d+)")
_MASTER = re.compile(r"(?<=Starting Spark master at )spark://\S+")
_PATIENCE = 180.0

_CONF = {
    "spark.executor.memory": "512m",
    "spark.testing.memory": "536870912",
    "spark.log.level": "INFO",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "4",
    "spark.decommission.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
}


# -- in a task ------------------------------------------------------------------------------------------


def meeting(query: str, home: Path) -> Callable[[bytes], int]:
    """The function of a query that all values go through."""

    def look(value: bytes) -> int:
        if not value.startswith(b"."):
            meet(value.decode(), query, home)
        return len(value)

    return look


def meet(fault: str, query: str, home: Path) -> None:
    """Come to the message of a fault, ``<number of the batch>-<name>``."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    here, over = home / f"{fault}-{query}", home / f"{fault}-over"
    if here.exists() or over.exists():
        return
    if fault.endswith("failed"):
        here.touch()
        raise RuntimeError("this attempt fails")
    if fault.endswith("copied"):
        if context.attemptNumber():
            here.touch()  # now the first attempt goes on, too, and both of them are about to end
        over = here
    else:
        draft = home / f"{fault}-{query}.{os.getpid()}"
        draft.write_text(str(_parent(os.getppid())))  # the parent is Spark's daemon, whose parent is the executor
        draft.rename(home / f"{fault}-{query}-waits")
    while not over.exists():
        time.sleep(0.02)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# -- what is done to executors --------------------------------------------------------------------------


class Cluster:
    """The executors of a session: their processes, and the names that Spark gave them."""

    def __init__(self, spark: Any, home: Path, *, dynamic: bool) -> None:
        self._home, self._dynamic = home, dynamic
        self._jvm, self._gateway = spark.sparkContext._jvm, spark.sparkContext._gateway
        self._context = spark.sparkContext._jsc.sc()
        self._backend = self._context.schedulerBackend()
        self._seen: dict[int, str] = {}

    def add_host(self) -> None:
        """Start a worker with another address: a copy of a task never runs on the host of the first attempt."""
        url = until(lambda: _MASTER.search((self._home / "spark.log").read_text()), _PATIENCE, "a master")
        masters = self._gateway.new_array(self._jvm.java.lang.String, 1)
        masters[0] = url[0]
        none = self._jvm.scala.Option.empty()
        self._jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            "127.0.0.2", 0, 0, 1, 1024, masters, str(self._home / "work"), none, self._context.conf(), none
        )

    def executors(self) -> dict[int, str]:
        """Those that take tasks."""
        found = {pid: _EXECUTOR.search(command) for pid, command in family(os.getpid()).items()}
        named = {pid: match[1] for pid, match in found.items() if match}
        active = {pid: name for pid, name in named.items() if self._backend.isExecutorActive(name)}
        self._seen |= active
        return active

    def begin(self, fault: str) -> None:
        """Let Spark copy tasks only where that is the fault: a copy waits, too, on an executor that has to be idle."""
        self._context.conf().set("spark.speculation.quantile", "0.5" if fault == "copied" else "1.0")
        if fault == "dropped" and not self._dynamic:  # all of them take part in the batch
            until(lambda: len(self.executors()) == 3, _PATIENCE, "three executors", sleep=_seldom)
        self._seen = {}

    def at_work(self, fault: str) -> dict[int, str]:
        """Those whose tasks wait for the end of the fault; nothing as long as one query has no such task."""
        executors, waiting = self.executors(), [self._home / f"{fault}-{query}-waits" for query in QUERIES]
        if not all(each.exists() for each in waiting):
            return {}
        pids = {int(each.read_text()) for each in waiting}
        return {pid: executors[pid] for pid in pids} if pids <= executors.keys() else {}

    def killed(self, busy: Mapping[int, str]) -> None:
        """``kill -9``."""
        for pid in busy:
            os.kill(pid, signal.SIGKILL)
        self._gone(busy)

    def decommissioned(self, busy: Mapping[int, str]) -> None:
        """The signal that an executor gets before its machine goes away. It ends after its task."""
        for pid in busy:
            os.kill(pid, signal.SIGPWR)
        self._gone(busy)
        assert busy.keys() <= family(os.getpid()).keys(), "their tasks still run"

    def dropped(self, busy: Mapping[int, str]) -> None:
        """The others have done their part of the batch, and go with what they keep of it."""

        def go() -> dict[int, str]:
            active = self.executors()
            if self._dynamic:
                return {pid: name for pid, name in self._seen.items() if pid not in busy}
            idle = {pid: name for pid, name in active.items() if pid not in busy}
            names = self._jvm.PythonUtils.toSeq([*idle.values()])  # the arguments are ExecutorAllocationManager's
            return {} if self._backend.killExecutors(names, False, False, False).isEmpty() else idle

        gone = until(go, _PATIENCE, "an executor is idle", sleep=_seldom)
        self._gone(gone)
        until(lambda: not gone.keys() & family(os.getpid()).keys(), _PATIENCE, "it has ended", sleep=_seldom)

    def _gone(self, executors: Mapping[int, str]) -> None:
        names = executors.values()
        until(lambda: not any(map(self._backend.isExecutorActive, names)), _PATIENCE, "no more tasks", sleep=_seldom)


def _seldom(_: float) -> None:
    time.sleep(0.1)


# -- the program ----------------------------------------------------------------------------------------


def options_of(query: str, bootstrap: str, topic: str, home: Path) -> dict[str, str]:
    claims = {"store": f"sqlite:///{home}/rows.db", "columns": "topic,partition,offset,value,range"}
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "group.id": f"{topic}-{query}",
        "kafka.max.partition.fetch.bytes": str(256 * 1024),
        "minPartitions": str(PARTITIONS),
        "minOffsetsPerTrigger": str(PARTITIONS * ROWS),  # each batch has one fault
        "maxTriggerDelay": "10m",
        **(claims if query == "claims" else {}),
    }


def start(spark: Any, query: str, bootstrap: str, topic: str, home: Path) -> Any:
    from pyspark.sql import functions as F

    from managedconsumer.spark.claims.sql import SqlClaims

    options = options_of(query, bootstrap, topic, home)
    frame = spark.readStream.format("managedkafka").options(**options).load()
    frame = frame.withColumn("size", F.udf(meeting(query, home), "long", useArrow=False)("value")).drop("value")
    if query == "claims":

        def insert(connection: Any, rows: Any) -> None:
            connection.execute("CREATE TABLE IF NOT EXISTS rows (part INTEGER, at INTEGER, size INTEGER)")
            found = [tuple(row) for row in rows.select("partition", "offset", "size").collect()]
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", found)

        writer = frame.writeStream.foreachBatch(SqlClaims(options["store"]).foreach_batch(insert))
    else:
        writer = frame.select("partition", "offset", "size").writeStream.format("parquet")
        writer = writer.option("path", str(home / "out"))
    return writer.queryName(query).option("checkpointLocation", str(home / f"checkpoint-{query}")).start()


class Program:
    """The two queries, and one batch of both after the other."""

    def __init__(self, bootstrap: str, topic: str, home: Path, conf: Mapping[str, str]) -> None:
        from managedconsumer.spark import make_session
        from managedconsumer.spark.options import SourceOptions
        from managedconsumer.spark.topics import TopicView

        self.bootstrap, self.topic, self.home = bootstrap, topic, home
        self.spark = make_session(
            "faults",
            "local-cluster[2,1,1024]",
            driver_memory="512m",
            quick_start=True,
            log_file=home / "spark.log",
            conf={**_CONF, **conf},
        )
        self.cluster = Cluster(self.spark, home, dynamic="spark.dynamicAllocation.enabled" in conf)
        self.cluster.add_host()
        self.queries = [start(self.spark, query, bootstrap, topic, home) for query in QUERIES]
        options = [options_of(query, bootstrap, topic, home) for query in QUERIES]
        self.views = [TopicView(SourceOptions.parse(each, streaming=True)) for each in options]
        self.written = 0

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        def alive() -> Any:
            for query in self.queries:
                assert query.exception() is None, query.exception()
            return condition()

        return until(alive, _PATIENCE, what, sleep=_seldom)

    def batch(self, name: str) -> None:
        """One batch of each query, with a fault in it. It ends when both groups have committed."""
        fault = f"{self.written // ROWS}-{name}"
        self.cluster.begin(name)
        with Producer(self.bootstrap) as producer:
            for partition in range(PARTITIONS):
                records = [Record(FILLER, b"k", 1000)] * ROWS
                if partition == 0:
                    records[ROWS // 2] = Record(fault.encode(), b"k", 1000)
                for first in range(0, ROWS, 100):
                    producer.produce(self.topic, records[first : first + 100], partition=partition)
        self.written += ROWS
        if name not in ("failed", "copied"):
            busy = self.until(lambda: self.cluster.at_work(fault), f"both queries come to {fault}")
            getattr(self.cluster, name)(busy)
            (self.home / f"{fault}-over").touch()
        self.until(self.committed, f"both groups have committed the batch with {fault}")

    def committed(self) -> bool:
        commits = [view.committed(view.partitions(), 20.0) for view in self.views]
        return all([*each.values()] == [self.written] * PARTITIONS for each in commits)

    def stop(self) -> None:
        for query in self.queries:
            query.stop()
        for view in self.views:
            view.close()
        self.spark.stop()


def drive(bootstrap: str, topic: str, home: Path, faults: list[str], conf: Mapping[str, str]) -> None:
    """Run the faults; write down the rows in the files, and how long (seconds) each fault took."""
    began, seconds = time.monotonic(), []
    program = Program(bootstrap, topic, home, conf)
    try:
        for fault in faults:
            program.batch(fault)
            seconds.append(round(time.monotonic() - began, 1))
        rows = [tuple(row) for row in program.spark.read.parquet(str(home / "out")).collect()]
        (home / "result.json").write_text(json.dumps({"rows": rows, "seconds": seconds}))
    finally:
        program.stop()
