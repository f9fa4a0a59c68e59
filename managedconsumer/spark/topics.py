"""The driver's view of its topics: their partitions, where the logs begin and end, and the group's commits."""

from __future__ import annotations

import logging
import re
from typing import Collection, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.cluster.log_ends import LogEnds
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.waiting.handlers import Handler, ThreadingHandler
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.ranges import alike
from managedconsumer.spark.where import EARLIEST, LATEST, Where
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

# The shortest interval (seconds) between two requests for the logs' ends: Spark polls an idle query every 10 ms.
LOOK_EVERY = 0.1
_METADATA_AGE_MS = 10_000
# How long (seconds) to wait for a missing topic: one that was there (it may be created again), and one that never was.
_TOPIC_PATIENCE, _NEW_TOPIC_PATIENCE = 15.0, 3.0
_END_PATIENCE = 5.0

Offsets = dict[TopicPartition, int]


class TopicView:
    """Metadata and offsets for one query. Used by one thread; opens nothing before the first call that needs it."""

    def __init__(self, options: SourceOptions, handler: Handler | None = None) -> None:
        self.options = options
        self.handler = handler or ThreadingHandler()
        self.cluster = Cluster(parse_bootstrap(options.bootstrap), self.handler, options.settings())
        self.link = CoordinatorLink(self.cluster, options.group_id) if options.group_id is not None else None
        self.offsets = OffsetClient(self.cluster, self.link, options.group_id, options.isolation_level)
        self._max_age = int(options.kafka.get("metadata.max.age.ms", _METADATA_AGE_MS)) / 1000.0
        self._logs = LogEnds(self.offsets, self.handler, options.isolation_level)
        self._begins = LogEnds(self.offsets, self.handler, options.isolation_level, EARLIEST)
        #: The number of requests for the logs' ends so far.
        self.looks = 0
        self._looked_at = float("-inf")
        # All partitions, and the snapshot that they are from.
        self._listed: tuple[object, list[TopicPartition]] = (None, [])
        #: Topics of the group's other members, which the leader has to know, too.
        self.watched: frozenset[str] = frozenset()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        if self.link is not None:
            self.link.close()
        self.cluster.close()

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions that the options name, from metadata that is at most ``metadata.max.age.ms`` old."""
        chosen = self.options.topics
        if self.handler.now() - self.cluster.refreshed_at >= self._max_age:
            self.refresh()
        snapshot = self.cluster.snapshot
        if self._listed[0] is not snapshot:
            found = list(chosen.partitions) or [
                TopicPartition(topic, number)
                for topic in sorted(self.topics())
                for number in sorted(snapshot.partitions_for_topic(topic) or ())
            ]
            self._listed = (snapshot, found)
        return self._listed[1]

    def topics(self) -> set[str]:
        """Return the topics that the options name, or whose names match."""
        chosen = self.options.topics
        if chosen.pattern is None:
            return set(chosen.names) or {tp.topic for tp in chosen.partitions}
        topics = self.cluster.snapshot.topics
        return {name for name, info in topics.items() if not info.is_internal and self.wants(name)}

    def wants(self, topic: str) -> bool:
        """True if the options name ``topic``, or its name matches; the topic need not exist."""
        chosen = self.options.topics
        if chosen.pattern is None:
            return topic in self.topics()
        return re.compile(chosen.pattern).fullmatch(topic) is not None

    def refresh(self) -> None:
        """Refresh the metadata. Waits a little for a missing topic, then raises UnknownTopicOrPartition."""
        names = None if self.options.topics.pattern is not None else self.topics()
        known = self._listed[0] is not None
        began = self.handler.now()
        while True:
            self.cluster.refresh_until(None if names is None else names | self.watched, self.options.patience)
            problem = self._problem(sorted(names or ()))
            if problem is None:
                return
            new = not known and isinstance(problem, err.UnknownTopicOrPartition)
            deadline = Deadline(began, _NEW_TOPIC_PATIENCE if new else _TOPIC_PATIENCE)
            if not problem.retriable or deadline.expired(self.handler.now()):
                raise problem
            log.debug("metadata of %s: %s", names, problem)
            self.handler.sleep(0.25)

    def _problem(self, names: Iterable[str]) -> err.ProtocolClientError | None:
        for name in names:
            info = self.cluster.snapshot.topics.get(name)
            if info is None or info.error_code == err.UnknownTopicOrPartition.ERROR_CODE:
                return err.UnknownTopicOrPartition(
                    f"there is no topic {name!r} at {self.options.bootstrap}: create it first, or check the name"
                )
            if info.error_code:
                return err.error_for_code(info.error_code, f"topic {name!r}")
        for tp in self.options.topics.partitions:
            if self.cluster.snapshot.partition(tp) is None:
                return err.UnknownTopicOrPartition(f"topic {tp.topic!r} has no partition {tp.partition}")
        return None

    def ends(self, tps: Collection[TopicPartition], *, fresh: bool = False) -> Offsets:
        """Return the logs' ends, new ones with ``fresh``; while a broker is away, those of its partitions seen last."""
        known = self._logs.ends
        if tps and (fresh or self.look_again_in() == 0.0 or not (alike(known, tps) or known.keys() >= set(tps))):
            self._look(tps)
            known = self._logs.ends
        return dict(known) if alike(known, tps) else {tp: known[tp] for tp in tps if tp in known}

    def _look(self, tps: Collection[TopicPartition]) -> None:
        began = self.handler.now()
        left = self._logs.look(tps, self.cluster.snapshot, _END_PATIENCE)
        patience = max(0.0, began + _END_PATIENCE - self.handler.now())
        found = self.offsets.list_offsets(dict.fromkeys(left, LATEST), patience) if left else {}
        self._looked_at = self.handler.now()
        self.looks += 1
        for tp, answer in found.items():
            if answer.error is None:
                self._logs.note(tp, answer.offset, answer.leader_epoch)
            elif not answer.may_change:
                raise answer.error
            else:
                log.warning("the end of %s-%d is not known: %s", *tp, answer.error)

    @property
    def epochs(self) -> dict[TopicPartition, int]:
        """The leaders' epochs that came with the ends."""
        return self._logs.epochs

    def look_again_in(self) -> float:
        """Seconds until :meth:`ends` asks again."""
        return max(0.0, self._looked_at + LOOK_EVERY - self.handler.now())

    def shown_ends(self) -> dict[str, dict[str, int]]:
        """Return the ends as last seen, in the form of Spark's own source: ``{"topic": {"0": 23}}``."""
        return self._logs.shown()

    def starts(self, tps: Collection[TopicPartition]) -> Offsets:
        if not tps:
            return {}
        began, begins = self.handler.now(), self._begins
        left = dict.fromkeys(begins.look(tps, self.cluster.snapshot, self.options.patience), EARLIEST)
        found = self._lookup(left, max(0.0, began + self.options.patience - self.handler.now()))
        return {tp: begins.ends[tp] for tp in tps if tp not in left} | found

    def commits(self, tps: Collection[TopicPartition], patience: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's commits, without partitions that have none. Raises when the group does not answer."""
        found = self.offsets.committed(tps, patience)
        return {
            tp: OffsetAndMetadata(entry.offset, entry.metadata or "")
            for tp, entry in found.items()
            if entry.offset >= 0
        }

    def committed(self, tps: Collection[TopicPartition], patience: float) -> Offsets:
        """Return the offsets of :meth:`commits`."""
        return {tp: entry.offset for tp, entry in self.commits(tps, patience).items()}

    def resolve(self, where: Where, tps: Collection[TopicPartition]) -> Offsets:
        """Return one offset per partition; raises ConfigurationError when ``where`` does not fit the partitions."""
        if where.kind == "latest":
            return self._lookup(dict.fromkeys(tps, LATEST))
        if where.kind == "committed":
            committed = self.committed(tps, self.options.patience)
            return {**self.starts([tp for tp in tps if tp not in committed]), **committed}
        if where.kind == "timestamp":
            return self._at_times(where, tps)
        if where.kind == "earliest":
            return self.starts(tps)
        return self._explicit(where, tps)

    def _explicit(self, where: Where, tps: Collection[TopicPartition]) -> Offsets:
        self._check_complete("offsets", where.by_partition, tps)
        logical = {tp: offset for tp, offset in where.by_partition.items() if offset < 0}
        return {**where.by_partition, **self._lookup(logical)}

    def _at_times(self, where: Where, tps: Collection[TopicPartition]) -> Offsets:
        times = dict.fromkeys(tps, where.timestamp) if where.timestamp is not None else dict(where.by_partition)
        self._check_complete("timestamps", times, tps)
        found = self._lookup({tp: time for tp, time in times.items() if time is not None})
        late = [tp for tp, offset in found.items() if offset < 0]
        if late and where is self.options.starting and where.strict:
            raise err.ConfigurationError(
                f"no record of {partition_names(late)} is as new as the starting timestamp; "
                "startingOffsetsByTimestampStrategy=latest begins at the end there"
            )
        return {**found, **self._lookup(dict.fromkeys(late, LATEST))}

    @staticmethod
    def _check_complete(what: str, given: Mapping[TopicPartition, object], tps: Collection[TopicPartition]) -> None:
        read = set(tps)
        missing = [tp for tp in tps if tp not in given]
        extra = [tp for tp in given if tp not in read]
        if missing or extra:
            raise err.ConfigurationError(
                f"the {what} must name every partition that is read, and no other: "
                + " and ".join(
                    [f"{partition_names(missing)} missing"] * bool(missing)
                    + [f"{partition_names(extra)} not read"] * bool(extra)
                )
            )

    def _lookup(self, wanted: Mapping[TopicPartition, int], patience: float | None = None) -> Offsets:
        if not wanted:
            return {}
        found = self.offsets.list_offsets(wanted, self.options.patience if patience is None else patience)
        for answer in found.values():
            if answer.error is not None:
                raise answer.error
        return {tp: answer.offset for tp, answer in found.items()}


def partition_names(tps: Collection[TopicPartition]) -> str:
    """Return the names of partitions for a message, five at most."""
    shown = ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps)[:5])
    return shown if len(tps) <= 5 else f"{shown} and {len(tps) - 5} more"
