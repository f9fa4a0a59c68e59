"""Reads a range of offsets of one partition, without a group or a thread; keeps only connections between ranges.

For Spark executors (the driver decides on the ranges), and for any other program that knows its offsets:
a replay, a check, a copy. The next request is in flight while the caller processes the last chunk.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Callable, Generator

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch import resets
from managedconsumer.fetch.answers import may_pass
from managedconsumer.fetch.buffer import FetchBuffer
from managedconsumer.fetch.leader import Fatal, FetchState, LeaderFetch, OutOfRange, TooLarge
from managedconsumer.logs import LogFields
from managedconsumer.partition_state import TopicPartitionState, log_end
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.fetching import Sent, send_fetch
from managedconsumer.structs import OffsetType, TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import RecordChunk

log = logging.getLogger(__name__)

# How long (seconds) to retry when the log ends before the range: a new leader may not know its end yet.
_SHORT_LOG_PATIENCE = 15.0
# The pauses (seconds) between two attempts, before the jitter.
_PAUSES = 0.05, 1.0
#: Memory (bytes) is no bound: a range holds one response, and the next one may be on its way.
NO_BOUND = 1 << 40

OnLost = Callable[[int, int], None]


class RangeLimits(NamedTuple):
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

    def of_requests(self, max_bytes: int) -> fp.FetchLimits:
        """Return the limits of requests; ``max_bytes``: of a whole response."""
        given = self._asdict()
        del given["patience"]
        return fp.FetchLimits(**given, max_bytes=max_bytes)


def fetch_range(
    cluster: Cluster,
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

    ``LeaderFetch`` decides on requests, pauses and errors of partitions, as for consumers. One thread uses the iterator
    at a time; closing it early is fine. Source: Kafka's protocol (Fetch, KIP-74, KIP-320).
    """
    tp = TopicPartition(topic, partition)
    reader = _RangeReader(cluster, tp, stop, limits or RangeLimits(), on_lost, partition_object)
    return reader.chunks(start, topic_id)


