"""The position worker: looks up missing positions, and refreshes the metadata before it is too old."""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping

from managedconsumer.clock import Backoff
from managedconsumer.fetch.resets import OffsetAnswer
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.fetching.fetch_pool import LONGEST_PAUSE, FetchPool
from managedconsumer.runtime.engine.life import Ending
from managedconsumer.runtime.engine.troubles import METADATA, POSITIONS
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

# A round of look-ups retries for this long (seconds) before the worker reports its trouble.
_ROUND = 1.0
# A leader gets at least this long (seconds) to respond to ListOffsets, even if less is left of the round.
_SLOWEST_ANSWER = 10.0


class PositionWorker:
    """A worker of one engine; :meth:`resolve` is also called directly by threads that need a position now."""

    def __init__(
        self,
        engine: Assignment,
        offsets: OffsetClient,
        fetchers: FetchPool,
        close: Callable[[float], None],
        sample: Callable[[], None],
        attend: Callable[[float], float],
    ) -> None:
        """``close`` ends the engine of a deleted consumer, within so many seconds; ``sample`` notes the progress.

        ``attend`` starts what is due beside, and returns when it is to be called again; it does not wait.
        """
        self._engine = engine
        self._offsets = offsets
        self._fetchers = fetchers
        self._close = close
        self._sample = sample
        self._attend = attend
        self._worker: Any = None
        self._wake = engine.handler.Event()
        self._on_metadata: Callable[[], None] = lambda: None
        self._backoff = Backoff(0.1, LONGEST_PAUSE, engine.handler.random)
        self._seen = engine.cluster.snapshot
        # True while no worker runs, because the client's long poll has all partitions; until when (handler's clock).
        self._resting = False
        self._rest_until = 0.0

    def start(self) -> None:
        """Start the worker."""
        self._seen = self._engine.cluster.snapshot
        self._worker = self._engine.handler.spawn("positions", self._run)

    def wake(self) -> None:
        """Wake the worker: a position is to be looked up."""
        with self._engine.lock:
            self._wake.set()
            if self._resting:
                self._resting = False
                self._worker = self._engine.handler.spawn("positions", self._run)

    def is_due(self, now: float) -> bool:
        """True when the worker has to run again; no lock."""
        news = self._engine.life.closed or self._engine.cluster.snapshot is not self._seen
        # Check partitions with messages in flight now and then: they may be stuck.
        return self._resting and (news or bool(self._engine.collector.in_flight) or now >= self._rest_until)

    def _rests(self, seconds: float) -> bool:
        """True: this worker ends, and a new one starts within so many seconds, or when there is work."""
        engine = self._engine
        with engine.lock:
            if self._fetchers.quiet_fetches and not (
                engine.life.closed or engine.collector.in_flight or self._wake.is_set()
            ):
                self._rest_until = engine.handler.now() + seconds
                self._resting = True
            return self._resting

    def watch_metadata(self, told: Callable[[], None]) -> None:
        """Call only ``told``, in this worker, after each change of the metadata."""
        self._on_metadata = told

    def join(self, timeout: float) -> None:
        """Wait for the worker to end; the engine is closing."""
        self._wake.set()
        if self._worker is not None:
            self._worker.join(timeout)

    def resolve(self, timeout: float, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Look up positions for pending resets, until ``interrupted()``; late responses count as well."""
        engine = self._engine
        with engine.lock:
            waiting = {
                tp: (state, state.reset_strategy)
                for tp, state in engine.subscription.assignment.items()
                if state.awaiting_reset and state.reset_strategy is not None
            }
        if not waiting:
            engine.troubles.over(POSITIONS)
            return
        wanted = {tp: strategy for tp, (_, strategy) in waiting.items() if strategy is not None}

        def use(answers: Mapping[TopicPartition, OffsetAnswer]) -> None:
            with engine.lock:
                for tp, answer in answers.items():
                    state, strategy = waiting[tp]
                    if answer.error is not None or strategy is None:
                        continue
                    if state.awaits(strategy):
                        # The epoch of the log's start is not that of the records before the position.
                        engine.log_fields.tell_of(tp, log.info, "starting at offset %d", answer.offset)
                        engine.collector.go_on(engine.buffer.queues[tp], max(0, answer.offset))
                engine.wake_all()

        answers = self._offsets.list_offsets(
            wanted, timeout, lambda: engine.life.closed or interrupted(), use=use, slowest=_SLOWEST_ANSWER
        )
        for tp, answer in answers.items():
            if not (answer.may_change and interrupted()):
                self._trouble(tp, answer)

    def _trouble(self, tp: TopicPartition, answer: OffsetAnswer) -> None:
        if self._engine.life.closed or answer.error is None:
            return
        if answer.may_change:
            self._engine.troubles.note(POSITIONS, f"{tp.topic}-{tp.partition}: no offset yet: {answer.error}")
        else:
            self._engine.life.fail(answer.error)

    def _pending(self) -> bool:
        engine = self._engine
        with engine.lock:
            return any(state.awaiting_reset for state in engine.subscription.assignment.values())

    def _in_the_dark(self) -> bool:
        """True while a partition has no leader, and so no fetch worker that asks for one, or no broker responds."""
        engine = self._engine
        if engine.troubles.met(METADATA):
            return True
        with engine.lock:
            return any(engine.cluster.snapshot.leader_for(tp) is None for tp in engine.subscription.assignment)

    def _run(self) -> None:
        engine, now = self._engine, self._engine.handler.now
        try:
            while not engine.life.closed:
                self._wake.clear()
                # New resets do not wait for a slow leader: the next round is for both.
                self.resolve(_ROUND, self._wake.is_set)
                age = now() - engine.cluster.refreshed_at
                # The age is infinite until start() has its first metadata. start() must see that error itself, so
                # this worker refreshes nothing before.
                outdated = engine.outdated is engine.cluster.snapshot or engine.cluster.metadata_max_age <= age
                if (outdated and age < float("inf")) or self._in_the_dark():
                    engine.refresh_metadata()
                    age = min(age, now() - engine.cluster.refreshed_at)
                if engine.cluster.snapshot is not self._seen:  # refreshed here or by another worker
                    before, self._seen = self._seen, engine.cluster.snapshot
                    engine.metadata_changed(before)
                    self._on_metadata()
                self._sample()
                young = max(0.5, min(engine.cluster.metadata_max_age - age, self._attend(now()) - now()))
                if self._in_the_dark():
                    pause = self._backoff.fail(now())
                elif self._pending():
                    self._backoff.succeed()
                    pause = 0.2
                elif self._rests(young):
                    return
                else:
                    self._backoff.succeed()
                    pause = min(5.0, young)
                self._wake.wait(pause)
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            engine.life.fail(error)
        # Deleted without stop(): the garbage collector must not wait for sockets and workers.
        if Ending.ABANDONED in engine.life.endings:
            self._close(2.0)
