"""``use_rdkafka=True``: librdkafka fetches (package confluent-kafka), under our membership, positions and commits.

One worker keeps a ``confluent_kafka.Consumer`` in step with the buffer: it assigns to it each partition that a queue
wants, at its offset, and never joins its group. After a seek, reset or resume it assigns the partition again at the new
offset, so that librdkafka drops its fetched messages. Messages of partitions that a rebalance has suspended stay
in our buffer. When the buffer is full the worker takes no more, and librdkafka's own queue fills up to its bound.

Where librdkafka cannot continue (a damaged batch, an offset that is not in the log, a truncated log) we fetch once
ourselves, so that we handle these cases as without librdkafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.fetch.leader import LeaderFetch
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.fetching.fetch_pool import FetchPool
from managedconsumer.runtime.engine.fetching.fetcher import Fetcher
from managedconsumer.runtime.engine.troubles import FETCH
from managedconsumer.runtime.rdkafka import config as config
from managedconsumer.runtime.rdkafka.chunk import RdkafkaChunk
from managedconsumer.runtime.rdkafka.reader import Part, Reader, Reading, text_of
from managedconsumer.structs import TopicPartition

_KEY = (-1, 0)
_TROUBLE = (FETCH, *_KEY)
_LONGEST_NAP = 1.0
# The pause (seconds) of a partition after an error, and how long to keep a consumer without partitions.
_ERROR_REST = 0.2
_LINGER = 10.0
# A trouble of librdkafka's counts as over this long (seconds) after its last report.
_TROUBLE_AGE = 15.0


@dataclass
class _Step:
    """The worker's next actions, in this order."""

    stop: list[TopicPartition]
    start: dict[TopicPartition, Reading]
    room: bool  # for messages


