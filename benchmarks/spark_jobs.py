"""The jobs of ``spark.py``: what is read, into what, and what a run of it costs."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from workload import send_first, value

from managedconsumer.testing.kafka.devbroker import DevBroker
from managedconsumer.testing.kafka.producer import Producer, encode_plain

_PARTITIONS, _PER_BATCH, _USERS = 8, 1000, 20_000
_TUNED = {
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "4194304",
}
#: Seconds after which a stream is given up.
_PATIENCE = 300
#: Small triggers: so many, of so many rows.
TRIGGERS, ROWS = 20, 10_000
#: Rows that are written at a pace: so many blocks, of so many rows, each so many seconds, and the trigger's interval.
BLOCKS, BLOCK_ROWS, BLOCK_SECONDS, INTERVAL = 60, 2_000, 0.2, "200 milliseconds"
#: Topics: bytes of a value, and the share of ``--messages``.
TOPICS = {"views": (100, 1.0), "large": (1000, 0.8), "small": (100, 0.0), "avro": (100, 0.5)}
#: Values of the topic "avro".
AVRO = {
    "type": "record",
    "name": "View",
    "fields": [{"name": "user", "type": "long"}, {"name": "ms", "type": "int"}, {"name": "page", "type": "string"}],
}


@dataclass(frozen=True)
class Source:
    """A row: the data source and its options; ``narrow``: it reads only the columns that the job uses."""

    name: str
    format: str
    options: Mapping[str, str]
    narrow: bool = False


OURS, NARROW = "managedkafka", "managedkafka, columns that are used"
DEFAULT, TUNED = "Spark's connector, default", "Spark's connector, tuned"
SOURCES = [
    Source(OURS, "managedkafka", {}),
    Source(NARROW, "managedkafka", {}, narrow=True),
    Source(DEFAULT, "kafka", {}),
    Source(TUNED, "kafka", _TUNED),
]


def write_topics(broker: DevBroker, messages: int) -> dict[str, int]:
    """All topics, and how many messages each has."""
    counts = {}
    for topic, (size, share) in TOPICS.items():
        wanted = int(messages * share) or min(TRIGGERS * ROWS, messages)
        counts[topic] = _write_views(broker, topic, wanted, size)
    return counts


def _write_views(broker: DevBroker, topic: str, count: int, size: int) -> int:
    """Page views of 20,000 users over two hours, evenly; how many there are."""
    broker.create_topic(topic, _PARTITIONS, {"retention.ms": -1})
    chance = random.Random(7)
    rounds = -(-count // (_PER_BATCH * _PARTITIONS))
    make = _avro_value if topic == "avro" else value
    with Producer(broker.bootstrap) as producer:
        producer.partitions(topic)
        for number in range(rounds):
            first = 1_760_000_000_000 + number * 7_200_000 // rounds
            rows = [(b"user-%d" % chance.randrange(_USERS), make(size, chance), first + n) for n in range(_PER_BATCH)]
            batch = encode_plain(rows)
            for partition in range(_PARTITIONS):
                send = producer.send if number else lambda *a: send_first(producer, *a)
                send(topic, partition, batch)
        producer.flush()
    return rounds * _PER_BATCH * _PARTITIONS


def _avro_value(size: int, chance: random.Random) -> bytes:
    """A record of :data:`AVRO` as Avro writes it, of about ``size`` bytes."""
    page = value(size - 8, chance)
    return _zigzag(chance.randrange(_USERS)) + _zigzag(chance.randrange(5_000)) + _zigzag(len(page)) + page


def _zigzag(number: int) -> bytes:
    """Of a number that is not negative."""
    left, found = number * 2, bytearray()
    while left >= 128:
        found.append(left % 128 + 128)
        left //= 128
    found.append(left)
    return bytes(found)


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


def _tree() -> dict[int, float]:
    """The CPU seconds of this process and of each below it, by process."""
    parents, spent = {}, {}
    for pid, parent, seconds in _processes():
        parents[pid], spent[pid] = parent, seconds
    found = {}
    for pid, seconds in spent.items():
        above = pid
        while above and above != os.getpid():
            above = parents.get(above, 0)
        if above:
            found[pid] = seconds
    return found


def tree_cpu() -> float:
    """CPU seconds of this process and everything below it, now and before."""
    return sum(_tree().values())


def tree_memory() -> tuple[float, float]:
    """The memory of this process and of those below it, shared pages once, in MB; and that of the Python ones alone."""
    total = python = 0.0
    for pid in _tree():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            name = Path(f"/proc/{pid}/comm").read_text()
        except OSError:
            continue  # it has ended
        megabytes = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        total += megabytes
        python += megabytes if "java" not in name else 0.0
    return total, python


# -- the jobs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What is done with a topic; ``columns`` are those it uses, "" where it uses all."""

    title: str
    topic: str
    run: Callable[[Any, Path], tuple[int, float]]
    columns: str = ""
    stream: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    #: For our source only.
    ours: Mapping[str, str] = field(default_factory=dict)
    #: The topic is written while it is read.
    paced: bool = False


