"""``balanced._consumer``, which programs written for pykafka read: a SimpleConsumer with the same messages."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.errors import ConsumerStoppedException
from managedconsumer.observe.recorder import Recorder
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker

broker = memory_broker({"orders": 1}, [b"%d" % n for n in range(10)])


@pytest.fixture
def consumer(broker: MemoryBroker) -> Iterator[Any]:
    with ManagedBalancedConsumer("orders", broker.bootstrap, "g", consumer_timeout_ms=5000) as made:
        yield made


def test_it_hands_out_what_the_balanced_consumer_would(broker: MemoryBroker, consumer: Any) -> None:
    held = consumer._consumer
    assert isinstance(held, SimpleConsumer)
    assert [consumer.consume().offset, held.consume().offset, consumer.consume().offset] == [0, 1, 2]
    assert held.held_offsets == consumer.held_offsets == {0: 2}
    assert held.partitions == consumer.partitions
    assert held._running
    held.commit_offsets()
    assert list(broker.committed("g").values()) == [3]


def test_its_stop_takes_the_member_out_of_the_group_and_its_start_brings_it_back(
    broker: MemoryBroker, consumer: Any
) -> None:
    held = consumer._consumer
    held.stop()
    assert broker.members("g") == []
    with pytest.raises(ConsumerStoppedException):
        consumer.consume()
    held.start()
    assert len(broker.members("g")) == 1
    assert consumer.consume().offset == 0
    assert consumer._consumer is held


def test_whoever_keeps_it_does_not_keep_the_member(broker: MemoryBroker) -> None:
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g")
    held, gone = consumer._consumer, weakref.ref(consumer)
    worker = next(t for t in threading.enumerate() if t.name == "managedconsumer.membership")
    del consumer
    gc.collect()
    worker.join(10)
    assert gone() is None
    assert broker.members("g") == []
    held.stop()  # does nothing
    with pytest.raises(ConsumerStoppedException):
        held.consume()


def test_events_are_told_as_they_happen_until_that_is_ended(broker: MemoryBroker) -> None:
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", auto_start=False)
    told: list[GroupEvent] = []
    end = consumer.watch_events(told.append)
    recorder = Recorder()
    recorder.watch(consumer)
    consumer.start()
    end()
    before = list(told)
    assert before == consumer.events()[: len(before)]
    assert "assigned" in {event.kind for event in before}
    consumer.stop()
    assert told == before
    assert recorder.events() == consumer.events()
