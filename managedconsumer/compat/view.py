"""The place where Topic and Partition objects look themselves up: the newest metadata, in a Cluster the brokers."""

from __future__ import annotations

from typing import Iterable

from managedconsumer import errors as err
from managedconsumer.compat.parts import Broker, OffsetPartitionResponse, Partition, Topic
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition


class View:
    """Objects over metadata.  Thread-safe; Topic, Partition and Broker objects are made once and kept."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._seen: ClusterSnapshot | None = None
        self._brokers: dict[int, Broker] = {}

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The newest metadata."""
        raise NotImplementedError

    @property
    def brokers(self) -> dict[int, Broker]:
        """The known brokers by id; a new dict after each change."""
        snapshot = self.snapshot
        if snapshot is not self._seen:
            known = self._brokers
            fresh = {node: Broker(info) for node, info in sorted(snapshot.brokers.items())}
            self._brokers = {node: known[node] if known.get(node) == new else new for node, new in fresh.items()}
            self._seen = snapshot
        return self._brokers

    def broker(self, node_id: int) -> Broker | None:
        """A broker by id, or None."""
        return self.brokers.get(node_id)

    def topic(self, name: str) -> Topic:
        """The Topic of that name, whether the metadata knows it or not."""
        found = self._topics.get(name)
        return found if found is not None else self._topics.setdefault(name, Topic(name, self))

    def partition(self, tp: TopicPartition) -> Partition:
        """The Partition ``tp``, whether the metadata knows it or not."""
        topic = self.topic(tp.topic)
        return topic.partitions.get(tp.partition) or Partition(topic, tp.partition)

    # -- what needs a broker ----------------------------------------------------------------------------------------

    def offsets_at(
        self, keys: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, OffsetPartitionResponse]:
        """The first offset at or after ``timestamp`` (ms; -1: the end, -2: the beginning) of each partition."""
        raise self._offline(f"offsets at {timestamp} of {list(keys)}")

    def freshen(self, name: str) -> None:
        """Ask for a topic's metadata if what we have is old."""
        raise self._offline(f"metadata of topic {name}")

    def update_topic(self, name: str) -> None:
        """Ask for a topic's metadata."""
        raise self._offline(f"metadata of topic {name}")

    def _offline(self, what: str) -> err.IllegalStateError:
        return err.IllegalStateError(f"{what} cannot be asked for here: use the objects of a KafkaClient")


class FrozenView(View):
    """Metadata of one moment, for a decision that is made of it; no broker can be asked.

    Partitions without a leader get a stand-in with id -1: pykafka's deciding functions sort by ``leader.id``.
    """

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    @classmethod
    def of_partitions(cls, partitions: Iterable[TopicPartition]) -> FrozenView:
        """Where nothing but the partitions is known."""
        topics: dict[str, dict[int, PartitionInfo]] = {}
        for name, number in partitions:
            topics.setdefault(name, {})[number] = PartitionInfo(name, number, -1)
        return cls(ClusterSnapshot(topics={name: TopicInfo(name, None, found) for name, found in topics.items()}))

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self._snapshot

    def broker(self, node_id: int) -> Broker | None:
        return super().broker(node_id) or Broker(BrokerInfo(-1, "", -1))
