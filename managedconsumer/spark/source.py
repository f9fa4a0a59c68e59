"""The PySpark data source ``managedkafka``: Kafka for Spark without a connector jar, and as a real group member.

Register it once per session, then use it as Spark's own Kafka source, with the same option names and schema::

    spark.dataSource.register(ManagedKafkaSource)
    spark.readStream.format("managedkafka").option("kafka.bootstrap.servers", "localhost:9092") \\
        .option("subscribe", "page-views").option("group.id", "page-view-counts") \\
        .option("columns", "key,timestamp").load()

Needs PySpark 4.0 or newer. PySpark 4.0 and 4.1 have no admission control: there this source limits its batches itself.
What Spark calls where: the constructors run in several processes and open nothing; the offset calls all run in one
process per query, on its main thread; ``read`` runs in the executors' Python workers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from importlib import import_module
from operator import itemgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Sequence

from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.garbage import freeze_modules, no_collection

try:
    import_module("pyarrow")  # read() needs it; better to hear of it here
    from pyspark.sql import types as T  # as in Spark's documentation
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_type
except ImportError as error:
    raise MissingPackageError(
        f"the Spark source needs PySpark 4.0 or newer and pyarrow ({error}): pip install 'pyspark>=4.0' 'pyarrow>=18' "
        "(what the extra 'managedconsumer[spark]' brings)"
    ) from error

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    _LIMITS = True
except ImportError:  # PySpark 4.0 and 4.1 have no admission control, and run Trigger.AvailableNow as one batch
    _LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Gives :class:`ManagedKafkaStreamReader` the same bases with each PySpark."""


from managedconsumer.spark.catalog import metadata_of, with_those_of
from managedconsumer.spark.columns import ERRORS, RANGE, range_type
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.pace import at_most
from managedconsumer.spark.ranges import OffsetMemory, Ranges, StreamOffset, batch_between
from managedconsumer.spark.tasks import Task, share_out, split
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records.arrow import COLUMNS
from managedconsumer.wire.records.arrow import schema as kafka_schema

# Modules that only the driver or only the tasks need are imported there: all processes import this file.
if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from managedconsumer.spark.driver import StreamDriver
    from managedconsumer.spark.sink import ManagedKafkaStreamWriter, ManagedKafkaWriter
    from managedconsumer.spark.sizes import RecordSizes


def _types(options: SourceOptions) -> dict[str, T.DataType]:
    """The types of all columns: those of Spark's own Kafka source, and ours."""
    kinds = {field.name: field.type for field in kafka_schema(COLUMNS)}
    kinds[RANGE] = range_type()
    if options.formats:
        from managedconsumer.decoding.decoders import decoder_of
        from managedconsumer.decoding.formats import errors_type

        kinds[ERRORS] = errors_type(options.formats)
        kinds |= {name: decoder_of(each).type() for name, each in options.formats.items()}
    return {name: spark_type(kind) for name, kind in kinds.items()}


