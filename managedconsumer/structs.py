"""Frozen values that every room shares: partitions, offsets, brokers, generations.

Offsets here are always *next* offsets (Kafka's own meaning): the offset of the record that would be read
next.  pykafka's "last consumed" convention exists only at the facade, see ``managedconsumer.offset_convention``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping

from managedconsumer.values import NamedTuple


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """A committed position: the *next* offset to read, free text, and the leader epoch it was read under (-1: none)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetType:
    """pykafka's logical offsets, the numbers Kafka's ListOffsets uses."""

    LATEST = -1
    EARLIEST = -2


class CompressionType:
    """pykafka's numbers of the codecs, and Kafka's newest."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class OffsetResetStrategy:
    """Where a partition without a valid position starts (kafka-python's numbers)."""

    LATEST = -1
    EARLIEST = -2
    NONE = 0


class Ago(int):
    """Milliseconds before the moment of a look-up: where ``auto_offset_reset="by_duration:..."`` (KIP-1106) starts.

    It is given in the place of a timestamp. Where there is no later message it means the log's end.
    """


class OffsetAndTimestamp(NamedTuple):
    """kafka-python's answer of ``offsets_for_times``: a message's offset, timestamp (ms since 1970), leader epoch."""

    offset: int
    timestamp: int
    leader_epoch: int


class Generation(NamedTuple):
    """One round of a group as this member knows it: the round's number, our member id, the chosen assignor."""

    id: int
    member_id: str
    protocol: str | None = None

    @property
    def joined(self) -> bool:
        """True when the coordinator gave us a place in this round."""
        return self.id >= 0 and bool(self.member_id)


NO_GENERATION = Generation(-1, "")


class BrokerInfo(NamedTuple):
    """A broker as the metadata names it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """``host:port``, for messages."""
        return f"{self.host}:{self.port}"


class PartitionInfo(NamedTuple):
    """A partition as the metadata describes it; ``leader`` is -1 while there is none."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error_code: int = 0


class TopicInfo(NamedTuple):
    """A topic as the metadata describes it; ``topic_id`` is None before Kafka 2.8."""

    name: str
    topic_id: bytes | None = None
    partitions: Mapping[int, PartitionInfo] = MappingProxyType({})
    error_code: int = 0
    is_internal: bool = False


class ClusterSnapshot(NamedTuple):
    """The cluster's metadata of one answer (merged with earlier ones); immutable, so threads share it freely."""

    brokers: Mapping[int, BrokerInfo] = MappingProxyType({})
    topics: Mapping[str, TopicInfo] = MappingProxyType({})
    controller_id: int = -1
    cluster_id: str | None = None

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partition numbers of ``topic``, or None if the topic is not known."""
        info = self.topics.get(topic)
        if info is None or not info.partitions:
            return None
        return set(info.partitions)

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        """The metadata of ``tp`` or None."""
        info = self.topics.get(tp.topic)
        return None if info is None else info.partitions.get(tp.partition)

    def leader_for(self, tp: TopicPartition) -> BrokerInfo | None:
        """The broker that leads ``tp``, or None while there is none."""
        info = self.partition(tp)
        return None if info is None else self.brokers.get(info.leader)
