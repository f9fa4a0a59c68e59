"""Reads a range of offsets of one partition, without a group or a thread; keeps only connections between ranges.

For Spark executors (the driver decides on the ranges), and for any other program that knows its offsets:
a replay, a check, a copy. The next request is in flight while the caller processes the last chunk.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Callable, Generator, Iterable, Mapping, cast

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import request, resets
from managedconsumer.fetch.answers import may_pass
from managedconsumer.fetch.refused import refused_batch
from managedconsumer.fetch.request import version_of
from managedconsumer.logs import LogFields
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.connection_pool import ConnectionPool
from managedconsumer.runtime.net.connection import Connection, answer_timeout_ms
from managedconsumer.structs import BrokerInfo, OffsetType, TopicPartition
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import PartitionContext, RecordChunk

log = logging.getLogger(__name__)

# How long (seconds) to retry when the log ends before the range: a new leader may not know its end yet.
_SHORT_LOG_PATIENCE = 15.0

OnLost = Callable[[int, int], None]


@dataclass(frozen=True)
class RangeLimits:
    """Limits of a range reader; sizes in bytes, ``max_wait_ms`` in milliseconds.

    ``patience`` is for how many seconds without any progress failures are retried (new leaders, lost connections,
    brokers that restart) before the last one is raised. ``size_option`` is what the user calls ``partition_max_bytes``,
    for errors: a response may have twice as much, and 65 MiB in any case.
    """

    partition_max_bytes: int = 1024 * 1024
    max_wait_ms: int = 500
    isolation_level: int = 0
    check_crcs: bool = True
    max_batch_bytes: int = 64 * 1024 * 1024
    patience: float = 120.0
    size_option: str = "partition_max_bytes"


def fetch_range(
    source: ConnectionPool | Cluster,
    topic: str,
    partition: int,
    start: int,
    stop: int,
    limits: RangeLimits | None = None,
    *,
    on_lost: OnLost | None = None,
    partition_object: Any = None,
    topic_id: bytes | None = None,
) -> Generator[RecordChunk, None, None]:
    """The records of ``topic``-``partition`` with ``start`` <= offset < ``stop``, as chunks in order.

    The last chunk may hold records at or beyond ``stop``: ask it with ``chunk.take(n, stop)`` or
    ``chunk_to_columns(chunk, stop)``. Ranges are in offsets, not records: gaps that compaction, transaction markers or
    aborted transactions leave are skipped, also at the range's end. The reader never waits for records beyond ``stop``.

    A moved leader, a lost connection or a restarting broker are retried here, for up to ``limits.patience`` seconds
    without progress. When records of the range have been deleted (retention, truncation), ``on_lost(first, behind)``
    is called and reading continues behind them; without ``on_lost`` it raises OffsetOutOfRangeError. The same holds for
    the whole range when the topic has another id than ``topic_id`` (16 bytes): it was recreated. If a broker sends
    no records below the log's end, this retries for as long, and then raises RecordsNotSentError.

    Taking records from a damaged chunk raises CorruptRecordError; after ``chunk.skip_corrupt()`` the range continues. A
    batch that is larger than a response may be comes as such a chunk (RecordTooLargeError).

    One thread uses the iterator at a time; closing it early is fine. Source: Kafka's protocol (Fetch, KIP-74, KIP-320).
    """
    reader = _RangeReader(source, TopicPartition(topic, partition), stop, limits or RangeLimits(), on_lost, topic_id)
    return reader.chunks(PartitionContext(topic, partition, partition_object), start)


class _RangeReader:
    """One range being read."""

    def __init__(
        self,
        source: ConnectionPool | Cluster,
        tp: TopicPartition,
        stop: int,
        limits: RangeLimits,
        on_lost: OnLost | None,
        topic_id: bytes | None,
    ) -> None:
        self._own_pool = isinstance(source, Cluster)
        self._pool = ConnectionPool(source) if isinstance(source, Cluster) else source
        self._cluster = self._pool.cluster
        self._cluster.allow_answers_of(2 * limits.partition_max_bytes)
        self._tp = tp
        self._stop = stop
        self._limits = limits
        self._on_lost = on_lost
        self._topic_id = topic_id
        self._max_bytes = limits.partition_max_bytes
        self._connection: Connection | None = None
        self._pending: int | None = None
        self._backoff = Backoff(0.05, 1.0, self._cluster.handler.random)
        self._failing_since: float | None = None

    # -- the loop -------------------------------------------------------------------------------------

    def chunks(self, context: PartitionContext, start: int) -> Generator[RecordChunk, None, None]:
        """The generator behind :func:`fetch_range`."""
        offset = start
        try:
            while offset < self._stop:
                try:
                    part = self._ask(offset)
                except err.OffsetOutOfRangeError:
                    offset = self._pass_lost(offset)
                    continue
                except err.FATAL_LOCAL_ERRORS:
                    raise
                except err.FrameTooLargeError as error:
                    batch = refused_batch(context, offset, error, self._limits.size_option)
                    if batch is None:
                        self._recover(error)
                        continue
                    self._drop_connection()
                    if batch.error.offset >= self._stop:  # the log has no records up to there
                        break
                    refused = cast("RecordChunk", batch)
                    yield refused
                    offset = self._behind(refused)
                    continue
                except err.KafkaException as error:
                    self._recover(error)
                    continue
                chunk = self._chunk(context, part, offset)
                if chunk is None:
                    offset = self._stop if self._nothing_left(part, offset) else offset
                    continue
                self._progress()
                reached = chunk.next_fetch_offset
                if not chunk.corrupt and reached < self._stop:
                    self._send_ahead(reached)
                yield chunk
                offset = self._behind(chunk)
        finally:
            self._release()

    def _chunk(self, context: PartitionContext, part: Mapping[str, Any], offset: int) -> RecordChunk | None:
        """Return the response's records; None when there are none, or when a larger request is needed first."""
        chunk = chunk_of(context, part, offset, self._limits)
        if chunk.needs_bytes:
            if chunk.needs_bytes <= self._max_bytes:
                raise err.MalformedResponseError(
                    f"{self._tp.topic}-{self._tp.partition}: the broker cut a batch of {chunk.needs_bytes} bytes off "
                    f"although it was allowed {self._max_bytes}"
                )
            self._max_bytes = chunk.needs_bytes
            return None
        if chunk.corrupt or chunk.next_fetch_offset > offset:
            return chunk
        return None

    def _nothing_left(self, part: Mapping[str, Any], offset: int) -> bool:
        """Check an empty response: True when there is no record up to ``stop``, so that the range ends here."""
        end = part["high_watermark"]
        if self._limits.isolation_level == 1 and part.get("last_stable_offset", -1) >= 0:
            end = min(end, part["last_stable_offset"])
        if end >= self._stop:
            # Do not trust it: the next batch covers gaps of compaction and transactions, and brokers answer a slow
            # read from tiered storage (KIP-405) without records, too.
            now = self._cluster.handler.now()
            waited = now - (now if self._failing_since is None else self._failing_since)
            self._note_failure(err.RecordsNotSentError(*self._tp, offset, end, waited))
            return False
        # A new leader learns the high watermark a moment after it began to lead; a truncated log stays short.
        name = f"{self._tp.topic}-{self._tp.partition}"
        short = f"{name} ends at offset {end}, and the range at {self._stop}: was the topic truncated or made anew?"
        try:
            self._note_failure(err.OffsetNotAvailable(short), min(self._limits.patience, _SHORT_LOG_PATIENCE))
        except err.OffsetNotAvailable:
            if self._on_lost is None:
                raise
            self._on_lost(offset, self._stop)
            return True
        return False

    def _behind(self, chunk: RecordChunk) -> int:
        """Return the next offset after the caller has processed ``chunk``."""
        if not chunk.corrupt:
            return chunk.next_fetch_offset
        if chunk.position <= chunk.fetch_offset:
            chunk.take(1)  # the caller did not read to the damage: raise it now
        return max(chunk.position, chunk.fetch_offset)

    # -- requests -------------------------------------------------------------------------------------

    def _ask(self, offset: int) -> Mapping[str, Any]:
        """Return the broker's response for the partition, from ``offset`` on; raises its typed error."""
        connection = self._connection or self._connect()
        if self._pending is None:
            self._send(connection, offset)
        pending, self._pending = self._pending, None
        assert pending is not None  # sent just now
        # Count from now: the request may have been sent long before the caller asks for the response.
        now = self._cluster.handler.now()
        answer = connection.receive(pending, answer_timeout_ms(connection, self._limits.max_wait_ms, now))
        if answer["error_code"]:
            raise err.error_for_code(answer["error_code"])
        for topic in answer["responses"]:
            for part in topic["partitions"]:
                if part["partition_index"] == self._tp.partition:
                    if part["error_code"]:
                        raise err.error_for_code(part["error_code"])
                    found: Mapping[str, Any] = part
                    return found
        # Throttled (KIP-219): the broker responds without any partition; a little later it responds as usual.
        raise err.error_for_code(codes.THROTTLING_QUOTA_EXCEEDED, f"{connection.address} throttles this client")

    def _connect(self) -> Connection:
        leader = self._leader()
        self._connection = self._pool.borrow(leader.node_id)
        return self._connection

    def _leader(self) -> BrokerInfo:
        snapshot = self._cluster.snapshot
        if self._tp.topic not in snapshot.topics:
            snapshot = self._cluster.refresh([self._tp.topic])
        info = snapshot.topics.get(self._tp.topic)
        if info is not None and info.error_code:
            raise err.error_for_code(info.error_code, f"topic {self._tp.topic!r}")
        if info is None or self._tp.partition not in info.partitions:
            raise err.UnknownTopicOrPartition(f"there is no partition {self._tp.partition} of topic {self._tp.topic!r}")
        leader = snapshot.leader_for(self._tp)
        if leader is None:
            raise err.LeaderNotFoundError(f"{self._tp.topic}-{self._tp.partition} has no leader")
        return leader

    def _send(self, connection: Connection, offset: int) -> None:
        if self._made_anew():
            self._cluster.refresh([self._tp.topic])  # the metadata may be old
            if self._made_anew():
                raise err.OffsetOutOfRangeError(f"the topic {self._tp.topic!r} was deleted and made anew")
        info = self._cluster.snapshot.topics[self._tp.topic]
        version = version_of(connection.version(schemas.FETCH), by_id=info.topic_id is not None)
        asked = [(self._tp, info.topic_id, info.partitions[self._tp.partition].leader_epoch, offset)]
        body = fetch_body(asked, self._max_bytes, self._max_bytes, self._limits)
        self._pending = connection.send(schemas.FETCH, body, version)

    def _made_anew(self) -> bool:
        info = self._cluster.snapshot.topics.get(self._tp.topic)
        known = None if info is None else info.topic_id
        return self._topic_id is not None and known not in (None, self._topic_id)

    def _send_ahead(self, offset: int) -> None:
        """Send the next request before the caller has processed the last chunk; an error drops the connection."""
        if self._connection is not None:
            try:
                self._send(self._connection, offset)
            except err.KafkaException as error:
                log.debug("%s-%d: %s", *self._tp, error)
                self._drop_connection()

    # -- errors ---------------------------------------------------------------------------------------

    def _progress(self) -> None:
        self._failing_since = None
        self._backoff.succeed()

    def _recover(self, error: err.KafkaException) -> None:
        """Prepare a retry after a transient error, or raise it: leader moved, connection lost, broker restarting."""
        if isinstance(error, err.ProtocolClientError) and not may_pass(error):
            raise error
        throttled = getattr(error, "ERROR_CODE", None) == codes.THROTTLING_QUOTA_EXCEEDED
        if not throttled:
            self._drop_connection()
        self._note_failure(error)
        if throttled:
            return
        try:
            self._cluster.refresh_if_same(self._cluster.snapshot, [self._tp.topic])
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as problem:
            log.debug("metadata of %s: %s", self._tp.topic, problem)

    def _note_failure(self, error: err.KafkaException, patience: float | None = None) -> None:
        """Wait, longer each time; raise ``error`` once ``patience`` (or the limits' one) is over."""
        patience = self._limits.patience if patience is None else patience
        now = self._cluster.handler.now()
        if self._failing_since is None:
            self._failing_since = now
            log.info("%s-%d: %s; trying again", *self._tp, error, extra=LogFields()(self._tp))
        elif now - self._failing_since > patience:
            raise error
        self._cluster.handler.sleep(self._backoff.fail(now))

    def _pass_lost(self, offset: int) -> int:
        """Handle an ``offset`` that is not in the log: tell the caller, or raise; returns the next offset to read."""
        try:
            earliest = self._log_start()
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            self._recover(error)
            return offset
        behind = min(earliest, self._stop) if earliest > offset and not self._made_anew() else self._stop
        if self._on_lost is None:
            reason = "the topic was deleted and made anew"
            reason = (
                reason
                if self._made_anew()
                else (
                    f"the log begins at {earliest} now (retention?)"
                    if earliest > offset
                    else "the log ends before (was the topic made anew, or truncated?)"
                )
            )
            raise err.OffsetOutOfRangeError(
                f"offsets {offset} to {behind - 1} of {self._tp.topic}-{self._tp.partition} cannot be read: {reason}"
            )
        self._on_lost(offset, behind)
        self._progress()
        return behind

    def _log_start(self) -> int:
        connection = self._connection or self._connect()
        body = resets.list_offsets_body({self._tp: OffsetType.EARLIEST}, 0, 30_000)
        found = resets.read_list_offsets(connection.request(schemas.LIST_OFFSETS, body), [self._tp])[self._tp]
        if found.error is not None:
            raise found.error
        return found.offset

    def _drop_connection(self) -> None:
        connection, self._connection, self._pending = self._connection, None, None
        if connection is not None:
            connection.close()

    def _release(self) -> None:
        """End the range: it is complete, or the caller has closed the iterator."""
        if self._pending is not None:
            self._drop_connection()  # else its response would be read as that of another request
        elif self._connection is not None:
            self._pool.give_back(self._connection)
            self._connection = None
        if self._own_pool:
            self._pool.close_idle()


def chunk_of(context: PartitionContext, part: Mapping[str, Any], offset: int, limits: RangeLimits) -> RecordChunk:
    """Return a partition's records from a Fetch response to a request from ``offset`` on."""
    committed = limits.isolation_level == 1
    aborted = part.get("aborted_transactions") or ()
    return RecordChunk(
        context,
        part["records"] or b"",
        offset,
        aborted=[(a["producer_id"], a["first_offset"]) for a in aborted] if committed else (),
        read_committed=committed,
        check_crcs=limits.check_crcs,
        max_batch_bytes=limits.max_batch_bytes,
    )


def fetch_body(
    asked: Iterable[tuple[TopicPartition, bytes | None, int, int]],
    partition_max_bytes: int,
    max_bytes: int,
    limits: RangeLimits,
) -> dict[str, Any]:
    """A Fetch without a session. ``asked``: partition, topic id, leader epoch, offset."""
    entries = (
        (tp.topic, topic_id or bytes(16), request.entry(tp.partition, epoch, offset, -1, partition_max_bytes))
        for tp, topic_id, epoch, offset in asked
    )
    body = request.body(
        request.by_topic(entries),
        max_wait_ms=limits.max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=limits.isolation_level,
    )
    return request.without_session(body)
