"""Reads several small ranges: one Fetch for all partitions of a leader, and then the rest range by range."""

from __future__ import annotations

import logging
from functools import partial
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from managedconsumer import errors as err
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch import resets
from managedconsumer.fetch.buffer import FetchBuffer
from managedconsumer.fetch.request import FetchSession
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.fetch_range import NO_BOUND, OnLost, RangeLimits, fetch_range
from managedconsumer.runtime.net.fetching import send_fetch
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.subscription_state import TopicPartitionState
from managedconsumer.wire.records import RecordChunk

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
    cluster: Cluster,
    wanted: Sequence[Range],
    limits: RangeLimits,
    on_lost: Callable[[Range], OnLost | None] = lambda _range: None,
) -> Iterator[tuple[Range, RecordChunk]]:
    """All ranges with their chunks, range by range; the same promises and errors as :func:`fetch_range`.

    A partition may be in several ranges.
    """
    first = fetch_first(cluster, wanted, limits) if len(wanted) > 1 else {}
    for part in wanted:
        start = part.start
        chunk = first.pop(part, None)
        if chunk is not None:
            yield part, chunk
            # Damage shows when the records are read.
            start = max(chunk.position, chunk.fetch_offset) if chunk.corrupt else chunk.next_fetch_offset
        if start < part.stop:
            rest = fetch_range(
                cluster,
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
    cluster: Cluster, wanted: Sequence[Range], limits: RangeLimits, fewest: int = 2
) -> dict[Range, RecordChunk]:
    """Return the beginnings of ranges from one Fetch to each leader; of several ranges in a partition only the first.

    Leaders of fewer than ``fewest`` of them get no request. :func:`fetch_range` handles failures: this raises no
    errors but those that no broker can mend.
    """
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
    same = [part for part in wanted if part.topic_id in (None, _topic_id(part, cluster.snapshot))]
    # Of several ranges in a partition the first.
    firsts = {TopicPartition(part.topic, part.partition): part for part in reversed(same)}
    for node, parts in resets.by_leader(firsts, cluster.snapshot)[0].items():
        if len(parts) >= fewest:
            try:
                found.update(_ask(cluster, node, parts, limits))
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                log.debug("broker %d, %d partitions at once: %s", node, len(parts), error)
    return found


def _topic_id(part: Range, snapshot: ClusterSnapshot) -> bytes | None:
    info = snapshot.topics.get(part.topic)
    return None if info is None else info.topic_id


def _ask(
    cluster: Cluster, node: int, parts: Mapping[TopicPartition, Range], limits: RangeLimits
) -> dict[Range, RecordChunk]:
    """Send one Fetch to one broker."""
    buffer = FetchBuffer(1, NO_BOUND)
    for tp, part in parts.items():
        state = TopicPartitionState()
        state.seek(part.start)
        buffer.add(tp, state, None)
        buffer.restart(tp)
    requests, now = limits.of_requests(_ANSWER_BYTES), cluster.handler.now()
    plan = fp.plan_fetch(buffer, buffer, cluster.snapshot, requests, now)
    if plan is None:
        return {}
    session = FetchSession(used=False)
    connection = cluster.borrow(node)
    try:
        answer = send_fetch(connection, plan.by_id, limits.max_wait_ms, partial(session.body, plan.body), now).receive()
    except BaseException:
        connection.close()
        raise
    finally:
        cluster.give_back(connection)
    found: dict[Range, RecordChunk] = {}
    for result in fp.read_answer(plan, answer, requests):
        part, chunk = parts[result.queue.tp], result.chunk
        if chunk is not None and not chunk.corrupt and part.start < chunk.next_fetch_offset:
            found[part] = chunk
    return found
