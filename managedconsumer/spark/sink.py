"""Write DataFrames to Kafka: ``df.write`` and ``df.writeStream`` of the format ``managedkafka``, at least once.

A task sends its rows with a producer of confluent-kafka, and is done when the brokers have all of them. A task that
Spark repeats, or runs twice, sends its rows again. A transaction could not prevent that: it would have to be open until
Spark has committed the job, which Kafka's producers cannot do (KIP-939).
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from itertools import repeat
from typing import Any, Iterable, Iterator, Mapping

from pyspark.sql import datasource as spark

from managedconsumer.errors import ConfigurationError, ProduceFailureError
from managedconsumer.runtime.rdkafka.config import load, security_settings
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.shown import line
from managedconsumer.spark.options import bootstrap_of, own_and_kafka
from managedconsumer.spark.security import security_from

log = logging.getLogger(__name__)

# Spark hands over the last one, which every stream has.
_OWN = ("topic", "includeHeaders", "checkpointLocation")
_ONCE = (
    "exactly once into Kafka is not possible from Spark, as no transaction of a producer can wait for Spark's own "
    "commit (KIP-939). managedconsumer.stores.KafkaStore does it without Spark"
)
_REFUSED = {
    "transactional.id": _ONCE,
    **dict.fromkeys(("key.serializer", "value.serializer"), "key and value are columns of strings or bytes"),
}
# Settings whose only value is the one that promises a record to be on the disks of all replicas, and once for a task.
_FIXED = {"enable.idempotence": ("true",), "acks": ("all", "-1")}
# Java's names for what librdkafka calls otherwise, and how many of Java's units are one of librdkafka's.
_JAVA = {"buffer.memory": ("queue.buffering.max.kbytes", 1024), "max.request.size": ("message.max.bytes", 1)}
_DEFAULTS = {
    "client.id": "managedconsumer-spark",
    # As in Java's client: the same key, the same partition.
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": "120000",
    "log_level": "2",  # the errors of tasks say the same
    # For each task slot; librdkafka would take a gigabyte.
    "queue.buffering.max.kbytes": "32768",
}
_BYTES = ("binary", "string")
# The columns, in the order in which records have them, and their types.
_COLUMNS = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
# So many rows become Python objects at once.
_STEP = 1000
# How long (seconds) a full queue is waited for: a delivery does not end the wait.
_FULL = 0.01
# So many producers stay open in a worker.
_PRODUCERS = 4


class Sent(spark.WriterCommitMessage):
    """The number of records that a task has written."""

    def __init__(self, records: int) -> None:
        self.records = records


class Sink:
    """A checked write. The driver makes it, and the tasks get copies of it."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        """Raises ConfigurationError, for the columns too, and MissingPackageError."""
        own, self._kafka = own_and_kafka(options)
        unknown = sorted(own.keys() - {name.lower() for name in _OWN})
        if unknown:
            raise ConfigurationError(
                f"the option {unknown[0]!r} is not known to the sink: known are topic, includeHeaders (headers are "
                "written if there is a column of this name) and kafka.*"
            )
        self._topic = own.get("topic", "").strip() or None
        self._places = _places(schema, self._topic)
        _Producer(self._kafka)  # librdkafka says what is wrong with the settings

    def write(self, rows: Iterable[Any]) -> Sent:
        """In a task: send Arrow batches or rows, and wait for the brokers. Raises ProduceFailureError."""
        producer = _producer(os.getpid(), tuple(sorted(self._kafka.items())))
        try:
            return Sent(producer.send(self._records(rows), self._topic))
        except BaseException:
            _producer.cache_clear()
            producer.drop()
            raise

    def _records(self, rows: Iterable[Any]) -> Iterator[Any]:
        for item in rows:
            if isinstance(item, tuple):  # streams of PySpark 4.0
                yield [None if at is None else _as_arrow_has_it(item[at]) for at in self._places]
                continue
            for start in range(0, item.num_rows, _STEP):
                part = item.slice(start, _STEP)
                columns = [None if at is None else part.column(at).to_pylist() for at in self._places]
                yield from zip(*(each or repeat(None, part.num_rows) for each in columns), strict=True)


def _as_arrow_has_it(value: Any) -> Any:
    """The value of a ``Row``: with bytes in place of a bytearray, also in headers."""
    if isinstance(value, list):
        return [{"key": each["key"], "value": _as_arrow_has_it(each["value"])} for each in value]
    return bytes(value) if isinstance(value, bytearray) else value


def _places(schema: Any, topic: str | None) -> list[int | None]:
    """Where a row has the columns of ``_COLUMNS``; None for those that it does not have."""
    found: dict[str, int] = {}
    for at, field in enumerate(schema.fields):
        name, kind = field.name.lower(), field.dataType.simpleString()
        if name not in _COLUMNS:
            continue
        if name in found:
            raise ConfigurationError(f"there are two columns {name}")
        if kind not in _COLUMNS[name]:
            raise ConfigurationError(
                f"the column {name} is {kind}; a Kafka record needs {' or '.join(_COLUMNS[name])}"
                + (": to_json(...) or cast('string') makes one, for example" if _COLUMNS[name] is _BYTES else "")
            )
        found[name] = at
    if "value" not in found:
        raise ConfigurationError(
            f"the column value is missing (there are {', '.join(schema.names) or 'none'}): a Kafka record is made of "
            f"the columns {', '.join(_COLUMNS)}, of which only value is needed"
        )
    if topic is None and "topic" not in found:
        raise ConfigurationError("there is neither an option topic nor a column topic: where are the records to go?")
    if topic is not None and found.pop("topic", None) is not None:
        log.warning("the option topic=%s outranks the column topic, as in Spark's own connector", topic)
    return [found.get(name) for name in _COLUMNS]


@lru_cache(_PRODUCERS)
def _producer(_process: int, kafka: tuple[tuple[str, str], ...]) -> _Producer:
    """A producer of this process, which its next tasks use, too: the first record of a new one takes up to 0.5 s."""
    return _Producer(dict(kafka))


class _Producer:
    """A producer, for one thread. Its callbacks note what is wrong: two that raise in one call end in SystemError."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._package = load("writing to Kafka from Spark", "sparkwrite")
        settings = {
            **_settings(kafka),
            **security_settings(security_from(kafka), ThreadingHandler()),
            "delivery.report.only.error": True,
            "log.connection.close": False,
            "on_delivery": self._undelivered,
            "error_cb": self._met,
        }
        self._failed: ProduceFailureError | None = None
        self._trouble = ""
        self._works = False
        try:
            self._inner = self._package.Producer(settings)
        except self._package.KafkaException as error:
            raise ConfigurationError(f"the kafka.* options of the sink: {error.args[0].str()}") from error

    def send(self, records: Iterable[Any], topic: str | None) -> int:
        """Send ``(value, key, headers, topic, partition)`` (``topic`` outranks); return how many when all is there."""
        count = 0
        for count, (value, key, headers, its, partition) in enumerate(records, 1):
            pairs = [(each["key"], each["value"]) for each in headers] if headers else None
            self._put(topic or its, partition, value, key, pairs)
            if count % _STEP == 0:
                self._poll(0)
        while self._inner.flush(1.0):
            self._poll(0)
        self._poll(0)
        self._trouble, self._works = "", True
        return count

    def drop(self) -> None:
        self._inner.purge(blocking=False)

    def _put(self, topic: str | None, partition: int | None, value: Any, key: Any, headers: Any) -> None:
        if not topic:
            raise ProduceFailureError(
                "a row has no topic (null or '' in the column topic); an option topic outranks it"
            )
        if partition is None:
            partition = -1  # librdkafka chooses it by the key
        elif partition < 0:
            raise ProduceFailureError(f"a row for topic {topic} has the partition {partition}")
        while True:
            try:
                self._inner.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                if not len(self._inner):
                    raise ProduceFailureError(
                        f"a record for {_named(topic, partition)} is larger than kafka.buffer.memory"
                    ) from None
                self._poll(_FULL)
            except self._package.KafkaException as error:
                raise self._failure(topic, partition, error.args[0]) from None

    def _poll(self, seconds: float) -> None:
        self._inner.poll(seconds)
        if self._failed is not None:
            raise self._failed

    def _undelivered(self, error: Any, message: Any) -> None:
        self._failed = self._failed or self._failure(message.topic(), message.partition(), error)

    def _met(self, error: Any) -> None:
        """Keep the trouble of a connection, for the error of the records that wait for it."""
        self._trouble = line(error.str())
        wrong_login = error.code() == self._package.KafkaError._AUTHENTICATION and not self._works
        if wrong_login or error.fatal():
            self._failed = self._failed or ProduceFailureError(f"the producer cannot go on: {self._trouble}")

    def _failure(self, topic: str, partition: int | None, error: Any) -> ProduceFailureError:
        trouble = f"; last seen: {self._trouble}" if self._trouble else ""
        return ProduceFailureError(
            f"a record for {_named(topic, partition)} was not delivered: {line(error.str())} ({error.name()}){trouble}"
        )


