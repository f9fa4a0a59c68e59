"""Two sources of one application that read one topic in one group: an error, unless it is meant so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.testing import DevBroker, MemoryBroker
from tests.spark.conftest import produce
from tests.spark.queries import Query
from tests.spark.test_spark_groups import read_now, stream

MakeQuery = Callable[..., Query]


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeQuery]:
    """Readers that take each other for those of one Spark application."""
    monkeypatch.setattr("managedconsumer.spark.alone.place", lambda: tmp_path)
    monkeypatch.setattr("managedconsumer.spark.alone._PATIENCE", 0.2)
    made: list[Query] = []
    with MemoryBroker({"views": 2, "clicks": 2}) as broker:
        for topic in ("views", "clicks"):
            for partition in (0, 1):
                broker.produce(topic, [b"x"] * 5, partition=partition)

        def make(topic: str = "views", group: str = "g", start: Any = None, **options: str) -> Query:
            made.append(Query(broker.bootstrap, topic, start=start, group__id=group, **options))
            return made[-1]

        yield make
        for each in made:
            each.stop()
    close_shared_clusters()


def test_the_second_source_of_a_topic_is_refused_before_anybody_has_joined(query: MakeQuery) -> None:
    first, second = query(), query()
    first.start = first.reader.initialOffset()
    with pytest.raises(ConfigurationError, match=r"only a part of it .* group\.id of its own"):
        second.reader.initialOffset()
    assert len(first.batch()) == 10, "the first one reads all of it"


def test_a_source_with_a_checkpoint_is_refused_too(query: MakeQuery) -> None:
    before = query()
    before.batch()
    before.stop()
    query().batch()
    with pytest.raises(ConfigurationError, match="only a part of it"):
        query(start=before.start).batch()


def test_who_may_read_beside(query: MakeQuery) -> None:
    query().batch()
    for allowed in ({"topic": "clicks"}, {"group": "h"}, {"group__mode": "member"}, {"group__mode": "progress"}):
        query(**allowed).plan()
    with pytest.raises(ConfigurationError, match="the topic 'views'"):
        query(topic="", subscribePattern="v.*").plan()


def test_a_query_that_has_stopped_makes_room(query: MakeQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    first = query()
    first.batch()
    first.stop()
    assert len(query(group="g", startingOffsets="earliest").batch()) == 10


@pytest.mark.spark
def test_a_union_of_two_loads_is_refused_and_one_load_twice_is_not(
    spark: Any, kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 400)
    one, other = (stream(spark, kafka44, name, group__id=group) for _ in range(2))
    query = one.union(other).writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"only a part of it .* a group\.id of its own"):
        query.awaitTermination(90)
    read_now(one.union(one), tmp_path / "twice", tmp_path / "checkpoint")
    assert spark.read.parquet(str(tmp_path / "twice")).count() == 800
    apart = stream(spark, kafka44, name, group__id=f"{group}-2")
    read_now(one.union(apart), tmp_path / "apart", tmp_path / "other-checkpoint")
    found = spark.read.parquet(str(tmp_path / "apart")).count()
    assert found == 800, "the first group's commits are history for a new checkpoint with startingOffsets=earliest"
