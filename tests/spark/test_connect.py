"""Spark Connect: a client without a JVM of its own, and a server that the client starts (``remote("local[2]")``).

Its packages (grpcio, pandas and NumPy, 180 MB) are not in the tests' environment, as PySpark works otherwise where
pandas is. They are installed once, beside Kafka's jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.spark.conftest import committed, produce

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # it installs packages: run by hand

_PACKAGES = ("grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71", "pandas>=2.2", "zstandard>=0.25")
_APP = """
import sys, time
from importlib.util import find_spec
from pyspark.sql import SparkSession
from managedconsumer.errors import ConfigurationError
from managedconsumer.spark import LagListener, ManagedKafkaSource, SqlClaims, columns_used, progress_of

bootstrap, topic, home = sys.argv[1:]
conf = {"spark.driver.memory": "768m", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
builder = SparkSession.builder.remote("local[2]")
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print("SESSION", type(spark).__module__)
spark.dataSource.register(ManagedKafkaSource)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
options["columns"] = "partition,offset"
views = spark.read.format("managedkafka").options(**options).load()
print("BATCH", views.count(), views.distinct().count())
stream = spark.readStream.format("managedkafka").options(**options).option("group.id", topic)
stream = stream.option("maxOffsetsPerTrigger", "8000").load()

# Without admission control (PySpark 4.0 and 4.1) each start is one batch, and the next start commits it.
starts = 1 if find_spec("pyspark.sql.streaming.datasource") else 4

def run(writer, name):
    writer = writer.option("checkpointLocation", f"{home}/{name}-checkpoint").trigger(availableNow=True)
    read, totals, last = [], [], None
    for _ in range(starts):
        query = writer.start()
        query.awaitTermination(120)
        reports = query.recentProgress
        totals += [progress["numInputRows"] for progress in reports]
        found = [source["numInputRows"] for progress in reports for source in progress["sources"]]
        last = query if sum(found) else last
        read += found
    print("ROWS", name, sum(read), totals)
    return last

lags = []
spark.streams.addListener(LagListener(lags.append))
query = run(stream.writeStream.format("parquet").option("path", f"{home}/rows"), "rows")
found = spark.read.parquet(f"{home}/rows")
print("PROGRESS", {(each.position, each.lag) for each in progress_of(query, bootstrap).values()})
print("STREAM", found.count(), found.distinct().count())

def write(frame, number):
    frame.write.parquet(f"{home}/each/{number}")

other = spark.readStream.format("managedkafka").options(**options).load()
run(other.writeStream.foreachBatch(write), "each")
print("EACH", spark.read.option("recursiveFileLookup", "true").parquet(f"{home}/each").distinct().count())
place = f"sqlite:///{home}/rows.db"
log = SqlClaims(place)
with log.transaction() as connection:
    connection.execute("CREATE TABLE views (part INTEGER, at INTEGER)")

def insert(connection, frame):
    rows = [tuple(row) for row in frame.select("partition", "offset").collect()]
    connection.executemany("INSERT INTO views VALUES (?, ?)", rows)

options["columns"] = "topic,partition,offset,range"
claimed = spark.readStream.format("managedkafka").options(**options).option("store", place)
run(claimed.option("group.id", f"{topic}-sql").load().writeStream.foreachBatch(log.foreach_batch(insert)), "sql")
with log.transaction() as connection:
    (rows,) = connection.execute("SELECT COUNT(*) FROM (SELECT DISTINCT part, at FROM views)").fetchone()
    (all_rows,) = connection.execute("SELECT COUNT(*) FROM views").fetchone()
print("SQL", rows, all_rows)
print("CLAIMED", sum(log.ends().values()))
deadline = time.monotonic() + 30
while not any(sum(lag.messages.values()) == 0 for lag in lags) and time.monotonic() < deadline:
    time.sleep(0.1)
print("LAG", [sum(lag.messages.values()) for lag in lags])
try:
    columns_used(views)
except ConfigurationError as error:
    print("COLUMNS", error)
spark.stop()
"""


@pytest.fixture(scope="session")
def connect() -> Path:
    """A directory with the packages of Spark Connect for this Python."""
    cache = Path(os.environ.get("MANAGEDCONSUMER_CACHE", Path.home() / ".cache" / "managedconsumer"))
    home = cache / f"connect-{sys.implementation.cache_tag}"
    if not (home / "grpc").exists():
        draft = home.with_name(f"{home.name}-{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-warn-conflicts", "--target", str(draft)]
        subprocess.run([*pip, *_PACKAGES], check=True, timeout=600)
        draft.rename(home)
    return home


@pytest.mark.timeout(900)
def test_batches_and_streams_read_every_row(
    connect: Path, kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, 20_000)
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(connect)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _APP, kafka44.bootstrap, name, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        check=False,
    )
    said = done.stdout + done.stderr[-4000:]
    print(said)
    assert "SESSION pyspark.sql.connect" in said
    assert "BATCH 20000 20000" in said
    assert "STREAM 20000 20000" in said
    assert "ROWS rows 20000" in said
    assert "PROGRESS {(5000, 0)}" in said
    assert "LAG [12000, 4000, 0" in said
    assert "EACH 20000" in said
    assert "SQL 20000 20000" in said
    assert "CLAIMED 20000" in said
    assert "COLUMNS columns_used needs a DataFrame of a classic session" in said
    assert committed(kafka44, name, name) == dict.fromkeys(range(4), 5000)
