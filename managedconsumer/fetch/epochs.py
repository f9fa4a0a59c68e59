"""Checks that a committed position belongs to the leader's log (OffsetForLeaderEpoch, KIP-320). Pure.

The group keeps, beside an offset, the leader epoch of the record before it. If the partition has had another leader
since, the consumer asks that leader where the epoch ends in its log: an end below the offset means that records which
the group has read are gone, and that other records have their offsets.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from managedconsumer.fetch.resets import parts_of
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.values import NamedTuple


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
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, epoch in wanted.items():
        info = cluster.partition(tp)
        current = -1 if info is None else info.leader_epoch
        topics.setdefault(tp.topic, []).append(
            {"partition": tp.partition, "current_leader_epoch": current, "leader_epoch": epoch}
        )
    return {"replica_id": -1, "topics": [{"topic": name, "partitions": parts} for name, parts in topics.items()]}


def read_epoch_ends(answer: Mapping[str, Any], asked: Iterable[TopicPartition]) -> dict[TopicPartition, EpochEnd]:
    """Return the leader's response by partition, without partitions that have an error or no known epoch."""
    found = {}
    for tp, part in parts_of(answer, set(asked), "topic", "partition", "leader epochs"):
        if not part["error_code"] and part["end_offset"] >= 0:
            found[tp] = EpochEnd(part["leader_epoch"], part["end_offset"])
    return found
