"""The fetch workers: one per leading broker (times ``num_consumer_fetchers``), one request in flight each.

A slow broker delays only its own partitions. Workers start and end with the leaders; an idle one waits on the
consumer's condition and costs nothing.
"""

from __future__ import annotations

import logging
from typing import Any, Sequence

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.leader import (
    Fatal,
    FetchEvent,
    FetchState,
    LeaderFetch,
    OutOfRange,
    Recreated,
    Signal,
    TooLarge,
    Truncated,
)
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.fetching.fetcher import Fetcher
from managedconsumer.runtime.engine.fetching.inline import InlineReceive
from managedconsumer.runtime.engine.fetching.quiet_fetches import QuietFetches
from managedconsumer.runtime.engine.troubles import FETCH
from managedconsumer.runtime.net.buffers import BufferPool
from managedconsumer.runtime.net.fetching import Sent, send_fetch

log = logging.getLogger(__name__)

# The pauses (seconds) between two attempts to reach a leader, before the jitter: the consumer finds a new leader within
# half a second.
_FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.4


class FetchPool:
    """Starts and stops the fetch workers of one consumer. ``engine.lock`` guards everything here."""

    def __init__(self, engine: Assignment, limits: fp.FetchLimits, slots: int) -> None:
        self._engine = engine
        self.limits = limits
        self._slots = slots
        self._workers: dict[tuple[int, int], Any] = {}
        self._retired: list[Any] = []
        self._buffers = BufferPool(engine.handler, engine.buffer.budget.bound)
        engine.buffer.budget.memory = self._buffers
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self.quiet_fetches = QuietFetches(engine, limits, self.ensure_workers)
        self.inline_receive = InlineReceive(engine, limits, self.quiet_fetches)

    def ensure_workers(self) -> None:
        """Start missing workers for the current leaders, and cancel outdated long polls; the lock is held."""
        engine = self._engine
        if engine.life.closed:
            return
        self._look_again()
        if self.quiet_fetches:
            self.quiet_fetches.look_again()
        for queue in engine.buffer:
            key = (fp.source_node(queue, engine.cluster.snapshot), queue.tp.partition % self._slots)
            if key[0] >= 0 and key not in self._workers and not self.quiet_fetches.keeps(key, queue.tp):
                name = f"fetcher-{key[0]}" if self._slots == 1 else f"fetcher-{key[0]}-{key[1]}"
                self._workers[key] = engine.handler.spawn(name, self._run, key)
                engine.buffer.budget.workers = len(self._workers)

    def look_again(self) -> None:
        """Start the workers of parked partitions again, if another request is needed."""
        if self.quiet_fetches:
            self.ensure_workers()

    def join(self, timeout: float) -> None:
        """Wait for all workers to end; the engine is closing."""
        with self._engine.lock:
            self.quiet_fetches.clear()
        for worker in [*self._workers.values(), *self._retired]:
            worker.join(timeout)
        self._workers.clear()
        self._retired.clear()

    def alive(self) -> int:
        """How many workers run, or have left their partitions to the client's long poll."""
        running: int = sum(worker.is_alive() for worker in self._workers.values())
        return running + len(self.quiet_fetches)

    # -- one worker -----------------------------------------------------------------------------------

    def _run(self, key: tuple[int, int]) -> None:
        engine = self._engine
        backoff = Backoff(_FIRST_PAUSE, LONGEST_PAUSE, engine.handler.random)
        fetcher = Fetcher(LeaderFetch(key, engine.buffer, self.limits, backoff, slots=self._slots))
        plan = None
        try:
            with engine.mutex:
                self._fetchers[key] = fetcher
            while (plan := self._next_plan(fetcher)) is not None:
                try:
                    self.quiet_fetches.offer(key[0], fetcher)
                    answer = self._ask(fetcher, plan)
                except err.FATAL_LOCAL_ERRORS:
                    raise
                except err.KafkaException as error:
                    self._not_answered(fetcher, plan, error)
                    continue
                self._deliver(fetcher, plan, answer)
                del answer  # else it would keep its memory until the next response comes
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            engine.life.fail(error)
        finally:
            self._tell(fetcher)
            engine.troubles.over((FETCH, *key))
            fetcher.hang_up()
            self.quiet_fetches.take_back(fetcher)
            with engine.lock:
                fetcher.leader.end(plan)
                engine.buffer.budget.workers = max(1, len(self._workers))
                engine.not_full.notify_all()

    def _next_plan(self, fetcher: Fetcher) -> fp.FetchPlan | None:
        """Wait for the next request; None: the worker ends."""
        engine, leader = self._engine, fetcher.leader
        with engine.mutex:
            while not engine.life.closed:
                snapshot, now = engine.cluster.snapshot, engine.handler.now()
                plan, events = leader.next_request(snapshot, now)
                if plan is None or not leader.repeats:
                    self.quiet_fetches.take_back(fetcher)
                elif self.quiet_fetches.takes(fetcher, plan, now):
                    break
                if events:
                    self._carry_out(events)
                if plan is not None:
                    return plan
                if leader.state is FetchState.ENDED:
                    break
                if not any(isinstance(event, Recreated) for event in events):
                    self._tell(fetcher)
                    engine.not_full.wait(leader.next_deadline(snapshot, now))
            self._fetchers.pop(leader.key, None)
            worker = self._workers.pop(leader.key, None)
            if worker is not None and engine.life.closed:
                self._retired.append(worker)
        return None

    def _carry_out(self, events: Sequence[FetchEvent]) -> bool:
        """Carry out the events; True when the metadata is out of date. The lock is held."""
        engine, stale = self._engine, False
        for event in events:
            match event:
                case Signal.SOURCES_CHANGED:
                    self.ensure_workers()
                    engine.not_full.notify_all()
                case Signal.METADATA_OLD:
                    stale = True
                case Signal.BUDGET_FREED:
                    engine.not_full.notify_all()
                case Signal.BUDGET_WANTED:
                    self._look_again()
                case OutOfRange(queue):
                    engine.offset_out_of_range(queue)
                case Truncated(queue, end_offset, epoch):
                    engine.log_truncated(queue, end_offset, epoch)
                case Recreated(queue, topic_id):
                    engine.topic_recreated(queue, topic_id)
                case TooLarge(queue, error):
                    log.warning("%s", error, extra=engine.log_fields(queue.tp))
                    engine.lock.notify_all()
                case Fatal(queue, error):
                    log.error("fetching %s-%d: %s", *queue.tp, error, extra=engine.log_fields(queue.tp))
                    engine.life.fail(error)
        return stale

    def _look_again(self) -> None:
        """Cancel long polls if other requests are needed by now; the lock is held."""
        for fetcher in self._fetchers.values():
            before = fetcher.leader.state
            if not fetcher.leader.look_again():
                self.inline_receive.call_back(fetcher)
                if fetcher.leader.state is not before and fetcher.connection is not None:
                    fetcher.connection.close()

    def _tell(self, fetcher: Fetcher) -> None:
        """Wake the consuming threads if there are new messages or errors for them."""
        if fetcher.leader.must_wake:
            fetcher.leader.must_wake = False
            with self._engine.mutex:
                self._engine.lock.notify_all()

    def _ask(self, fetcher: Fetcher, plan: fp.FetchPlan) -> dict[str, Any]:
        """Return the response, or that to a later request if consuming threads have received this one."""
        leader, sent = fetcher.leader, self._send(fetcher, plan)
        lent = self.inline_receive.lend(fetcher, plan, sent)
        if lent is None:
            # Wake consuming threads once the request is in flight: this thread waits then, and they need not wait for
            # the GIL.
            self._tell(fetcher)
            answer = sent.receive()
        else:
            with self._engine.mutex:
                if not leader.look_again() and leader.state is FetchState.BROKEN_OFF:
                    lent.connection.close()
            answer = lent.receive()
        if not leader.accept(answer):
            answer = self._send(fetcher, plan).receive()
            if not leader.accept(answer):
                raise err.error_for_code(answer["error_code"])
        return answer

    def _send(self, fetcher: Fetcher, plan: fp.FetchPlan) -> Sent:
        connection, leader, engine = fetcher.connection, fetcher.leader, self._engine
        if connection is None or not connection.connected:
            self._tell(fetcher)  # before the long wait
            fetcher.hang_up()
            connection = fetcher.connection = engine.cluster.connect(leader.key[0], self._buffers.take)
            leader.connected()
        now = engine.handler.now()
        return send_fetch(connection, plan.by_id, leader.wait_ms, lambda version: leader.body(plan, version), now)

    def _not_answered(self, fetcher: Fetcher, plan: fp.FetchPlan, error: err.KafkaException) -> None:
        self._tell(fetcher)
        engine, leader = self._engine, fetcher.leader
        connection, fetcher.connection = fetcher.connection, None
        with engine.lock:
            events = leader.too_large(plan, error) if isinstance(error, err.FrameTooLargeError) else None
            if events is not None:
                self._carry_out([*leader.released(plan, engine.cluster.snapshot), *events])
                return
        if connection is not None:
            connection.close()
        with engine.lock:
            events = leader.failed(plan, error, engine.handler.now())
            self._carry_out([*leader.released(plan, engine.cluster.snapshot), *(events or ())])
        if events is None or engine.life.closed:
            return
        engine.troubles.note((FETCH, *leader.key), f"fetching failed: {error}")
        engine.refresh_soon()

    def _deliver(self, fetcher: Fetcher, plan: fp.FetchPlan, answer: dict[str, Any]) -> None:
        """Decode the response without the lock, then take it over under the lock once."""
        engine, leader = self._engine, fetcher.leader
        results = fp.read_answer(plan, answer, self.limits)
        if moved := fp.new_leaders(results):
            engine.cluster.learn_leaders(moved, answer.get("node_endpoints", ()))
        with engine.mutex:
            waiting = engine.sitting > 0 or (engine.inline is not None and engine.inline.inside)
            now, cluster = engine.handler.now(), engine.cluster
            leaders_again = now + cluster.metadata_max_age
            events = leader.receive(plan, results, cluster.snapshot, now, leaders_again=leaders_again, waiting=waiting)
            self._carry_out(leader.released(plan, cluster.snapshot))
            stale = bool(events) and self._carry_out(events)
        retried = [result for result in results if result.outcome is fp.Outcome.RETRY]
        if retried:
            tp = retried[0].queue.tp
            engine.troubles.note((FETCH, *leader.key), f"fetching {tp.topic}-{tp.partition}: {retried[0].error}")
        else:
            engine.troubles.over((FETCH, *leader.key))
        if stale:
            engine.refresh_soon()
