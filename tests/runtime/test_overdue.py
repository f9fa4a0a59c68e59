"""Connections to several brokers die without a word: each of them is given up seconds later, not after a time-out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.net.overdue import NEVER, SOON_S, overdue_after
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire import records
from managedconsumer.wire.protocol import schemas
from tests.pages import text_of
from tests.runtime.silent_proxy import SilentProxyBroker
from tests.waiting import until

TOPIC = "spread"
#: The time-out (ms) of every request: what these tests must not wait for.
TIMEOUT = 30_000
#: In place of 6 s.
SOON = 0.2
FETCH: dict[str, Any] = {"max_wait_ms": 500}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.overdue.SOON_S", SOON)


@pytest.fixture
def broker() -> Iterator[SilentProxyBroker]:
    """Three nodes, each of which leads one partition, behind proxies."""
    broker = SilentProxyBroker({TOPIC: 3}, brokers=3)
    broker.start()
    yield broker
    broker.close()


def _read(consumer: Any, broker: MemoryBroker, value: bytes) -> float:
    """Write ``value`` to each partition; how long (seconds) it takes until all three are here."""
    began = time.monotonic()
    for partition in range(3):
        broker.produce(TOPIC, [value], partition=partition)
    found: set[int] = set()
    while len(found) < 3:
        message = consumer.consume()
        assert message is not None, f"only {found} came"
        if message.value == value:
            found.add(message.partition_id)
    return time.monotonic() - began


def _options(**more: Any) -> dict[str, Any]:
    return {"auto_offset_reset": "earliest", "consumer_timeout_ms": 10_000, **more}


@pytest.mark.parametrize("greenlets", [False, pytest.param(True, marks=pytest.mark.gevent)])
def test_a_reader_of_three_silent_brokers_is_soon_back(broker: SilentProxyBroker, greenlets: bool) -> None:
    with KafkaClient(broker.bootstrap, use_greenlets=greenlets) as client:
        consumer = SimpleConsumer(TOPIC, client.cluster, **_options())
        _read(consumer, broker, b"before")
        broker.silence_all()
        assert _read(consumer, broker, b"after") < SOON + 5.0
        consumer.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_whose_three_brokers_fall_silent_keeps_its_partitions(
    broker: SilentProxyBroker, protocol: str
) -> None:
    """At the defaults: a session of 45 s, and 30 s for each answer."""
    with KafkaClient(broker.bootstrap) as client:
        options = _options(group_protocol=protocol, heartbeat_interval_ms=200)
        consumer = ManagedBalancedConsumer(TOPIC, client.cluster, "billing", **options)
        _read(consumer, broker, b"before")
        generation = consumer.generation_id
        broker.silence_all()
        began = time.monotonic()
        consumer.commit_offsets()
        assert time.monotonic() - began < SOON + 5.0
        assert _read(consumer, broker, b"after") < SOON + 5.0
        until(lambda: consumer.health()["trouble"] is None)
        assert consumer.generation_id == generation
        consumer.stop()


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    made = cluster.connect(2)
    yield made
    made.close()


def _ask(connection: Connection, **more: Any) -> dict[str, Any]:
    return connection.request(schemas.METADATA, {"topics": [], "allow_auto_topic_creation": False}, **more)


def test_a_connection_that_has_not_answered_yet_gets_the_whole_time_out(
    connection: Connection, broker: SilentProxyBroker
) -> None:
    """So a broker that is slow to answer everything is not asked the same again and again."""
    broker.wires[-1].silent = True
    began = time.monotonic()
    with pytest.raises(err.RequestTimedOut):
        _ask(connection, timeout_ms=3000 * SOON)
    assert time.monotonic() - began > 2 * SOON


def test_one_that_has_is_given_up_and_the_text_says_why(connection: Connection, broker: SilentProxyBroker) -> None:
    _ask(connection)
    broker.wires[-1].silent = True
    began = time.monotonic()
    # A busy machine's broker was slow before, and has twice that time.
    with pytest.raises(err.RequestTimedOut, match=r"has not begun to answer Metadata within [\d.]+ s"):
        _ask(connection)
    assert time.monotonic() - began < TIMEOUT / 1000 / 2


def test_what_came_while_the_process_stood_still_counts(
    connection: Connection, broker: SilentProxyBroker, handler: Handler
) -> None:
    """The answer is in the kernel when the process goes on: nothing was silent."""
    _ask(connection)
    sent = connection.send(schemas.METADATA, {"topics": [], "allow_auto_topic_creation": False})
    handler.sleep(2 * SOON)
    assert connection.receive(sent)["brokers"]


def test_an_answer_that_has_begun_to_come_is_waited_for(
    connection: Connection, broker: SilentProxyBroker, handler: Handler
) -> None:
    """A large answer over a slow line takes longer than silence may."""
    _ask(connection)
    wire = broker.wires[-1]
    wire.trickle = 3 * SOON
    assert _ask(connection)["brokers"]


@pytest.mark.parametrize(
    ("api", "body", "slowest", "after"),
    [
        (schemas.HEARTBEAT, {}, 0.1, SOON_S),
        (schemas.FETCH, FETCH, 0.1, SOON_S + 0.5),
        (schemas.FETCH, FETCH, 8.0, 16.5),
        (schemas.LIST_OFFSETS, b"...", 0.1, SOON_S),
        (schemas.HEARTBEAT, {}, None, NEVER),
        (schemas.JOIN_GROUP, {}, 0.1, NEVER),
        (schemas.SYNC_GROUP, {}, 0.1, NEVER),
    ],
)
def test_when_an_answer_is_overdue(
    monkeypatch: pytest.MonkeyPatch, api: schemas.Api, body: Any, slowest: float | None, after: float
) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.overdue.SOON_S", SOON_S)
    assert overdue_after(api, body, slowest) == after


def test_the_docs_name_the_times() -> None:
    text = " ".join(text_of("guarantees.rst").split())
    connecting = ConnectionSettings("").connect_timeout_ms / 1000
    assert f"is given up after {SOON_S:g} s without a byte" in text
    assert f"Connecting anew takes up to {connecting:g} s" in text
    assert f"about {SOON_S + connecting:g} s at most" in text


@pytest.mark.skipif(records.__impl__ != "cython", reason="threads receive for themselves in compiled code")
def test_a_thread_that_receives_for_itself_gives_up_a_silent_connection(broker: SilentProxyBroker) -> None:
    with KafkaClient(broker.bootstrap) as client:
        consumer = SimpleConsumer(TOPIC, client.cluster, **_options(consumer_timeout_ms=30_000))
        engine = consumer._session.engine
        seen: list[bytes] = []
        thread = threading.Thread(target=lambda: seen.extend(consumer.consume().value for _ in range(5)), daemon=True)
        thread.start()
        for number in range(4):  # small answers that find a thread that waits: it receives the next ones itself
            until(lambda: engine.assignment.sitting or engine.inline.inside)
            broker.produce(TOPIC, [b"%d" % number], partition=0)
            until(lambda number=number: len(seen) > number)  # type: ignore[misc]
        until(lambda: engine.inline.wires and engine.inline.inside)
        broker.silence_all()
        broker.produce(TOPIC, [b"after"], partition=0)
        until(lambda: seen[-1] == b"after", SOON + 5.0)
        thread.join(10)
        consumer.stop()
