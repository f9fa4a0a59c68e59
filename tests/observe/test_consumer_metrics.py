"""``metrics=`` of a managed consumer on a real broker: what an operator reads from it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import ConfigurationError
from managedconsumer.observe.metrics import Metrics
from managedconsumer.testing import DevBroker, MemoryBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.waiting import until


def _value(metrics: Metrics, name: str) -> float:
    return sum(value for (key, _), value in metrics.values().items() if key == f"managedconsumer_{name}")


def test_what_a_consumer_reports(kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]) -> None:
    name, group, metrics = topic(kafka44, 2), unique("group"), Metrics()
    with Producer(kafka44.bootstrap) as producer:
        producer.produce(name, (Record(value=b"x") for _ in range(10)))
    consumer = ManagedBalancedConsumer(
        name, kafka44.bootstrap, group, auto_offset_reset=-2, heartbeat_interval_ms=100, metrics=metrics,
        reset_offset_on_start=False, consumer_timeout_ms=5000,
    )  # fmt: skip
    try:
        for _ in range(6):
            assert consumer.consume() is not None
        consumer.commit_offsets()
        assert _value(metrics, "assigned_partitions") == 2
        assert _value(metrics, "rebalances_total") == 1
        assert _value(metrics, "join_seconds_count") >= 1
        assert _value(metrics, "commit_seconds_count") == 1
        assert _value(metrics, "commits_failed_total") == 0
        assert _value(metrics, "memberships_lost_total") == 0
        assert _value(metrics, "running") == 1
        assert (_value(metrics, "records_lag"), _value(metrics, "queued_messages")) == (
            4,
            0,
        )  # the last chunk is in flight
        assert 2 <= _value(metrics, "records_lag_max") <= 4
        until(lambda: _value(metrics, "heartbeats_answered_total") >= 3)
        assert f'group="{group}"' in metrics.prometheus()
    finally:
        consumer.stop()
    assert metrics.values() == {}


def test_anything_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"metrics must be None or a registry.*counter, gauge, timer"):
        ManagedBalancedConsumer("t", "localhost:1", "g", metrics=object(), auto_start=False)


@pytest.mark.parametrize("ended_by", ["stop", "garbage collection"])
def test_a_shared_registry_does_not_grow_with_every_consumer(ended_by: str) -> None:
    metrics = Metrics()
    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"x"])
        for _ in range(3):
            consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", metrics=metrics)
            assert consumer.consume() is not None
            consumer.commit_offsets([(0, 0)])
            assert len({dict(tags)["consumer"] for _, tags in metrics.values()}) == 1
            assert _value(metrics, "commit_seconds_count") == 1
            if ended_by == "stop":
                consumer.stop()
            else:
                workers = consumer._session.engine.fetchers, consumer._session.engine.positions
                del consumer
                gc.collect()
                for worker in workers:
                    worker.join(5)
            until(lambda: gc.collect() >= 0 and metrics.values() == {})
            assert metrics.prometheus() == ""


def test_a_consumer_that_starts_again_is_reported_again() -> None:
    metrics = Metrics()
    with MemoryBroker({"orders": 1}) as broker:
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", metrics=metrics)
        first = set(metrics.values())
        consumer.stop()
        assert metrics.values() == {}
        consumer.start()
        assert set(metrics.values()) >= first
        assert _value(metrics, "running") == 1
        consumer.stop()


class Foreign:
    """A registry without ``forget``."""

    def __init__(self) -> None:
        self.ours = Metrics()
        self.counter, self.gauge, self.timer = self.ours.counter, self.ours.gauge, self.ours.timer


def test_another_registry_keeps_what_it_was_told() -> None:
    metrics = Foreign()
    with MemoryBroker({"orders": 1}) as broker:
        ManagedBalancedConsumer("orders", broker.bootstrap, "g", metrics=metrics).stop()
    assert _value(metrics.ours, "running") == 0
    assert _value(metrics.ours, "rebalances_total") == 1
