"""The progress of a query, from Spark's reports: the offsets of its last batches, and the ends of the logs.

:class:`managedconsumer.spark.lag.LagListener` listens to the reports instead, and asks no broker.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Mapping

from managedconsumer.admin.ages import ages
from managedconsumer.compat.accept import accept_cluster
from managedconsumer.consumers.insight import ProgressTable
from managedconsumer.fetch.progress import PartitionProgress, moment_of
from managedconsumer.spark.ranges import StreamOffset, log_ends, plain_offsets, reported
from managedconsumer.structs import TopicPartition

Offsets = dict[TopicPartition, int]


class _Report:
    """All Kafka sources of the query in one progress report."""

    def __init__(self, report: Any) -> None:
        self.at = datetime.fromisoformat(str(report["timestamp"]).replace("Z", "+00:00")).timestamp()
        self.positions: Offsets = {}
        self.ends: Offsets = {}
        for source in report["sources"]:
            end, latest = reported(source["endOffset"]), reported(source["latestOffset"])
            if "ranges" in end:
                self.positions |= StreamOffset.from_json(end).ends
            elif end and str(source["description"]).startswith("KafkaV2"):  # Spark's own source
                self.positions |= plain_offsets(end)
            else:
                continue
            self.ends |= log_ends(latest)


def progress_of(query: Any, cluster: Any = None) -> ProgressTable:
    """Return the progress of each partition of a ``StreamingQuery``; empty before its first report.

    ``position`` is the next offset after the last batch, ``end`` the log's end as of the last report. With ``cluster``
    (a KafkaClient or a bootstrap string) one message of each partition with lag is read, for ``lag_seconds`` and
    ``oldest_unfinished``; without it ``lag_seconds`` is 0.0 or None. Raises KafkaException for the brokers' errors.
    """
    reports = [_Report(report) for report in query.recentProgress]
    positions: Offsets = {}
    ends: Offsets = {}
    first: dict[TopicPartition, tuple[float, int]] = {}
    moved: dict[TopicPartition, float] = {}
    for report in reports:
        for tp, offset in report.positions.items():
            first.setdefault(tp, (report.at, offset))
            if offset != positions.get(tp) or offset >= ends.get(tp, offset):
                moved[tp] = report.at
        positions |= report.positions
        ends |= report.ends
    now = datetime.now(timezone.utc).timestamp()
    old = _ages(cluster, positions, ends)
    found = ProgressTable()
    for tp, position in sorted(positions.items()):
        end = ends.get(tp)
        lag = None if end is None else max(0, end - position)
        seconds = 0.0 if lag == 0 else old.get(tp)
        at, offset = first[tp]
        rate = max(0.0, (position - offset) / (reports[-1].at - at)) if reports[-1].at > at else 0.0
        drain = None if lag is None else 0.0 if not lag else lag / rate if rate else None
        oldest = moment_of(round((now - seconds) * 1000)) if lag and seconds is not None else None
        stuck = max(0.0, reports[-1].at - moved[tp]) if lag else 0.0
        found[tp] = PartitionProgress(
            position, None, end, lag, seconds, oldest, seconds is not None, rate, drain, stuck, False
        )
    return found


def _ages(
    cluster: Any, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[Any, float]:
    behind = {tp: offset for tp, offset in positions.items() if offset < ends.get(tp, offset)}
    if cluster is None or not behind:
        return {}
    asked = accept_cluster(cluster)
    try:
        asked.refresh(sorted({tp.topic for tp in behind}))
        found = ages(asked, behind.items(), {tp: (0, ends[tp]) for tp in behind})
        return {tp: age for (tp, _), age in found.items()}
    finally:
        asked.close()
