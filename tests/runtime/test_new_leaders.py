"""The leaders that a Fetch response names (KIP-951), in the cluster's metadata."""

from __future__ import annotations

from types import MappingProxyType

from managedconsumer.runtime.cluster.metadata import with_leaders
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = {n: PartitionInfo("t", n, 1, 5, (1, 2), (1, 2)) for n in (0, 1)}
OLD = ClusterSnapshot(
    MappingProxyType({1: BrokerInfo(1, "one", 9)}), MappingProxyType({"t": TopicInfo("t", b"i", PARTITIONS)}), 1, "c"
)
TWO = [{"node_id": 2, "host": "two", "port": 9, "rack": None}]


def test_a_new_leader_and_its_address() -> None:
    new = with_leaders(OLD, {A: (2, 6)}, TWO)
    assert new.partition(A) == PARTITIONS[0]._replace(leader=2, leader_epoch=6)
    assert new.partition(B) == PARTITIONS[1]
    assert new.brokers == {1: BrokerInfo(1, "one", 9), 2: BrokerInfo(2, "two", 9)}
    assert OLD.partition(A) == PARTITIONS[0]


def test_what_is_known_already_changes_nothing() -> None:
    assert with_leaders(OLD, {A: (2, 5), B: (2, 4)}, TWO) is OLD
    assert with_leaders(OLD, {TopicPartition("u", 0): (2, 6)}, TWO) is OLD


def test_a_leader_without_an_address_is_left_to_the_metadata() -> None:
    assert with_leaders(OLD, {A: (3, 6)}, TWO) is OLD
