"""The lag of queries in messages and seconds, from their progress reports, without asking a broker.

The seconds are the time since the log first had a record that the query has not read, as far as reports show it: as
exact as the pause between two reports.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, Mapping

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.ranges import StreamOffset, log_ends, reported
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

# How many reports are kept to compute the lag in seconds.
_KEPT = 1000


@dataclass(frozen=True)
class SourceLag:
    """One source of one query, as its last progress report shows it.

    ``messages`` and ``seconds``: by partition, of those that the query has. ``generation`` and ``member``: of the
    group, None and "" without one. ``batch``: Spark's number.
    """

    query: str
    name: str | None
    batch: int
    messages: Mapping[TopicPartition, int] = field(default_factory=dict)
    seconds: Mapping[TopicPartition, float] = field(default_factory=dict)
    generation: int | None = None
    member: str = ""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that the query had in its last batch."""
        return sorted(self.messages)

    @property
    def lag_messages(self) -> int:
        """The lag of all owned partitions together, in messages."""
        return sum(self.messages.values())

    @property
    def lag_seconds(self) -> float:
        """The lag of the partition that is furthest behind, in seconds."""
        return max(self.seconds.values(), default=0.0)

    @property
    def description(self) -> str:
        """The source and its lag in one line, for a log."""
        topics = ", ".join(sorted({tp.topic for tp in self.messages})) or "nothing"
        member = "" if self.generation is None else f", generation {self.generation}"
        return (
            f"managedkafka[{topics}; {len(self.messages)} partitions{member}]: {self.lag_messages} messages, "
            f"{self.lag_seconds:.1f} s behind"
        )


class LagListener(StreamingQueryListener):
    """``spark.streams.addListener(LagListener())``: the lag of every query with a ``managedkafka`` source.

    ``on_progress`` is called with the :class:`SourceLag` of each source, in Spark's thread; what it raises goes to the
    log. :attr:`sources` holds the last of each. Spark's one thread for listeners writes them; any thread may read them.
    """

    def __init__(self, on_progress: Callable[[SourceLag], None] | None = None) -> None:
        self._on_progress = on_progress
        self._sources: dict[tuple[str, int], SourceLag] = {}
        self._seen: dict[tuple[str, int], deque[tuple[float, dict[TopicPartition, int]]]] = {}

    @property
    def sources(self) -> list[SourceLag]:
        """The last report of each source of the queries that run."""
        return list(self._sources.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # Spark's names
        """Do nothing: the first report brings the lag."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Compute the lag from a progress report."""
        progress = event.progress
        for number, source in enumerate(progress.sources):
            found = self._look(str(progress.id), number, progress, source)
            if found is not None and self._on_progress is not None:
                try:
                    self._on_progress(found)
                except Exception:
                    log.exception("the listener's on_progress raised")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the report before is still right."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query."""
        query = str(event.id)
        self._sources = {key: found for key, found in self._sources.items() if key[0] != query}
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != query}

    def _look(self, query: str, number: int, progress: Any, source: Any) -> SourceLag | None:
        try:
            offset = StreamOffset.from_json(reported(source.endOffset))
            logs = log_ends(reported(source.latestOffset))
        except (ConfigurationError, TypeError, ValueError):
            return None  # another source
        ends = {tp: max(logs.get(tp, at), at) for tp, at in offset.ends.items()}
        now = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp()
        seen = self._seen.setdefault((query, number), deque(maxlen=_KEPT))
        seen.append((now, ends))
        found = SourceLag(
            query,
            progress.name,
            progress.batchId,
            {tp: ends[tp] - at for tp, at in offset.ends.items()},
            {tp: _since(tp, at, seen, now) for tp, at in offset.ends.items()},
            offset.group[0] if offset.group else None,
            offset.group[1] if offset.group else "",
        )
        self._sources = {**self._sources, (query, number): found}
        return found


def _since(tp: TopicPartition, at: int, seen: deque[tuple[float, dict[TopicPartition, int]]], now: float) -> float:
    """Return for how long (seconds) the log has had records behind ``at``."""
    first = now
    for when, ends in reversed(seen):
        if ends.get(tp, 0) <= at:
            break
        first = when
    return now - first
