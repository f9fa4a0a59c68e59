"""Every metric of a consumer: its names for Prometheus and OpenTelemetry, its unit, its meaning and its source. Pure.

OpenTelemetry's names are those of its conventions for messaging where they have one. The tags ``group``, ``topic`` and
``partition`` become its attributes, see :data:`ATTRIBUTES`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping

from managedconsumer.values import NamedTuple

#: Our tags, and the names of OpenTelemetry's attributes.
ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "group": "messaging.consumer.group.name",
        "topic": "messaging.destination.name",
        "partition": "messaging.destination.partition.id",
        "consumer": "messaging.client.id",
    }
)
#: The attributes of all of OpenTelemetry's measurements.
SYSTEM: Mapping[str, str] = MappingProxyType({"messaging.system": "kafka"})


class Measure(NamedTuple):
    """One metric. ``kind``: "counter", "gauge" or "timer" (seconds; OpenTelemetry's histogram). ``unit`` is in UCUM, as
    OpenTelemetry writes units. ``field``: where :mod:`managedconsumer.observe.measures` finds its value. ``operation``:
    the attribute ``messaging.operation.name``."""

    name: str
    kind: str
    unit: str
    text: str
    otel: str
    field: str = ""
    operation: str = ""


def _ours(kind: str, *rows: tuple[str, str, str, str, str]) -> tuple[Measure, ...]:
    """Metrics with names of our own. A row: name, OpenTelemetry's name, unit, field, meaning."""
    return tuple(
        Measure(f"managedconsumer_{name}", kind, unit, text, f"managedconsumer.{otel}", field)
        for name, otel, unit, field, text in rows
    )


def _operation(name: str, text: str) -> Measure:
    return Measure(
        f"managedconsumer_{name}_seconds", "timer", "s", text, "messaging.client.operation.duration", "", name
    )


#: The measures of a consumer as a whole; fields of ``health()``, and the lag of all its partitions.
OF_CONSUMERS = (
    *_ours(
        "gauge",
        ("live", "live", "1", "live", "1 while the consumer is live, see health()"),
        ("ready", "ready", "1", "ready", "1 while the consumer is ready, see health()"),
        ("running", "running", "1", "running", "1 while the consumer runs"),
        (
            "queued_messages",
            "queued",
            "{message}",
            "queued_messages",
            "Messages fetched and not begun to be handed out",
        ),
        ("queued_bytes", "queued.size", "By", "queued_bytes", "Bytes fetched and not begun to be handed out"),
        ("records_lag", "lag", "{message}", "lag", "Messages behind the ends of the logs, as of the last fetches"),
        ("records_lag_max", "lag.max", "{message}", "lag_max", "The same, of the partition that is behind most"),
    ),
    Measure(
        "messaging_client_consumed_messages_total",
        "counter",
        "{message}",
        "Messages that were handed out",
        "messaging.client.consumed.messages",
        "handed_out",
    ),
)
#: The measures of each assigned partition, with the tags ``topic`` and ``partition``; fields of PartitionProgress.
OF_PARTITIONS = _ours(
    "gauge",
    ("partition_position", "partition.position", "1", "position", "The next offset that is handed out"),
    ("partition_committed", "partition.committed", "1", "committed", "The committed next offset"),
    ("partition_end", "partition.end", "1", "end", "The end of the log as of the last fetch"),
    ("partition_lag", "partition.lag", "{message}", "lag", "Offsets from the oldest unfinished message to the end"),
    ("partition_lag_seconds", "partition.lag.duration", "s", "lag_seconds", "Age of the oldest unfinished message"),
    ("partition_lag_exact", "partition.lag.exact", "1", "exact", "1 where the age is known, 0 where it is a bound"),
    ("partition_finished_rate", "partition.finished.rate", "{message}/s", "rate", "Finished offsets per second"),
    (
        "partition_stuck_seconds",
        "partition.stuck.duration",
        "s",
        "stuck_for",
        "Time without a move, while there was lag",
    ),
    ("partition_paused", "partition.paused", "1", "paused", "1 while the partition is paused"),
)
#: The measures of a ``run()`` while it goes on; fields of ``health()["run"]``.
OF_RUNS = _ours(
    "gauge",
    ("run_in_flight", "run.in_flight", "{message}", "in_flight", "Messages that run() has not finished"),
    ("run_waiting_keys", "run.waiting_keys", "{key}", "waiting_keys", "Keys (batches) that wait for a retry or a time"),
    ("run_retried", "run.retried", "{attempt}", "retried", "Attempts after a failure since run() began"),
    ("run_dead", "run.dead", "{message}", "dead", "Messages that failed for good since run() began"),
    (
        *("run_oldest_unfinished_seconds", "run.oldest_unfinished.duration", "s", "oldest_unfinished_s"),
        "How long the message that was taken first has been in flight",
    ),
    ("run_handler_seconds", "run.handler.duration", "s", "handler_s", "Mean time that the handler takes for a message"),
)
#: The counters of group members, where ``metrics=`` was given.
OF_MEMBERS = (
    *_ours(
        "gauge",
        ("assigned_partitions", "assigned.partitions", "{partition}", "", "Partitions that are assigned"),
        ("heartbeat_latency_seconds", "heartbeat.latency", "s", "", "How long the last heartbeat took"),
        ("last_heartbeat_seconds_ago", "heartbeat.age", "s", "", "Time since the last heartbeat was answered"),
    ),
    *_ours(
        "counter",
        ("heartbeats_sent_total", "heartbeats.sent", "{heartbeat}", "", "Heartbeats that were sent"),
        ("heartbeats_answered_total", "heartbeats.answered", "{heartbeat}", "", "Heartbeats that were answered"),
        ("commits_failed_total", "commits.failed", "{commit}", "", "Failed commits"),
        ("rebalances_total", "rebalances", "{rebalance}", "", "Rebalances gone through"),
        ("memberships_lost_total", "memberships.lost", "{membership}", "", "Times the group expelled us"),
    ),
    _operation("join", "Time that joins took"),
    _operation("sync", "Time that syncs took"),
    _operation("commit", "Time commits took"),
)
MEASURES: Mapping[str, Measure] = MappingProxyType(
    {measure.name: measure for measure in (*OF_CONSUMERS, *OF_PARTITIONS, *OF_RUNS, *OF_MEMBERS)}
)
