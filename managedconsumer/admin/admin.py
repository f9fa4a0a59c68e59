"""The requests behind the commands and ``KafkaClient``: groups, their members and lag, topics, resets of offsets."""

from __future__ import annotations

import heapq
from datetime import datetime
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping

from managedconsumer import errors as err
from managedconsumer.admin import requests, resets, timestamps
from managedconsumer.admin.ages import ages
from managedconsumer.admin.coordinators import Coordinators
from managedconsumer.admin.values import (
    GroupDescription,
    GroupLag,
    GroupListing,
    PartitionEnds,
    PartitionLag,
    Reset,
    TopicDescription,
)
from managedconsumer.coordinator import commits
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.structs import NO_GENERATION, OffsetAndMetadata, OffsetType, TopicPartition
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import Message, RecordChunk

#: ListOffsets' code of the record with the highest timestamp (KIP-734, Kafka 3.0).
_NEWEST = -3
_OFFSET_FETCH_BATCHED = 8
# Messages that are decoded at a time.
_BATCH = 100

Offsets = dict[TopicPartition, int]


class Admin:
    """Requests about a cluster's groups and topics, repeated for ``patience`` seconds. Thread-safe; joins no group."""

    def __init__(self, cluster: Cluster, patience: float = 30.0) -> None:
        self._cluster, self._patience = cluster, patience
        self._offsets = OffsetClient(cluster, None, None, 0)
        self._coordinators = Coordinators(cluster, patience)

    def close(self) -> None:
        """Close the connections. A later request connects again."""
        self._cluster.close_idle()

    def groups(self, *, lag: bool = False, seconds: bool = True) -> list[GroupListing]:
        """All groups that we may see; with ``lag`` those of consumers have theirs (``seconds``: see :meth:`lag`)."""
        listed = self._listed()
        if not lag:
            return listed
        lags = self.lag_of_existing((each.name for each in listed if each.of_consumers), seconds=seconds)
        return [each._replace(lag=lags.get(each.name)) for each in listed]

    def _listed(self) -> list[GroupListing]:
        def ask(connection: Connection, node: int) -> list[GroupListing]:
            answer = connection.request(schemas.LIST_GROUPS, {"states_filter": [], "types_filter": []})
            return requests.read_list(answer, node)

        # Where any broker coordinates any group (WarpStream), each of them lists all.
        return sorted({each.name: each for each in self._coordinators.brokers(ask)}.values())

    def describe(self, names: Iterable[str]) -> dict[str, GroupDescription]:
        """The groups with their members; raises GroupIdNotFound for one that does not exist."""
        return {name: _or_raise(group) for name, group in self._describe(names).items()}

    def _describe(self, names: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = self._coordinators.groups(
            names,
            schemas.DESCRIBE_GROUPS,
            lambda some: {"groups": some, "include_authorized_operations": False},
            lambda answer, node, _some: requests.read_classic(answer, node),
        )
        # DescribeGroups knows classic groups only: it calls the others dead, or not found (from version 6 on).
        others = [name for name, group in found.items() if _is_unknown(group)]
        if others:
            found.update(self._describe_consumer_groups(others, found))
        gone = [name for name in others if _is_unknown(found[name])]
        return {**found, **{name: err.GroupIdNotFound(f"there is no group {name!r} of consumers") for name in gone}}

    def _describe_consumer_groups(self, names: list[str], classic: Mapping[str, Any]) -> dict[str, Any]:
        answers = self._coordinators.groups(
            names,
            schemas.CONSUMER_GROUP_DESCRIBE,
            lambda some: {"group_ids": some, "include_authorized_operations": False},
            lambda answer, node, _some: requests.read_consumer(answer, node),
        )
        unknown = (err.GroupIdNotFound, err.UnsupportedVersion, err.UnsupportedBrokerError)
        return {name: classic[name] if isinstance(answer, unknown) else answer for name, answer in answers.items()}

    def committed(self, names: Iterable[str]) -> dict[str, Offsets]:
        """Return the groups' committed offsets; raises the first group's error."""
        found: dict[str, Any] = self._coordinators.groups(
            names,
            schemas.OFFSET_FETCH,
            requests.offsets_body,
            lambda answer, _node, some: requests.read_offsets(answer, some),
            batched_from=_OFFSET_FETCH_BATCHED,
            up_to=commits.TOPIC_ID_VERSION - 1,
        )
        return {name: _or_raise(offsets) for name, offsets in found.items()}

    def lag(self, names: Iterable[str], *, seconds: bool = True) -> dict[str, GroupLag]:
        """The lag of each group, in messages and (with ``seconds``) in seconds.

        ``seconds`` reads one message of each partition with a lag, with one request for all partitions of a leader.
        Deleted topics are left out. Raises GroupIdNotFound for a group that does not exist.
        """
        wanted = list(names)
        return self._lag_of(wanted, self.describe(wanted), seconds=seconds)

    def lag_of_existing(self, names: Iterable[str], *, seconds: bool = False) -> dict[str, GroupLag]:
        """:meth:`lag` without the groups that do not exist."""
        answers = self._describe(names).items()
        found = {name: _or_raise(group) for name, group in answers if not isinstance(group, err.GroupIdNotFound)}
        return self._lag_of(list(found), found, seconds=seconds)

    def _lag_of(
        self, wanted: list[str], described: Mapping[str, GroupDescription], *, seconds: bool = False
    ) -> dict[str, GroupLag]:
        committed = self.committed(wanted)
        owners = {
            name: {tp: member for member in group.members for tp in member.partitions}
            for name, group in described.items()
        }
        tps = {tp for name in wanted for tp in (*committed[name], *owners[name])}
        ends = self._ends(tps)
        places = {place for name in wanted for place in committed[name].items() if place[0] in ends}
        old = ages(self._cluster, places, ends) if seconds else {}
        found = {}
        for name in wanted:
            rows = []
            for tp in sorted(tp for tp in {*committed[name], *owners[name]} if tp in ends):
                (start, end), offset = ends[tp], committed[name].get(tp)
                lag = None if offset is None else max(0, end - max(offset, start))
                age = None if offset is None else old.get((tp, offset))
                rows.append(PartitionLag(*tp, offset, start, end, lag, age, owners[name].get(tp)))
            found[name] = GroupLag(described[name], tuple(rows))
        return found

    def reset(
        self,
        group: str,
        topic: str,
        to: str | int | datetime | None = None,
        *,
        shift: int | None = None,
        partitions: Collection[int] | None = None,
        execute: bool = False,
    ) -> Reset:
        """Move the committed offsets of an idle group for ``topic`` (``partitions`` None: all of them).

        ``to`` is "earliest", "latest", an offset, a datetime, an ISO 8601 time or as in "2 hours ago"; ``shift`` moves
        by so many messages instead, backwards when negative. Offsets beyond the log become its nearest end. Writes only
        with ``execute``. Raises GroupNotEmpty, with the members' names, for a group in use; the broker checks this
        again at the write. A group that does not exist is made.
        """
        if (to is None) == (shift is None):
            raise err.ConfigurationError("say where to go: either to=... or shift=...")
        try:
            resets.check_idle(self.describe([group])[group])
        except err.GroupIdNotFound:
            pass  # it has no members
        tps = self._partitions(topic, partitions)
        ends, committed = self._ends(tps), self.committed([group])[group]
        if shift is not None:
            targets = resets.shifted(committed, tps, shift)
        else:
            targets = self._offsets_at(timestamps.parse_moment(to, self._cluster.handler.wall_time()), ends)
        moves = resets.plan(targets, ends, committed)
        if execute:
            self._commit(group, {TopicPartition(m.topic, m.partition): OffsetAndMetadata(m.new) for m in moves})
        return Reset(group, moves, execute)

    def _commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        def read(answer: dict[str, Any], _node: int, _some: list[str]) -> dict[str, Any]:
            results = commits.read_commit(answer, offsets)
            return {group: commits.worst(error for error in results.values() if error is not None)}

        body = commits.commit_body(group, offsets, NO_GENERATION, None)
        found = self._coordinators.groups(
            [group], schemas.OFFSET_COMMIT, lambda _some: body, read, up_to=commits.TOPIC_ID_VERSION - 1
        )
        error = found[group]
        if isinstance(error, (err.UnknownMemberId, err.IllegalGeneration)):
            raise err.GroupNotEmpty(f"a member has joined group {group!r} meanwhile: nothing was changed") from error
        _or_raise(error)

    def topics(self, names: Collection[str] | None = None) -> list[TopicDescription]:
        """Topics (None: all but Kafka's own); -1: a partition has no leader. Raises UnknownTopicOrPartition."""
        snapshot = self._cluster.refresh(names)
        if names is None:
            names = [name for name, info in snapshot.topics.items() if not info.is_internal]
        tps = {tp for name in names for tp in self._partitions(name, None)}
        led = {tp for tp in tps if snapshot.leader_for(tp) is not None}
        ends, newest = self._ends(led), self._newest(led)
        found = []
        for name in sorted(names):
            rows = []
            for number, info in sorted(snapshot.topics[name].partitions.items()):
                tp = TopicPartition(name, number)
                start, end = ends.get(tp, (-1, -1))
                rows.append(PartitionEnds(number, info.leader, info.replicas, info.isr, start, end, newest.get(tp)))
            found.append(TopicDescription(name, tuple(rows)))
        return found

    def offsets_at(self, topic: str, moment: timestamps.Moment, partitions: Collection[int] | None = None) -> Offsets:
        """The offsets of ``moment`` in the logs of ``topic``; a time after the last message is the end of the log."""
        return self._offsets_at(moment, self.ends(topic, partitions))

    def _offsets_at(self, moment: timestamps.Moment, ends: Mapping[TopicPartition, tuple[int, int]]) -> Offsets:
        if moment.kind == "offset":
            return {tp: max(start, min(moment.value, end)) for tp, (start, end) in ends.items()}
        found = self._look_up(dict.fromkeys(ends, moment.value))
        return {tp: offset if offset >= 0 else ends[tp][1] for tp, (offset, _) in found.items()}

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset and the end of each log."""
        return self._ends(self._partitions(topic, partitions))

    def read(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        damaged: Callable[[err.KafkaException], object],
        limits: RangeLimits | None = None,
    ) -> Iterator[Message]:
        """The messages of ``{partition: (first offset, offset behind the last)}``; no group is joined.

        A partition's messages come in order; across partitions the oldest timestamp comes first. ``damaged`` is called
        with the error of records that cannot be read, which are skipped. Raises what :func:`fetch_range` raises.
        """
        each = [self._read(tp, span, damaged, limits) for tp, span in sorted(ranges.items())]
        return heapq.merge(*each, key=lambda message: message.timestamp)

    def _read(
        self,
        tp: TopicPartition,
        span: tuple[int, int],
        damaged: Callable[[err.KafkaException], object],
        limits: RangeLimits | None,
    ) -> Iterator[Message]:
        for chunk, stop in self.chunks({tp: span}, limits):
            while True:
                try:
                    messages = chunk.take(_BATCH, stop)
                except err.CorruptRecordError as error:
                    damaged(error)
                    chunk.skip_corrupt()
                    continue
                if not messages:
                    break
                yield from messages

    def chunks(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], limits: RangeLimits | None
    ) -> Iterator[tuple[RecordChunk, int]]:
        """As :meth:`read`, but chunks, partition by partition, each with the offset at which its range ends."""
        for tp, (start, stop) in sorted(ranges.items()):
            for chunk in fetch_range(self._cluster, *tp, start, stop, limits, on_lost=lambda _first, _behind: None):
                yield chunk, stop

    def _partitions(self, topic: str, numbers: Collection[int] | None) -> set[TopicPartition]:
        info = self._cluster.snapshot.topics.get(topic)
        if info is None or info.error_code:
            info = self._cluster.refresh([topic]).topics.get(topic)
        if info is None or info.error_code:
            code = 3 if info is None else info.error_code
            missing = code == err.UnknownTopicOrPartition.ERROR_CODE
            text = (
                f"there is no topic {topic!r} that this user may see" if missing else f"topic {topic!r} cannot be read"
            )
            raise err.error_for_code(code, text)
        strangers = sorted(set(numbers or ()) - set(info.partitions))
        if strangers:
            text = f"topic {topic!r} has no partition {strangers[0]}: it has {len(info.partitions)}"
            raise err.UnknownTopicOrPartition(text)
        return {TopicPartition(topic, number) for number in (info.partitions if numbers is None else numbers)}

    def _ends(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset and the end of each log; deleted topics are left out."""
        missing = {tp.topic for tp in tps} - set(self._cluster.snapshot.topics)
        if missing:
            self._cluster.refresh(missing)
        there = [tp for tp in tps if self._cluster.snapshot.partition(tp) is not None]
        starts = self._look_up(dict.fromkeys(there, OffsetType.EARLIEST))
        ends = self._look_up(dict.fromkeys(there, OffsetType.LATEST))
        return {tp: (starts[tp][0], ends[tp][0]) for tp in there if tp in starts and tp in ends}

    def _newest(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            found = self._look_up(dict.fromkeys(tps, _NEWEST))
        except (err.UnsupportedVersion, err.UnsupportedBrokerError):
            return {}
        return {tp: timestamp for tp, (_, timestamp) in found.items() if timestamp >= 0}

    def _look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Offset and timestamp of each, without deleted topics; raises the first other error."""
        found = {}
        for tp, answer in self._offsets.list_offsets(wanted, self._patience).items():
            if answer.error is None:
                found[tp] = (answer.offset, answer.timestamp)
            elif not isinstance(answer.error, err.UnknownTopicOrPartition):
                raise answer.error
        return found


def _is_unknown(group: object) -> bool:
    if isinstance(group, GroupDescription):
        return group.state == "Dead"
    return isinstance(group, (err.GroupIdNotFound, err.InvalidGroupId))


def _or_raise(found: Any) -> Any:
    if isinstance(found, err.KafkaException):
        raise found
    return found
