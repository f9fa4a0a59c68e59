"""Names that programs written for pykafka read though they are private or unused, and what is imported beside them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection
from itertools import islice
from typing import Any

import pytest

import managedconsumer
from managedconsumer import KafkaClient, ManagedBalancedConsumer, OffsetType, SimpleConsumer, TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka
    import pykafka


broker = memory_broker({"orders": 2}, [b"%d" % offset for offset in range(100)], [0, 1])


def test_the_last_messages_of_a_topic_as_in_pykafkas_usage_guide(broker: MemoryBroker) -> None:
    with KafkaClient(broker.bootstrap) as client:
        consumer = client.topics["orders"].get_simple_consumer(
            auto_offset_reset=OffsetType.LATEST, reset_offset_on_start=True, consumer_timeout_ms=1000
        )
        wanted = 10
        each = math.ceil(wanted / len(consumer._partitions))
        offsets = [(p, op.last_offset_consumed - each) for p, op in consumer._partitions.items()]
        assert sorted((p.id, offset) for p, offset in offsets) == [(0, 94), (1, 94)]
        consumer.reset_offsets([(p, offset if offset > -1 else -2) for p, offset in offsets])
        got = sorted((message.partition_id, message.offset) for message in islice(consumer, wanted))
        consumer.stop()
    assert got == [(partition, offset) for partition in range(2) for offset in range(95, 100)]


def test_owned_partitions_follow_the_consumer(broker: MemoryBroker) -> None:
    with SimpleConsumer("orders", broker.bootstrap, partitions=[1], consumer_timeout_ms=1000) as consumer:
        ((partition, owned),) = consumer._partitions.items()
        assert owned.partition is partition is consumer.partitions[1]
        assert (owned.last_offset_consumed, owned.next_offset) == (-1, 0)
        for _ in range(3):
            assert consumer.consume() is not None
        assert (owned.last_offset_consumed, owned.next_offset) == (2, 3)
        assert owned.message_count <= 97
        assert "last_offset_consumed=2" in repr(owned)
    assert owned.last_offset_consumed == -1  # stopped: it owns nothing, and asks nobody


def test_a_simple_consumers_names(broker: MemoryBroker) -> None:
    consumer = SimpleConsumer("orders", broker.bootstrap, "billing", auto_start=False)
    assert consumer._running is False
    with consumer:
        assert consumer._running is True
        assert consumer._consumer_group == b"billing"
        assert (consumer.consumer_id, consumer.generation_id) == (b"", -1)
        assert (consumer._consumer_id, consumer._generation_id) == (b"", -1)
    assert consumer._running is False
    assert SimpleConsumer("orders", broker.bootstrap, auto_start=False)._consumer_group is None


def test_a_balanced_consumers_names(broker: MemoryBroker) -> None:
    with ManagedBalancedConsumer("orders", broker.bootstrap, "billing") as consumer:
        assert consumer._running is True
        assert consumer._consumer_group == b"billing"
        assert consumer._consumer_id == consumer.consumer_id != b""
        assert consumer._generation_id == consumer.generation_id == 1
        assert consumer._partitions == set(consumer.partitions.values())
        assert {partition.id for partition in consumer._partitions} == {0, 1}
    assert consumer._partitions == set()


def test_what_pykafka_exports_can_be_imported_from_here() -> None:
    missing = set(pykafka.__all__) - {"Producer"} - set(managedconsumer.__all__)
    assert not missing
    assert managedconsumer.CompressionType.GZIP == pykafka.common.CompressionType.GZIP
    assert managedconsumer.SslConfig("ca.pem").cafile == "ca.pem"
    assert managedconsumer.RoundRobinProtocol.protocol_name == b"roundrobin"


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.calls.append(("revoked", sorted(revoked)))

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.calls.append(("assigned", sorted(assigned)))


class OfKafkaPython(Heard, kafka.ConsumerRebalanceListener):
    """kafka-python's class."""


BOTH = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


@pytest.mark.parametrize("kind", [Heard, OfKafkaPython])
def test_other_listeners_will_do(kind: Any, broker: MemoryBroker) -> None:
    listener = kind()
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", listener=listener, consumer_timeout_ms=5000)
    assert consumer.consume() is not None
    consumer.stop()
    assert listener.calls[-2:] == [("assigned", BOTH), ("revoked", BOTH)]


def test_a_listener_from_before_on_partitions_lost_hears_of_a_loss(broker: MemoryBroker) -> None:
    listener = Heard()
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", listener=listener, heartbeat_interval_ms=50)
    assert consumer.consume() is not None
    broker.evict("g")
    while len(listener.calls) < 3:
        consumer.consume(block=False)
    consumer.stop()
    assert listener.calls == [("assigned", BOTH), ("revoked", BOTH), ("assigned", BOTH), ("revoked", BOTH)]
