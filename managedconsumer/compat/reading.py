"""``read`` and ``read_arrow``: a range of a topic's messages, once, without a group."""

from __future__ import annotations

import weakref
from datetime import datetime
from typing import TYPE_CHECKING, Any, Collection, Iterable, Iterator, Sequence

from managedconsumer import errors as err
from managedconsumer.admin import timestamps
from managedconsumer.admin.admin import Admin
from managedconsumer.compat.accept import accept_cluster, accept_topic
from managedconsumer.config import ISOLATION_LEVELS, Isolation, check_choice
from managedconsumer.runtime.cluster.cluster import PLAIN, Cluster
from managedconsumer.runtime.fetch_range import RangeLimits
from managedconsumer.structs import TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import Message, arrow

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from managedconsumer.typed_columns import TypedColumns
    from managedconsumer.typed_options import ColumnFormats

#: An offset of each partition, a time, or one of "earliest" and "latest".
Place = str | int | datetime


def read(
    topic: Any,
    cluster: Any,
    *,
    start: Place = "earliest",
    end: Place = "latest",
    partitions: Collection[int] | None = None,
    isolation_level: Isolation = "read_uncommitted",
) -> Reading:
    """Return an iterator of a topic's messages from ``start`` up to, without, ``end``. Joins no group, commits nothing.

    ``start`` and ``end``: an offset, a datetime, an ISO 8601 time (UTC where it names no zone), "2 hours ago",
    "earliest" or "latest" (the log's end at the time of the call). ``partitions``: their numbers; None: all.
    ``cluster``: a KafkaClient, or ``"host:port,..."``.

    Messages of a partition come in order; across partitions the oldest timestamp comes first. The call raises for wrong
    arguments, UnknownTopicOrPartition and NoBrokersAvailableError; iteration raises CorruptRecordError for a damaged
    record. It waits for new leaders and connections, for two minutes without progress. One thread uses it at a time.
    """
    return Reading(_find(topic, cluster, start, end, partitions, isolation_level))


def read_arrow(
    topic: Any,
    cluster: Any,
    *,
    start: Place = "earliest",
    end: Place = "latest",
    partitions: Collection[int] | None = None,
    columns: Sequence[str] | None = None,
    isolation_level: Isolation = "read_uncommitted",
    **formats: Unpack[ColumnFormats],
) -> ArrowReading:
    """Return :func:`read` as an iterator of ``pyarrow.RecordBatch`` with ``schema`` and ``__arrow_c_stream__``.

    ``polars.DataFrame``, ``duckdb.from_arrow`` and ``pyarrow.table`` take it as it is. One partition comes after the
    other. ``columns`` and ``formats``: see :meth:`consume_arrow`; ValueError for a column that does not exist.
    Iteration raises RegistryError if a registry does not answer. Needs pyarrow.
    """
    names, typed = arrow.check_columns(columns), None
    arrow.schema(names)  # raises MissingPackageError here
    if formats:
        from managedconsumer.typed_columns import typed_columns  # few have typed values

        typed = typed_columns("read_arrow", formats, accept_topic(topic).names, names)
    return ArrowReading(_find(topic, cluster, start, end, partitions, isolation_level), names, typed)


class _Found(NamedTuple):
    admin: Admin
    cluster: Cluster
    ranges: dict[TopicPartition, tuple[int, int]]
    limits: RangeLimits


class _Open:
    """A running read with its connections, which close at its end, or when it is garbage-collected."""

    def __init__(self, found: _Found) -> None:
        #: ``{partition: (first offset, offset behind the last)}``.
        self.ranges = found.ranges
        self._found = found
        self._closer = weakref.finalize(self, _close, found.admin, found.cluster)

    def close(self) -> None:
        """End the read and close the connections; idempotent."""
        self._closer()


class Reading(_Open, Iterator[Message]):
    """An iterator of messages. Made by :func:`read`; also a context manager that closes it."""

    def __init__(self, found: _Found) -> None:
        super().__init__(found)
        self._messages = iter(found.admin.read(found.ranges, _raise, found.limits))

    def __next__(self) -> Message:
        if not self._closer.alive:
            raise StopIteration
        try:
            return next(self._messages)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class ArrowReading(_Open):
    """Batches of messages as Arrow, once. Made by :func:`read_arrow`."""

    def __init__(self, found: _Found, columns: Sequence[str], typed: TypedColumns | None) -> None:
        super().__init__(found)
        self._columns, self._typed = columns, typed
        self._batches = self._read()

    @property
    def schema(self) -> Any:
        return arrow.schema(self._columns) if self._typed is None else self._typed.schema

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rest of the batches by Arrow's C stream interface."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self).__arrow_c_stream__(requested_schema)

    def _read(self) -> Iterator[Any]:
        try:
            columns = self._columns if self._typed is None else self._typed.raw
            for chunk, stop in self._found.admin.chunks(self.ranges, self._found.limits):
                while (batch := arrow.chunk_to_columns(chunk, stop, columns)).num_rows:
                    yield from [batch] if self._typed is None else self._typed.parts(batch)
        finally:
            self.close()


def _find(
    topic: Any, cluster: Any, start: Place, end: Place, partitions: Iterable[int] | None, isolation_level: Isolation
) -> _Found:
    check_choice("isolation_level", isolation_level, ISOLATION_LEVELS)
    choice = accept_topic(topic)
    if len(choice.names) != 1:
        raise err.ConfigurationError("topic: one topic is read at a time; give its name")
    mine = accept_cluster(cluster)
    now = mine.handler.wall_time()
    places = [timestamps.parse_moment(place, now) for place in (start, end)]
    admin = Admin(mine)
    try:
        numbers = None if partitions is None else list(partitions)
        first, behind = (admin.offsets_at(choice.names[0], place, numbers) for place in places)
    except BaseException as error:
        _close(admin, mine)
        if isinstance(error, PLAIN):
            raise error.with_traceback(None) from error.__cause__
        raise
    limits = RangeLimits(isolation_level=ISOLATION_LEVELS[isolation_level])
    ranges = {tp: (first[tp], behind[tp]) for tp in sorted(first) if first[tp] < behind[tp]}
    return _Found(admin, mine, ranges, limits)


def _close(admin: Admin, cluster: Cluster) -> None:
    admin.close()
    cluster.close()


def _raise(error: err.KafkaException) -> None:
    raise error
