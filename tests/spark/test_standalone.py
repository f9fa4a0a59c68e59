"""A standalone cluster: a master, two workers, ``spark-submit``, and this package shipped with the application."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import managedconsumer
from managedconsumer.testing import DevBroker
from managedconsumer.wire.records import RecordChunk
from tests.spark.conftest import committed, produce
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # two minutes each: run by hand

_APP = """
import sys
from pyspark.sql import SparkSession
from managedconsumer.spark import ManagedKafkaSource

bootstrap, topic, home, *archive = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
if archive:  # before the registration, and before functions of the user are made
    spark.sparkContext.addArchive(archive[0] + "#shipped")
    spark.sparkContext.environment["PYTHONPATH"] = "./shipped"
spark.dataSource.register(ManagedKafkaSource)

def where(_):
    import managedconsumer, os, socket, time
    from managedconsumer.wire.records import RecordChunk
    time.sleep(1)  # so that both workers get one
    return [(os.path.abspath(managedconsumer.__file__), os.getcwd(), RecordChunk.__module__)]

found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(where).collect()
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
read = spark.read.format("managedkafka").options(**options).load()
print("BATCH", read.count(), read.select("partition", "offset").distinct().count())
stream = spark.readStream.format("managedkafka").options(**options).option("group.id", topic).load()
query = (stream.select("partition", "offset").writeStream.format("parquet").option("path", home + "/out")
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
    """``spark://host:port`` of a master with two workers of one core each."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(SPARK_HOME=str(home), SPARK_WORKER_DIR=str(tmp_path / "work"), SPARK_DAEMON_MEMORY="256m")
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}-{len(started)}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *arguments]
        with log.open("wb") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment))
        return log

    try:
        log = start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        found = until(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), 180, "a master")
        for _ in range(2):
            worker = ("--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--webui-port", "0", found[0])
            log_of_worker = start("Worker", *worker)
            until(lambda: "Successfully registered" in log_of_worker.read_text(), 180, "a worker")  # noqa: B023
        yield found[0]
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


#: The options of ``spark-submit``; these ways are in docs/howto/spark_clusters.rst. ``program``: it ships the archive.
_WAYS = {
    "archives": ("--archives", "{archive}#shipped", "--conf", "spark.executorEnv.PYTHONPATH=./shipped"),
    "program": (),
    "py-files": ("--py-files", "{archive}"),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", _WAYS)
def test_executors_read_with_the_package_that_was_shipped(
    way: str, cluster: str, kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, 20_000)
    package = Path(managedconsumer.__file__).parent
    shipped = tmp_path / "shipped"
    shutil.copytree(package, shipped / "managedconsumer", ignore=shutil.ignore_patterns("__pycache__", "*.c"))
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", shipped)
    app = tmp_path / "app.py"
    app.write_text(_APP)
    import pyspark

    submit = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", cluster, "--driver-memory", "512m", "--executor-memory", "512m"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.testing.memory=536870912"),
        *("--conf", "spark.ui.enabled=false", *(each.format(archive=archive) for each in _WAYS[way])),
        *(str(app), kafka44.bootstrap, name, str(tmp_path), *([archive] if way == "program" else [])),
    ]
    # The driver's own: "spark-submit" puts --py-files there.
    path = "" if way == "py-files" else str(shipped)
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        submit, capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path, check=False
    )
    said = done.stdout.splitlines()
    assert "BATCH 20000 20000" in said, done.stdout + done.stderr[-4000:]
    assert "STREAM 20000 20000" in said
    implementation = "managedconsumer.wire.records._records_py" if way == "py-files" else RecordChunk.__module__
    shipped_rows = [line for line in said if line.startswith("SHIPPED")]
    assert shipped_rows == [f"SHIPPED True {implementation}"] * 2, "both workers read with what was shipped"
    assert "WORKERS 2" in said
    assert committed(kafka44, name, name) == dict.fromkeys(range(4), 5000)
