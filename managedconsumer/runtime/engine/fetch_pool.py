"""The fetch workers: one per leading broker (times ``num_consumer_fetchers``), one request in flight each.

A slow broker delays only its own partitions. Workers come and go with the leaders; an idle one waits on the consumer's
condition and costs nothing.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Mapping, cast

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.fetch.refused import refused_batch
from managedconsumer.runtime.engine.assignment_part import AssignmentPart
from managedconsumer.runtime.engine.desk import Desk
from managedconsumer.runtime.engine.parking import Parking
from managedconsumer.runtime.engine.troubles import FETCH
from managedconsumer.runtime.net.buffers import BufferPool
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.fetch_wait import answer_timeout_ms
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import RecordChunk

log = logging.getLogger(__name__)

# How long (seconds) a partition rests after an error before it is asked for again.
_ERROR_REST = 0.1
_LONGEST_NAP = 5.0
# The pauses (seconds) between two attempts to reach a leader, before the jitter: a new leader is found within half a
# second of being there.
_FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.4
# After so many seconds without a message a request may wait at the broker for so many ms: what Kafka's own consumers
# do by default. The first message ends the wait, and so does whatever else there is to ask for (``_hurry``).
_QUIET_AFTER = 1.0
QUIET_WAIT_MS = 500


class FetchPool:
    """Starts and stops the fetch workers of one consumer. ``engine.lock`` guards everything here."""

    def __init__(self, engine: AssignmentPart, limits: fp.FetchLimits, slots: int) -> None:
        self._engine = engine
        self._limits = limits
        self._slots = slots
        self._workers: dict[tuple[int, int], Any] = {}
        self._retired: list[Any] = []
        self._buffers = BufferPool(engine.handler, engine.buffer.room.bound)
        engine.buffer.room.memory = self._buffers
        self._desks: dict[tuple[int, int], Desk] = {}
        self.parking = Parking(engine, limits, self.ensure_workers)
        self._may_be_patient = limits.min_bytes <= 1 and limits.max_wait_ms < QUIET_WAIT_MS
        #: Offsets of answers that went past the high watermark which came with them, see :meth:`_past_watermark`.
        self._refetched: dict[TopicPartition, int] = {}
        #: How often a partition went to another broker without new metadata.
        self._moves = 0

    def ensure_workers(self) -> None:
        """Start what is missing for the current leaders, and let none wait for another answer; the lock is held."""
        engine = self._engine
        if engine.closing:
            return
        for desk in self._desks.values():
            self._hurry(desk)
        if self.parking:
            self.parking.look_again(self._moves)
        for queue in engine.buffer:
            key = (fp.source_node(queue, engine.cluster.snapshot), self._slot(queue))
            if key[0] >= 0 and key not in self._workers and not self.parking.keeps(key, queue.tp):
                name = f"fetcher-{key[0]}" if self._slots == 1 else f"fetcher-{key[0]}-{key[1]}"
                self._workers[key] = engine.handler.spawn(name, self._run, key)
                engine.buffer.room.workers = len(self._workers)

    def look_again(self) -> None:
        """Something else is to be fetched, perhaps: workers that have left their partitions come back for it."""
        if self.parking:
            self.ensure_workers()

    def _slot(self, queue: PartitionQueue) -> int:
        return queue.tp.partition % self._slots

    def join(self, timeout: float) -> None:
        """Wait for all workers to end; they have been told to."""
        with self._engine.lock:
            self.parking.clear()
        for worker in [*self._workers.values(), *self._retired]:
            worker.join(timeout)
        self._workers.clear()
        self._retired.clear()

    def alive(self) -> int:
        """How many workers run, or have left their partitions to the client's watch."""
        running: int = sum(worker.is_alive() for worker in self._workers.values())
        return running + len(self.parking)

    # -- one worker -----------------------------------------------------------------------------------

    def _run(self, key: tuple[int, int]) -> None:
        engine = self._engine
        desk, plan = Desk(Backoff(_FIRST_PAUSE, LONGEST_PAUSE, engine.handler.random)), None
        try:
            with engine.mutex:
                self._desks[key] = desk
            while (plan := self._next_plan(key, desk)) is not None:
                try:
                    self.parking.offer(key[0], desk)
                    answer = self._ask(key[0], desk, plan)
                except err.FATAL_LOCAL_ERRORS:
                    raise
                except err.KafkaException as error:
                    self._not_answered(key, desk, plan, error)
                    continue
                desk.backoff.succeed()
                self._deliver(key, desk, plan, answer)
                del answer  # or its memory would be held until the next one comes
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            engine.fail(error)
        finally:
            self._tell(desk)
            engine.troubles.over((FETCH, *key))
            desk.hang_up()
            self.parking.take_back(desk)
            self._leave(key, plan)

    def _leave(self, key: tuple[int, int], plan: fp.FetchPlan | None) -> None:
        """The worker ends: what it may have fetched, and its place in the line, are for the others."""
        engine = self._engine
        with engine.lock:
            if plan is not None:
                fp.release(plan, 0.0)
            engine.buffer.room.leave(key)
            engine.buffer.room.workers = max(1, len(self._workers))
            engine.not_full.notify_all()

    def _next_plan(self, key: tuple[int, int], desk: Desk) -> fp.FetchPlan | None:
        """Wait until there is something to ask for; None: this worker is not needed any more."""
        engine = self._engine
        with engine.mutex:
            while not engine.closing:
                snapshot, now = engine.cluster.snapshot, engine.handler.now()
                again = desk.repeat.again(engine.buffer, snapshot, self._moves, now, key)
                if again is not None:
                    plan, desk.moved = again
                    quiet = not desk.moved and now - desk.quiet_since >= _QUIET_AFTER
                    desk.patient = quiet and self._may_be_patient
                    if self.parking.takes(key, desk, plan, now, quiet):
                        break
                    return plan
                self.parking.take_back(desk)
                desk.repeat.forget()
                desk.moved, desk.patient, desk.quiet_since = None, False, now
                self._ask_leaders_again(now)
                mine = [q for q in engine.buffer if (fp.source_node(q, snapshot), self._slot(q)) == key]
                if not mine:
                    break
                for queue in mine:
                    if fp.recreated(queue, snapshot):
                        engine.topic_recreated(queue, snapshot.topics[queue.tp.topic].topic_id)
                found = self._ask_in_turn(key, mine, snapshot, now)
                if found is not None:
                    if not self._limits.rack and found.asks_leaders_for(mine):
                        desk.repeat.keep(found, engine.buffer, snapshot, self._moves)
                    return found
                resting = [q.retry_at - now for q in mine if q.retry_at > now]
                self._tell(desk)
                engine.not_full.wait(min([_LONGEST_NAP, *resting]))
            self._desks.pop(key, None)
            worker = self._workers.pop(key, None)
            if worker is not None and engine.closing:
                self._retired.append(worker)
        return None

    def _ask_in_turn(
        self, key: tuple[int, int], mine: list[PartitionQueue], snapshot: ClusterSnapshot, now: float
    ) -> fp.FetchPlan | None:
        room = self._engine.buffer.room
        waiting = room.waiting
        plan = fp.plan_fetch(self._engine.buffer, mine, snapshot, self._limits, now, key)
        if room.waiting < waiting:  # it is another worker's turn
            self._engine.not_full.notify_all()
        elif room.waiting > waiting:
            for desk in self._desks.values():
                self._hurry(desk)
        return plan

    def _wake_waiting(self) -> None:
        """What a request had reserved is free again; the lock is held."""
        if self._engine.buffer.room.waiting:
            self._engine.not_full.notify_all()

    def _hurry(self, desk: Desk) -> None:
        """Give up a request that may wait long at the broker if another is needed by now; the lock is held."""
        if desk.patient and not desk.repeat.holds(self._engine.buffer, self._moves):
            desk.patient, desk.hurried = False, True
            if desk.connection is not None:
                desk.connection.close()

    def _tell(self, desk: Desk) -> None:
        """Wake the consuming threads if there is something new for them."""
        if desk.news:
            desk.news = False
            with self._engine.mutex:
                self._engine.lock.notify_all()

    def _ask_leaders_again(self, now: float) -> None:
        """Another replica may be the closest by now; only leaders know (KIP-392)."""
        for queue in self._engine.buffer if self._limits.rack else ():
            if queue.read_replica >= 0 and now >= queue.replica_until and not queue.in_flight:
                queue.read_replica = -1
                self._sources_changed()

    def _sources_changed(self) -> None:
        """Another broker is to be asked: there is a worker for it, and it wakes up."""
        self._moves += 1
        self.ensure_workers()
        self._engine.not_full.notify_all()

    def _ask(self, node: int, desk: Desk, plan: fp.FetchPlan) -> dict[str, Any]:
        connection, session = desk.connection, desk.session
        if connection is None or not connection.connected:
            self._tell(desk)  # before what may take long
            desk.hang_up()
            connection = desk.connection = self._engine.cluster.connect(node, self._buffers.take)
            session.reset()
            desk.hurried = False
        version = connection.version(schemas.FETCH)
        if not plan.by_id:
            version = min(version, fp.TOPIC_ID_VERSION - 1)
        if version < fp.EPOCH_VERSION:
            fp.forget_epochs(plan)
        timeout: float = self._limits.max_wait_ms + connection.settings.request_timeout_ms
        if connection.throttled_until:
            timeout = answer_timeout_ms(connection, self._limits.max_wait_ms, self._engine.handler.now())
        body = None if desk.moved is None else session.repeat(plan.body, desk.moved)
        if body is None:
            body = session.shorten(plan.body, version)
        if desk.patient:
            body["max_wait_ms"] = QUIET_WAIT_MS
            timeout += QUIET_WAIT_MS
        # Consuming threads are woken when the request is on its way: this thread waits then, and they need not wait for
        # the interpreter's lock.
        answer = connection.request(schemas.FETCH, body, timeout, version, partial(self._tell, desk))
        if not session.accept(answer):
            answer = connection.request(schemas.FETCH, session.shorten(plan.body, version), timeout, version)
            session.accept(answer)
        if answer.get("error_code"):
            raise err.error_for_code(answer["error_code"])
        return answer

    def _not_answered(self, key: tuple[int, int], desk: Desk, plan: fp.FetchPlan, error: err.KafkaException) -> None:
        self._tell(desk)
        connection, desk.connection = desk.connection, None
        with self._engine.mutex:
            hurried, desk.hurried, desk.patient = desk.hurried, False, False
            if hurried and isinstance(error, err.SocketDisconnectedError):
                fp.release(plan, 0.0)
                self._wake_waiting()
                return
        if not isinstance(error, err.FrameTooLargeError) or not self._refuse(plan, error):
            self._give_up(key, plan, connection, error, desk.backoff)

    def _give_up(
        self,
        key: tuple[int, int],
        plan: fp.FetchPlan,
        connection: Connection | None,
        error: err.KafkaException,
        backoff: Backoff,
    ) -> None:
        engine = self._engine
        if connection is not None:
            connection.close()
        now = engine.handler.now()
        with engine.lock:
            fp.failed(plan, now, now + backoff.fail(now))
            self._sources_changed()
        if not engine.closing:
            engine.troubles.note((FETCH, *key), f"fetching failed: {error}")
            engine.refresh_metadata()
            with engine.lock:
                fp.ask_new_leaders(plan, key[0], engine.cluster.snapshot)
                self._sources_changed()

    def _refuse(self, plan: fp.FetchPlan, error: err.FrameTooLargeError) -> bool:
        """The answer is too large to be received: find out for which partition, and tell its reader. The others go on.

        A broker sends the first batch whole, however large (KIP-74), so it is one partition's. False: it was no answer.
        """
        engine = self._engine
        with engine.lock:
            ticket = fp.separate(plan)
            self._wake_waiting()
            if ticket is None:
                return True
            queue, version, offset = ticket
            batch = refused_batch(queue.context, offset, error, "fetch_message_max_bytes")
            if batch is None:
                return False
            log.warning("%s", batch.error)
            # The buffer and the collector see the interface only.
            engine.buffer.accept(queue, version, cast("RecordChunk", batch))
            engine.lock.notify_all()
            return True

    def _deliver(self, key: tuple[int, int], desk: Desk, plan: fp.FetchPlan, answer: dict[str, Any]) -> None:
        """Walk the answer without the lock, then hand it over in one go."""
        engine = self._engine
        results = fp.read_answer(plan, answer, self._limits)
        stale = False
        with engine.mutex:
            fp.answered(plan)
            self._wake_waiting()
            if results:
                now = engine.handler.now()
                for result in results:
                    stale |= self._take(result, now + _ERROR_REST)
                    if result.chunk is None or result.chunk.nbytes:  # an idle topic's answers wake nobody
                        desk.news, desk.quiet_since = True, now
        retried = [result for result in results if result.outcome is fp.Outcome.RETRY]
        if retried:
            tp = retried[0].queue.tp
            engine.troubles.note((FETCH, *key), f"fetching {tp.topic}-{tp.partition}: {retried[0].error}")
        else:
            engine.troubles.over((FETCH, *key))
        if stale:
            self._tell(desk)  # metadata may be long in coming
            engine.refresh_metadata()

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
            log.error("fetching %s-%d: %s", *queue.tp, problem)
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
