"""The metrics of the coordinators, in a registry of the user's (``managedconsumer.observe.metrics``). Pure."""

from __future__ import annotations

from typing import Any, Mapping

from managedconsumer.coordinator.heartbeat import Heartbeat
from managedconsumer.coordinator.states import MemberState

_S = MemberState


def _named(prefix: str, name: str) -> str:
    stem = "".join(letter if letter.isalnum() else "_" for letter in prefix)
    return f"{stem}_{name}" if stem else name


class GroupCoordinatorMetrics:
    """Heartbeats, joins, syncs and losses of one member.

    ``metrics`` is a registry with ``counter``, ``gauge`` and ``timer`` (None: none), ``prefix`` begins the names, and
    all metrics have ``tags``.
    """

    def __init__(self, heartbeat: Heartbeat, metrics: Any, prefix: str, tags: Mapping[str, str] | None = None) -> None:
        self._metrics = metrics
        self._began: dict[MemberState, float] = {}
        if metrics is None:
            return

        def gauge(name: str, text: str, source: Any, kind: str = "gauge") -> None:
            metrics.gauge(_named(prefix, name), text, tags, source, kind)

        now = heartbeat.clock

        def heartbeat_age() -> float:
            age: float = now() - max(heartbeat.last_heard(), heartbeat.away_at)
            return age

        gauge("heartbeats_sent_total", "Heartbeats that were sent", lambda: heartbeat.sent, "counter")
        gauge("heartbeats_answered_total", "Heartbeats that were answered", lambda: heartbeat.received, "counter")
        gauge("heartbeat_latency_seconds", "How long the last heartbeat took", lambda: heartbeat.latency)
        gauge("last_heartbeat_seconds_ago", "Time since the last heartbeat was answered", heartbeat_age)
        self.join_latency = metrics.timer(_named(prefix, "join_seconds"), "Time that joins took", tags)
        self.sync_latency = metrics.timer(_named(prefix, "sync_seconds"), "Time that syncs took", tags)
        self._rebalances = metrics.counter(_named(prefix, "rebalances_total"), "Rebalances gone through", tags)
        self._lost = metrics.counter(_named(prefix, "memberships_lost_total"), "Times the group expelled us", tags)

    def moved(self, old: MemberState, new: MemberState, now: float) -> None:
        """Note that the membership went from ``old`` to ``new``."""
        if self._metrics is None:
            return
        began, self._began = self._began, {new: now}
        since = began.get(old)
        if since is not None and old is _S.PREPARING_REBALANCE and new is _S.COMPLETING_REBALANCE:
            self.join_latency.observe(now - since)
        elif since is not None and old is _S.COMPLETING_REBALANCE and new is _S.ASSIGNING:
            self.sync_latency.observe(now - since)
        elif new is _S.STABLE:
            self._rebalances.inc()

    def lost(self) -> None:
        """Note that the group has expelled the member."""
        if self._metrics is not None:
            self._lost.inc()


class ConsumerCoordinatorMetrics:
    """Commits and partitions of one member of a consumer group.

    ``metric_group_prefix`` begins the names; ``subscription`` has the assigned partitions.
    """

    def __init__(
        self, metrics: Any, metric_group_prefix: str, subscription: Any, tags: Mapping[str, str] | None = None
    ) -> None:
        self._metrics = metrics
        if metrics is None:
            return
        name = _named(metric_group_prefix, "assigned_partitions")
        metrics.gauge(name, "Partitions that are assigned", tags, lambda: len(subscription.assigned_partitions()))
        self.commit_latency = metrics.timer(_named(metric_group_prefix, "commit_seconds"), "Time commits took", tags)
        self._failed = metrics.counter(_named(metric_group_prefix, "commits_failed_total"), "Failed commits", tags)

    def committed(self, seconds: float, *, well: bool) -> None:
        """Note a commit, its duration, and whether it succeeded."""
        if self._metrics is not None:
            self.commit_latency.observe(seconds)
            if not well:
                self._failed.inc()
