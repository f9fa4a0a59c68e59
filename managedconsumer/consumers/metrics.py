"""What a managed consumer tells a registry of metrics: heartbeats, rebalances, commits, partitions, queue and lag.

Everything is read when the registry is asked, or counted where a request takes far longer than the counting: nothing
is done for each message. The registry holds the consumer weakly and keeps nothing of one that was stopped or collected.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable

from managedconsumer.consumers.coordinator_metrics import ConsumerCoordinatorMetrics, GroupCoordinatorMetrics
from managedconsumer.consumers.session import Session
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.coordinator.states import MemberState
from managedconsumer.errors import ConfigurationError

_PREFIX = "managedconsumer"
_numbers = itertools.count(1)


def check_metrics(metrics: Any) -> Any:
    """``metrics`` if it is None or a registry; raises ConfigurationError otherwise."""
    missing = [name for name in ("counter", "gauge", "timer") if not callable(getattr(metrics, name, None))]
    if metrics is not None and missing:
        raise ConfigurationError(
            f"metrics must be None or a registry like managedconsumer.observe.metrics.Metrics(); {metrics!r} has no "
            f"method {', '.join(missing)}"
        )
    return metrics


class ConsumerMetrics:
    """Reports one consumer to ``metrics`` (None: to nobody), with the tags ``group`` and ``consumer`` (a number)."""

    def __init__(self, metrics: Any, session: Session, consumer: Any) -> None:
        """``consumer``: when it is collected without a stop, the registry forgets it."""
        self._metrics = metrics
        if metrics is None:
            return
        self._tags = {"group": str(session.group), "consumer": str(next(_numbers))}
        self._member: GroupCoordinatorMetrics | None = None
        self._commits: ConsumerCoordinatorMetrics | None = None
        engine = session.engine
        self._engine = weakref.proxy(engine)
        self._subscription = weakref.proxy(engine.subscription)
        session.committer.watch(self._committed)
        engine.history.watch(self._observe)
        forget = getattr(metrics, "forget_later", None)
        if forget is not None:
            weakref.finalize(consumer, forget, self._tags).atexit = False

    def joined_as(self, machine: Any) -> None:
        """The consumer starts, or starts again, and ``machine`` is its membership from here on."""
        if self._metrics is not None:
            self._commits = ConsumerCoordinatorMetrics(self._metrics, _PREFIX, self._subscription, self._tags)
            self._member = GroupCoordinatorMetrics(machine.heartbeat, self._metrics, _PREFIX, self._tags)
            self._gauges(self._engine)

    def ended(self) -> None:
        """The consumer was stopped: drop its metrics, or a registry that many consumers share would grow for ever."""
        forget = getattr(self._metrics, "forget", None)
        if forget is not None:
            self._member = self._commits = None
            forget(self._tags)

    def _committed(self, seconds: float, well: bool) -> None:
        if self._commits is not None:
            self._commits.committed(seconds, well=well)

    def _observe(self, event: GroupEvent) -> None:
        if self._member is None:
            return
        if event.kind == "state":
            new = MemberState(event.new)
            self._member.moved(MemberState(event.old), new, event.moment)
            if new is MemberState.LOSING:
                self._member.lost()

    def _gauges(self, engine: Any) -> None:
        def gauge(name: str, text: str, source: Callable[[], float]) -> None:
            self._metrics.gauge(f"{_PREFIX}_{name}", text, self._tags, source)

        def lags() -> list[int]:
            with engine.lock:
                states = list(engine.subscription.assignment.values())
                return [
                    max(0, state.highwater - state.position)
                    for state in states
                    if state.highwater is not None and state.position is not None
                ]

        gauge("queued_messages", "Messages fetched and not begun to be handed out", lambda: engine.buffer.records)
        gauge("queued_bytes", "Bytes fetched and not begun to be handed out", lambda: engine.buffer.nbytes)
        gauge("records_lag", "Messages behind the ends of the logs, as of the last fetches", lambda: sum(lags()))
        gauge("records_lag_max", "The same, of the partition that is behind most", lambda: max(lags(), default=0))

        def run(name: str) -> Callable[[], float]:
            """What ``health()["run"]`` has under ``name``; 0 while there is no run."""

            def value() -> float:
                keeper = engine.collector.hands.keeper
                return 0.0 if keeper is None else keeper.health()[name] or 0.0

            return value

        gauge("run_in_flight", "Messages that run() has taken and not finished", run("in_flight"))
        gauge("run_waiting_keys", "Keys (or batches) that wait for another attempt", run("waiting_keys"))
        gauge("run_retried", "Attempts after a failure since run() began", run("retried"))
        gauge("run_dead", "Messages that failed for good since run() began", run("dead"))
        gauge("run_oldest_unfinished_seconds", "Age of the message in hand for longest", run("oldest_unfinished_s"))
        gauge("run_handler_seconds", "Mean time that the handler takes for a message", run("handler_s"))
        gauge("running", "1 while the consumer runs", lambda: not engine.closing and engine.error is None)
