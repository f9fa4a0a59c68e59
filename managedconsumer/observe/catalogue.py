"""Every metric that a consumer tells: its name for Prometheus and for OpenTelemetry, its unit, and what it means. Pure.

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
    OpenTelemetry writes units. ``operation``: the attribute ``messaging.operation.name``."""

    name: str
    kind: str
    unit: str
    text: str
    otel: str
    operation: str = ""


_P = "managedconsumer_"
_O = "managedconsumer."
_M = "messaging.client."

#: The measures of a consumer as a whole.
OF_CONSUMERS = (
    Measure(f"{_P}live", "gauge", "1", "1 while the consumer is live, see health()", f"{_O}live"),
    Measure(f"{_P}ready", "gauge", "1", "1 while the consumer is ready, see health()", f"{_O}ready"),
    Measure(f"{_P}running", "gauge", "1", "1 while the consumer runs", f"{_O}running"),
    Measure(
        f"{_P}queued_messages", "gauge", "{message}", "Messages fetched and not begun to be handed out", f"{_O}queued"
    ),
    Measure(f"{_P}queued_bytes", "gauge", "By", "Bytes fetched and not begun to be handed out", f"{_O}queued.size"),
    Measure(
        f"{_P}records_lag",
        "gauge",
        "{message}",
        "Messages behind the ends of the logs, as of the last fetches",
        f"{_O}lag",
    ),
    Measure(
        f"{_P}records_lag_max", "gauge", "{message}", "The same, of the partition that is behind most", f"{_O}lag.max"
    ),
    Measure(
        "messaging_client_consumed_messages_total",
        "counter",
        "{message}",
        "Messages that were handed out",
        f"{_M}consumed.messages",
    ),
)
#: The measures of each assigned partition, with the tags ``topic`` and ``partition``; fields of PartitionProgress.
OF_PARTITIONS = (
    Measure(f"{_P}partition_position", "gauge", "1", "The next offset that is handed out", f"{_O}partition.position"),
    Measure(f"{_P}partition_committed", "gauge", "1", "The committed next offset", f"{_O}partition.committed"),
    Measure(f"{_P}partition_end", "gauge", "1", "The end of the log as of the last fetch", f"{_O}partition.end"),
    Measure(
        f"{_P}partition_lag",
        "gauge",
        "{message}",
        "Offsets from the oldest unfinished message to the end",
        f"{_O}partition.lag",
    ),
    Measure(
        f"{_P}partition_lag_seconds",
        "gauge",
        "s",
        "Age of the oldest unfinished message",
        f"{_O}partition.lag.duration",
    ),
    Measure(
        f"{_P}partition_lag_exact",
        "gauge",
        "1",
        "1 where the age is known, 0 where it is a bound",
        f"{_O}partition.lag.exact",
    ),
    Measure(
        f"{_P}partition_finished_rate",
        "gauge",
        "{message}/s",
        "Finished offsets per second",
        f"{_O}partition.finished.rate",
    ),
    Measure(
        f"{_P}partition_stuck_seconds",
        "gauge",
        "s",
        "Time without a move, while there was lag",
        f"{_O}partition.stuck.duration",
    ),
    Measure(f"{_P}partition_paused", "gauge", "1", "1 while the partition is paused", f"{_O}partition.paused"),
)
#: The measures of a ``run()`` while it goes on; fields of ``health()["run"]``.
OF_RUNS = (
    Measure(f"{_P}run_in_flight", "gauge", "{message}", "Messages that run() has not finished", f"{_O}run.in_flight"),
    Measure(
        f"{_P}run_waiting_keys", "gauge", "{key}", "Keys (or batches) that wait for a retry", f"{_O}run.waiting_keys"
    ),
    Measure(f"{_P}run_retried", "gauge", "{attempt}", "Attempts after a failure since run() began", f"{_O}run.retried"),
    Measure(f"{_P}run_dead", "gauge", "{message}", "Messages that failed for good since run() began", f"{_O}run.dead"),
    Measure(
        f"{_P}run_oldest_unfinished_seconds",
        "gauge",
        "s",
        "How long the message that was taken first has been in hand",
        f"{_O}run.oldest_unfinished.duration",
    ),
    Measure(
        f"{_P}run_handler_seconds",
        "gauge",
        "s",
        "Mean time that the handler takes for a message",
        f"{_O}run.handler.duration",
    ),
)
#: The counters of group members, where ``metrics=`` was given.
OF_MEMBERS = (
    Measure(
        f"{_P}assigned_partitions", "gauge", "{partition}", "Partitions that are assigned", f"{_O}assigned.partitions"
    ),
    Measure(
        f"{_P}heartbeats_sent_total", "counter", "{heartbeat}", "Heartbeats that were sent", f"{_O}heartbeats.sent"
    ),
    Measure(
        f"{_P}heartbeats_answered_total",
        "counter",
        "{heartbeat}",
        "Heartbeats that were answered",
        f"{_O}heartbeats.answered",
    ),
    Measure(
        f"{_P}heartbeat_latency_seconds", "gauge", "s", "How long the last heartbeat took", f"{_O}heartbeat.latency"
    ),
    Measure(
        f"{_P}last_heartbeat_seconds_ago",
        "gauge",
        "s",
        "Time since the last heartbeat was answered",
        f"{_O}heartbeat.age",
    ),
    Measure(f"{_P}join_seconds", "timer", "s", "Time that joins took", f"{_M}operation.duration", "join"),
    Measure(f"{_P}sync_seconds", "timer", "s", "Time that syncs took", f"{_M}operation.duration", "sync"),
    Measure(f"{_P}commit_seconds", "timer", "s", "Time commits took", f"{_M}operation.duration", "commit"),
    Measure(f"{_P}commits_failed_total", "counter", "{commit}", "Failed commits", f"{_O}commits.failed"),
    Measure(f"{_P}rebalances_total", "counter", "{rebalance}", "Rebalances gone through", f"{_O}rebalances"),
    Measure(
        f"{_P}memberships_lost_total", "counter", "{membership}", "Times the group expelled us", f"{_O}memberships.lost"
    ),
)
MEASURES: Mapping[str, Measure] = MappingProxyType(
    {measure.name: measure for measure in (*OF_CONSUMERS, *OF_PARTITIONS, *OF_RUNS, *OF_MEMBERS)}
)
