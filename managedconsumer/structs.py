"""Frozen values that every room shares: partitions, offsets, brokers, generations.

Offsets here are *next* offsets, as in Kafka; for pykafka's "last consumed" see ``managedconsumer.offset_convention``.
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
    """Milliseconds before a look-up, in place of its timestamp: ``auto_offset_reset="by_duration:..."`` (KIP-1106).

    Without a later message it means the log's end.
    """


class OffsetAndTimestamp(NamedTuple):
    """kafka-python's answer of ``offsets_for_times``: a message's offset, timestamp (ms since 1970), leader epoch."""

    offset: int
    timestamp: int
    leader_epoch: int


class Generation(NamedTuple):
    """A group's generation (or member epoch) with our member id and the chosen assignor."""

    id: int
    member_id: str
    protocol: str | None = None

    @property
    def joined(self) -> bool:
        """True if we are a member in this generation."""
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
    """The cluster's metadata of one response, merged with earlier ones; immutable, so threads share it."""

    brokers: Mapping[int, BrokerInfo] = MappingProxyType({})
    topics: Mapping[str, TopicInfo] = MappingProxyType({})
    controller_id: int = -1
    cluster_id: str | None = None

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of ``topic``, or None if they are not known."""
        info = self.topics.get(topic)
        return set(info.partitions) or None if info is not None else None

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        """Return the metadata of ``tp``, or None."""
        info = self.topics.get(tp.topic)
        return None if info is None else info.partitions.get(tp.partition)

    def leader_for(self, tp: TopicPartition) -> BrokerInfo | None:
        """Return the broker that leads ``tp``, or None."""
        info = self.partition(tp)
        return None if info is None else self.brokers.get(info.leader)
