"""``metrics=`` of a managed consumer on a real broker: what an operator reads from it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import ConfigurationError
from managedconsumer.observe.metrics import Metrics
from managedconsumer.testing import DevBroker
from managedconsumer.testing.producer import Producer, Record


def _value(metrics: Metrics, name: str) -> float:
    return sum(value for (key, _), value in metrics.values().items() if key == f"managedconsumer_{name}")


def test_what_a_consumer_reports(kafka43: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]) -> None:
    name, group, metrics = topic(kafka43, 2), unique("group"), Metrics()
    with Producer(kafka43.bootstrap) as producer:
        producer.produce(name, (Record(value=b"x") for _ in range(10)))
    consumer = ManagedBalancedConsumer(
        name, kafka43.bootstrap, group, auto_offset_reset=-2, heartbeat_interval_ms=100, metrics=metrics,
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
        )  # the last chunk is in hand
        assert 2 <= _value(metrics, "records_lag_max") <= 4
        deadline = time.monotonic() + 10
        while _value(metrics, "heartbeats_answered_total") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _value(metrics, "heartbeats_answered_total") >= 3
        assert f'group="{group}"' in metrics.prometheus()
    finally:
        consumer.stop()
    assert _value(metrics, "running") == 0


def test_anything_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"metrics must be None or a registry.*counter, gauge, timer"):
        ManagedBalancedConsumer("t", "localhost:1", "g", metrics=object(), auto_start=False)