def _discard(frame: Any, _: Path) -> tuple[int, float]:
    frame.write.format("noop").mode("overwrite").save()
    return -1, 0.0


def _sum(frame: Any, _: Path) -> tuple[int, float]:
    found = frame.selectExpr("count(*)", "sum(length(value))").collect()
    return int(found[0][0]), 0.0


def _sum_avro(frame: Any, _: Path) -> tuple[int, float]:
    """By ``from_avro``, where the source has not made columns of the values (``value.schema``) already."""
    if frame.schema["value"].dataType.typeName() == "binary":
        from pyspark.sql.avro.functions import from_avro

        frame = frame.select(from_avro("value", json.dumps(AVRO)).alias("value"))
    found = frame.selectExpr("count(*)", "sum(value.ms)").collect()
    return int(found[0][0]), 0.0


def _to_parquet(frame: Any, home: Path) -> tuple[int, float]:
    frame.write.parquet(str(home / "rows"))
    return int(frame.sparkSession.read.parquet(str(home / "rows")).count()), 0.0


def _stream(writer: Any, home: Path) -> tuple[int, float]:
    query = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    if not query.awaitTermination(_PATIENCE):
        query.stop()
        raise TimeoutError(f"the stream did not end within {_PATIENCE} s")
    progress = query.recentProgress
    inside = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000
    return sum(each["numInputRows"] for each in progress), inside


def _stream_away(frame: Any, home: Path) -> tuple[int, float]:
    return _stream(frame.writeStream.format("noop"), home)


def _count_views(frame: Any, home: Path) -> tuple[int, float]:
    from pyspark.sql import functions as sf

    def write(batch: Any, number: int) -> None:
        counted = batch.groupBy(sf.col("key").cast("string"), sf.window("timestamp", "5 minutes")).count()
        counted.coalesce(1).write.parquet(str(home / f"counts-{number}"))

    return _stream(frame.writeStream.foreachBatch(write), home)


JOBS: dict[str, Job] = {
    "batch-noop": Job("Batch to noop", "views", _discard, "key,value,timestamp"),
    "batch-sum": Job("Batch: count and sum of lengths", "views", _sum, "value"),
    "batch-parquet": Job("Batch to Parquet", "views", _to_parquet, "key,value,timestamp"),
    "large-noop": Job("Batch to noop, 1 kB", "large", _discard, "key,value,timestamp"),
    "large-sum": Job("Batch: count and sum of lengths, 1 kB", "large", _sum, "value"),
    "from-avro": Job("Batch: Avro values by from_avro, sum of a field", "avro", _sum_avro, "value"),
    "avro": Job(
        "Batch: Avro values, ours by value.schema, sum of a field",
        "avro",
        _sum_avro,
        "value",
        ours={"value.format": "avro", "value.schema": json.dumps(AVRO)},
    ),
    "views": Job("Stream: page views per user and 5 minutes, Parquet", "views", _count_views, "key,timestamp", True),
    "noop": Job("Stream to noop, all at once", "views", _stream_away, "key,value,timestamp", True),
    "noop-200k": Job(
        "Stream to noop, 200,000 a batch",
        "views",
        _stream_away,
        "key,value,timestamp",
        True,
        {"maxOffsetsPerTrigger": "200000"},
    ),
    "small": Job(
        f"{TRIGGERS} triggers of {ROWS:,} rows",
        "small",
        _stream_away,
        "key,value,timestamp",
        True,
        {"maxOffsetsPerTrigger": str(ROWS)},
    ),
    "paced": Job(
        f"Trigger interval 200 ms, {BLOCK_ROWS:,} rows each: p50 of the delay, in seconds",
        "",
        _stream_away,
        "key,value,timestamp",
        True,
        paced=True,
    ),
}


