"""What an answer brings is taken over into the consumer's state."""

from __future__ import annotations

import logging
from typing import Any, Mapping

from managedconsumer import errors as err
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.runtime.engine.assignment_part import AssignmentPart
from managedconsumer.runtime.engine.desk import Desk
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import RecordChunk

log = logging.getLogger(__name__)

# How long (seconds) a partition rests after an error before it is asked for again.
_ERROR_REST = 0.1


class Taking:
    """Base of :class:`~managedconsumer.runtime.engine.fetch_pool.FetchPool`. ``engine.lock`` is held at every call."""

    def __init__(self, engine: AssignmentPart) -> None:
        self._engine = engine
        #: Offsets of answers that went past the high watermark which came with them, see :meth:`_past_watermark`.
        self._refetched: dict[TopicPartition, int] = {}

    def _sources_changed(self) -> None:
        raise NotImplementedError

    def take_all(self, desk: Desk, results: list[fp.PartitionResult], now: float) -> bool:
        """All parts of an answer; True when the metadata is out of date. The lock is held."""
        stale = False
        for result in results:
            stale |= self._take(result, now + _ERROR_REST)
            if result.chunk is None or result.chunk.nbytes:  # an idle topic's answers wake nobody
                desk.news, desk.quiet_since = True, now
        return stale

    def _take(self, result: fp.PartitionResult, rest: float) -> bool:
        """One partition's part; True when the metadata is out of date."""
        engine, queue = self._engine, result.queue
        if queue.version != result.version or not queue.state.active:
            return False
        if result.chunk is not None:
            if not self._take_data(queue, result.version, result.chunk, result.answer):
                result.outcome = fp.Outcome.RETRY
                result.error = err.KafkaException("offsets beyond the log's end")
            return False
        if result.outcome is fp.Outcome.TRUNCATED:
            diverging = result.answer["diverging_epoch"]
            engine.log_truncated(queue, diverging["end_offset"], diverging["epoch"])
            return False
        queue.retry_at = rest
        follower = queue.read_replica
        if follower >= 0:
            fp.leave_replica(queue, engine.handler.now())
            self._sources_changed()
        problem = result.error or err.UnknownError()
        if result.outcome is fp.Outcome.RESET and follower >= 0:
            pass  # a follower may lag behind (KIP-392): the leader decides
        elif result.outcome is fp.Outcome.RESET:
            engine.offset_out_of_range(queue)
        elif result.outcome is fp.Outcome.RAISE:
            log.error("fetching %s-%d: %s", *queue.tp, problem, extra=engine.log_fields(queue.tp))
            engine.fail(problem)
        return result.outcome is fp.Outcome.REFRESH

    def _take_data(self, queue: PartitionQueue, version: int, chunk: RecordChunk, answer: Mapping[str, Any]) -> bool:
        """False: the data is not accepted and must be fetched again."""
        state = queue.state
        state.highwater = answer["high_watermark"]
        state.last_stable = answer.get("last_stable_offset", -1)
        state.log_start = answer.get("log_start_offset", -1)
        preferred = answer.get("preferred_read_replica", -1)
        if preferred >= 0 and preferred != queue.read_replica:
            cluster, now = self._engine.cluster, self._engine.handler.now()
            fp.go_to_replica(queue, preferred, now + cluster.metadata_max_age, cluster.snapshot, now)
            self._sources_changed()
        if chunk.next_fetch_offset > state.highwater >= 0:
            return self._past_watermark(queue, chunk.fetch_offset)
        if self._refetched:
            self._refetched.pop(queue.tp, None)
        if chunk.record_count or chunk.corrupt or chunk.next_fetch_offset > chunk.fetch_offset:
            self._engine.buffer.accept(queue, version, chunk)
        return True

    def _past_watermark(self, queue: PartitionQueue, offset: int) -> bool:
        """Records above the reported high watermark. First time: fetch again at once (True). Again: back off (False).

        Kafka's checksum does not cover a batch's base offset, and a wrong one would skip messages. But a broker reads
        the high watermark before the log, so records that were written in between are above it and sound: the second
        answer has them below it.
        """
        if self._refetched.get(queue.tp) == offset:
            queue.retry_at = self._engine.handler.now() + _ERROR_REST
            return False
        self._refetched[queue.tp] = offset
        return True
