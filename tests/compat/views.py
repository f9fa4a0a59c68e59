"""Objects over made-up metadata, for tests without a broker."""

from __future__ import annotations

from managedconsumer.compat.parts import View
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo


def partition(topic: str, number: int, leader: int = 1, replicas: tuple[int, ...] = (1, 2)) -> PartitionInfo:
    return PartitionInfo(topic, number, leader, 0, replicas, replicas[:1])


def snapshot(*brokers: int, **partitions: int) -> ClusterSnapshot:
    """``snapshot(1, 2, clicks=3)``: brokers 1 and 2, topic "clicks" with three partitions led by broker 1."""
    return ClusterSnapshot(
        brokers={node: BrokerInfo(node, f"kafka{node}", 9092, f"rack-{node}") for node in brokers},
        topics={
            name: TopicInfo(name, None, {n: partition(name, n) for n in range(count)})
            for name, count in partitions.items()
        },
    )


class FakeView(View):
    """A cluster whose metadata the test sets."""

    def __init__(self, first: ClusterSnapshot) -> None:
        super().__init__()
        self.now = first

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self.now
