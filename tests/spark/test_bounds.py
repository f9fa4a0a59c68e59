"""Where a batch read begins and ends, in the reader that Spark calls: nothing is left out in silence."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.spark import topics
from managedconsumer.spark.source import ManagedKafkaReader, ManagedKafkaSource
from managedconsumer.testing import MemoryBroker
from tests.spark.queries import Query

TOPIC = "views"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    monkeypatch.setattr("managedconsumer.spark.watch._LOOK_PAUSE", 0.001)
    with MemoryBroker({TOPIC: 2}) as made:
        for partition in (0, 1):
            made.produce(TOPIC, [b"x"] * 10, partition=partition)
        yield made
    close_shared_clusters()


def options_of(broker: MemoryBroker, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC, **options}


def read(broker: MemoryBroker, **options: str) -> list[tuple[int, int]]:
    reader = ManagedKafkaReader(options_of(broker, **options))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(row for b in batches for row in zip(b["partition"].to_pylist(), b["offset"].to_pylist(), strict=True))


def at(first: int, second: int) -> str:
    return json.dumps({TOPIC: {"0": first, "1": second}})


def test_a_start_that_the_log_does_not_reach_is_a_loss(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(err.OffsetOutOfRangeError, match=r"views-0 ends at offset 10, .* begin at 50.*failOnDataLoss"):
        read(broker, startingOffsets=at(50, 8))
    assert read(broker, startingOffsets=at(50, 8), failOnDataLoss="false") == [(1, 8), (1, 9)]
    assert "views-0 ends at offset 10" in caplog.text
    assert read(broker, startingOffsets=at(10, 9)) == [(1, 9)], "the end itself is there"


def test_a_start_behind_the_end_is_a_mistake(broker: MemoryBroker) -> None:
    for lenient in ("true", "false"):
        with pytest.raises(err.ConfigurationError, match="begin behind its end: views-1 from offset 8 to 5"):
            read(broker, startingOffsets=at(0, 8), endingOffsets=at(5, 5), failOnDataLoss=lenient)
    assert read(broker, startingOffsets=at(5, 4), endingOffsets=at(5, 5)) == [(1, 4)]


def test_a_start_that_is_behind_the_end_by_time_is_a_mistake(broker: MemoryBroker) -> None:
    broker.produce(TOPIC, [b"x"], partition=0, timestamp=1000)
    broker.produce(TOPIC, [b"x"], partition=0, timestamp=2000)
    assign = {"subscribe": "", "assign": json.dumps({TOPIC: [0]})}
    times: dict[str, Any] = {"startingTimestamp": "4000000000000", "endingTimestamp": "1"}
    with pytest.raises(err.ConfigurationError, match="begin behind its end"):
        read(broker, startingOffsetsByTimestampStrategy="latest", **times, **assign)


def test_an_end_whose_records_are_deleted_is_a_loss(broker: MemoryBroker) -> None:
    broker.delete_records(TOPIC, 0, 7)
    with pytest.raises(err.OffsetOutOfRangeError, match=r"views-0 begins at offset 7, .* to end at 5"):
        read(broker, startingOffsets="earliest", endingOffsets=at(5, 1))
    assert read(broker, startingOffsets="earliest", endingOffsets=at(5, 1), failOnDataLoss="false") == [(1, 0)]
    assert read(broker, startingOffsets=at(2, 0), endingOffsets=at(5, 1), failOnDataLoss="false") == [(1, 0)]


def test_a_group_that_is_further_than_the_end_has_nothing_left(broker: MemoryBroker) -> None:
    query = Query(broker.bootstrap, TOPIC, group__id="g")
    query.batch()
    query.batch()
    query.stop()
    assert set(broker.committed("g").values()) == {10}
    assert read(broker, startingOffsets="committed", endingOffsets=at(5, 2), **{"group.id": "g"}) == []


def test_an_open_transaction_is_no_loss(broker: MemoryBroker) -> None:
    broker.transaction().produce(TOPIC, [b"x"] * 5, partition=0)
    options = {"kafka.isolation.level": "read_committed"}
    assert read(broker, startingOffsets=at(13, 9), **options) == [(1, 9)]
    with pytest.raises(err.OffsetOutOfRangeError, match="views-0 ends at offset 15"):
        read(broker, startingOffsets=at(16, 9), **options)


@pytest.mark.parametrize("word", ["earliest", "begin"])
def test_a_wrong_end_of_a_batch_is_not_told_as_that_of_a_stream(broker: MemoryBroker, word: str) -> None:
    """Spark asks for the schema first, and nobody knows by then whether it is a stream."""
    with pytest.raises(err.ConfigurationError, match=f"endingOffsets must be latest or JSON as in .*, not '{word}'"):
        ManagedKafkaSource(options_of(broker, endingOffsets=word)).schema()


def test_an_unknown_topic_fails_soon(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert topics._NEW_TOPIC_PATIENCE <= 3.0
    monkeypatch.setattr(topics, "_NEW_TOPIC_PATIENCE", 0.3)
    began = time.monotonic()
    with pytest.raises(err.UnknownTopicOrPartition, match="there is no topic 'nobody-made-this'"):
        read(broker, subscribe="nobody-made-this")
    assert time.monotonic() - began < 10
