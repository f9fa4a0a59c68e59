"""Our Spark source and Spark's own Kafka connector on the same topic, in one session: seconds and CPU of three jobs.

::

    python benchmarks/spark.py --quick
    python benchmarks/spark.py --docs docs/performance.rst
    python benchmarks/spark.py --jars /path/to/connector/jars    # instead of fetching them from Maven Central

A million page views of 100 bytes with a key, 8 partitions; ``local[2]``. Rounds go through all rows, the first one
warms up and does not count. Ours is a member of a consumer group in both streams. CPU is that of the whole process
tree: driver, JVM and Python workers. Where the connector's jars cannot be fetched its rows say so.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import results  # noqa: E402
from children import Progress  # noqa: E402
from machine import facts_of  # noqa: E402
from workload import send_first, value  # noqa: E402

from managedconsumer.testing.kafka.devbroker import DevBroker  # noqa: E402
from managedconsumer.testing.kafka.producer import Producer, encode_plain  # noqa: E402

_TOPIC, _PARTITIONS, _PER_BATCH, _USERS = "views", 8, 5000, 20_000
_TUNED = {
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "4194304",
}
#: Seconds after which a stream is given up.
_PATIENCE = 180
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"


@dataclass(frozen=True)
class Source:
    """A row: the data source and its options."""

    name: str
    format: str
    options: Mapping[str, str]
    group: bool = False


OURS, NARROW = "managedkafka", "managedkafka, columns that are used"
DEFAULT, TUNED = "Spark's connector, default", "Spark's connector, tuned"
SOURCES = [
    Source(OURS, "managedkafka", {}, group=True),
    Source(NARROW, "managedkafka", {"columns": "key,value,timestamp"}, group=True),
    Source(DEFAULT, "kafka", {}),
    Source(TUNED, "kafka", _TUNED),
]


def write_views(broker: DevBroker, count: int) -> int:
    """Page views of 20,000 users over two hours, evenly; how many there are."""
    broker.create_topic(_TOPIC, _PARTITIONS)
    chance = random.Random(7)
    rounds = -(-count // (_PER_BATCH * _PARTITIONS))
    with Producer(broker.bootstrap) as producer:
        producer.partitions(_TOPIC)
        for number in range(rounds):
            first = 1_760_000_000_000 + number * 7_200_000 // rounds
            rows = [(b"user-%d" % chance.randrange(_USERS), value(100, chance), first + n) for n in range(_PER_BATCH)]
            batch = encode_plain(rows)
            for partition in range(_PARTITIONS):
                send = producer.send if number else lambda *a: send_first(producer, *a)
                send(_TOPIC, partition, batch)
        producer.flush()
    return rounds * _PER_BATCH * _PARTITIONS


# -- CPU of a tree of processes -----------------------------------------------------------------------


def _processes() -> Iterator[tuple[int, int, float]]:
    """(process, parent, CPU seconds of it and of its children that have ended)."""
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15])) / tick


def tree_cpu() -> float:
    """CPU seconds of this process and everything below it, now and before."""
    parents, spent = {}, {}
    for pid, parent, seconds in _processes():
        parents[pid], spent[pid] = parent, seconds
    total = 0.0
    for pid, seconds in spent.items():
        above = pid
        while above and above != os.getpid():
            above = parents.get(above, 0)
        total += seconds if above else 0.0
    return total


# -- the jobs -----------------------------------------------------------------------------------------


def _read(spark: Any, source: Source, bootstrap: str, stream: bool) -> Any:
    reader = (spark.readStream if stream else spark.read).format(source.format)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": _TOPIC, "startingOffsets": "earliest"}
    if stream and source.group:
        options["group.id"] = f"bench-{uuid.uuid4().hex[:8]}"
    return reader.options(**options, **source.options).load()


def batch(spark: Any, source: Source, bootstrap: str, _: Path) -> int:
    """Count and sum of lengths."""
    found = _read(spark, source, bootstrap, stream=False).selectExpr("count(*)", "sum(length(value))").collect()
    return int(found[0][0])


def _stream(spark: Any, source: Source, bootstrap: str, home: Path, write: Callable[[Any], Any]) -> int:
    frame = _read(spark, source, bootstrap, stream=True)
    writer = write(frame).option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True)
    query = writer.start()
    if not query.awaitTermination(_PATIENCE):
        query.stop()
        raise TimeoutError(f"the stream did not end within {_PATIENCE} s")
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def noop(spark: Any, source: Source, bootstrap: str, home: Path) -> int:
    """A stream that is thrown away."""
    return _stream(spark, source, bootstrap, home, lambda frame: frame.writeStream.format("noop"))


def parquet(spark: Any, source: Source, bootstrap: str, home: Path) -> int:
    """A stream, counted per user and five minutes, each micro-batch into Parquet."""
    from pyspark.sql import functions as sf

    def write(frame: Any, number: int) -> None:
        counted = frame.groupBy(sf.col("key").cast("string"), sf.window("timestamp", "5 minutes")).count()
        counted.coalesce(1).write.parquet(str(home / f"counts-{number}"))

    return _stream(spark, source, bootstrap, home, lambda frame: frame.writeStream.foreachBatch(write))


JOBS: dict[str, tuple[str, Callable[[Any, Source, str, Path], int]]] = {
    "batch": ("Batch: count and sum of lengths", batch),
    "noop": ("Stream to noop", noop),
    "parquet": ("Stream: count per user and 5 minutes, Parquet", parquet),
}


def measure(job: str, spark: Any, source: Source, bootstrap: str, count: int) -> dict[str, float]:
    """One run of one job; raises whatever Spark raises, and ValueError if messages are missing."""
    home = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        began, cpu = time.monotonic(), tree_cpu()
        rows = JOBS[job][1](spark, source, bootstrap, home)
        seconds, spent = time.monotonic() - began, tree_cpu() - cpu
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if rows != count:
        raise ValueError(f"{rows:,} of {count:,} messages were read")
    return {"seconds": seconds, "cpu": spent}


# -- the session --------------------------------------------------------------------------------------


def session(jars: Path | None, log: Path) -> tuple[Any, str]:
    """A session with both sources, and why the connector is missing (empty if it is there)."""
    from pyspark import __version__ as version

    from managedconsumer.spark import make_session

    if jars is not None:
        conf = {"spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))}
    else:
        conf = {"spark.jars.packages": f"{_CONNECTOR}:{version}"}
    made: Callable[[Mapping[str, str]], Any] = lambda conf: make_session(  # noqa: E731
        "benchmark", log_file=log, driver_memory="2g", conf=conf
    )
    try:
        return made(conf), ""
    except Exception as error:  # noqa: BLE001 - without its jars the JVM does not even start
        print(f"the connector's jars could not be had: {error}", flush=True)
        said = log.with_suffix(".jvm.log").read_text(errors="replace")
        telling = next((line.strip() for line in said.splitlines() if "not found" in line), str(error))
        return made({}), f"{_CONNECTOR}:{version} could not be fetched: {telling}"


def verdicts(tables: results.Tables) -> str:
    """Ours (with a group) against the connector: at most 0.65 of its default time, not above the tuned one."""
    lines = []
    for job, rows in tables.items():
        found = {row.peer: row for row in rows if row.runs}
        for ours in (OURS, NARROW):
            for peer, metric, bar in ((DEFAULT, "seconds", 0.65), (TUNED, "seconds", 1.0), (TUNED, "cpu", 1.0)):
                unit = "CPU" if metric == "cpu" else "time"
                line = [f"{job}: {ours}", f"{unit} at most {bar:g} of {peer}"]
                if ours not in found or peer not in found:
                    lines.append([*line, "not measured", ""])
                    continue
                ratio = found[ours].median(metric) / found[peer].median(metric)
                lines.append([*line, f"{ratio:.2f}", "met" if ratio <= bar else "NOT MET"])
    return results.simple_table(["job and source", "goal", "measured", "met"], lines)


def report(facts: Mapping[str, Any], tables: results.Tables, count: int, connector: str) -> str:
    """The whole report."""
    from pyspark import __version__ as version

    head = (
        f"{facts['when']}: {facts['cpus']} CPUs ({facts['system']}), Python {facts['python']}, PySpark {version}, "
        f"local[2], load average {facts['load'][0]} to {facts['load'][1]}; {count:,} messages, median of "
        f"{facts['runs']} interleaved rounds after one for warming up. Connector: {connector}."
    )
    columns = {"seconds": ("seconds", 2), "CPU s": ("cpu", 2)}
    parts = [results.metric_table(JOBS[job][0], columns, rows) for job, rows in tables.items()]
    return "\n\n".join([head, verdicts(tables), *parts])


def rounds(options: argparse.Namespace, broker: DevBroker, home: Path) -> tuple[results.Tables, int, list[float]]:
    """Everything measured: tables, messages, loads."""
    progress = Progress(25.0 + (options.runs + 1) * len(JOBS) * len(SOURCES) * 3.0)
    count = write_views(broker, options.messages)
    progress.say(f"{count:,} messages are written; starting Spark")
    spark, missing = session(options.jars, home / "spark.log")
    progress.done(25.0)
    tables: results.Tables = {job: [results.Row(source.name) for source in SOURCES] for job in JOBS}
    loads = [os.getloadavg()[0]]
    try:
        for number in range(options.runs + 1):
            todo = [(job, source) for job in JOBS for source in SOURCES]
            random.Random(number).shuffle(todo)
            for job, source in todo:
                row = next(row for row in tables[job] if row.peer == source.name)
                progress.done(3.0)
                if missing and source.format == "kafka":
                    row.problem, row.failures = missing, 2
                if row.over:
                    continue
                try:
                    found = measure(job, spark, source, broker.bootstrap, count)
                except Exception as error:  # noqa: BLE001 - Spark's errors are of many kinds; the row shows it
                    row.fail(str(error).strip().splitlines()[0][:300])
                    progress.say(f"{job}: {source.name} failed: {row.problem}")
                    continue
                if number:
                    row.runs.append(found)
                progress.say(f"{job}: {source.name}: {found['seconds']:.2f} s, CPU {found['cpu']:.2f} s")
            loads.append(os.getloadavg()[0])
    finally:
        spark.stop()
    return tables, count, loads


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of 200,000 messages")
    parser.add_argument("--runs", type=int, help="rounds that count (default 5; quick: 1)")
    parser.add_argument("--messages", type=int, help="default 1,000,000")
    parser.add_argument("--jars", type=Path, help="a directory with the connector's jars and what they need")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--docs", type=Path, help="a document whose section '.. begin spark' is replaced")
    options = parser.parse_args()
    options.runs = options.runs or (1 if options.quick else 5)
    options.messages = options.messages or (200_000 if options.quick else 1_000_000)
    with DevBroker(heap_mb=512) as broker, tempfile.TemporaryDirectory(prefix="bench-") as home:
        tables, count, loads = rounds(options, broker, Path(home))
    facts = facts_of(options.runs, loads)
    connector = f"{_CONNECTOR}, this PySpark's version"
    if options.jars is not None:
        connector = ", ".join(sorted(jar.stem for jar in options.jars.glob("*.jar")))
    text = report(facts, tables, count, connector)
    options.out.mkdir(parents=True, exist_ok=True)
    named = {name: [vars(row) for row in rows] for name, rows in tables.items()}
    results.save_json(options.out / "spark.json", {**facts, "messages": count, "tables": named})
    (options.out / "spark.rst").write_text(text + "\n", encoding="utf-8")
    if options.docs is not None:
        results.replace_between(options.docs, "spark", text)
    print(f"\n{text}\n\nwritten to {options.out}")


if __name__ == "__main__":
    main()
