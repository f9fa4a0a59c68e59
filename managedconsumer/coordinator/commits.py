"""OffsetCommit and OffsetFetch as values: bodies out, verdicts in. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Collection, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.coordinator.protocol import group_by_topic
from managedconsumer.structs import Generation, OffsetAndMetadata, TopicPartition
from managedconsumer.values import NamedTuple

#: OffsetCommit and OffsetFetch name topics by id from this version on; we stay below unless ids are known.
TOPIC_ID_VERSION = 10


class Verdict(IntEnum):
    """The consequence of an error of OffsetCommit or OffsetFetch; a higher number is worse."""

    RETRY = 1
    FIND_COORDINATOR = 2
    REJOINING = 3  # the group rebalances: not committed, still a member
    EXPELLED = 4  # the generation or the member is gone
    FATAL = 5


#: The codes whose verdict differs from ``retriable`` of their class.
_VERDICTS: Mapping[type[err.KafkaException], Verdict] = {
    err.GroupCoordinatorNotAvailable: Verdict.FIND_COORDINATOR,
    err.NotCoordinatorForGroup: Verdict.FIND_COORDINATOR,
    err.RebalanceInProgress: Verdict.REJOINING,
    err.IllegalGeneration: Verdict.EXPELLED,
    err.UnknownMemberId: Verdict.EXPELLED,
    err.FencedInstanceId: Verdict.EXPELLED,
    err.FencedMemberEpoch: Verdict.EXPELLED,
    # From OffsetCommit version 9 on in place of ILLEGAL_GENERATION when the group does not exist.
    err.GroupIdNotFound: Verdict.EXPELLED,
    # KIP-848: the epoch rose while the commit was in flight; the next attempt has the new one.
    err.StaleMemberEpoch: Verdict.RETRY,
    # Kafka's storage errors, which pass, have no code of their own.
    err.UnknownError: Verdict.RETRY,
}


def classify(error: err.KafkaException) -> Verdict:
    """Return the consequence of an error code, or of a failed request."""
    if isinstance(error, err.FATAL_LOCAL_ERRORS):
        return Verdict.FATAL
    found = _VERDICTS.get(type(error))
    if found is not None:
        return found
    return Verdict.RETRY if error.retriable or isinstance(error, err.ProtocolError) else Verdict.FATAL


def worst(errors: Iterable[err.KafkaException]) -> err.KafkaException | None:
    """Return the error with the worst verdict (of several the first), or None."""
    return max(errors, key=classify, default=None)


def commit_body(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    generation: Generation,
    group_instance_id: str | None,
) -> dict[str, Any]:
    """Return an OffsetCommit of *next* offsets; NO_GENERATION: outside of any membership."""
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


def read_commit(
    answer: Mapping[str, Any], asked: Collection[TopicPartition]
) -> dict[TopicPartition, err.ProtocolClientError | None]:
    """Return each partition's error, None for one that was committed.

    Raises MalformedResponseError for a response that leaves out a partition of ``asked``, or names another.
    """
    found: dict[TopicPartition, err.ProtocolClientError | None] = {}
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            code = part["error_code"]
            found[TopicPartition(topic["name"], part["partition_index"])] = err.error_for_code(code) if code else None
    _check_partitions("OffsetCommit", found, asked)
    return found


def _check_partitions(what: str, found: Iterable[TopicPartition], asked: Collection[TopicPartition]) -> None:
    """Raise MalformedResponseError unless the response names exactly the partitions of the request."""
    strangers, missing = sorted(set(found) - set(asked)), sorted(set(asked) - set(found))
    if strangers or missing:
        tp, wrong = (strangers[0], "names") if strangers else (missing[0], "leaves out")
        reason = "was not in the request" if strangers else "was in the request"
        raise err.MalformedResponseError(f"the response to {what} {wrong} {tp.topic}-{tp.partition}, which {reason}")


def fetch_body(group_id: str, partitions: Iterable[TopicPartition], require_stable: bool) -> dict[str, Any]:
    """Return an OffsetFetch, in the shape up to version 7 and in the one by groups."""
    entries = [{"name": name, "partition_indexes": numbers} for name, numbers in group_by_topic(partitions)]
    return {
        "group_id": group_id,
        "topics": entries,
        "groups": [{"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": entries}],
        "require_stable": require_stable,
    }


class CommittedOffset(NamedTuple):
    """The group's committed offset of a partition: ``offset`` -1 if there is none, ``error_code`` 0 if all is well."""

    offset: int
    metadata: str
    leader_epoch: int
    error_code: int


def read_fetch(
    answer: Mapping[str, Any], asked: Collection[TopicPartition]
) -> tuple[err.ProtocolClientError | None, dict[TopicPartition, CommittedOffset]]:
    """Return the group-wide error and the committed offset of each partition.

    Raises MalformedResponseError for a response without a group-wide error that leaves out a partition of ``asked`` (it
    would count as one without a committed offset), or names another.
    """
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
    code = group.get("error_code", 0)
    if code:
        return err.error_for_code(code), found
    _check_partitions("OffsetFetch", found, asked)
    return None, found
