"""What the tests of the broker in memory share."""

from __future__ import annotations

from typing import Any

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.testing import MemoryBroker

TOPIC = "orders"
GROUP = "billing"


def consumer_of(broker: MemoryBroker, **more: Any) -> ManagedBalancedConsumer:
    """A member of the group that reads from the beginning and beats quickly."""
    options: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": 5000,
        "heartbeat_interval_ms": 50,
    }
    return ManagedBalancedConsumer(TOPIC, broker.bootstrap, GROUP, **{**options, **more})


def values(consumer: Any, count: int) -> list[bytes | None]:
    """The next messages' values, sorted; the test fails when one does not come."""
    found = []
    for _ in range(count):
        message = consumer.consume()
        assert message is not None, f"after {len(found)} of {count} messages"
        found.append(message.value)
    return sorted(found)


def numbers(count: int, first: int = 0) -> list[bytes]:
    """Values in order."""
    return [b"%03d" % n for n in range(first, first + count)]
