"""The source in PySpark itself: batch reads, streams, the page-view pipeline, a cluster of two executors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from managedconsumer.spark import PageViewCounts, PageViews, make_session, progress_of
from managedconsumer.spark.events import Tally, count_views
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record, encode_plain, partition_for
from tests.spark.conftest import committed, produce, run_by_starts
from tests.waiting import until

pytestmark = pytest.mark.spark
MakeTopic = Callable[..., str]


def reader(spark: Any, broker: DevBroker, topic: str, *, stream: bool = False, **options: str) -> Any:
    named = {name.replace("__", "."): value for name, value in options.items()}
    source = spark.readStream if stream else spark.read
    return (
        source.format("managedkafka")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .options(**named)
    )


def write_views(broker: DevBroker, topic: str, partitions: int, events: PageViews) -> Tally:
    tally: Tally = Counter()
    with Producer(broker.bootstrap) as producer:
        producer.partitions(topic)
        for block in events.blocks():
            count_views(tally, block)
            rows: dict[int, list[Any]] = {}
            for event in block:
                rows.setdefault(partition_for(event[0], partitions), []).append(event)
            for partition, batch in rows.items():
                producer.send(topic, partition, encode_plain(batch))
        producer.flush()
    return tally


def test_the_schema_and_the_values_are_those_of_sparks_own_source(
    spark: Any, kafka44: DevBroker, topic: MakeTopic
) -> None:
    name = topic(kafka44)
    records = [
        Record(b"v", b"k", 1_700_000_000_123, [("h", b"1"), ("h", None)]),
        Record(None, None, 1_700_000_000_124),
    ]
    with Producer(kafka44.bootstrap) as producer:
        producer.produce(name, records, partition=0)
    frame = reader(spark, kafka44, name, includeHeaders="true").load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in frame.schema.fields)
    first, second = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition) == (b"k", b"v", name, 0)
    assert (first.offset, first.timestampType, second.offset) == (0, 0, 1)
    assert first.timestamp.timestamp() == pytest.approx(1_700_000_000.123)
    assert [(h.key, h.value) for h in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.key, second.value, second.headers) == (None, None, None)


def test_a_batch_read_between_offsets(spark: Any, kafka44: DevBroker, topic: MakeTopic) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, 4000)
    assert reader(spark, kafka44, name).load().count() == 4000
    frame = reader(
        spark,
        kafka44,
        name,
        columns="partition,offset",
        minPartitions="6",
        startingOffsets=f'{{"{name}": {{"0": 10, "1": -2, "2": 999, "3": -1}}}}',
        endingOffsets=f'{{"{name}": {{"0": 20, "1": 5, "2": -1, "3": -1}}}}',
    ).load()
    assert frame.columns == ["partition", "offset"]
    found = sorted((row.partition, row.offset) for row in frame.collect())
    assert found == [(0, n) for n in range(10, 20)] + [(1, n) for n in range(5)] + [(2, 999)]


def test_a_users_schema_chooses_columns_and_mistakes_are_named(
    spark: Any, kafka44: DevBroker, topic: MakeTopic
) -> None:
    name = topic(kafka44)
    produce(kafka44, name, 10, 1)
    assert reader(spark, kafka44, name).schema("offset BIGINT, key BINARY").load().columns == ["offset", "key"]
    with pytest.raises(Exception, match="the schema's column key string does not exist here"):
        reader(spark, kafka44, name).schema("key STRING").load().count()
    with pytest.raises(Exception, match="did you mean maxOffsetsPerTrigger"):
        reader(spark, kafka44, name, maxOffsetPerTrigger="1").load()
    with pytest.raises(Exception, match=r"kafka\.bootstrap\.servers is missing"):
        spark.read.format("managedkafka").option("subscribe", name).load()


def test_a_stream_is_a_member_whose_lag_goes_to_zero(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 1000)
    options = {"group__id": group, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    frame = reader(spark, kafka44, name, stream=True, **options).load()
    query = (
        frame.select("partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        until(lambda: committed(kafka44, name, group) == dict.fromkeys(range(4), 250), 60)
        members = kafka44.run_tool("kafka-consumer-groups", "--describe", "--members", "--group", group)
        assert "managedconsumer-spark-" in members
        progress = until(lambda: next((p for p in query.recentProgress if p["numInputRows"]), None))
        assert progress["sources"][0]["latestOffset"] is not None
        seen = until(lambda: (p := progress_of(query, kafka44.bootstrap)) and all(not e.lag for e in p.values()) and p)
        assert {tp.partition: (each.position, each.end) for tp, each in seen.items()} == dict.fromkeys(
            range(4), (250, 250)
        )
        assert all(each.lag_seconds == 0.0 and each.exact for each in seen.values())
        produce(kafka44, name, 200)
        until(lambda: committed(kafka44, name, group) == dict.fromkeys(range(4), 300), 60)
    finally:
        query.stop()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(p, o) for p in range(4) for o in range(300)]

    def left() -> bool:
        arguments = ("--describe", "--members", "--group", group)
        return "managedconsumer-spark-" not in kafka44.run_tool("kafka-consumer-groups", *arguments)

    # The session would last for 45 s; but Spark's SIGTERM makes the reader leave.
    until(left, 15)


def test_page_views_are_counted_exactly_through_stops_and_restarts(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = topic(kafka44, 4, {"retention.ms": -1})
    events = PageViews(40_000, users=500)
    tally = write_views(kafka44, name, 4, events)
    counts = PageViewCounts(
        tmp_path, kafka44.bootstrap, name, unique("group"), options={"maxOffsetsPerTrigger": "8000"}
    )
    query = counts.start(spark)
    until(lambda: sum(counts.claimed().values()) >= 8000, 90)
    query.stop()  # in the middle of whatever it was doing
    assert sum(counts.claimed().values()) < 40_000
    run_by_starts(lambda: counts.start(spark, available_now=True), lambda: sum(counts.claimed().values()) == 40_000)
    # Another query on the same directory, without this one's checkpoint, finds nothing left to do.
    other = PageViewCounts(tmp_path, kafka44.bootstrap, name, counts.group_id, name="other")
    assert other.start(spark, available_now=True).awaitTermination(90)
    rows = spark.read.parquet(str(counts.write_totals(spark))).collect()
    found = {(row.user.encode(), int(row.start.timestamp() * 1000)): row.views for row in rows}
    assert found == dict(tally)
    assert all((row.end - row.start).total_seconds() == 300 for row in rows)


def test_a_session_that_is_made_again_registers_nothing_again(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark warns of a source that replaces another one."""
    monkeypatch.setattr(type(spark.dataSource), "register", lambda *_: pytest.fail("Spark would warn"))
    assert make_session("again") is spark


