"""The metrics of a managed consumer: heartbeats, rebalances, commits, partitions, queue and lag.

The registry reads most values when it is scraped. Only events that take far longer than counting are counted, never
messages. The registry references the consumer weakly and drops the metrics of one that was stopped or collected.
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
    """Return the registry for the user's ``metrics`` (None: none); raises ConfigurationError for another object."""
    if metrics is None:
        return None
    from managedconsumer.observe.adapters import registry_of  # most consumers have no metrics

    metrics = registry_of(metrics)
    missing = [name for name in ("counter", "gauge", "timer") if not callable(getattr(metrics, name, None))]
    if missing:
        raise ConfigurationError(
            f"metrics must be None or a registry like managedconsumer.observe.metrics.Metrics(), a CollectorRegistry "
            f"of prometheus_client or a Meter of OpenTelemetry; {metrics!r} has no method {', '.join(missing)}"
        )
    return metrics


class ConsumerMetrics:
    """Reports one consumer to ``metrics`` (None: nowhere), with the tags ``group`` and ``consumer`` (a number)."""

    def __init__(self, metrics: Any, session: Session, consumer: Any) -> None:
        """The registry forgets ``consumer`` when it is collected without a stop."""
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
        """Report ``machine`` as the membership of a consumer that starts, perhaps again."""
        if self._metrics is not None:
            self._commits = ConsumerCoordinatorMetrics(self._metrics, _PREFIX, self._subscription, self._tags)
            self._member = GroupCoordinatorMetrics(machine.heartbeat, self._metrics, _PREFIX, self._tags)
            consumer = self._consumer()
            if consumer is not None:
                from managedconsumer.observe.measures import measure

                measure(self._metrics, consumer, self._tags)

    def ended(self) -> None:
        """Drop the metrics of a stopped consumer: a registry of many consumers would grow for ever."""
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
