"""The fetch workers: one per leading broker (times ``num_consumer_fetchers``), one request in flight each.

A slow broker delays only its own partitions. Workers come and go with the leaders; an idle one waits on the consumer's
condition and costs nothing.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.fetch.refused import refused_batch
from managedconsumer.runtime.engine.assignment_part import AssignmentPart
from managedconsumer.runtime.engine.desk import Desk, Sent
from managedconsumer.runtime.engine.loans import Loans
from managedconsumer.runtime.engine.parking import Parking
from managedconsumer.runtime.engine.taking import Taking
from managedconsumer.runtime.engine.troubles import FETCH
from managedconsumer.runtime.net.buffers import BufferPool
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.fetch_wait import answer_timeout_ms
from managedconsumer.structs import ClusterSnapshot
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import RecordChunk

log = logging.getLogger(__name__)

_LONGEST_NAP = 5.0
# The pauses (seconds) between two attempts to reach a leader, before the jitter: a new leader is found within half a
# second of being there.
_FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.4
# What is not more (bytes) comes in one piece, and costs a consuming thread next to nothing to receive.
_SMALL_ANSWER = 12 * 1024
# After so many seconds without a message a request may wait at the broker for so many ms: what Kafka's own consumers
# do by default. The first message ends the wait, and so does whatever else there is to ask for (``_hurry``).
_QUIET_AFTER = 1.0
QUIET_WAIT_MS = 500


class FetchPool(Taking):
    """Starts and stops the fetch workers of one consumer. ``engine.lock`` guards everything here."""

    def __init__(self, engine: AssignmentPart, limits: fp.FetchLimits, slots: int) -> None:
        super().__init__(engine)
        self.limits = limits
        self._slots = slots
        self._workers: dict[tuple[int, int], Any] = {}
        self._retired: list[Any] = []
        self._buffers = BufferPool(engine.handler, engine.buffer.room.bound)
        engine.buffer.room.memory = self._buffers
        self._desks: dict[tuple[int, int], Desk] = {}
        self.parking = Parking(engine, limits, self.ensure_workers)
        self._may_be_patient = limits.min_bytes <= 1 and limits.max_wait_ms < QUIET_WAIT_MS
        self.lending = Loans(self, engine)
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
                if answer is not None:
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
                    if self.parking.takes(key, desk, plan, now, self._be_patient(desk, now)):
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
                    if not self.limits.rack and found.asks_leaders_for(mine):
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
        plan = fp.plan_fetch(self._engine.buffer, mine, snapshot, self.limits, now, key)
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
        if not desk.repeat.holds(self._engine.buffer, self._moves):
            self.lending.call_back(desk)
            if not desk.patient:
                return
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
        for queue in self._engine.buffer if self.limits.rack else ():
            if queue.read_replica >= 0 and now >= queue.replica_until and not queue.in_flight:
                queue.read_replica = -1
                self._sources_changed()

    def _sources_changed(self) -> None:
        """Another broker is to be asked: there is a worker for it, and it wakes up."""
        self._moves += 1
        self.ensure_workers()
        self._engine.not_full.notify_all()

    def _ask(self, node: int, desk: Desk, plan: fp.FetchPlan) -> dict[str, Any] | None:
        """The answer; None: a consuming thread has taken it over, and perhaps some that came after it."""
        sent = self._send(node, desk, plan)
        loan = self.lending.lend(desk, plan, sent)
        if loan is None:
            # Consuming threads are woken when the request is on its way: this thread waits then, and they need not wait
            # for the interpreter's lock.
            self._tell(desk)
            answer = sent.connection.receive(sent.request, sent.wait_ms)
        elif loan.delivered:
            with self._engine.mutex:
                fp.answered(plan)
                self._wake_waiting()
            return None
        else:
            sent, answer = loan.sent, loan.answer or self._receive_late(loan.sent)
        session = desk.session
        if not session.accept(answer):
            body = session.shorten(plan.body, sent.version)
            answer = sent.connection.request(schemas.FETCH, body, sent.wait_ms, sent.version)
            session.accept(answer)
        if answer.get("error_code"):
            raise err.error_for_code(answer["error_code"])
        return answer

    def _receive_late(self, sent: Sent) -> dict[str, Any]:
        """The answer to a request that is under way for a while."""
        return sent.connection.receive(sent.request, 1000 * (sent.until - self._engine.handler.now()))

    def _send(self, node: int, desk: Desk, plan: fp.FetchPlan) -> Sent:
        connection, session, engine = desk.connection, desk.session, self._engine
        if connection is None or not connection.connected:
            self._tell(desk)  # before what may take long
            desk.hang_up()
            connection = desk.connection = engine.cluster.connect(node, self._buffers.take)
            session.reset()
            desk.hurried = False
        version = connection.version(schemas.FETCH)
        if not plan.by_id:
            version = min(version, fp.TOPIC_ID_VERSION - 1)
        if version < fp.EPOCH_VERSION:
            fp.forget_epochs(plan)
        now = engine.handler.now()
        wait_ms: float = self.limits.max_wait_ms + connection.settings.request_timeout_ms
        if connection.throttled_until:
            wait_ms = answer_timeout_ms(connection, self.limits.max_wait_ms, now)
        body = self._body(desk, plan, version)
        if desk.patient:
            wait_ms += QUIET_WAIT_MS
        until = now + wait_ms / 1000
        sent = connection.send(schemas.FETCH, body, version)
        return Sent(connection, sent, version, wait_ms, until, min(until, connection.overdue_at))

    def _body(self, desk: Desk, plan: fp.FetchPlan, version: int) -> dict[str, Any]:
        """The request, which says what has changed since the last one where that is known."""
        body = None if desk.moved is None else desk.session.repeat(plan.body, desk.moved)
        if body is None:
            body = desk.session.shorten(plan.body, version)
        if desk.patient:
            body["max_wait_ms"] = QUIET_WAIT_MS
        return body

    def repeat(self, desk: Desk, plan: fp.FetchPlan, version: int, now: float) -> dict[str, Any] | None:
        """The next request, where nothing but positions has moved; None: it is another one. The lock is held."""
        engine = self._engine
        desk.moved = desk.repeat.go_on(engine.buffer, engine.cluster.snapshot, self._moves, now)
        if desk.moved is None:
            return None
        if desk.moved:  # no silence
            desk.patient = False
        elif self.parking.wants(desk, now, self._be_patient(desk, now)):
            return None  # only the worker can leave its partitions to the watch
        return self._body(desk, plan, version)

    def _be_patient(self, desk: Desk, now: float) -> bool:
        """True after a silence: the next request may wait long at the broker, or the watch asks it."""
        quiet = not desk.moved and now - desk.quiet_since >= _QUIET_AFTER
        desk.patient = quiet and self._may_be_patient
        return quiet

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
            log.warning("%s", batch.error, extra=engine.log_fields(queue.tp))
            # The buffer and the collector see the interface only.
            engine.buffer.accept(queue, version, cast("RecordChunk", batch))
            engine.lock.notify_all()
            return True

    def _deliver(self, key: tuple[int, int], desk: Desk, plan: fp.FetchPlan, answer: dict[str, Any]) -> None:
        """Walk the answer without the lock, then hand it over in one go."""
        engine = self._engine
        results = fp.read_answer(plan, answer, self.limits)
        with engine.mutex:
            fp.answered(plan)
            self._wake_waiting()
            stale = self.take_all(desk, results, engine.handler.now())
            size = sum(result.chunk.nbytes for result in results if result.chunk is not None)
            desk.starved = engine.sitting > 0 and size <= _SMALL_ANSWER
        retried = [result for result in results if result.outcome is fp.Outcome.RETRY]
        if retried:
            tp = retried[0].queue.tp
            engine.troubles.note((FETCH, *key), f"fetching {tp.topic}-{tp.partition}: {retried[0].error}")
        else:
            engine.troubles.over((FETCH, *key))
        if stale:
            self._tell(desk)  # metadata may be long in coming
            engine.refresh_metadata()
