"""Executors that are processes of their own: one is killed in the middle of a query, and each row is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.spark.conftest import committed, produce
from tests.spark.trees import family, kill_family
from tests.waiting import until

pytestmark = pytest.mark.spark

_ROWS, _BATCH = 4000, 400
_EXECUTOR = "CoarseGrainedExecutorBackend"

# Each batch waits in a task for a file: so an executor is killed while a task of it runs.
_APP = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
from managedconsumer.spark import ManagedKafkaSource

bootstrap, topic, home = sys.argv[1:]
conf = {"spark.executor.memory": "512m", "spark.testing.memory": "536870912", "spark.driver.memory": "512m",
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=conf).getOrCreate()
spark.dataSource.register(ManagedKafkaSource)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest", "group.id": topic,
           "maxOffsetsPerTrigger": "BATCH"}
stream = spark.readStream.format("managedkafka").options(**options).load()

@F.udf("long")
def slowly(offset):
    import time
    if offset % 100 == 99 and offset > 200:
        Path(home, "at-work").touch()
        while not Path(home, "killed").exists():
            time.sleep(0.05)
    return offset

query = (stream.select("partition", slowly("offset").alias("offset")).writeStream.format("parquet")
    .option("path", home + "/out").option("checkpointLocation", home + "/checkpoint").start())
while query.isActive and sum(each["numInputRows"] for each in query.recentProgress) < ROWS:
    query.awaitTermination(1)
query.processAllAvailable()
rows = [tuple(row) for row in spark.read.parquet(home + "/out").collect()]
Path(home, "rows").write_text(json.dumps(rows))
spark.stop()
"""


@pytest.mark.timeout(300)
def test_an_executor_is_killed_and_no_row_is_missing_or_twice(
    kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, _ROWS)
    here = str(Path(__file__).parents[2])
    code = _APP.replace("BATCH", str(_BATCH)).replace("ROWS", str(_ROWS))
    log = tmp_path / "log"
    with log.open("wb") as out:
        app = subprocess.Popen(
            [sys.executable, "-c", code, kafka44.bootstrap, name, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": here, "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path,
            stdout=out,
            stderr=out,
        )
    try:

        def at_work() -> bool:
            assert app.poll() is None, log.read_text()[-3000:]
            return (tmp_path / "at-work").exists()

        until(at_work, 200, "a task is in the middle of a batch")
        executors = [pid for pid, command in family(app.pid).items() if _EXECUTOR in command]
        assert len(executors) >= 2, "one of them goes on"
        os.kill(executors[-1], signal.SIGKILL)
        (tmp_path / "killed").touch()
        assert app.wait(200) == 0, log.read_text()[-3000:]
        assert "Lost executor" in log.read_text(), "Spark has seen it"
    finally:
        kill_family(app.pid)
        app.wait()
    rows = Counter(map(tuple, json.loads((tmp_path / "rows").read_text())))
    assert rows == Counter((partition, offset) for partition in range(4) for offset in range(_ROWS // 4))
    assert sum(committed(kafka44, name, name).values()) <= _ROWS
