"""Commit the progress of Spark's own Kafka source to a consumer group, so that Kafka's tools can see the lag.

Spark's connector never commits, so no lag monitor can watch its queries. ``ManagedKafkaSource`` needs no such listener:
it is a member of its group and commits by itself.
"""

from __future__ import annotations

import logging
from typing import Any, Mapping

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.committing import Committing, RetryPolicy, without_group
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.spark.ranges import plain_offsets, reported
from managedconsumer.spark.security import security_from
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

_SPARKS_SOURCE = "KafkaV2["
_PREFIX = "kafka."
_PATIENCE = 30.0
_CLOSE_PATIENCE = 10.0
# Between two attempts (seconds): before the second, and at most.
_PAUSES = (0.1, 2.0)


def end_offsets(progress: Any) -> dict[TopicPartition, int]:
    """Return the next offsets of Spark's Kafka sources after a micro-batch, from its ``StreamingQueryProgress``."""
    found: dict[TopicPartition, int] = {}
    for source in progress.sources:
        if source.description.startswith(_SPARKS_SOURCE) and source.endOffset:
            found |= plain_offsets(reported(source.endOffset))
    return found


class ProgressListener(StreamingQueryListener):
    """Commits what each finished micro-batch has read: ``spark.streams.addListener(ProgressListener(options, group))``.

    ``options``: those of the source (``kafka.bootstrap.servers``, ``kafka.security.protocol``, ...), or just
    ``"host:port"``. ``group_id``: a group without members; Kafka refuses these commits otherwise. ``query_name``: the
    query to commit for (None: every query with a source of Spark's own).

    The commits are for monitors, and for a consumer that takes over from Spark: the query itself goes on from its
    checkpoint. A worker thread makes them. One that fails is logged and repeated with the next progress; the query
    never notices. Raises ConfigurationError at once for wrong options.
    """

    def __init__(self, options: Mapping[str, str] | str, group_id: str, *, query_name: str | None = None) -> None:
        given = {_PREFIX + "bootstrap.servers": options} if isinstance(options, str) else options
        kafka = {name[len(_PREFIX) :].lower(): str(value) for name, value in given.items() if name.startswith(_PREFIX)}
        if not kafka.get("bootstrap.servers"):
            raise ConfigurationError("ProgressListener: the option kafka.bootstrap.servers is missing")
        if not group_id:
            raise ConfigurationError("ProgressListener: group_id is empty; name a group of the query's own")
        self.group_id = group_id
        self._query_name = query_name
        self._handler = ThreadingHandler()
        settings = ConnectionSettings(kafka.get("client.id", "managedconsumer-progress"), security=security_from(kafka))
        self._cluster = Cluster(parse_bootstrap(kafka["bootstrap.servers"]), self._handler, settings)
        self._link = CoordinatorLink(self._cluster, group_id)
        self._offsets = OffsetClient(self._cluster, self._link, group_id, 0)
        self._changed = self._handler.Condition()
        self._wanted: dict[TopicPartition, OffsetAndMetadata] = {}
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._closing = False
        self._worker = self._handler.spawn("spark-progress", self._run)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # Spark's names
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Let the worker commit where the micro-batch ended. Returns at once."""
        progress = event.progress
        if self._query_name is not None and progress.name != self._query_name:
            return
        text = f"spark query {progress.name or progress.id} batch {progress.batchId}"
        ends = {tp: OffsetAndMetadata(offset, text) for tp, offset in end_offsets(progress).items()}
        with self._changed:
            self._wanted |= ends
            self._changed.notify_all()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: nothing was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: :meth:`close` waits for the last commit."""

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """Return the offsets that this listener has committed so far (next offsets)."""
        with self._changed:
            return {tp: entry.offset for tp, entry in self._committed.items()}

    def close(self, timeout: float = _CLOSE_PATIENCE) -> None:
        """Commit what is left, for up to ``timeout`` seconds, and close the connections. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._worker.join(timeout)
        self._link.close()
        self._cluster.close()

    def _news(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: entry
            for tp, entry in self._wanted.items()
            if tp not in self._committed or self._committed[tp].offset != entry.offset
        }

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (news := self._news()) and not self._closing:
                    self._changed.wait()
                closing = self._closing
            if news and self._commit(news, _CLOSE_PATIENCE if closing else _PATIENCE):
                continue
            with self._changed:
                if self._closing:
                    return
                if self._news() == news:  # it did not go: again when there is more to say
                    self._changed.wait()

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float) -> bool:
        patience = RetryPolicy(seconds, pauses=_PAUSES)
        handler = self._handler
        decision = Committing(self.group_id, lambda: without_group(offsets), patience, handler.now(), handler.random)
        result = self._offsets.carry_out(decision)
        with self._changed:
            self._committed |= result.committed
        if result.error is None:
            return True
        if classify(result.error) is Verdict.EXPELLED:
            log.warning(
                "group %s has members, so the query's progress cannot be committed to it: give ProgressListener a "
                "group of its own (%s)",
                self.group_id,
                result.error,
            )
        else:
            log.warning("the query's progress could not be committed to group %s: %s", self.group_id, result.error)
        return False
