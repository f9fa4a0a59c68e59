"""Groups and checkpoints in PySpark: two sources, a checkpoint that is put back, a lost member, a topic made anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import DevBroker
from tests.broker.groupkit import evict
from tests.spark.conftest import committed, produce, run_to_end
from tests.waiting import until

pytestmark = pytest.mark.spark
MakeTopic = Callable[..., str]


def stream(spark: Any, broker: DevBroker, topic: str, **options: str) -> Any:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return (
        spark.readStream.format("managedkafka")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .options(**{"startingOffsets": "earliest", "columns": "partition,offset", **named})
        .load()
    )


def read_now(frame: Any, out: Path, checkpoint: Path) -> None:
    """Everything that is there, into ``out``."""
    writer = frame.writeStream.format("parquet").option("path", str(out))
    run_to_end(writer.option("checkpointLocation", str(checkpoint)))


def rows(spark: Any, out: Path) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in spark.read.parquet(str(out)).collect())


def everything(offsets: range, partitions: int = 4) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in offsets]


def test_a_join_of_two_topics_with_one_options_dict(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    names, group = [topic(kafka44, 2), topic(kafka44, 2)], unique("group")
    for name in names:
        produce(kafka44, name, 200, 2)
    options = {"group__id": group}
    left, right = (stream(spark, kafka44, name, **options) for name in names)
    joined = left.join(right, ["partition", "offset"])
    writer = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def done() -> bool:
        assert query.exception() is None
        return sum(progress["numInputRows"] for progress in query.recentProgress) >= 400

    try:
        until(done, 60)
        until(lambda: rows(spark, tmp_path / "out") == everything(range(100), 2), 60)
        for name in names:
            until(lambda name=name: committed(kafka44, name, group) == {0: 100, 1: 100}, 30)
    finally:
        query.stop()


def test_a_checkpoint_that_is_put_back_reads_every_row_again(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    frame = stream(spark, kafka44, name, group__id=group)
    out, checkpoint, kept = tmp_path / "out", tmp_path / "checkpoint", tmp_path / "kept"
    produce(kafka44, name, 40)
    read_now(frame, out, checkpoint)
    for each in (out, checkpoint):
        shutil.copytree(each, kept / each.name)
    produce(kafka44, name, 400)
    read_now(frame, out, checkpoint)
    assert rows(spark, out) == everything(range(110))
    assert committed(kafka44, name, group) == dict.fromkeys(range(4), 110)
    for each in (out, checkpoint):
        shutil.rmtree(each)
        shutil.copytree(kept / each.name, each)
    assert rows(spark, out) == everything(range(10)), "sink and checkpoint as they were"
    read_now(frame, out, checkpoint)
    assert rows(spark, out) == everything(range(110)), "every row again, and none twice"
    # A checkpoint of its own begins where the user says, whatever the group has.
    here = f'{{"{name}": {{"0": 100, "1": -1, "2": 109, "3": -1}}}}'
    read_now(stream(spark, kafka44, name, group__id=group, startingOffsets=here), tmp_path / "told", tmp_path / "fresh")
    assert rows(spark, tmp_path / "told") == [*((0, offset) for offset in range(100, 110)), (2, 109)]


def test_the_batch_of_a_lost_member_is_not_written(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group = topic(kafka44, 2), unique("group")
    produce(kafka44, name, 100, 2)
    written: list[int] = []

    def write(batch: Any, _number: int) -> None:
        described = kafka44.run_tool("kafka-consumer-groups", "--describe", "--members", "--group", group)
        # The id begins with the name of the static member, which stands beside it.
        member = max((word for word in described.split() if word.startswith("managedconsumer-spark-")), key=len)
        evict(kafka44, group, member)  # as if the batch had taken too long
        written.append(batch.count())

    query = (
        stream(spark, kafka44, name, group__id=group)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    until(lambda: not query.isActive, 60)
    assert "this batch is not written" in str(query.exception())
    assert written == []


def test_a_topic_made_anew_with_more_records_is_noticed_while_the_query_runs(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(kafka44, 1)
    produce(kafka44, name, 100, 1)
    query = (
        stream(spark, kafka44, name, kafka__metadata__max__age__ms="200")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        until(lambda: sum(progress["numInputRows"] for progress in query.recentProgress) == 100, 60)
        kafka44.delete_topic(name)
        kafka44.create_topic(name, 1)
        produce(kafka44, name, 300, 1)
        until(lambda: not query.isActive, 60)
    finally:
        query.stop()
    assert "was deleted and made anew" in str(query.exception())
