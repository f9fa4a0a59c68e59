"""How far a query is, from Spark's reports; no Spark is needed to read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer import TopicPartition
from managedconsumer.spark.ranges import OffsetRange, StreamOffset
from managedconsumer.spark.reports import progress_of
from managedconsumer.testing import MemoryBroker

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 2}) as made:
        made.produce("orders", [b"x"] * 10, partition=0)
        yield made


def report(second: int, read: dict[TopicPartition, tuple[int, int]], ends: dict[str, int]) -> dict[str, Any]:
    end = StreamOffset({tp: OffsetRange(*each) for tp, each in read.items()}).to_json()
    return {
        "timestamp": f"2026-01-01T00:00:{second:02}.000Z",
        "sources": [
            {
                "description": "PythonMicroBatchStreamWithAdmissionControl",
                "endOffset": json.dumps(end),
                "latestOffset": json.dumps({"orders": ends}),
            },
            {"description": "RateStreamV2[rowsPerSecond=1]", "endOffset": "12", "latestOffset": "12"},
        ],
    }


def query(*reports: dict[str, Any]) -> Any:
    return SimpleNamespace(recentProgress=list(reports))


def test_nothing_before_the_first_report() -> None:
    assert progress_of(query()) == {}


def test_a_partition_of_which_the_last_batch_had_nothing_is_where_it_was() -> None:
    found = progress_of(
        query(
            report(0, {P0: (0, 4), P1: (0, 2)}, {"0": 10, "1": 2}),
            report(10, {P0: (4, 8)}, {"0": 10, "1": 2}),
        )
    )
    assert [(tp, each.position, each.end, each.lag) for tp, each in found.items()] == [(P0, 8, 10, 2), (P1, 2, 2, 0)]
    assert (found[P0].rate, found[P0].drain_seconds, found[P0].stuck_for) == (0.4, 5.0, 0.0)
    assert (found[P0].lag_seconds, found[P0].exact) == (None, False)
    assert (found[P1].lag_seconds, found[P1].exact, found[P1].stuck_for) == (0.0, True, 0.0)


def test_a_partition_that_stands_still() -> None:
    reports = [report(second, {P0: (0, 4)}, {"0": 10}) for second in (0, 10, 30)]
    assert progress_of(query(*reports))[P0].stuck_for == 30.0


def test_seconds_where_the_brokers_may_be_asked(broker: MemoryBroker) -> None:
    found = progress_of(query(report(0, {P0: (0, 4)}, {"0": 10})), broker.bootstrap)[P0]
    assert found.exact
    assert found.lag_seconds is not None
    assert 0.0 <= found.lag_seconds < 600
    assert found.oldest_unfinished is not None


def test_sparks_own_source() -> None:
    source = {
        "description": "KafkaV2[Subscribe[orders]]",
        "endOffset": '{"orders": {"0": 4}}',
        "latestOffset": '{"orders": {"0": 9}}',
    }
    found = progress_of(query({"timestamp": "2026-01-01T00:00:00.000Z", "sources": [source]}))
    assert found[P0].lag == 5


def test_reports_of_pyspark_4_1() -> None:
    """It writes offsets as Python does, and has the offset of the batch in place of the logs' ends."""
    told = report(0, {P0: (0, 4), P1: (0, 2)}, {})
    end = {**json.loads(told["sources"][0]["endOffset"]), "logs": {"orders": {"0": 10, "1": 2}}, "initial": False}
    for name in ("endOffset", "latestOffset"):
        told["sources"][0][name] = str(end)
    found = progress_of(query(told))
    assert [(tp, each.position, each.end, each.lag) for tp, each in found.items()] == [(P0, 4, 10, 6), (P1, 2, 2, 0)]
