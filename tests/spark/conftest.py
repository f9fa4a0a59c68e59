"""What the Spark tests share: queries that are stopped, messages, committed offsets, and one SparkSession."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.topics import TopicView
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.spark.queries import ADMISSION, Query


def produce(broker: DevBroker, topic: str, count: int, partitions: int = 4) -> None:
    """``count`` messages, spread evenly over the partitions."""
    with Producer(broker.bootstrap) as producer:
        for partition in range(partitions):
            size = count // partitions + (partition < count % partitions)
            producer.produce(topic, [Record(b"v", b"k", 1000)] * size, partition=partition)


def committed(broker: DevBroker, topic: str, group: str) -> dict[int, int]:
    """What the group has committed."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "group.id": group}
    view = TopicView(SourceOptions.parse(options, streaming=True))
    try:
        return {tp.partition: offset for tp, offset in view.committed(view.partitions(), 20.0).items()}
    finally:
        view.close()


def run_to_end(writer: Any) -> None:
    """Run a query until it has read everything, also where Trigger.AvailableNow is one batch."""
    if ADMISSION:
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(90)
    else:
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    assert query.exception() is None


def run_by_starts(start: Callable[[], Any], done: Callable[[], bool]) -> None:
    """Start a query with Trigger.AvailableNow once; where that is one batch, as often as needed.

    See docs/howto/spark_clusters.rst, "Versions of PySpark".
    """
    for _ in range(1 if ADMISSION else 12):
        query = start()
        assert query.awaitTermination(90)
        assert query.exception() is None
        if done():
            return
    raise AssertionError("not done")


@pytest.fixture
def patient_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started may take long to let a member in, on a machine that is busy."""
    monkeypatch.setattr("managedconsumer.spark.driver._FIRST_JOIN", 40.0)


@pytest.fixture
def query(patient_first_call: None) -> Iterator[Callable[..., Query]]:
    """``query(broker, topic, group__id=..., ...)``; stopped after the test."""
    made: list[Query] = []

    def make(broker: DevBroker, topic: str, listener: Any = None, start: Any = None, **options: str) -> Query:
        made.append(Query(broker.bootstrap, topic, listener, start, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    close_shared_clusters()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One SparkSession, local[2], for all tests of the run."""
    from managedconsumer.spark import make_session

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    home: Path = tmp_path_factory.mktemp("warehouse")
    session = make_session(
        "tests", log_file=log, driver_memory="768m", quick_start=True, conf={"spark.sql.warehouse.dir": home.as_uri()}
    )
    yield session
    session.stop()
