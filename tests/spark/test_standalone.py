"""A standalone cluster of two hosts, ``spark-submit``, this package shipped as an archive, and speculation."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.spark.conftest import committed, produce
from tests.spark.submitting import SPARK, package, submit
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # two minutes: run by hand

# The task that reads offset 0 of partition 0 waits for a copy of it: Spark has to think it slow, and run it twice.
_APP = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
from managedconsumer.spark import ManagedKafkaSource

bootstrap, topic, home = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(ManagedKafkaSource)

def where(_):
    import managedconsumer, os, socket, time
    from managedconsumer.wire.records import RecordChunk
    time.sleep(1)  # so that both workers get one
    return [(managedconsumer.__file__, os.getcwd(), RecordChunk.__module__)]

found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(where).collect()
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
read = spark.read.format("managedkafka").options(**options).load()
print("BATCH", read.select("partition", "offset").distinct().count())
stream = spark.readStream.format("managedkafka").options(**options).option("group.id", topic).load()

@F.udf("long")
def copied(partition, offset):
    import time
    from pyspark import TaskContext
    if (partition, offset) == (0, 0):
        Path(home, f"attempt-{TaskContext.get().attemptNumber()}").touch()
        while not Path(home, "attempt-1").exists():
            time.sleep(0.05)
    return offset

stream = stream.select("partition", copied("partition", "offset").alias("offset"))
query = (stream.writeStream.format("parquet").option("path", home + "/out")
    .option("checkpointLocation", home + "/checkpoint").trigger(availableNow=True).start())
query.awaitTermination(200)
rows = spark.read.parquet(home + "/out")
print("STREAM", rows.count(), rows.distinct().count())
for file, directory, module in found:
    print("SHIPPED", file.startswith(directory), module)
print("WORKERS", len({directory for _, directory, _ in found}))
spark.stop()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """``spark://host:port`` of a master with two workers of one core, on two hosts, as a copy goes to another one."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(SPARK_HOME=str(SPARK), SPARK_WORKER_DIR=str(tmp_path / "work"), SPARK_DAEMON_MEMORY="256m")
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}-{len(started)}.log"
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *arguments]
        with log.open("wb") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment))
        return log

    try:
        log = start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        found = until(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), 180, "a master")
        for host in ("127.0.0.1", "127.0.0.2"):
            worker = ("--host", host, "--cores", "1", "--memory", "700m", "--webui-port", "0", found[0])
            log_of_worker = start("Worker", *worker)
            until(lambda: "Successfully registered" in log_of_worker.read_text(), 180, "a worker")  # noqa: B023
        yield found[0]
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


@pytest.mark.timeout(900)
def test_a_standalone_cluster_gets_the_package_as_an_archive_and_runs_a_task_twice(
    cluster: str, kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, 20_000)
    conf = {
        "spark.executorEnv.PYTHONPATH": "./shipped",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    arguments = (kafka44.bootstrap, name, str(tmp_path))
    archive = ("--archives", f"{package(tmp_path)}#shipped")
    app, log = submit(cluster, _APP, arguments, tmp_path, conf, *archive, path=str(tmp_path / "shipped"))
    assert app.wait(600) == 0, log.read_text()[-4000:]
    said = log.read_text().splitlines()
    assert "BATCH 20000" in said
    assert "STREAM 20000 20000" in said
    assert (tmp_path / "attempt-1").exists(), "a task ran twice"
    shipped_rows = [line for line in said if line.startswith("SHIPPED")]
    assert shipped_rows == ["SHIPPED True managedconsumer.wire.records._records"] * 2, (
        "both workers read with the archive"
    )
    assert "WORKERS 2" in said
    assert committed(kafka44, name, name) == dict.fromkeys(range(4), 5000)
