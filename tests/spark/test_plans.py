"""What ``columns_used`` says of a DataFrame: batches, streams, joins, unions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark import columns_used
from managedconsumer.testing import DevBroker
from tests.spark.conftest import produce
from tests.spark.test_spark import reader

pytestmark = pytest.mark.spark
MakeTopic = Callable[..., str]


def used(frame: Any) -> list[str]:
    return [each.option for each in columns_used(frame)]


def test_it_says_which_columns_to_give(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "managedconsumer.spark.plans")
    name = topic(kafka44, 2)
    produce(kafka44, name, 100, 2)
    views = reader(spark, kafka44, name).load()
    (found,) = columns_used(views)
    assert found.used == found.read == tuple(views.columns)
    assert str(found).startswith("all columns that are read are used: key, value")
    assert not caplog.records
    counts = views.where("partition = 0").withColumn("size", views.timestamp).groupBy("key").count()
    (found,) = columns_used(counts)
    assert found.used == ("key", "partition")
    assert [record.getMessage() for record in caplog.records] == [
        'managedkafka: 2 of 7 columns are used: .option("columns", "key,partition") reads less'
    ]
    narrow = reader(spark, kafka44, name, columns=found.option).load()
    assert narrow.where("partition = 0").groupBy("key").count().collect() == counts.collect()
    assert used(narrow.where("partition = 0").groupBy("key").count()) == ["key,partition"]
    assert used(views.groupBy().count()) == ["partition"], "something has to be read"
    assert used(views.select("key").union(views.select("value"))) == ["key", "value"]
    assert used(views.union(views)) == [",".join(views.columns)] * 2
    assert sorted(used(views.alias("a").join(views.alias("b"), "offset").select("a.key", "b.value"))) == [
        "key,offset",
        "value,offset",
    ]
    assert used(spark.range(3)) == []


def test_a_stream_is_looked_at_before_it_starts(spark: Any, kafka44: DevBroker, topic: MakeTopic) -> None:
    from pyspark.sql import functions as F

    views = reader(spark, kafka44, topic(kafka44, 1), stream=True, includeHeaders="true").load()
    counted = views.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "5 minutes"), "key").count()
    assert used(counted) == ["key,timestamp"]
    assert used(views.dropDuplicates(["offset"]).select("value")) == ["value,offset"]


def test_a_frame_without_a_plan_is_told() -> None:
    with pytest.raises(ConfigurationError, match="Spark Connect shows no plan"):
        columns_used(object())