class _RangeReader:
    """One range being read."""

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        stop: int,
        limits: RangeLimits,
        on_lost: OnLost | None,
        partition_object: Any,
    ) -> None:
        self._cluster = cluster
        self._cluster.allow_answers_of(2 * limits.partition_max_bytes)
        self._tp, self._stop, self._limits, self._on_lost = tp, stop, limits, on_lost
        self._requests = limits.of_requests(limits.partition_max_bytes)
        # The next offset to read is the state's position.
        self._state, self._buffer = TopicPartitionState(), FetchBuffer(1, NO_BOUND)
        self._queue = self._buffer.add(tp, self._state, partition_object)
        random = self._cluster.handler.random
        self._backoff, self._silence = Backoff(*_PAUSES, random), Backoff(*_PAUSES, random)
        self._mind = self._make_mind(-1)
        self._connection: Connection | None = None
        # The request in flight.
        self._plan: fp.FetchPlan | None = None
        self._sent: Sent | None = None
        self._failing_since: float | None = None
        # True: the range is of one topic, whose id is known.
        self._begun = False

    def _make_mind(self, node: int) -> LeaderFetch:
        return LeaderFetch((node, 0), self._buffer, self._requests, self._backoff, sessions=False)

    def _seek(self, offset: int) -> None:
        self._state.seek(offset)
        self._buffer.restart(self._tp)

    @property
    def _offset(self) -> int:
        return self._state.position or 0

    # -- the loop -------------------------------------------------------------------------------------

    def chunks(self, start: int, topic_id: bytes | None) -> Generator[RecordChunk, None, None]:
        """The generator behind :func:`fetch_range`."""
        self._seek(start)
        if topic_id is not None:
            self._queue.belongs_to(topic_id)
            self._begun = True
        try:
            while self._offset < self._stop:
                self._round()
                found = self._buffer.pop()
                if found is None:
                    continue
                chunk = found[1]
                # A range is of the log that is there now: its leader compares no epochs.
                self._queue.last_epoch = -1
                self._progress()
                if not chunk.corrupt and chunk.next_fetch_offset < self._stop:
                    self._send_ahead()
                yield chunk
                if chunk.corrupt and chunk.position <= chunk.fetch_offset:
                    chunk.take(1)  # the caller did not read to the damage: raise it now
                self._state.position = chunk.position if chunk.corrupt else chunk.next_fetch_offset
                self._buffer.used_up(self._queue, chunk)
        finally:
            self._release()

    def _round(self) -> None:
        """Send a request, unless one is in flight, and take its response."""
        answer = None
        try:
            if self._sent is None:
                self._next_request()
            sent, self._sent = self._sent, None
            if sent is not None:
                answer = sent.receive()
                self._mind.accept(answer)
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            if not isinstance(error, err.FrameTooLargeError) or not self._too_large(error):
                self._failed(error)
            return
        if answer is not None:
            self._take(answer)
        elif fp.recreated(self._queue, self._cluster.snapshot):
            self._pass_lost()

    def _next_request(self) -> None:
        """Send the next request, or wait until there is one."""
        node, snapshot, now = self._leader(), self._cluster.snapshot, self._cluster.handler.now()
        if self._mind.key[0] != node or self._mind.state is FetchState.ENDED:
            self._drop_connection()
            self._mind = self._make_mind(node)
        self._send(now)
        if self._sent is None and not fp.recreated(self._queue, snapshot):
            self._cluster.handler.sleep(self._mind.next_deadline(snapshot, now))

    def _send(self, now: float) -> None:
        """Send the next request, if there is one now."""
        mind = self._mind
        self._plan, _ = mind.next_request(self._cluster.snapshot, now)
        if self._plan is not None:
            if self._connection is None:
                self._connection = self._cluster.borrow(mind.key[0])
            body = partial(mind.body, self._plan)
            self._sent = send_fetch(self._connection, self._plan.by_id, mind.wait_ms, body, now)

    def _leader(self) -> int:
        snapshot = self._cluster.snapshot
        if self._tp.topic not in snapshot.topics or fp.recreated(self._queue, snapshot):
            if not self._begun:  # the id may be from old metadata
                self._queue.topic_id = None
            snapshot = self._cluster.refresh([self._tp.topic])
        info = snapshot.topics.get(self._tp.topic)
        if info is not None and info.error_code:
            raise err.error_for_code(info.error_code, f"topic {self._tp.topic!r}")
        if info is None or self._tp.partition not in info.partitions:
            raise err.UnknownTopicOrPartition(f"there is no partition {self._tp.partition} of topic {self._tp.topic!r}")
        if snapshot.leader_for(self._tp) is None:
            raise err.LeaderNotFoundError(f"{self._tp.topic}-{self._tp.partition} has no leader")
        return fp.source_node(self._queue, snapshot)

    def _send_ahead(self) -> None:
        """Send the next request before the caller has processed the last chunk. The next round meets its failure."""
        try:
            self._send(self._cluster.handler.now())
        except err.KafkaException as error:
            log.debug("%s-%d: %s", *self._tp, error)
            self._give_up_request(error)

    # -- responses ------------------------------------------------------------------------------------

    def _take(self, answer: dict[str, Any]) -> None:
        """Take a response: its records go into the buffer."""
        plan, self._plan = self._plan, None
        assert plan is not None  # it was sent
        results, now, offset = fp.read_answer(plan, answer, self._requests), self._cluster.handler.now(), self._offset
        for event in self._mind.receive(plan, results, self._cluster.snapshot, now, leaders_again=float("inf")):
            if isinstance(event, OutOfRange):
                self._pass_lost()
                return
            if isinstance(event, Fatal):
                raise event.error
        for result in results:
            if isinstance(result.error, err.KafkaException):
                self._failed(result.error)
            elif result.chunk is not None and result.chunk.next_fetch_offset == offset and not result.chunk.corrupt:
                self._nothing_came(offset)
        if not results:  # throttled (KIP-219): the broker responds without any partition; a little later as usual
            self._note_failure(err.error_for_code(codes.THROTTLING_QUOTA_EXCEEDED, "the broker throttles this client"))

    def _too_large(self, error: err.FrameTooLargeError) -> bool:
        """Take a response that is larger than it may be; False: it was no response."""
        events = None if self._plan is None else self._mind.too_large(self._plan, error)
        if events is None:
            return False
        self._plan = None
        self._drop_connection()
        if any(isinstance(event, TooLarge) and event.error.offset >= self._stop for event in events):
            self._seek(self._stop)  # the log has no records up to there
        return True

    def _nothing_came(self, offset: int) -> None:
        """Check an empty response: the range ends here if there is no record up to ``stop``."""
        end = log_end(self._state, self._limits.isolation_level) or 0
        if end >= self._stop:
            # Do not trust it: the next batch covers gaps of compaction and transactions, and brokers answer a slow
            # read from tiered storage (KIP-405) without records, too.
            now = self._cluster.handler.now()
            waited = now - (now if self._failing_since is None else self._failing_since)
            self._note_failure(err.RecordsNotSentError(*self._tp, offset, end, waited))
            return
        # A new leader learns the high watermark a moment after it began to lead; a truncated log stays short.
        name = f"{self._tp.topic}-{self._tp.partition}"
        short = f"{name} ends at offset {end}, and the range at {self._stop}: was the topic truncated or made anew?"
        try:
            self._note_failure(err.OffsetNotAvailable(short), min(self._limits.patience, _SHORT_LOG_PATIENCE))
        except err.OffsetNotAvailable:
            if self._on_lost is None:
                raise
            self._on_lost(offset, self._stop)
            self._seek(self._stop)

    # -- errors ---------------------------------------------------------------------------------------

    def _progress(self) -> None:
        self._failing_since, self._begun = None, True
        self._silence.succeed()

    def _failed(self, error: err.KafkaException) -> None:
        """Prepare a retry after a transient error, or raise it: leader moved, connection lost, broker restarting."""
        if isinstance(error, err.ProtocolClientError) and not may_pass(error):
            raise error
        snapshot = self._cluster.snapshot
        self._give_up_request(error)
        self._note_failure(error)
        try:
            self._cluster.refresh_if_same(snapshot, [self._tp.topic])
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as problem:
            log.debug("metadata of %s: %s", self._tp.topic, problem)

    def _give_up_request(self, error: err.KafkaException) -> None:
        plan, self._plan = self._plan, None
        self._drop_connection()
        if plan is not None:
            self._mind.failed(plan, error, self._cluster.handler.now())

    def _note_failure(self, error: err.KafkaException, patience: float | None = None) -> None:
        """Wait as :class:`LeaderFetch` has decided, or longer each time; raise ``error`` once ``patience`` (or the
        limits' one) is over."""
        patience = self._limits.patience if patience is None else patience
        now = self._cluster.handler.now()
        if self._failing_since is None:
            self._failing_since = now
            log.info("%s-%d: %s; trying again", *self._tp, error, extra=LogFields()(self._tp))
        elif now - self._failing_since > patience:
            raise error
        rest = self._queue.retry_at - now
        self._cluster.handler.sleep(rest if rest > 0.0 else self._silence.fail(now))

    def _pass_lost(self) -> None:
        """Handle a position that is not in the log: tell the caller, or raise, and seek to the next offset to read."""
        offset, anew = self._offset, fp.recreated(self._queue, self._cluster.snapshot)
        try:
            earliest = self._log_start()
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            self._failed(error)
            return
        behind = min(earliest, self._stop) if earliest > offset and not anew else self._stop
        if self._on_lost is None:
            if anew:
                reason = "the topic was deleted and made anew"
            elif earliest > offset:
                reason = f"the log begins at {earliest} now (retention?)"
            else:
                reason = "the log ends before (was the topic made anew, or truncated?)"
            raise err.OffsetOutOfRangeError(
                f"offsets {offset} to {behind - 1} of {self._tp.topic}-{self._tp.partition} cannot be read: {reason}"
            )
        self._on_lost(offset, behind)
        self._progress()
        self._seek(behind)

    def _log_start(self) -> int:
        if self._connection is None:
            self._connection = self._cluster.borrow(self._leader())
        body = resets.list_offsets_body({self._tp: OffsetType.EARLIEST}, 0, 30_000)
        found = resets.read_list_offsets(self._connection.request(schemas.LIST_OFFSETS, body), [self._tp])[self._tp]
        if found.error is not None:
            raise found.error
        return found.offset

    def _drop_connection(self) -> None:
        connection, self._connection, self._sent = self._connection, None, None
        if connection is not None:
            connection.close()

    def _release(self) -> None:
        """End the range: it is complete, or the caller has closed the iterator."""
        if self._connection is not None:  # it is closed if it awaits a response
            self._cluster.give_back(self._connection)
            self._connection = None