class RdkafkaPool(FetchPool):
    """Replaces :class:`FetchPool`; ``engine.lock`` guards the state of both."""

    def __init__(self, engine: Assignment, limits: fp.FetchLimits) -> None:
        """Raises MissingPackageError, and ConfigurationError for security settings that librdkafka cannot have."""
        super().__init__(engine, limits, 1)
        self._package = config.load()
        config.check(engine.cluster.settings.security)
        self._troubled_at = 0.0

    def ensure_workers(self) -> None:
        """Start the worker if there is something to read; the engine's lock is held."""
        engine = self._engine
        if not engine.life.closed and engine.buffer.queues and _KEY not in self._workers:
            self._workers[_KEY] = engine.handler.spawn("fetcher-rdkafka", self._work)

    def _work(self) -> None:
        engine = self._engine
        reader: Reader | None = None
        backoff = Backoff(0.1, 2.0, engine.handler.random)
        try:
            while (step := self._next_step(reader)) is not None:
                try:
                    reader = reader or self._make_reader()
                    reader.follow(step.stop, step.start)
                    if step.room:
                        self._deliver_lot(reader, reader.collect(engine.not_full, not (step.stop or step.start)))
                    backoff.succeed()
                except self._package.KafkaException as error:
                    if reader is not None:
                        reader.close()
                        reader = None
                    self._rest(error, backoff)
        except BaseException as error:  # a worker's death must reach the user
            engine.life.fail(error)
        finally:
            engine.troubles.over(_TROUBLE)
            if reader is not None:
                reader.close()

    def _make_reader(self) -> Reader:
        engine = self._engine
        connection = engine.cluster.settings
        settings = config.settings(engine.cluster.bootstrap, engine.options, connection, engine.handler)
        # A token callable may be slow, and must not block the hub.
        pooled = connection.security.sasl_oauth_token is not None
        return Reader(self._package, settings, engine.handler, pooled=pooled)

    def _next_step(self, reader: Reader | None) -> _Step | None:
        """Wait for the next work; None: the worker ends."""
        engine = self._engine
        with engine.lock:
            idle_since = engine.handler.now()
            while not engine.life.closed:
                now = engine.handler.now()
                snapshot = engine.cluster.snapshot
                for queue in engine.buffer:
                    if fp.recreated(queue, snapshot):
                        engine.topic_recreated(queue, snapshot.topics[queue.tp.topic].topic_id)
                step = self._plan({} if reader is None else reader.readings, now)
                if step.stop or step.start or (step.room and reader is not None and reader.readings):
                    return step
                if not engine.buffer.queues and now - idle_since >= _LINGER:
                    break
                resting = [queue.retry_at - now for queue in engine.buffer if queue.retry_at > now]
                engine.not_full.wait(min([_LONGEST_NAP, *resting]))
            worker = self._workers.pop(_KEY, None)
            if worker is not None and engine.life.closed:
                self._retired.append(worker)
        return None

    def _plan(self, readings: dict[TopicPartition, Reading], now: float) -> _Step:
        """Decide on changes of the assignment, and whether the buffer takes more; the engine's lock is held."""
        buffer = self._engine.buffer
        wanted = {queue.tp: queue for queue in buffer if self._is_wanted(queue, now)}
        stop = [tp for tp, reading in readings.items() if not reading.fits(wanted.get(tp))]
        start = {
            tp: Reading(queue, queue.version, queue.fetch_offset)
            for tp, queue in wanted.items()
            if (tp not in readings or tp in stop) and not queue.state.suspended
        }
        # While one partition is full, all wait: librdkafka has one queue, and a pause would drop a partition's fetched
        # messages. The full one is being consumed, so this does not last.
        full = buffer.nbytes * 2 >= buffer.budget.bound or any(
            queue.records >= buffer.max_messages for queue in wanted.values() if not queue.state.suspended
        )
        return _Step(stop, start, not full)

    def _is_wanted(self, queue: PartitionQueue, now: float) -> bool:
        """True if the partition is to be read, or may still be: a suspended one buffers messages up to the limit."""
        state = queue.state
        return (
            queue.fetch_offset >= 0
            and state.active
            and state.has_valid_position
            and not state.paused
            and now >= queue.retry_at
            and not (state.suspended and queue.records >= self._engine.buffer.max_messages)
        )

    def _deliver_lot(self, reader: Reader, lot: list[Any]) -> None:
        engine = self._engine
        parts = reader.sort(lot)
        marks = {tp: reader.watermarks(tp) for tp in parts if tp in reader.readings}
        chunks = {tp: _chunk_of(reader.readings[tp], parts[tp]) for tp in marks}
        lot.clear()  # the messages have been converted
        damaged = []
        if marks:
            with engine.lock:
                for tp, mark in marks.items():
                    reading = reader.readings[tp]
                    if reading.fits(reading.queue) and reading.queue.state.active:
                        self._take_chunk(reading, chunks[tp], mark)
                        if parts[tp].error is not None and self._take_error(reading, parts[tp].error):
                            damaged.append(reading.queue)
                engine.lock.notify_all()
        for queue in damaged:
            self._read_ourselves(queue)
        reader.hearing.tell()
        if self._hear_errors(reader, bool(marks)):
            # librdkafka does not name the partition of the response, and repeats the request for ever.
            for reading in list(reader.readings.values()):
                reading.ended = True
                self._read_ourselves(reading.queue)

    def _take_chunk(self, reading: Reading, chunk: RdkafkaChunk, marks: tuple[int, int]) -> None:
        """Put it into the buffer; the lock is held."""
        queue = reading.queue
        if marks[1] >= 0:
            queue.state.highwater = marks[1]
        if marks[0] >= 0:
            queue.state.log_start = marks[0]
        if chunk.next_fetch_offset > chunk.fetch_offset:
            self._engine.buffer.accept(queue, reading.version, chunk)
            reading.next_offset = chunk.next_fetch_offset

    def _take_error(self, reading: Reading, error: Any) -> bool:
        """Handle an error of one partition, lock held; True when we have to fetch it ourselves."""
        engine, queue, codes = self._engine, reading.queue, self._package.KafkaError
        reading.ended = True
        code = error.code()
        if code in (codes._BAD_MSG, codes._BAD_COMPRESSION, codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            return True  # the last two mean that the offset is not in the log, or that the log was replaced
        queue.retry_at = engine.handler.now() + _ERROR_REST
        text = f"fetching {queue.tp.topic}-{queue.tp.partition}: {error.str()}"
        ours = err.error_for_code(code, text) if code > 0 else None
        if error.fatal() or (ours is not None and not (ours.retriable or ours.refresh_metadata)):
            engine.life.fail(ours or err.RdKafkaException(text))
        else:
            self._note(text)
        return False

    def _note(self, text: str) -> None:
        self._troubled_at = self._engine.handler.now()
        self._engine.troubles.note(_TROUBLE, text)

    def _hear_errors(self, reader: Reader, alive: bool) -> bool:
        """Handle other errors (a refused login ends the consumer); True when a response was too large to receive."""
        engine, codes, too_large = self._engine, self._package.KafkaError, False
        if engine.troubles.met(_TROUBLE) and (alive or engine.handler.now() - self._troubled_at > _TROUBLE_AGE):
            engine.troubles.over(_TROUBLE)
        while reader.hearing.errors:
            error = reader.hearing.errors.popleft()
            code = error.code()
            if code == codes.GROUP_AUTHORIZATION_FAILED:
                continue  # of the group, which this consumer never joins
            if code == codes._BAD_MSG and "receive.message.max.bytes" in error.str():
                too_large = True
                continue
            if code == codes._AUTHENTICATION and engine.cluster.settings.security.sasl_oauth_token is None:
                engine.life.fail(err.SaslAuthenticationError(f"librdkafka could not log in: {error.str()}"))
            elif error.fatal():
                engine.life.fail(err.RdKafkaException(f"librdkafka has given up: {error.str()}"))
            else:
                self._note(f"fetching failed: {error.str()}")
        return too_large

    def _rest(self, error: BaseException, backoff: Backoff) -> None:
        """Pause after a failed call of librdkafka; then the worker makes a new reader."""
        engine = self._engine
        reason = error.args[0] if error.args else None
        if reason is not None and getattr(reason, "fatal", bool)():
            raise err.RdKafkaException(f"librdkafka has given up: {text_of(error)}") from error
        self._note(f"fetching failed: {text_of(error)}")
        with engine.lock:
            if not engine.life.closed:
                engine.not_full.wait(backoff.fail(engine.handler.now()))

    def _read_ourselves(self, queue: PartitionQueue) -> None:
        """Fetch once without librdkafka, at the position of ``queue``."""
        engine = self._engine
        with engine.lock:
            snapshot = engine.cluster.snapshot
            node = fp.source_node(queue, snapshot)
            plan = fp.plan_fetch(engine.buffer, [queue], snapshot, self.limits, engine.handler.now())
        if plan is None:
            return  # librdkafka will come to the same offset again
        backoff = Backoff(_ERROR_REST, _ERROR_REST, engine.handler.random)
        fetcher = Fetcher(LeaderFetch((node, 0), engine.buffer, self.limits, backoff))
        try:
            answer = self._ask(fetcher, plan)
            if answer is not None:
                self._deliver(fetcher, plan, answer)
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            self._not_answered(fetcher, plan, error)
        finally:
            self._tell(fetcher)
            fetcher.hang_up()


def _chunk_of(reading: Reading, part: Part) -> RdkafkaChunk:
    """Make a chunk of one partition's messages, from its next offset on; ``part`` lets go of its messages."""
    messages, part.messages = part.messages, []
    if messages and messages[0].offset() < reading.next_offset:
        messages = [message for message in messages if message.offset() >= reading.next_offset]
    return RdkafkaChunk(reading.queue.context, messages, reading.next_offset, part.end_offset)