def _named(topic: str, partition: int | None) -> str:
    """The topic-partition; the topic alone if no partition was chosen yet."""
    return topic if partition is None or partition < 0 else f"{topic}-{partition}"


def _settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings but for security, whose names are checked elsewhere."""
    given = {}
    for name, value in kafka.items():
        if name in _REFUSED:
            raise ConfigurationError(f"kafka.{name} cannot be set: {_REFUSED[name]}")
        if value.lower() not in _FIXED.get(name, (value.lower(),)):
            raise ConfigurationError(
                f"kafka.{name} must be {_FIXED[name][0]}: otherwise records may be lost or doubled"
            )
        if name in _JAVA and value.isdecimal():
            name, unit = _JAVA[name]
            value = str(int(value) // unit)
        if not name.startswith(("security.", "sasl.", "ssl.")):
            given[name] = value
    fixed = {name: values[0] for name, values in _FIXED.items()}
    return {**_DEFAULTS, **given, **fixed, "bootstrap.servers": bootstrap_of(kafka)}


class ManagedKafkaWriter(spark.DataSourceArrowWriter):
    """For ``df.write``."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self._sink = Sink(options, schema)

    def write(self, iterator: Iterator[Any]) -> Sent:
        return self._sink.write(iterator)


# PySpark 4.0 hands the rows of streams over one by one.
class ManagedKafkaStreamWriter(getattr(spark, "DataSourceStreamArrowWriter", spark.DataSourceStreamWriter)):  # type: ignore[misc]
    """For ``df.writeStream``. Whether the query is in append, update or complete mode: each row becomes a record."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self._sink = Sink(options, schema)

    def write(self, iterator: Iterator[Any]) -> Sent:
        return self._sink.write(iterator)
