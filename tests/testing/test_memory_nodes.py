"""A broker in memory with several nodes: leaders and coordinators move, nodes go away and come back."""

from __future__ import annotations

import pytest

from managedconsumer import KafkaClient, TopicPartition
from managedconsumer.errors import ConfigurationError
from managedconsumer.testing import MemoryBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.memory import memory_broker
from tests.testing.memorykit import GROUP, TOPIC, consumer_of, numbers, values

broker = memory_broker({TOPIC: 3}, brokers=3)


def test_the_partitions_are_spread(broker: MemoryBroker) -> None:
    assert len(broker.bootstrap.split(",")) == 3
    assert [broker.leader(TOPIC, number) for number in range(3)] == [1, 2, 3]
    with Producer(broker.bootstrap) as producer:
        for number in range(3):
            producer.produce(TOPIC, [Record(value) for value in numbers(2, 2 * number)], partition=number)
    with KafkaClient(broker.bootstrap) as client:
        assert sorted(client.brokers) == [1, 2, 3]
    with consumer_of(broker) as consumer:
        assert values(consumer, 6) == numbers(6)


def test_a_leader_that_moves(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        broker.produce(TOPIC, numbers(3), partition=1)
        assert values(consumer, 3) == numbers(3)
        for first in (3, 6):
            broker.move_leader(TOPIC, 1)
            broker.produce(TOPIC, numbers(3, first), partition=1)
            assert values(consumer, 3) == numbers(3, first)
        assert broker.leader(TOPIC, 1) == 1
        broker.move_leader(TOPIC, 1, 2)
        assert broker.leader(TOPIC, 1) == 2


def test_a_coordinator_that_moves(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        broker.produce(TOPIC, numbers(2), partition=0)
        consumer.consume()
        members = broker.members(GROUP)
        for _ in range(3):
            before = broker.coordinator(GROUP)
            broker.move_coordinator(GROUP)
            assert broker.coordinator(GROUP) != before
            consumer.commit_offsets()
        assert broker.members(GROUP) == members
        assert broker.committed(GROUP)[TopicPartition(TOPIC, 0)] == 1


def test_a_node_that_goes_away_and_comes_back(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        broker.produce(TOPIC, numbers(3))
        assert values(consumer, 3) == numbers(3)
        gone = broker.coordinator(GROUP)
        broker.kill(gone)
        assert gone not in {broker.coordinator(GROUP), *(broker.leader(TOPIC, number) for number in range(3))}
        broker.produce(TOPIC, numbers(3, 3))
        assert values(consumer, 3) == numbers(3, 3)
        consumer.commit_offsets()
        broker.start_node(gone)
        broker.move_leader(TOPIC, 0, gone)
        broker.produce(TOPIC, numbers(3, 6), partition=0)
        assert values(consumer, 3) == numbers(3, 6)
        consumer.commit_offsets()
        assert sum(broker.committed(GROUP).values()) == 9


def test_a_node_is_named_that_does_not_exist(broker: MemoryBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no node 7: the nodes are \[1, 2, 3\]"):
        broker.move_leader(TOPIC, 0, 7)
    with pytest.raises(ConfigurationError, match="brokers: 0 is below 1"):
        MemoryBroker(brokers=0)
