"""The body of a Fetch request and its version, for fetch workers, the client's long poll and range readers. Pure."""

from __future__ import annotations

from typing import Any, Iterable

#: Fetch names topics by id from this version on (KIP-516); below it by name.
TOPIC_ID_VERSION = 13
#: In these versions request and response have one layout, but for tagged fields.
PLAIN_VERSIONS = range(TOPIC_ID_VERSION, 19)
#: From this version on the leader compares our last epoch with its log.
EPOCH_VERSION = 12


def version_of(newest: int, *, by_id: bool) -> int:
    """The version for a broker that knows ``newest``; ``by_id``: the ids of all topics are known."""
    return newest if by_id else min(newest, TOPIC_ID_VERSION - 1)


def entry(partition: int, leader_epoch: int, offset: int, last_epoch: int, max_bytes: int) -> dict[str, Any]:
    """One partition of the request; ``last_epoch``: the epoch of the last record read (-1: not to be compared)."""
    return {
        "partition": partition,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last_epoch,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }


def by_topic(entries: Iterable[tuple[str, bytes, Any]]) -> list[dict[str, Any]]:
    """Entries, each with the name and the id of its topic, as a request names them."""
    topics: dict[tuple[str, bytes], list[Any]] = {}
    for name, topic_id, each in entries:
        topics.setdefault((name, topic_id), []).append(each)
    return [{"topic": name, "topic_id": topic_id, "partitions": each} for (name, topic_id), each in topics.items()]


def body(
    topics: list[dict[str, Any]],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    rack: str = "",
) -> dict[str, Any]:
    """A request for all wanted partitions; the caller adds the session (:mod:`managedconsumer.fetch.sessions`)."""
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "topics": topics,
        "rack_id": rack,
    }


def forget_epochs(topics: Iterable[dict[str, Any]]) -> None:
    """For versions below ``EPOCH_VERSION``: brokers before Kafka 2.7 do not compare epochs in a fetch."""
    for topic in topics:
        for each in topic["partitions"]:
            each["last_fetched_epoch"] = -1
