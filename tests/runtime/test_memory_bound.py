"""``queued_max_bytes`` is kept by running consumers, and small bounds do not keep anything from being read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer.testing import MemoryBroker

TOPIC = "orders"
PARTITIONS = 4
COUNT = 60
SIZE = 20_000


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: PARTITIONS}) as broker:
        for partition in range(PARTITIONS):
            for _ in range(COUNT):  # a batch each
                broker.produce(TOPIC, [bytes(SIZE)], partition=partition)
        yield broker


def bounded(broker: MemoryBroker, bound: int, **more: Any) -> SimpleConsumer:
    options = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 5000, "fetch_message_max_bytes": 50_000, **more}
    return SimpleConsumer(TOPIC, broker.bootstrap, queued_max_bytes=bound, **options)


@pytest.mark.slow
@pytest.mark.parametrize("fetchers", [1, 4])
@pytest.mark.parametrize("bound", [1, 30_000, 100_000, 400_000, 2_000_000])
def test_what_is_held_is_below_the_bound(broker: MemoryBroker, bound: int, fetchers: int) -> None:
    """Several workers share it; a bound below one batch lets one batch through at a time."""
    most, seen = 0, Counter[int]()
    with bounded(broker, bound, queued_max_messages=1_000_000, num_consumer_fetchers=fetchers) as consumer:
        memory = consumer._session.engine.buffer.budget.memory
        assert memory is not None
        for message in consumer:
            seen[message.partition_id] += 1
            most = max(most, memory.in_use())
            if seen.total() == PARTITIONS * COUNT:
                break
    assert seen == dict.fromkeys(range(PARTITIONS), COUNT)
    assert most <= max(bound, SIZE + 1000)


@pytest.mark.parametrize("bound", [30_000, 100_000])
def test_a_paused_partition_with_a_full_buffer_keeps_no_other_one_waiting(broker: MemoryBroker, bound: int) -> None:
    with bounded(broker, bound) as consumer:
        first = consumer.consume()
        assert first is not None
        consumer.pause(first.partition_id)
        seen = Counter(message.partition_id for message in (consumer.consume() for _ in range(3 * COUNT)) if message)
        assert seen == {number: COUNT for number in range(PARTITIONS) if number != first.partition_id}
