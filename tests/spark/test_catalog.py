"""Tables in Spark's catalog: ``CREATE TABLE ... USING managedkafka``. As Spark calls the source, and in PySpark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.source import ManagedKafkaSource
from managedconsumer.testing import DevBroker
from tests.spark.conftest import produce, run_to_end

MakeTopic = Callable[..., str]


def made(**properties: str) -> T.StructType:
    """The schema of a table, as CREATE TABLE asks for it: these options and properties were seen with Spark 4.3."""
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "views"}
    twins = {f"option.{name}": value for name, value in options.items()}
    spark = {"provider": "managedkafka", "owner": "root", "location": "file:/x", "path": "file:/x", "comment": "c"}
    return ManagedKafkaSource({**options, **twins, **spark, **properties}).schema()


def through_the_catalog(schema: T.StructType) -> T.StructType:
    return T.StructType.fromJson(json.loads(schema.json()))


def test_a_table_is_read_with_its_options_though_spark_hands_over_none() -> None:
    schema = through_the_catalog(made(a="b"))
    reader = ManagedKafkaSource({}).reader(schema)
    assert (reader.options.bootstrap, reader.options.topics.names) == ("h:1", ("views",))
    stream = ManagedKafkaSource({"startingOffsets": "earliest", "subscribe": "clicks"}).streamReader(schema)
    assert stream.options.starting.kind == "earliest"
    assert stream.options.topics.names == ("clicks",), "the query's own options count first"


def test_a_property_of_the_table_is_no_option_and_a_wrong_option_is_an_error() -> None:
    assert made(columns="nonsense").names[0] == "key"
    with pytest.raises(ConfigurationError, match="did you mean maxOffsetsPerTrigger"):
        made(**{"maxoffsetpertrigger": "5", "option.maxoffsetpertrigger": "5"})


@pytest.mark.parametrize("name", ["kafka.ssl.key.password", "store"])
def test_a_secret_is_not_kept_with_a_table(name: str) -> None:
    value = "postgresql://u:hunter2@h/db"
    with pytest.raises(ConfigurationError, match=f"cannot keep the option {name}.*TEMPORARY VIEW") as told:
        made(**{name: value, f"option.{name}": value})
    assert "hunter2" not in str(told.value)


def test_who_names_the_columns_is_told_that_no_options_are_kept() -> None:
    with pytest.raises(ConfigurationError, match="keeps no options"):
        ManagedKafkaSource({}).reader(T.StructType([T.StructField("key", T.BinaryType())]))


def test_no_table_no_metadata() -> None:
    """The options of a DataFrame are not written into what is made of it."""
    schema = ManagedKafkaSource({"kafka.bootstrap.servers": "h:1", "subscribe": "views"}).schema()
    assert not any(field.metadata for field in schema.fields)


@pytest.mark.spark
def test_tables_and_views_in_sql(spark: Any, kafka44: DevBroker, topic: MakeTopic, tmp_path: Path) -> None:
    name = topic(kafka44, 2)
    produce(kafka44, name, 100, 2)
    options = f"OPTIONS (`kafka.bootstrap.servers` '{kafka44.bootstrap}', subscribe '{name}', includeHeaders 'true')"
    spark.sql(f"CREATE TABLE views USING managedkafka {options} COMMENT 'all views' TBLPROPERTIES ('team' = 'web')")
    spark.sql(f"CREATE TEMPORARY VIEW seen USING managedkafka {options}")
    try:
        for table in ("views", "seen"):
            assert spark.sql(f"SELECT count(*) FROM {table}").first()[0] == 100
        some = f'SELECT offset FROM views WITH (startingOffsets = \'{{"{name}": {{"0": 40, "1": -1}}}}\')'
        with pytest.raises(Exception, match="startingOffsets must be"):
            spark.sql("SELECT offset FROM views WITH (startingOffsets = 'begin')").collect()
        assert sorted(row.offset for row in spark.sql(some).collect()) == list(range(40, 50))
        stream = spark.readStream.option("startingOffsets", "earliest").table("views").select("partition", "offset")
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_end(writer.option("path", str(tmp_path / "out")))
        assert spark.read.parquet(str(tmp_path / "out")).count() == 100
    finally:
        spark.sql("DROP TABLE views")
        spark.catalog.dropTempView("seen")
