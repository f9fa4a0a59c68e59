"""A request without an answer makes older connections to that broker suspicious, and only those."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import KafkaClient, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.config import ConsumerOptions
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.rdkafka import config as rdkafka_config
from managedconsumer.runtime.waiting.handlers import Handler, ThreadingHandler
from managedconsumer.wire.protocol import schemas
from tests.runtime.beside import Beside
from tests.runtime.silent_proxy import TOPIC, SilentProxyBroker
from tests.waiting import until

#: The time-out (ms) that the fixture ``cluster`` gives every request.
TIMEOUT = 300


@pytest.fixture
def connect(cluster: Cluster) -> Callable[[], Connection]:
    """Makes connections that live as long as the test."""
    made: list[Connection] = []

    def make() -> Connection:
        made.append(cluster.connect(1))
        return made[-1]

    return make


def _ask(connection: Connection, timeout_ms: float | None = None) -> dict[str, Any]:
    return connection.request(schemas.METADATA, {"topics": [], "allow_auto_topic_creation": False}, timeout_ms)


def test_whoever_waits_on_another_dead_connection_learns_it_at_once(
    connect: Callable[[], Connection], broker: SilentProxyBroker, handler: Handler
) -> None:
    first, second, idle = (connect() for _ in range(3))
    wire = broker.wires[-2]
    broker.silence_all()
    carried = len(wire.carried)
    waiting = Beside(_ask, second, 60_000, handler=handler)
    until(lambda: len(wire.carried) > carried, sleep=handler.sleep)
    with pytest.raises(err.RequestTimedOut):
        _ask(first)
    assert isinstance(waiting.end().error, err.SocketDisconnectedError)
    assert not idle.connected  # nothing is sent over it any more
    assert _ask(connect())["brokers"]


def test_a_connection_that_has_answered_since_is_left_alone(
    connect: Callable[[], Connection], broker: SilentProxyBroker, handler: Handler
) -> None:
    slow, alive, idle = (connect() for _ in range(3))
    wire = broker.wires[-3]
    wire.silent = True
    waiting = Beside(_ask, slow, handler=handler)
    until(lambda: "Metadata" in wire.carried, sleep=handler.sleep)
    assert _ask(alive)["brokers"]
    assert isinstance(waiting.end().error, err.RequestTimedOut)
    assert alive.connected
    assert not idle.connected


def test_a_short_wait_says_nothing_about_other_connections(
    connect: Callable[[], Connection], broker: SilentProxyBroker
) -> None:
    first, second = connect(), connect()
    broker.wires[-2].silent = True
    with pytest.raises(err.RequestTimedOut):
        _ask(first, TIMEOUT / 6)
    assert second.connected
    assert _ask(second)["brokers"]


def test_another_brokers_connections_are_not_concerned(
    cluster: Cluster, connect: Callable[[], Connection], broker: SilentProxyBroker
) -> None:
    other = SilentProxyBroker({TOPIC: 1})
    other.start()
    try:
        here, there = connect(), cluster._open("127.0.0.1", other._port)
        broker.silence_all()
        with pytest.raises(err.RequestTimedOut):
            _ask(here)
        assert there.connected
        there.close()
    finally:
        other.close()


def test_a_fetch_waits_as_long_as_the_client_says(broker: SilentProxyBroker) -> None:
    """``socket_timeout_ms`` is for every answer; a fetch gets what the broker may wait on top."""
    with KafkaClient(broker.bootstrap, socket_timeout_ms=TIMEOUT) as client:
        consumer = SimpleConsumer(TOPIC, client.cluster, consumer_timeout_ms=5000)
        until(lambda: any("Fetch" in wire.carried for wire in broker.wires))
        broker.silence_all()
        began = time.monotonic()
        broker.produce(TOPIC, [b"a"], partition=0)
        assert consumer.consume().value == b"a"
        assert time.monotonic() - began < 4.0  # and not the 30 s of the default
        consumer.stop()


@pytest.mark.parametrize(("timeout", "wait", "given"), [(5000, 100, 5100), (30_000, 100, 30_100), (1, 500, 1500)])
def test_librdkafka_waits_as_long(timeout: int, wait: int, given: int) -> None:
    options = ConsumerOptions(fetch_wait_max_ms=wait)
    settings = ConnectionSettings(request_timeout_ms=timeout)
    made = rdkafka_config.settings([("a", 1)], options, settings, ThreadingHandler())
    assert made["socket.timeout.ms"] == given
