"""In PySpark: typed values, rows and claims in one transaction, lag, a checkpoint of Spark's own source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from managedconsumer.spark import LagListener, SqlClaims, group_claims
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.spark.conftest import run_to_end
from tests.spark.test_spark import reader
from tests.waiting import until

pytestmark = pytest.mark.spark
MakeTopic = Callable[..., str]

SCHEMA = {"type": "object", "properties": {"page": {"type": "string"}, "ms": {"type": "integer"}}}


def write_json(broker: DevBroker, topic: str, count: int) -> None:
    """``count`` views in each of two partitions, every tenth of them broken."""
    with Producer(broker.bootstrap) as producer:
        for partition in (0, 1):
            values = [b'{"page": "/%d", "ms": %d}' % (n, n) if n % 10 else b"{broken" for n in range(count)]
            producer.produce(topic, [Record(value, b"k", 1000) for value in values], partition=partition)


def sql(log: SqlClaims, query: str) -> list[Any]:
    with log.transaction() as connection:
        return list(connection.execute(query))


def test_typed_rows_are_in_the_database_once(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group, listener = topic(kafka44, 2), unique("group"), LagListener()
    write_json(kafka44, name, 100)
    place = f"sqlite:///{tmp_path}/views.db"
    log = SqlClaims(place)
    with log.transaction() as connection:
        connection.execute("CREATE TABLE views (topic TEXT, page TEXT, ms INTEGER, error TEXT)")

    def write(connection: Any, frame: Any) -> None:
        rows = frame.select("topic", "value.page", "value.ms", "_errors.error").collect()
        connection.executemany("INSERT INTO views VALUES (?, ?, ?, ?)", [tuple(row) for row in rows])

    options = {
        "startingOffsets": "earliest",
        "group__id": group,
        "store": place,
        "value__format": "json",
        "value__schema": json.dumps(SCHEMA),
        "columns": "topic,partition,offset,value,range,_errors",
        "maxOffsetsPerTrigger": "120",
    }
    frame = reader(spark, kafka44, name, stream=True, **options).load()
    assert frame.select("value.*", "range.*").columns == ["page", "ms", "data", "start", "stop"]
    # The checkpoint of Spark's own source, as it leaves it after one batch.
    checkpoint = tmp_path / "checkpoint"
    begun = json.dumps({name: {"0": 40, "1": 0}})
    for log_name, text in {"offsets": f'v1\n{{"batchWatermarkMs":0}}\n{begun}', "commits": "v1\n{}"}.items():
        (checkpoint / log_name).mkdir(parents=True)
        (checkpoint / log_name / "0").write_text(text)
    (checkpoint / "metadata").write_text(json.dumps({"id": "4f0e3b1c-3b0e-4a3c-9d39-0d6c61f0a3b1"}))
    spark.streams.addListener(listener)
    query = (
        frame.writeStream.foreachBatch(log.foreach_batch(write)).option("checkpointLocation", str(checkpoint)).start()
    )
    try:
        ends = {TopicPartition(name, partition): 100 for partition in (0, 1)}
        until(lambda: query.exception() is not None or log.ends() == ends, 60)
        assert query.exception() is None
        (last,) = until(lambda: [lag for lag in listener.sources if sum(lag.messages.values()) == 0], 60)
        assert last.owned == sorted(ends)
        assert last.generation is not None
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    good = sorted(sql(log, "SELECT page, ms FROM views WHERE error IS NULL"))
    want = [n for first in (40, 0) for n in range(first, 100)]
    assert good == sorted((f"/{n}", n) for n in want if n % 10)
    assert sql(log, "SELECT COUNT(*) FROM views WHERE error IS NOT NULL") == [(len(want) - len(good),)]


class Interrupted(Exception):
    pass


def test_parquet_in_append_mode_counts_each_row_once_through_fourteen_interruptions(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Before a batch wrote, when it had written a part, when it had written all; the same batch several times."""
    name, group, out, claims = topic(kafka44, 2), unique("group"), str(tmp_path / "rows"), str(tmp_path / "claims")
    with Producer(kafka44.bootstrap) as producer:
        for partition in (0, 1):
            producer.produce(name, [Record(b"v", b"k", 1000)] * 900, partition=partition)
    harm = list("pwhwwphwwhpwww")

    def write(frame: Any, _batch: int) -> None:
        rows = frame.select("range.data", "partition", "offset")
        what = harm.pop(0) if harm else ""
        if what == "h":
            rows = rows.where("partition = 0")
        if what != "p":
            rows.write.mode("append").parquet(out)
        if what:
            raise Interrupted

    options = {"group__id": group, "claims": claims, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "600"}
    frame = reader(spark, kafka44, name, stream=True, columns="partition,offset,range", **options).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    failures = 0
    while True:
        try:
            run_to_end(writer)
            break
        except StreamingQueryException as error:
            assert "Interrupted" in str(error), error
            failures += 1
    assert failures == 14
    log = group_claims({"kafka.bootstrap.servers": kafka44.bootstrap, "subscribe": name, "group.id": group}, claims)
    winners = {(data, tp.partition) for data, ranges in log.winners().items() for tp in ranges}
    rows = spark.read.parquet(out).collect()
    counting = [(row.partition, row.offset) for row in rows if (row.data, row.partition) in winners]
    assert sorted(counting) == [(partition, offset) for partition in (0, 1) for offset in range(900)]
    assert len(rows) > len(counting), "the interrupted runs have left rows"
