"""What a consumer pushes to a broker that wants metrics (KIP-714), and what the application may add (KIP-1076).

``tests/broker/test_telemetry.py`` shows it on a real broker; here the broker in memory gets the two requests.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.consumers import pushing
from managedconsumer.errors import ConfigurationError
from managedconsumer.observe.telemetry import Telemetry
from managedconsumer.testing import MemoryBroker
from managedconsumer.testing.memory import api_versions
from managedconsumer.wire.protocol import schemas
from tests.waiting import until

ID = bytes(range(16))
SUBSCRIPTION = {
    "client_instance_id": ID,
    "subscription_id": 1,
    "push_interval_ms": 100,
    "telemetry_max_bytes": 100_000,
    "requested_metrics": [""],
}


class Wanting(MemoryBroker):
    """A broker that wants all metrics; ``pushes`` are the requests that it got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: dict[str, int]) -> None:
        self.pushes: list[dict[str, Any]] = []
        answers = {
            schemas.GET_TELEMETRY_SUBSCRIPTIONS: lambda request: SUBSCRIPTION,
            schemas.PUSH_TELEMETRY: lambda request: self.pushes.append(request.body) or {},
        }
        for api in answers:
            monkeypatch.setitem(api_versions.VERSIONS, api.key, (0, 0))
        super().__init__(topics)
        for api, answer in answers.items():
            monkeypatch.setitem(self._handlers._answers, api.key, answer)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(pushing, "_LOOK_AGAIN_S", 0.01)
    with Wanting(monkeypatch, {"t": 1}) as made:
        made.produce("t", [b"secret"] * 5)
        yield made


@pytest.mark.parametrize("make", [ManagedBalancedConsumer, SimpleConsumer])
def test_it_pushes_and_says_goodbye(broker: Wanting, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "_LAST_PUSH_S", 20.0)
    with make("t", broker.bootstrap, "g", consumer_timeout_ms=20_000) as consumer:
        assert [consumer.consume().offset for _ in range(5)] == [*range(5)]
        consumer.register_metric("shop.open", lambda: 1.5)
        until(lambda: any(b"shop.open" in push["metrics"] for push in broker.pushes))
        assert consumer.client_instance_id() == "AAECAwQFBgcICQoLDA0ODw"
    assert [push["terminating"] for push in broker.pushes][-2:] == [False, True]
    assert not any(b"secret" in push["metrics"] for push in broker.pushes)
    pushed = len(broker.pushes)
    with consumer:  # started again: it is the same client
        until(lambda: len(broker.pushes) > pushed)
    assert {push["client_instance_id"] for push in broker.pushes} == {ID}


def test_nothing_is_sent_where_it_is_off(broker: Wanting) -> None:
    with SimpleConsumer("t", broker.bootstrap, consumer_timeout_ms=20_000, enable_metrics_push=False) as consumer:
        consumer.register_metric("shop.open", lambda: 1.5)
        assert [consumer.consume().offset for _ in range(5)] == [*range(5)]
        assert consumer.client_instance_id() is None
        assert consumer._session.pusher.attend(1e9) == float("inf")
    assert broker.pushes == []


def test_a_broker_that_wants_no_metrics_costs_nothing() -> None:
    with MemoryBroker({"t": 1}) as broker, SimpleConsumer("t", broker.bootstrap) as consumer:
        assert consumer._session.pusher.attend(1e9) == 1e9 + 300.0
        assert not any("telemetry" in thread.name for thread in threading.enumerate())


def test_the_latency_of_a_broker_is_that_of_its_fetches() -> None:
    """As Java's consumer measures it; all other requests would blur it."""
    with MemoryBroker({"t": 1}) as broker:
        broker.produce("t", [b"secret"] * 5)
        consumer = ManagedBalancedConsumer("t", broker.bootstrap, "g", consumer_timeout_ms=20_000)
        assert [consumer.consume().offset for _ in range(5)] == [*range(5)]
        consumer.stop()
        read = {(each.name, *each.labels.values()): each.value for each in consumer._session.pusher._readings.samples()}
    for kind in ("avg", "max"):
        of_fetches = read[f"org.apache.kafka.consumer.fetch.manager.fetch.latency.{kind}",]
        assert read[f"org.apache.kafka.consumer.node.request.latency.{kind}", "1"] == of_fetches


def test_a_broker_that_falls_silent_delays_a_stop_for_half_a_second(broker: Wanting) -> None:
    consumer = SimpleConsumer("t", broker.bootstrap)
    until(lambda: broker.pushes)
    broker.delay_next("PushTelemetry", 30.0, times=None)
    began = time.monotonic()
    consumer.stop()
    assert time.monotonic() - began < 5.0


def test_an_error_of_ours_ends_the_telemetry_alone(
    broker: Wanting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise LookupError("a mistake in here")

    monkeypatch.setattr(Telemetry, "body", broken)
    with SimpleConsumer("t", broker.bootstrap, consumer_timeout_ms=20_000) as consumer:
        until(lambda: "a mistake in here" in caplog.text)
        assert [consumer.consume().offset for _ in range(5)] == [*range(5)]
        assert consumer._session.pusher.attend(1e9) == float("inf")
    assert caplog.text.count("ended with an exception") == 1


def test_a_metric_that_refers_to_its_consumer_does_not_keep_it(broker: Wanting) -> None:
    consumer = SimpleConsumer("t", broker.bootstrap)
    consumer.register_metric("shop.lag", lambda consumer=consumer: sum(consumer.held_offsets.values()))
    until(lambda: any(b"shop.lag" in push["metrics"] for push in broker.pushes))
    there = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert there() is None


def test_names_and_kinds(broker: Wanting) -> None:
    consumer = SimpleConsumer("t", broker.bootstrap, auto_start=False)
    for name in ("", "1a", "a b", "org.apache.kafka.mine", "a" * 256):
        with pytest.raises(ConfigurationError, match="name must be letters, digits and"):
            consumer.register_metric(name, lambda: 1)
    with pytest.raises(TypeError, match="name must be a str"):
        consumer.register_metric(b"a", lambda: 1)  # type: ignore[arg-type]
    for read in (None, 5):
        with pytest.raises(TypeError, match="read must be a function"):
            consumer.register_metric("a", read)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="kind must be one of 'gauge', 'counter'"):
        consumer.register_metric("a", lambda: 1, kind="timer")  # type: ignore[arg-type]
    consumer.unregister_metric("a")


def test_the_newest_of_a_name_and_its_labels_counts() -> None:
    consumer = SimpleConsumer("t", "127.0.0.1:1", auto_start=False)
    for value, labels in [(1, None), (2, {"shop": "north"}), (3, None)]:
        consumer.register_metric("a", lambda value=value: value, labels)
    consumer.register_metric("b", lambda: 1 / 0)
    consumer.register_metric("c", lambda: "no number")  # type: ignore[arg-type,return-value]
    read = lambda: [(each.name, each.value, each.labels) for each in consumer._own_metrics.read()]  # noqa: E731
    assert read() == [("a", 3.0, {}), ("a", 2.0, {"shop": "north"})]
    consumer.unregister_metric("a", {"shop": "north"})
    assert read() == [("a", 3.0, {})]
