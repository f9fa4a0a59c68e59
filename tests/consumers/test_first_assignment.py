"""When ``start()`` returns: KIP-1263 lets Kafka 4.4 assign the partitions of a KIP-848 group once a second at most."""

from __future__ import annotations

import contextlib
import threading

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.consumers import lives
from managedconsumer.errors import ConsumerStoppedException
from managedconsumer.testing import MemoryBroker
from tests.waiting import until


def test_a_consumer_that_starts_again_at_once_has_its_partitions() -> None:
    with MemoryBroker({"orders": 2}, rebalance_delay_ms=300) as broker:
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", auto_start=False)
        for _ in range(3):
            consumer.start()
            assert consumer.lag() == {0: 0, 1: 0}
            consumer.stop()


def test_a_member_without_a_share_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "_ASSIGNING_SECONDS", 100)
    with (
        MemoryBroker({"orders": 1}, rebalance_delay_ms=300) as broker,
        ManagedBalancedConsumer("orders", broker.bootstrap, "g"),
        ManagedBalancedConsumer("orders", broker.bootstrap, "g") as second,
    ):
        assert second.lag() == {}


def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "_ASSIGNING_SECONDS", 100)
    with MemoryBroker({"orders": 2}, rebalance_delay_ms=60_000) as broker:
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g")
        consumer.stop()

        def start() -> None:
            with contextlib.suppress(ConsumerStoppedException):  # the stop may come before the first assignment
                consumer.start()

        starting = threading.Thread(target=start)
        starting.start()
        until(lambda: broker.members("g"))
        consumer.stop()
        starting.join(10)
        assert not starting.is_alive()
        assert not broker.members("g")
