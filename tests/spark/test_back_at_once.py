"""A driver is killed with all of its processes, and another one goes on with its checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import DevBroker
from tests.spark.conftest import committed, produce
from tests.spark.test_spark_groups import everything, read_now, rows, stream
from tests.spark.trees import kill_family
from tests.waiting import until

pytestmark = pytest.mark.spark
MakeTopic = Callable[..., str]

# The options that a user gives, and no more: the session lasts for 45 s.
_DRIVER = """
import sys
from managedconsumer.spark import make_session
bootstrap, topic, group, home = sys.argv[1:]
spark = make_session("killed", log_file=home + "/killed.log", driver_memory="512m", quick_start=True)
frame = (spark.readStream.format("managedkafka").option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic).option("group.id", group).option("startingOffsets", "earliest")
    .option("columns", "partition,offset").load())
query = (frame.writeStream.format("parquet").option("path", home + "/out")
    .option("checkpointLocation", home + "/checkpoint").start())
query.awaitTermination()
"""


@pytest.mark.busy
def test_the_successor_of_a_killed_driver_reads_within_eight_seconds(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group, warm = topic(kafka44, 4), unique("group"), topic(kafka44, 1)
    produce(kafka44, name, 400)
    produce(kafka44, warm, 10, 1)
    here = str(Path(__file__).parents[2])
    arguments = [kafka44.bootstrap, name, group, str(tmp_path)]
    killed = subprocess.Popen([sys.executable, "-c", _DRIVER, *arguments], env={**os.environ, "PYTHONPATH": here})
    try:
        # A session that runs: its JVM has loaded what a query needs.
        read_now(
            stream(spark, kafka44, warm, group__id=unique("warm")), tmp_path / "warm", tmp_path / "warm-checkpoint"
        )
        until(lambda: committed(kafka44, name, group) == dict.fromkeys(range(4), 100), 120, "the first driver reads")
    finally:
        kill_family(killed.pid)
        killed.wait()
    produce(kafka44, name, 400)
    members = kafka44.run_tool("kafka-consumer-groups", "--describe", "--members", "--group", group)
    assert members.count("managedconsumer-spark-") >= 1, "the group counts the dead one as a member still"
    frame = stream(spark, kafka44, name, group__id=group)
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    began = time.monotonic()
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:

        def has_read() -> bool:
            assert query.exception() is None
            return any(progress["numInputRows"] for progress in query.recentProgress)

        until(has_read, 8, "the first rows of the successor")
        print(f"first rows after {time.monotonic() - began:.1f} s")
        until(lambda: committed(kafka44, name, group) == dict.fromkeys(range(4), 200), 60)
    finally:
        query.stop()
    assert rows(spark, tmp_path / "out") == everything(range(200)), "nothing is lost, nothing is there twice"
