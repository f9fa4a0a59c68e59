"""Executors that are processes of their own, with this package in ``--py-files``: they die and leave, no row does."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.spark.conftest import committed, produce
from tests.spark.submitting import package, submit
from tests.spark.trees import family, kill_family
from tests.waiting import until

pytestmark = pytest.mark.spark

_ROWS, _BATCH = 4000, 400
_EXECUTOR = "CoarseGrainedExecutorBackend"

# Two batches wait in a task for a file each: so something happens to an executor while a task of it runs.
_APP = """
import json, sys
from pathlib import Path
import managedconsumer
from pyspark.sql import SparkSession, functions as F
from managedconsumer.spark import ManagedKafkaSource

bootstrap, topic, home = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(ManagedKafkaSource)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest", "group.id": topic,
           "maxOffsetsPerTrigger": "BATCH"}
stream = spark.readStream.format("managedkafka").options(**options).load()

@F.udf("string")
def slowly(offset):
    import managedconsumer, time
    from managedconsumer.wire.records import RecordChunk
    for first, event in (200, "killed"), (600, "decommissioned"):
        if offset % 100 == 99 and offset > first:
            Path(home, "before-" + event).touch()
            while not Path(home, event).exists():
                time.sleep(0.05)
    return f"{managedconsumer.__file__} {RecordChunk.__module__}"

query = (stream.select("partition", "offset", slowly("offset").alias("by")).writeStream.format("parquet")
    .option("path", home + "/out").option("checkpointLocation", home + "/checkpoint").start())
while query.isActive and sum(each["numInputRows"] for each in query.recentProgress) < ROWS:
    query.awaitTermination(1)
query.processAllAvailable()
rows = [tuple(row) for row in spark.read.parquet(home + "/out").collect()]
Path(home, "rows").write_text(json.dumps(rows))
spark.stop()
"""
_CONF = {"spark.decommission.enabled": "true", "spark.log.level": "INFO"}


@pytest.mark.timeout(300)
def test_executors_are_killed_and_decommissioned_and_no_row_is_missing_or_twice(
    kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, _ROWS)
    code = _APP.replace("BATCH", str(_BATCH)).replace("ROWS", str(_ROWS))
    arguments = (kafka44.bootstrap, name, str(tmp_path))
    files = ("--py-files", str(package(tmp_path)))
    app, log = submit("local-cluster[2,1,1024]", code, arguments, tmp_path, _CONF, *files)
    try:

        def happens(event: str, how: signal.Signals, said: str) -> None:
            """Send an executor a signal while a task is in the middle of a batch; go on when Spark has seen it."""

            def at_work() -> bool:
                assert app.poll() is None, log.read_text()[-3000:]
                return (tmp_path / f"before-{event}").exists()

            until(at_work, 200, f"a task waits to be {event}")
            executors = until(lambda: len(found := _executors(app.pid)) == 2 and found, 60, "two executors")
            os.kill(executors[-1], how)
            until(lambda: said in log.read_text(), 60, said)
            (tmp_path / event).touch()

        happens("killed", signal.SIGKILL, "Lost executor")
        happens("decommissioned", signal.SIGPWR, "Decommission")
        assert app.wait(200) == 0, log.read_text()[-3000:]
    finally:
        kill_family(app.pid)
        app.wait()
    rows = [*map(tuple, json.loads((tmp_path / "rows").read_text()))]
    assert Counter(row[:2] for row in rows) == Counter((p, at) for p in range(4) for at in range(_ROWS // 4))
    assert sum(committed(kafka44, name, name).values()) <= _ROWS
    assert all("package.zip/managedconsumer" in by and by.endswith("._records_py") for _, _, by in rows), rows[0]


def _executors(app: int) -> list[int]:
    return [pid for pid, command in family(app).items() if _EXECUTOR in command]
