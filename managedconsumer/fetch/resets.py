"""Looks up where a log begins or ends, or the offset of a timestamp (ListOffsets), and the ends of epochs. Pure.

The latter check that a committed position belongs to the leader's log (OffsetForLeaderEpoch, KIP-320). The group keeps,
beside an offset, the leader epoch of the record before it. If the partition has had another leader since, the consumer
asks that leader where the epoch ends in its log: an end below the offset means that records which the group has read
are gone, and that other records have their offsets.
"""

from __future__ import annotations

import logging
from typing import Any, Container, Iterable, Iterator, Mapping, TypeVar

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.fetch.answers import may_pass
from managedconsumer.logs import LogFields
from managedconsumer.shown import line
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class OffsetAnswer(NamedTuple):
    """One partition of the response: ``offset`` (-1: none at or after the requested time), or an error."""

    offset: int
    timestamp: int
    leader_epoch: int
    error: err.ProtocolClientError | None

    @property
    def may_change(self) -> bool:
        """True for a transient error: the same request may succeed later."""
        return self.error is not None and may_pass(self.error)


def by_leader(
    wanted: Mapping[TopicPartition, _T], cluster: ClusterSnapshot
) -> tuple[dict[int, dict[TopicPartition, _T]], list[TopicPartition]]:
    """Group ``wanted`` by leading broker; the second value lists the partitions without a leader."""
    grouped: dict[int, dict[TopicPartition, _T]] = {}
    homeless = []
    topics, brokers = cluster.topics, cluster.brokers
    for tp, each in wanted.items():  # there may be thousands: no calls for each
        info = topics.get(tp[0])
        part = None if info is None else info.partitions.get(tp[1])
        if part is None or part.leader not in brokers:
            homeless.append(tp)
        else:
            grouped.setdefault(part.leader, {})[tp] = each
    return grouped, homeless


def list_offsets_body(wanted: Mapping[TopicPartition, int], isolation_level: int, timeout_ms: int) -> dict[str, Any]:
    """A ListOffsets request for one broker."""
    parts = (
        (name, {"partition_index": number, "current_leader_epoch": -1, "timestamp": timestamp})
        for (name, number), timestamp in wanted.items()
    )
    topics = _by_topic("name", parts)
    return {"replica_id": -1, "isolation_level": isolation_level, "topics": topics, "timeout_ms": timeout_ms}


def _by_topic(key: str, parts: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Partitions, each with the name of its topic, as a request has them; ``key`` is that of the name."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, part in parts:
        topics.setdefault(name, []).append(part)
    return [{key: name, "partitions": each} for name, each in topics.items()]


def parts_of(
    answer: Mapping[str, Any], asked: Container[TopicPartition], topic_key: str, part_key: str, what: str
) -> Iterator[tuple[TopicPartition, Mapping[str, Any]]]:
    """The requested partitions of a response about ``what``; the keys are those of a topic's name and a number."""
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            tp = TopicPartition(topic[topic_key], part[part_key])
            if tp in asked:
                yield tp, part
            else:
                name, extra = line(tp.topic), LogFields()(tp)
                log.warning(
                    "ignoring %s-%d in an answer about %s: it was not asked for", name, tp[1], what, extra=extra
                )


def read_list_offsets(answer: Mapping[str, Any], asked: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAnswer]:
    """The response by partition. A missing partition counts as unknown; one that was not requested is ignored."""
    missing = err.error_for_code(codes.UNKNOWN_TOPIC_OR_PARTITION)
    found = {tp: OffsetAnswer(-1, -1, -1, missing) for tp in asked}
    for tp, part in parts_of(answer, found, "name", "partition_index", "offsets"):
        code, epoch = part["error_code"], part.get("leader_epoch", -1)
        error = err.error_for_code(code) if code else None
        found[tp] = OffsetAnswer(part["offset"], part["timestamp"], epoch, error)
    return found


class EpochEnd(NamedTuple):
    """The leader's response: the largest epoch in its log up to the requested one, and the end of that epoch."""

    leader_epoch: int
    end_offset: int


def checked_epochs(
    committed: Mapping[TopicPartition, int], cluster: ClusterSnapshot
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Select from ``{partition: committed leader epoch}`` the epochs to send to brokers, and of these those to check.

    An epoch above the leader's own is ignored: the metadata is old, or the topic was recreated.
    """
    known, outdated = {}, {}
    for tp, epoch in committed.items():
        info = cluster.partition(tp)
        current = -1 if info is None else info.leader_epoch
        if 0 <= epoch <= current:
            known[tp] = epoch
            if epoch < current:
                outdated[tp] = epoch
    return known, outdated


def epoch_ends_body(wanted: Mapping[TopicPartition, int], cluster: ClusterSnapshot) -> dict[str, Any]:
    """An OffsetForLeaderEpoch request for one broker."""
    parts = []
    for tp, epoch in wanted.items():
        info = cluster.partition(tp)
        current = -1 if info is None else info.leader_epoch
        parts.append((tp[0], {"partition": tp[1], "current_leader_epoch": current, "leader_epoch": epoch}))
    return {"replica_id": -1, "topics": _by_topic("topic", parts)}


def read_epoch_ends(answer: Mapping[str, Any], asked: Iterable[TopicPartition]) -> dict[TopicPartition, EpochEnd]:
    """Return the leader's response by partition, without partitions that have an error or no known epoch."""
    found = {}
    for tp, part in parts_of(answer, set(asked), "topic", "partition", "leader epochs"):
        if not part["error_code"] and part["end_offset"] >= 0:
            found[tp] = EpochEnd(part["leader_epoch"], part["end_offset"])
    return found
