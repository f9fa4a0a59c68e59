"""Writing to Kafka from PySpark: columns, mistakes, brokers that refuse, tasks that die; without Spark and in it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from managedconsumer import read_arrow
from managedconsumer.errors import ConfigurationError, MissingPackageError, ProduceFailureError
from managedconsumer.spark.sink import Sink
from managedconsumer.spark.source import ManagedKafkaSource
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import partition_for
from tests.spark.conftest import produce, run_to_end

MakeTopic = Callable[..., str]
AWAY = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "views"}
HEADERS = "array<struct<key:string,value:binary>>"


def schema(text: str) -> T.StructType:
    """Of ``name type, name type``; Spark's own parser needs a session."""
    kinds = {
        "binary": T.BinaryType(),
        "string": T.StringType(),
        "int": T.IntegerType(),
        "long": T.LongType(),
        HEADERS: T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType())),
        "void": T.NullType(),
    }
    pairs = [each.split(" ") for each in text.split(", ")]
    return T.StructType([T.StructField(name, kinds[kind]) for name, kind in pairs])


def options(broker: DevBroker, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, **more}


def values(*found: str | None) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": pa.array(found, pa.string())})]


WRONG = [
    ("key binary", {}, "the column value is missing .there are key."),
    ("value long", {}, "the column value is bigint; a Kafka record needs binary or string: to_json"),
    ("value string, key void", {}, "the column key is void; a Kafka record needs"),
    (
        "value string, headers string",
        {},
        "headers is string; a Kafka record needs array<struct<key:",
    ),
    ("value string, partition long", {}, "the column partition is bigint; a Kafka record needs int"),
    ("value string, VALUE string", {}, "two columns value"),
    ("value string", {"topic": ""}, "neither an option topic nor a column topic"),
    ("value string", {"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
    ("value string", {"subscribe": "views"}, "'subscribe' is not known to the sink: known are topic"),
    ("value string", {"kafka.transactional.id": "a"}, "exactly once into Kafka is not possible from Spark.*KIP-939"),
    ("value string", {"kafka.acks": "1"}, "kafka.acks must be all"),
    ("value string", {"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence must be true"),
    ("value string", {"kafka.value.serializer": "x"}, "kafka.value.serializer cannot be set"),
    (
        "value string",
        {"kafka.linger.ms": "soon"},
        r"the kafka\.\* options of the sink: Invalid.*buffering.max.ms",
    ),
    ("value string", {"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism must be PLAIN"),
]


def test_mistakes_are_told_when_the_query_is_planned() -> None:
    for text, more, told in WRONG:
        for make in (ManagedKafkaSource({**AWAY, **more}).writer, ManagedKafkaSource({**AWAY, **more}).streamWriter):
            with pytest.raises(ConfigurationError, match=told):
                make(schema(text), False)
    with pytest.raises(ConfigurationError, match=r'cannot be overwritten.*mode\("append"\)'):
        ManagedKafkaSource(AWAY).writer(schema("value string"), True)


def test_without_confluent_kafka_the_driver_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingPackageError, match=r"writing to Kafka from Spark needs.*managedconsumer\[sparkwrite\]"):
        ManagedKafkaSource(AWAY).writer(schema("value string"), False)


def test_an_option_outranks_the_column_topic_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    Sink(AWAY, schema("value string, topic string"))
    assert "topic=views outranks the column topic" in caplog.text


def test_rows_of_pyspark_4_0_and_small_memory(kafka44: DevBroker, topic: MakeTopic) -> None:
    """Its streams hand over ``Row``s, with a bytearray for a binary value. More rows than the queue holds wait."""
    name = topic(kafka44)
    headers = [T.Row(key="h", value=bytearray(b"x")), T.Row(key="none", value=None)]
    rows = (
        T.Row(value=bytearray(b"%05d" % number), more=None, headers=headers if number else None)
        for number in range(3000)
    )
    kinds = schema(f"value binary, more void, headers {HEADERS}")
    made = Sink(options(kafka44, name, **{"kafka.buffer.memory": "4096"}), kinds)
    assert made.write(rows).records == 3000
    assert read(kafka44, name) == [b"%05d" % number for number in range(3000)]
    found = [each for batch in read_arrow(name, kafka44.bootstrap, columns=["headers"]) for each in batch["headers"]]
    pairs = [{"key": "h", "value": b"x"}, {"key": "none", "value": None}]
    assert [each.as_py() for each in found] == [None, *[pairs] * 2999]


def read(broker: DevBroker, topic: str) -> list[bytes | None]:
    """The values of a topic, in the log's order."""
    return [value for batch in read_arrow(topic, broker.bootstrap) for value in batch["value"].to_pylist()]


def test_what_a_broker_refuses_ends_the_task_with_its_reason(kafka44: DevBroker, topic: MakeTopic) -> None:
    small = topic(kafka44, 1, {"max.message.bytes": 1000})
    with pytest.raises(
        ProduceFailureError, match=rf"for {small}-0 was not delivered: .* too large .MSG_SIZE_TOO_LARGE.$"
    ):
        Sink(options(kafka44, small), schema("value string")).write(values("a", "b" * 5000))
    quick = {"kafka.delivery.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    with pytest.raises(ProduceFailureError, match=r"a record for views was not.*last seen: .*Connection refused"):
        Sink({**AWAY, **quick}, schema("value string")).write(values("a"))
    beyond = [pa.record_batch({"value": ["a"], "partition": pa.array([7], pa.int32())})]
    with pytest.raises(ProduceFailureError, match=rf"a record for {small}-7 was not delivered: .*Unknown partition"):
        Sink(options(kafka44, small), schema("value string, partition int")).write(beyond)
    with pytest.raises(ProduceFailureError, match="a row has no topic"):
        Sink(options(kafka44, ""), schema("value string, topic string")).write(
            [pa.record_batch({"value": ["a"], "topic": pa.array([None], pa.string())})]
        )


def test_a_task_that_is_killed_leaves_nothing_for_the_next_one_to_send(kafka44: DevBroker, topic: MakeTopic) -> None:
    name = topic(kafka44)
    made = Sink(options(kafka44, name, **{"kafka.linger.ms": "60000"}), schema("value string"))

    def killed() -> Iterator[pa.RecordBatch]:
        yield from values(*map(str, range(1500)))
        raise SystemExit  # as a signal handler of the worker

    with pytest.raises(SystemExit):
        made.write(killed())
    assert made.write(values("last")).records == 1
    assert read(kafka44, name) == [b"last"]


@pytest.mark.spark
def test_a_batch_has_the_columns_of_sparks_own_sink(spark: Any, kafka44: DevBroker, topic: MakeTopic) -> None:
    name, other = topic(kafka44, 4), topic(kafka44, 4)
    rows: list[tuple[Any, ...]] = [
        ("a", b"1", [("h", b"x"), ("h", None)], None, name),
        (None, None, None, 3, name),
        ("b", b"", [], 2, other),
    ]
    frame = spark.createDataFrame(rows, f"KEY string, value binary, headers {HEADERS}, partition int, topic string")
    place = {"kafka.bootstrap.servers": kafka44.bootstrap}
    frame.coalesce(1).write.format("managedkafka").options(**place).mode("append").save()
    back = spark.read.format("managedkafka").options(**place, subscribe=f"{name},{other}", includeHeaders="true").load()
    rows = [(row.value, (row.topic, row.partition, row.key, row.headers)) for row in back.collect()]
    # PySpark 4.0 has a bytearray for a binary value, which is equal to bytes, but no key.
    found = {None if value is None else bytes(value): others for value, others in rows}
    assert found == {
        b"1": (name, partition_for(b"a", 4), b"a", [("h", b"x"), ("h", None)]),
        None: (name, 3, None, None),
        b"": (other, 2, b"b", None),
    }
    with pytest.raises(Exception, match="the column value is missing"):
        frame.drop("value").write.format("managedkafka").options(**place).mode("append").save()


@pytest.mark.spark
def test_a_stream_goes_on_after_a_task_that_died_and_after_a_restart(
    spark: Any, kafka44: DevBroker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, sink, flag = topic(kafka44, 2), topic(kafka44, 2), tmp_path / "died"
    died = str(flag)

    def dying(text: str) -> str:
        if text == "1-150" and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    place = {"kafka.bootstrap.servers": kafka44.bootstrap}
    stream = spark.readStream.format("managedkafka").options(**place, subscribe=source, startingOffsets="earliest")
    texts = stream.option("columns", "partition,offset").load().selectExpr("concat(partition, '-', offset) AS value")
    frame = texts.select(F.udf(dying, useArrow=False)("value").alias("value"))
    writer = frame.writeStream.format("managedkafka").options(**place, topic=sink)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    produce(kafka44, source, 400, 2)
    with pytest.raises(Exception, match=r"crashed|exited|Python worker"):
        run_to_end(writer)
    assert flag.exists()
    for count in (400, 600):
        run_to_end(writer)
        wanted = {b"%d-%d" % (partition, offset) for partition in range(2) for offset in range(count // 2)}
        assert set(read(kafka44, sink)) == wanted
        produce(kafka44, source, 200, 2)
