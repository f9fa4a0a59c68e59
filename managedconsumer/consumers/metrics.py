"""The metrics of a managed consumer: heartbeats, rebalances, commits, partitions, queue and lag.

Everything is read when the registry is asked, or counted where a request takes far longer than the counting: nothing
is done for each message. The registry holds the consumer weakly and keeps nothing of one that was stopped or collected.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from managedconsumer.consumers.coordinator_metrics import ConsumerCoordinatorMetrics, GroupCoordinatorMetrics
from managedconsumer.consumers.session import Session
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.coordinator.states import MemberState
from managedconsumer.errors import ConfigurationError

_PREFIX = "managedconsumer"
_numbers = itertools.count(1)


def check_metrics(metrics: Any) -> Any:
    """The registry for what was given as ``metrics`` (None: none); raises ConfigurationError otherwise."""
    if metrics is None:
        return None
    from managedconsumer.observe.adapters import registry_of  # most consumers are not told of

    metrics = registry_of(metrics)
    missing = [name for name in ("counter", "gauge", "timer") if not callable(getattr(metrics, name, None))]
    if missing:
        raise ConfigurationError(
            f"metrics must be None or a registry like managedconsumer.observe.metrics.Metrics(), a CollectorRegistry "
            f"of prometheus_client or a Meter of OpenTelemetry; {metrics!r} has no method {', '.join(missing)}"
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
        self._consumer = weakref.ref(consumer)
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
            consumer = self._consumer()
            if consumer is not None:
                from managedconsumer.observe.measures import measure

                measure(self._metrics, consumer, self._tags)

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
