"""OffsetCommit and OffsetFetch as values: bodies out, verdicts in. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Any, Iterable, Mapping, NamedTuple

from managedconsumer import errors as err
from managedconsumer.structs import ClusterSnapshot, Generation, OffsetAndMetadata, TopicPartition

#: OffsetCommit and OffsetFetch name topics by id from this version on; we stay below unless ids are known.
TOPIC_ID_VERSION = 10


class Verdict(Enum):
    """What a commit's answer means for the member that sent it."""

    DONE = "done"
    RETRY = "retry"
    FIND_COORDINATOR = "find coordinator"
    REJOINING = "rejoining"  # the group rebalances: not committed, still a member
    EXPELLED = "expelled"  # the generation or the member is gone
    FATAL = "fatal"


_EXPELLED = frozenset({22, 25, 82, 110})
#: STALE_MEMBER_EPOCH (KIP-848): the epoch went on while the commit was on its way; the next try has the new one.
_STALE_EPOCH = 113
_COORDINATOR = frozenset({15, 16})
_REBALANCING = 27


def commit_body(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    generation: Generation,
    group_instance_id: str | None,
) -> dict[str, Any]:
    """An OffsetCommit of *next* offsets; a generation of -1 and no member id: outside of any membership."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, (offset, metadata, epoch) in offsets.items():
        topics.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": offset,
                "committed_leader_epoch": epoch,
                "committed_metadata": metadata,
            }
        )
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": generation.id,
        "member_id": generation.member_id,
        "group_instance_id": group_instance_id if generation.joined else None,
        "retention_time_ms": -1,
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
    }


def read_commit(answer: Mapping[str, Any]) -> tuple[Verdict, dict[TopicPartition, err.ProtocolClientError]]:
    """The worst verdict over all partitions, and the error of each partition that was not committed."""
    errors: dict[TopicPartition, err.ProtocolClientError] = {}
    worst = Verdict.DONE
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            code = part["error_code"]
            if code:
                errors[TopicPartition(topic["name"], part["partition_index"])] = err.error_for_code(code)
                worst = max(worst, classify(code), key=list(Verdict).index)
    return worst, errors


def classify(code: int) -> Verdict:
    """What one error code of OffsetCommit or OffsetFetch means."""
    if code in _EXPELLED:
        return Verdict.EXPELLED
    if code in _COORDINATOR:
        return Verdict.FIND_COORDINATOR
    if code == _REBALANCING:
        return Verdict.REJOINING
    if code == _STALE_EPOCH:
        return Verdict.RETRY
    return Verdict.RETRY if err.error_for_code(code).retriable else Verdict.FATAL


def fetch_body(group_id: str, partitions: Iterable[TopicPartition], require_stable: bool) -> dict[str, Any]:
    """An OffsetFetch; both the shape up to version 7 and the one by groups."""
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    entries = [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]
    return {
        "group_id": group_id,
        "topics": entries,
        "groups": [{"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": entries}],
        "require_stable": require_stable,
    }


class CommittedOffset(NamedTuple):
    """What the group has committed for a partition: ``offset`` -1 when nothing, ``error_code`` 0 when all is well."""

    offset: int
    metadata: str
    leader_epoch: int
    error_code: int


def read_fetch(answer: Mapping[str, Any]) -> tuple[int, dict[TopicPartition, CommittedOffset]]:
    """The group-wide error code, and what is committed by partition."""
    group = answer["groups"][0] if answer.get("groups") else answer
    found = {}
    for topic in group["topics"]:
        for part in topic["partitions"]:
            found[TopicPartition(topic["name"], part["partition_index"])] = CommittedOffset(
                part["committed_offset"],
                part["metadata"] or "",
                part.get("committed_leader_epoch", -1),
                part["error_code"],
            )
    return group.get("error_code", 0), found


def topics_known(offsets: Iterable[TopicPartition], cluster: ClusterSnapshot) -> bool:
    """True when every topic's id is known, so that requests may name topics by id."""
    return all((info := cluster.topics.get(tp.topic)) is not None and info.topic_id for tp in offsets)