def spark_type(kind: Any) -> T.DataType:
    """The type of a column in Spark: of times without a zone TIMESTAMP_NTZ, also in PySpark 4.0 and 4.1."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


class KafkaTask(InputPartition):
    """The input of one task: its ``value`` is a :class:`~managedconsumer.spark.tasks.Task`."""


class ManagedKafkaSource(DataSource):
    """``format("managedkafka")``.

    ``rebalance_listener``: subclass this source in your program and set it to something with the methods of
    :class:`managedconsumer.ConsumerRebalanceListener`; they are called between two micro-batches, in the query's reader
    process, and ``on_partitions_assigned`` may return ``{TopicPartition: next offset}`` to move positions.
    """

    rebalance_listener: Any = None

    @classmethod
    def name(cls) -> str:
        """The format's name. Spark asks for it at registration: then this session's workers are made to start fast."""
        if "pyspark.core.context" in sys.modules:  # not in workers
            from managedconsumer.spark.advice import prepare

            prepare()
        return "managedkafka"

    def schema(self) -> T.StructType:
        """Spark's Kafka schema, or those columns of it that the options ask for."""
        options = _parse(self.options)
        types, note = _types(options), metadata_of(self.options)
        first = options.columns[0]
        return T.StructType(
            [T.StructField(name, types[name], metadata=note if name == first else None) for name in options.columns]
        )

    def reader(self, schema: Any) -> ManagedKafkaReader:
        """For ``spark.read``."""
        return ManagedKafkaReader(_for_schema(self.options, schema))

    def streamReader(self, schema: Any) -> ManagedKafkaStreamReader:  # Spark's name
        """For ``spark.readStream``."""
        return ManagedKafkaStreamReader(_for_schema(self.options, schema), type(self).rebalance_listener)

    def writer(self, schema: Any, overwrite: bool) -> ManagedKafkaWriter:
        """For ``df.write``; raises ConfigurationError and MissingPackageError."""
        from managedconsumer.spark.sink import ManagedKafkaWriter

        if overwrite:
            raise ConfigurationError('a topic cannot be overwritten, only appended to: df.write.mode("append")')
        return ManagedKafkaWriter(self.options, schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> ManagedKafkaStreamWriter:  # Spark's name
        """For ``df.writeStream``; raises ConfigurationError and MissingPackageError."""
        from managedconsumer.spark.sink import ManagedKafkaStreamWriter

        return ManagedKafkaStreamWriter(self.options, schema)


def _parse(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options for the schema, which Spark asks for before it says whether this is a stream."""
    ends = any(name.lower().startswith("ending") for name in options)  # no stream has an end
    try:
        return SourceOptions.parse(options, streaming=not ends)
    except ConfigurationError as problem:
        try:
            return SourceOptions.parse(options, streaming=ends)
        except ConfigurationError:
            raise problem from None


def _for_schema(given: Mapping[str, str], schema: Any) -> dict[str, str]:
    """Return the options, with the columns of the user's schema, and with the options that a table's schema keeps."""
    options = with_those_of(schema, given)
    known = _types(_parse(options))
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            raise ConfigurationError(
                f"the schema's column {field.name} {field.dataType.simpleString()} does not exist here: any of "
                f"{', '.join(f'{name} {known[name].simpleString()}' for name in COLUMNS)} can be had"
            )
    kept = {name: value for name, value in options.items() if name.lower() not in ("columns", "includeheaders")}
    return {**kept, "columns": ",".join(field.name for field in schema.fields)}


class ManagedKafkaReader(DataSourceReader):
    """A batch: everything between the starting and the ending offsets, which are looked up once."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = SourceOptions.parse(options, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        """Look up where the batch begins and ends, and cut it into tasks."""
        from managedconsumer.spark.bounds import batch_ranges
        from managedconsumer.spark.sizes import RecordSizes
        from managedconsumer.spark.topics import TopicView

        view = TopicView(self.options)
        sizes = RecordSizes(view)
        try:
            return _tasks(self.options, batch_ranges(view), sizes)
        finally:
            sizes.close()
            view.close()

    def read(self, partition: Any) -> Iterator[Any]:
        """On an executor: what the task reads, as Arrow batches."""
        return iter(()) if partition.value is None else _read(self.options, partition.value)


class ManagedKafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Offsets are ranges (:mod:`managedconsumer.spark.ranges`); ``StreamDriver`` plans the batches."""

    def __init__(self, options: Mapping[str, str], listener: Any = None) -> None:
        self.options = SourceOptions.parse(options, streaming=True)
        self._listener = listener
        self._driver: StreamDriver | None = None
        self._memory = OffsetMemory()
        # For PySpark 4.0 and 4.1: the offset that Spark has seen last, and where the query began in this process.
        self._seen: dict[str, Any] | None = None
        self._began: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the options only: connections and membership stay in this process.
        return {"options": self.options, "_listener": None, "_driver": None}

    @property
    def driver(self) -> StreamDriver:
        """The part that talks to the brokers; the first use makes it."""
        return self._driver_of("")

    def _driver_of(self, query: str) -> StreamDriver:
        if self._driver is None:
            from managedconsumer.spark.driver import StreamDriver

            _on_sigterm_stop()
            freeze_modules()
            self._driver = StreamDriver(self.options, self._listener, query)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts. The same in each call, as PySpark 4.0 and 4.1 plan the first batch before it."""
        if self._began is None:
            # The objects of planning live until the next batch: the garbage collector would walk through them in vain.
            with no_collection():
                self._began = self._memory.write(self.driver.initial())
        return self._began

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        return ReadAllAvailable() if self.options.max_offsets is None else ReadMaxRows(self.options.max_offsets)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The next batch; proof that ``start`` is done: here offsets are committed, and rebalances happen.

        PySpark 4.0 and 4.1 pass no arguments: then ``start`` is the offset that Spark has seen last, which it has
        processed before it asks again, and ``maxOffsetsPerTrigger`` is the limit.
        """
        if start is not None:
            return self._next(start, getattr(limit, "max_rows", None))
        start = self._seen or self.initialOffset()
        self._seen = self._next(start, self.options.max_offsets)
        if self._seen is not start and self.options.max_offsets is not None:
            self._seen["logs"] = self.reportLatestOffset()  # for progress reports: these versions do not call it
        return self._seen

    def _next(self, start: dict[str, Any], rows: int | None) -> dict[str, Any]:
        """The next batch of at most ``rows`` offsets, as JSON; ``start`` itself if there is none."""
        with no_collection():
            before = self._memory.read(start)
            planned = self._driver_of(before.query).next(before, rows)
            return start if planned is before else self._memory.write(planned, before)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The logs' ends as last seen, so that a progress report shows the lag."""
        return self.driver.view.shown_ends() or None

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to here and no further."""
        self.driver.freeze_ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of the ranges that ``end`` names: the same after a crash, whatever the group looks like by then."""
        if not _LIMITS and self._seen not in (None, end):
            raise ConfigurationError(
                "PySpark 4.0 and 4.1 ask for a batch before they say where the query is, so records would be read "
                "twice: set spark.sql.streaming.triggerAvailableNowWrapper.enabled to false, its default"
            )
        self._seen = end
        if start == end:
            return []
        with no_collection():
            offset = batch_between(start, end, self._memory.read)
            driver, ids = self._driver_of(offset.query), offset.ids
            named = replace(offset, data=driver.claims.name_run(offset))
            return _tasks(self.options, driver.to_read(offset), driver.sizes, ids, driver.member_of(offset), named)

    def read(self, partition: Any) -> Iterator[Any]:
        """On an executor: what the task reads, as Arrow batches."""
        return _read(self.options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls this one batch late, and never for the last (see ``latestOffset``)."""

    def stop(self) -> None:
        """Leave the group, close the connections."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop()


def _read(options: SourceOptions, task: Task) -> Iterator[Any]:
    from managedconsumer.spark.read import read_task

    return read_task(options, task)


def _tasks(
    options: SourceOptions,
    wanted: Ranges,
    sizes: RecordSizes,
    ids: Mapping[str, str] | None = None,
    member: str | None = None,
    batch: StreamOffset | None = None,
) -> Sequence[InputPartition]:
    """Cut a batch into tasks: ``minPartitions`` (or as many as there are processors) at least, if there are offsets."""
    slots = options.min_partitions or os.cpu_count() or 1
    slices = split(wanted, options.min_partitions)
    known = ids or {}
    tasks = []
    if options.max_records is not None:
        shares = [[part] for part in at_most(slices, options.max_records)]
    else:  # the size matters only where ranges may share a task
        shares = share_out(slices, slots, sizes.of(slices) if len(slices) > slots else {})
    for parts in shares:
        topics = set(map(itemgetter(0), parts))
        task = Task(tuple(parts), {name: known[name] for name in topics if name in known}, member)
        if batch is not None and RANGE in options.columns:
            tps = {TopicPartition(part.topic, part.partition) for part in parts}
            task = task._replace(data=batch.data, ranges={tp: batch.ranges[tp] for tp in tps})
        tasks.append(KafkaTask(task))
    return tasks


def _on_sigterm_stop() -> None:
    """Spark ends the reader's process by SIGTERM, twice; turn the first into an exit that runs ``stop()``."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)
