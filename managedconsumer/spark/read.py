"""The work of a Spark task: read ranges of some partitions as Arrow batches. Imports no Spark and joins no group."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterator, Mapping

from managedconsumer import errors as err
from managedconsumer.garbage import freeze_modules
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.shared_clusters import shared_cluster
from managedconsumer.runtime.fetch_ranges import Range, fetch_ranges
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.spark.acknowledging import acknowledge_at_once
from managedconsumer.spark.columns import ERRORS, RANGE, of_kafka, range_column
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.tasks import Task
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.protocol.schemas import Api
from managedconsumer.wire.records.arrow import chunk_to_columns

if TYPE_CHECKING:
    from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink

log = logging.getLogger(__name__)

# The approximate size (bytes) of one Arrow batch, which goes to the JVM unsplit.
_BATCH_BYTES = 16 * 1024 * 1024
# The time-out (ms) of DescribeGroups.
_DESCRIBE_MS = 5000
# Batches of several ranges are merged up to about so many rows, or _BATCH_BYTES.
_MERGED_ROWS = 10_000
_DESCRIBE = "describe"
# Connections to the coordinators, for all tasks of this process; a fork has its own.
_links: dict[tuple[Cluster, str], CoordinatorLink] = {}


def read_task(options: SourceOptions, task: Task) -> Iterator[Any]:
    """Yield ``pyarrow.RecordBatch``es with the wanted columns. Retries while a leader moves.

    Raises OffsetOutOfRangeError for records that are gone, or a topic that was created again, unless ``failOnDataLoss``
    is false; UnknownMemberId if the query has lost its membership, so that others read the same records.
    """
    acknowledge_at_once()
    freeze_modules()
    cluster = shared_cluster(options.identity(), lambda: _cluster(options))
    batches = _read(options, cluster, task)
    yield from batches if len(task.parts) == 1 else _merged(batches)
    if task.member is not None:
        _check_member(options, cluster, task.member)


def _read(options: SourceOptions, cluster: Cluster, task: Task) -> Iterator[Any]:
    ids = {topic: bytes.fromhex(known) for topic, known in task.ids.items()}
    wanted = [Range(*part, ids.get(part.topic)) for part in task.parts]
    plain = of_kafka(options.columns, tuple(options.formats))
    bare = plain == options.columns and not options.formats.keys() & plain
    strict = options.fail_on_data_loss

    def on_lost(part: Range) -> Callable[[int, int], None] | None:
        return None if strict else partial(_log_lost, part)

    for part, chunk in fetch_ranges(cluster, wanted, options.limits(), on_lost):
        while (batch := chunk_to_columns(chunk, part.stop, plain, _BATCH_BYTES)).num_rows:
            if bare:
                yield batch
            else:
                yield from _whole(options, task, part, batch)


def _whole(options: SourceOptions, task: Task, part: Range, batch: Any) -> Iterator[Any]:
    """Yield a batch of records with the columns of this source; several if typed values are very large."""
    made = {name: batch.column(name) for name in batch.schema.names}
    if RANGE in options.columns:
        entry = task.ranges.get(TopicPartition(part.topic, part.partition))
        made[RANGE] = range_column(task.data, entry, batch.num_rows)
    typed = {name: each for name, each in options.formats.items() if name in made}
    if typed:
        from managedconsumer.decoding.decoders import decoder_of
        from managedconsumer.decoding.formats import decode

        for rows, errors in decode({name: decoder_of(each) for name, each in typed.items()}, made):
            yield _of_columns({**rows, ERRORS: errors}, options)
    else:
        yield _of_columns(made, options)


def _of_columns(made: Mapping[str, Any], options: SourceOptions) -> Any:
    import pyarrow as pa

    return pa.record_batch([made[name] for name in options.columns], names=list(options.columns))


def _merged(batches: Iterator[Any]) -> Iterator[Any]:
    """Merge small Arrow batches: each costs the JVM as much as a large one."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _MERGED_ROWS or size >= _BATCH_BYTES:
            yield from _combined(waiting)
            waiting, rows, size = [], 0, 0
    yield from _combined(waiting)


def _combined(batches: list[Any]) -> list[Any]:
    if len(batches) < 2:
        return batches
    import pyarrow as pa

    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _check_member(options: SourceOptions, cluster: Cluster, member: str) -> None:
    """Raise UnknownMemberId in a task of an evicted query: its sink must not write what other members read, too."""
    try:
        members = _members(cluster, options.group_id or "")
    except err.KafkaException as error:
        log.warning("group %s: cannot check whether the query is still a member: %s", options.group_id, error)
        return
    if member not in members:
        raise err.UnknownMemberId(
            f"the query is not in group {options.group_id!r} any more (the batch took longer than "
            "kafka.max.poll.interval.ms, or the driver was silent for kafka.session.timeout.ms): others have its "
            "partitions, so this batch is not written. Start the query again: it goes on where the group is"
        )


def _members(cluster: Cluster, group: str) -> Collection[str]:
    """Return the members of the group. Looks up the coordinator again once, if it has moved."""
    # Each worker process pays for its imports, and only members of a group need these.
    from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
    from managedconsumer.spark.sharing import group_members

    link = _links.get((cluster, group))
    if link is None:
        link = _links[cluster, group] = CoordinatorLink(cluster, group)

    def ask(api: Api, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return link.request(_DESCRIBE, api, body, _DESCRIBE_MS)

    try:
        return group_members(group, ask)
    except err.KafkaException as error:
        link.lost(str(error))
        return group_members(group, ask)


def _cluster(options: SourceOptions) -> Cluster:
    return Cluster(parse_bootstrap(options.bootstrap), ThreadingHandler(), options.settings())


def _log_lost(part: Range, first: int, behind: int) -> None:
    where = f"{part.topic}-{part.partition}"
    log.warning("offsets %d to %d of %s are gone; going on (failOnDataLoss=false)", first, behind - 1, where)
