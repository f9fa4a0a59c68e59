"""Looks up where a log begins or ends, or the offset of a timestamp (ListOffsets). Pure."""

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
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, number), timestamp in wanted.items():
        part = {"partition_index": number, "current_leader_epoch": -1, "timestamp": timestamp}
        topics.setdefault(name, []).append(part)
    return {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        "timeout_ms": timeout_ms,
    }


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
