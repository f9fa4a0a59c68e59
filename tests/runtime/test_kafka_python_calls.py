"""kafka-python's calls for where logs begin and end, and for times."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_ends_and_times(kind: Any) -> None:
    with MemoryBroker({"orders": 2}) as broker:
        for stamp in (1000, 2000, 3000):
            broker.produce("orders", [b"x"], partition=0, timestamp=stamp)
        broker.delete_records("orders", 0, 1)
        consumer = kind("orders", broker.bootstrap, "g")
        try:
            before = consumer.position(0)
            assert consumer.beginning_offsets([0, 1]) == {0: 1, 1: 0}
            assert consumer.end_offsets([TopicPartition("orders", 0)]) == {0: 3}
            found = consumer.offsets_for_times({0: 1500, 1: 1500})
            assert (found[0].offset, found[0].timestamp) == (1, 2000)
            assert found[1] is None
            assert consumer.offsets_for_times({0: 3001}) == {0: None}
            assert consumer.position(0) == before
            with pytest.raises(err.KafkaException, match="returns"):
                consumer.end_offsets([TopicPartition("returns", 0)])
            with pytest.raises(err.ConfigurationError, match="timestamps"):
                consumer.offsets_for_times({0: -1})
        finally:
            consumer.stop()
        with pytest.raises(err.ConsumerStoppedException):
            consumer.end_offsets([0])