@pytest.mark.skipif(os.name != "posix" or pyspark.__version__.startswith("4.0."), reason="no Unix domain sockets")
def test_workers_are_spoken_to_over_unix_sockets(spark: Any) -> None:
    """Over TCP each task would wait 40 ms for its input."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")).collect()
    assert str(found[0]).lower() == "true"
    assert list(Path(spark.conf.get("spark.python.unix.domain.socket.dir")).glob(".*.sock"))


def test_two_executors_in_processes_of_their_own(kafka44: DevBroker, topic: MakeTopic, tmp_path: Path) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, 20_000)
    script = (
        "import sys\n"
        "from pyspark.sql import functions as F\n"
        "from managedconsumer.spark import make_session\n"
        "spark = make_session('cluster', 'local-cluster[2,1,1024]', driver_memory='512m', log_file=sys.argv[3],\n"
        "    quick_start=True, conf={'spark.executor.memory': '512m', 'spark.testing.memory': '536870912'})\n"
        "views = (spark.readStream.format('managedkafka').option('kafka.bootstrap.servers', sys.argv[1])\n"
        "    .option('subscribe', sys.argv[2]).option('startingOffsets', 'earliest').option('group.id', sys.argv[2])\n"
        "    .load().select('partition', 'offset'))\n"
        "query = (views.writeStream.format('parquet').option('path', sys.argv[4] + '/out')\n"
        "    .option('checkpointLocation', sys.argv[4] + '/checkpoint').trigger(availableNow=True).start())\n"
        "query.awaitTermination(240)\n"
        "frame = spark.read.parquet(sys.argv[4] + '/out')\n"
        "print('RESULT', frame.count(), frame.distinct().count())\n"
        "print('SOCKETS', spark.conf.get('spark.python.unix.domain.socket.dir', ''))\n"
        "spark.stop()\n"
    )
    log = tmp_path / "spark.log"
    here = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script, kafka44.bootstrap, name, str(log), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": here},
        check=False,
    )
    assert "RESULT 20000 20000" in done.stdout, done.stdout + done.stderr + log.read_text()[-3000:]
    sockets = done.stdout.rpartition("SOCKETS")[2].strip()
    assert not sockets or not Path(sockets).exists(), "what Spark leaves behind is removed"
