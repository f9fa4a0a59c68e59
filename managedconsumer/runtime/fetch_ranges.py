"""Reads several small ranges: one Fetch for all partitions of a leader, and then the rest range by range."""

from __future__ import annotations

import logging
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from managedconsumer import errors as err
from managedconsumer.fetch.request import version_of
from managedconsumer.runtime.cluster.connection_pool import ConnectionPool
from managedconsumer.runtime.fetch_range import (
    OnLost,
    RangeLimits,
    chunk_of,
    fetch_body,
    fetch_range,
)
from managedconsumer.runtime.net.connection import answer_timeout_ms
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import PartitionContext, RecordChunk

log = logging.getLogger(__name__)

# The most bytes of a response for several partitions: it stays in memory until all of it is read.
_ANSWER_BYTES = 8 * 1024 * 1024


class Range(NamedTuple):
    """The records of ``topic``-``partition`` with ``start`` <= offset < ``stop``; see :func:`fetch_range`."""

    topic: str
    partition: int
    start: int
    stop: int
    topic_id: bytes | None = None


def fetch_ranges(
    pool: ConnectionPool,
    wanted: Sequence[Range],
    limits: RangeLimits,
    on_lost: Callable[[Range], OnLost | None] = lambda _range: None,
) -> Iterator[tuple[Range, RecordChunk]]:
    """All ranges with their chunks, range by range; the same promises and errors as :func:`fetch_range`.

    A partition may be in several ranges.
    """
    first = fetch_first(pool, wanted, limits) if len(wanted) > 1 else {}
    for part in wanted:
        start = part.start
        chunk = first.pop(part, None)
        if chunk is not None:
            yield part, chunk
            # Damage shows when the records are read.
            start = max(chunk.position, chunk.fetch_offset) if chunk.corrupt else chunk.next_fetch_offset
        if start < part.stop:
            rest = fetch_range(
                pool,
                part.topic,
                part.partition,
                start,
                part.stop,
                limits,
                on_lost=on_lost(part),
                topic_id=part.topic_id,
            )
            for following in rest:
                yield part, following


def fetch_first(
    pool: ConnectionPool, wanted: Sequence[Range], limits: RangeLimits, fewest: int = 2
) -> dict[Range, RecordChunk]:
    """Return the beginnings of ranges from one Fetch to each leader; of several ranges in a partition only the first.

    Leaders of fewer than ``fewest`` of them get no request. :func:`fetch_range` handles failures: this raises no
    errors but those that no broker can mend.
    """
    cluster = pool.cluster
    try:
        topics = {part.topic for part in wanted}
        if not topics <= cluster.snapshot.topics.keys():
            cluster.refresh(topics)
    except err.FATAL_LOCAL_ERRORS:
        raise
    except err.KafkaException as error:
        log.debug("metadata: %s", error)
        return {}
    found: dict[Range, RecordChunk] = {}
    for node, parts in _by_leader(wanted, cluster.snapshot).items():
        if len(parts) >= fewest:
            try:
                found.update(_ask(pool, node, parts, limits))
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                log.debug("broker %d, %d partitions at once: %s", node, len(parts), error)
    return found


def _by_leader(wanted: Sequence[Range], snapshot: ClusterSnapshot) -> dict[int, dict[TopicPartition, Range]]:
    """Return the first range of each partition by leader, without those whose topic was recreated."""
    grouped: dict[int, dict[TopicPartition, Range]] = {}
    for part in wanted:
        tp = TopicPartition(part.topic, part.partition)
        leader, info = snapshot.leader_for(tp), snapshot.topics.get(part.topic)
        if leader is not None and info is not None and part.topic_id in (None, info.topic_id):
            grouped.setdefault(leader.node_id, {}).setdefault(tp, part)
    return grouped


def _ask(
    pool: ConnectionPool, node: int, parts: Mapping[TopicPartition, Range], limits: RangeLimits
) -> dict[Range, RecordChunk]:
    """Send one Fetch to one broker."""
    snapshot = pool.cluster.snapshot
    connection = pool.borrow(node)
    try:
        by_id = all(snapshot.topics[tp.topic].topic_id is not None for tp in parts)
        version = version_of(connection.version(schemas.FETCH), by_id=by_id)
        body = fetch_body(_asked(parts, snapshot), limits.partition_max_bytes, _ANSWER_BYTES, limits)
        timeout = answer_timeout_ms(connection, limits.max_wait_ms, pool.cluster.handler.now())
        answer = connection.request(schemas.FETCH, body, timeout, version)
    except BaseException:
        connection.close()
        raise
    finally:
        pool.give_back(connection)
    names = {info.topic_id: name for name, info in snapshot.topics.items()}
    found: dict[Range, RecordChunk] = {}
    for topic in answer["responses"]:
        name = topic.get("topic") or names.get(bytes(topic.get("topic_id") or b""))
        for told in topic["partitions"]:
            part = parts.get(TopicPartition(name or "", told["partition_index"]))
            if part is None or told["error_code"]:
                continue
            chunk = chunk_of(PartitionContext(part.topic, part.partition), told, part.start, limits)
            if not chunk.needs_bytes and not chunk.corrupt and chunk.next_fetch_offset > part.start:
                found[part] = chunk
    return found


def _asked(
    parts: Mapping[TopicPartition, Range], snapshot: ClusterSnapshot
) -> Iterator[tuple[TopicPartition, bytes | None, int, int]]:
    for tp, part in parts.items():
        info = snapshot.topics[tp.topic]
        yield tp, info.topic_id, info.partitions[tp.partition].leader_epoch, part.start
