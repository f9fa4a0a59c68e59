"""A silent coordinator: the user learns at the end of the session, whatever the heartbeat worker waits for then."""

from __future__ import annotations

import time
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer.listeners import ConsumerRebalanceListener
from tests.runtime.silent_proxy import TOPIC, SilentProxyBroker
from tests.waiting import until

# Most of these start a program of their own, or wait for the end of a session.
pytestmark = pytest.mark.slow

SESSION_MS = 600


class Notes(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.lost_at: float | None = None

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass

    def on_partitions_lost(self, lost: Any) -> None:
        self.lost_at = time.monotonic()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("silent_at", ["Heartbeat", "FindCoordinator", "ApiVersions"])
def test_partitions_are_lost_when_the_session_is_over(broker: SilentProxyBroker, silent_at: str, protocol: str) -> None:
    """The heartbeat itself has no answer, nor have the look-up of the coordinator and a new connection after it."""
    notes = Notes()
    with KafkaClient(broker.bootstrap, socket_timeout_ms=10_000) as client:
        consumer = ManagedBalancedConsumer(
            TOPIC,
            client.cluster,
            "billing",
            listener=notes,
            group_protocol=protocol,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=100,
            consumer_timeout_ms=50,
        )
        until(lambda: consumer.consume() or consumer.held_offsets)
        told = {"Heartbeat", "ConsumerGroupHeartbeat", "FindCoordinator", "ApiVersions"}
        broker.choose = lambda _wire, name: name in told
        if silent_at != "Heartbeat":  # the connection breaks, and what follows is not answered
            told.clear()
            told.add(silent_at)
            for wire in list(broker.wires):
                wire.client.close()
                wire.server.close()
        began = time.monotonic()
        while notes.lost_at is None:
            consumer.consume()
            assert time.monotonic() - began < 5, consumer.health()
        assert notes.lost_at - began < SESSION_MS / 1000 + 1.0
        broker.choose = lambda _wire, _name: False
        consumer.stop(timeout=0.5)