def measure(job: Job, spark: Any, source: Source, broker: DevBroker, count: int) -> dict[str, float]:
    """One run of one job; raises whatever Spark raises, and ValueError if messages are missing."""
    home = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    topic = job.topic or f"{source.format}-{uuid.uuid4().hex[:8]}"
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    options.update(source.options)
    options.update(job.options)
    options.update(job.ours if source.format == "managedkafka" else {})
    if job.stream and source.format == "managedkafka":
        options["group.id"] = f"bench-{uuid.uuid4().hex[:8]}"  # ours is a member of a group
    if source.narrow:
        options["columns"] = job.columns
    reader = (spark.readStream if job.stream else spark.read).format(source.format).options(**options)
    try:
        if job.paced:
            return _paced(reader, broker, topic, home)
        began, cpu = time.monotonic(), tree_cpu()
        rows, inside = job.run(reader.load(), home)
        seconds, spent = time.monotonic() - began, tree_cpu() - cpu
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if rows not in (-1, count):
        raise ValueError(f"{rows:,} of {count:,} messages were read")
    return {"seconds": seconds, "cpu": spent, **({"inside": inside} if job.stream else {})}


def _paced(reader: Any, broker: DevBroker, topic: str, home: Path) -> dict[str, float]:
    """Delays from the writing of a block of rows to the end of the trigger that has read all of it; a warm query."""
    broker.create_topic(topic, _PARTITIONS, {"retention.ms": -1})
    warm = 10
    with Producer(broker.bootstrap) as producer:
        producer.partitions(topic)
        feed(producer, topic, 1, send_first)
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(home / "checkpoint"))
        query = writer.trigger(processingTime=INTERVAL).start()
        try:
            query.processAllAvailable()
            feed(producer, topic, warm)
            query.processAllAvailable()
            cpu = tree_cpu()
            written: list[float] = []
            feeder = threading.Thread(target=lambda: written.extend(feed(producer, topic, BLOCKS)))
            feeder.start()
            feeder.join()
            query.processAllAvailable()
            spent = tree_cpu() - cpu
            progress = [each for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()
    ends = [_end_of(each) for each in progress]
    reached = list(accumulate(each["numInputRows"] for each in progress))
    before = (1 + warm) * BLOCK_ROWS
    if reached[-1] != before + BLOCKS * BLOCK_ROWS:
        raise ValueError(f"{reached[-1]:,} of {before + BLOCKS * BLOCK_ROWS:,} messages were read")
    delays = []
    for number, at in enumerate(written, 1):
        wanted = before + number * BLOCK_ROWS
        delays.append(next(end for end, rows in zip(ends, reached, strict=True) if rows >= wanted) - at)
    inside = statistics.fmean(each["durationMs"]["triggerExecution"] / 1000 for each in progress[-BLOCKS // 2 :])
    p99 = statistics.quantiles(delays, n=100, method="inclusive")[98]
    return {"seconds": statistics.median(delays), "p99": p99, "cpu": spent, "inside": inside}


def _end_of(progress: Any) -> float:
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    return float(began + progress["durationMs"]["triggerExecution"] / 1000)


def feed(producer: Producer, topic: str, blocks: int, first: Any = None) -> list[float]:
    """Write blocks of rows at their pace; when each was written."""
    chance, began, written = random.Random(7), time.monotonic(), []
    for number in range(blocks):
        time.sleep(max(0.0, began + number * BLOCK_SECONDS - time.monotonic()))
        now = time.time()
        written.append(now)
        for partition in range(_PARTITIONS):
            rows = [(b"user", value(100, chance), int(now * 1000)) for _ in range(BLOCK_ROWS // _PARTITIONS)]
            batch = encode_plain(rows)
            if first is not None:
                first(producer, topic, partition, batch)
            else:
                producer.send(topic, partition, batch)
        producer.flush()
    return written
