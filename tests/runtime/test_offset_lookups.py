"""Where logs begin and end is asked of all leaders at the same time, and nobody waits for a frozen one for longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.fetch import resets
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import BrokerInfo, OffsetType, TopicPartition
from managedconsumer.wire.protocol import schemas
from tests.conftest import Ended
from tests.runtime.beside import Beside
from tests.runtime.silent_proxy import SilentProxyBroker
from tests.waiting import until

TOPIC = "orders"
FROZEN, ALIVE = 1, 2


@pytest.fixture
def make_broker(ended: Ended) -> Callable[[], SilentProxyBroker]:
    def make() -> SilentProxyBroker:
        made = ended(SilentProxyBroker({TOPIC: 2}))
        made.start()
        return made

    return make


@pytest.fixture
def two_leaders(
    make_broker: Callable[[], SilentProxyBroker], handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, SilentProxyBroker]]:
    """Partition 0 is led by a broker that can be frozen, partition 1 by another one."""
    frozen, alive = make_broker(), make_broker()
    alive.produce(TOPIC, [b"a", b"b"], partition=1)
    cluster = Cluster([("127.0.0.1", frozen._port)], handler)
    seen = cluster.refresh()
    parts = seen.topics[TOPIC].partitions
    led = {0: parts[0]._replace(leader=FROZEN), 1: parts[1]._replace(leader=ALIVE)}
    brokers = {
        FROZEN: BrokerInfo(FROZEN, "127.0.0.1", frozen._port),
        ALIVE: BrokerInfo(ALIVE, "127.0.0.1", alive._port),
    }
    topic = seen.topics[TOPIC]._replace(partitions=MappingProxyType(led))
    cluster.snapshot = seen._replace(brokers=MappingProxyType(brokers), topics=MappingProxyType({TOPIC: topic}))
    monkeypatch.setattr(cluster, "refresh_if_same", lambda snapshot, _topics: snapshot)
    cluster.close_idle()
    yield cluster, frozen
    cluster.close()


@pytest.mark.parametrize("frozen_at", ["ApiVersions", "ListOffsets"])
def test_a_frozen_leader_costs_no_more_than_the_time_there_is(
    two_leaders: tuple[Cluster, SilentProxyBroker], frozen_at: str
) -> None:
    cluster, frozen = two_leaders
    frozen.choose = lambda _wire, name: name == frozen_at
    client = OffsetClient(cluster, None, None, 0)
    first, second = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
    used: list[tuple[float, Any]] = []
    began = time.monotonic()
    answers = client.list_offsets(
        {first: OffsetType.LATEST, second: OffsetType.LATEST},
        0.5,
        use=lambda told: used.append((time.monotonic() - began, dict(told))),
    )
    took = time.monotonic() - began
    assert took < 5  # and not the 10 s that connecting may take, nor a request's 30 s
    assert answers[second].offset == 2
    assert answers[first].may_change
    at, told = used[0]
    assert list(told) == [second]
    assert at < 0.4  # at once


@pytest.mark.parametrize("frozen", [FROZEN, ALIVE])
def test_leader_epochs_are_compared_with_all_leaders_at_once(
    two_leaders: tuple[Cluster, SilentProxyBroker], frozen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = two_leaders
    let_go = cluster.handler.Event()

    def ask(node: int, *_: Any) -> dict[str, Any]:
        if node == frozen:
            let_go.wait(5)
        part = {"partition": node - 1, "error_code": 0, "leader_epoch": 3, "end_offset": 7}
        return {"topics": [{"topic": TOPIC, "partitions": [part]}]}

    client = OffsetClient(cluster, None, None, 0)
    monkeypatch.setattr(client, "_ask_leader", ask)
    monkeypatch.setattr("managedconsumer.runtime.cluster.offsets._EPOCH_PATIENCE", 0.1)
    began = time.monotonic()
    found = client.epoch_ends({TopicPartition(TOPIC, number): 3 for number in (0, 1)})
    assert time.monotonic() - began < 3.0
    let_go.set()
    assert [tp.partition + 1 for tp in found] == [FROZEN + ALIVE - frozen]


def test_a_wait_that_is_broken_off_ends_at_once(two_leaders: tuple[Cluster, SilentProxyBroker]) -> None:
    cluster, frozen = two_leaders
    frozen.choose = lambda _wire, name: name == "ListOffsets"
    client = OffsetClient(cluster, None, None, 0)
    began = time.monotonic()
    answers = client.list_offsets(
        {TopicPartition(TOPIC, 0): OffsetType.LATEST}, 30.0, lambda: time.monotonic() - began > 0.1
    )
    assert time.monotonic() - began < 5
    assert "has not answered" in str(answers[TopicPartition(TOPIC, 0)].error)


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_stop_does_not_wait_for_a_frozen_leader(
    make_broker: Callable[[], SilentProxyBroker], kind: Callable[..., Any]
) -> None:
    broker = make_broker()
    broker.choose = lambda _wire, name: name == "ListOffsets"
    with KafkaClient(broker.bootstrap) as client:
        consumer = kind(TOPIC, client.cluster, b"billing", auto_start=False)
        starting = Beside(consumer.start)
        until(lambda: any("ListOffsets" in wire.carried for wire in broker.wires))
        began = time.monotonic()
        consumer.stop(timeout=1.0)
        assert time.monotonic() - began < 5
        assert starting.end().error is not None


def test_an_interrupted_look_up_leaves_nothing_under_way_to_the_next(
    make_broker: Callable[[], SilentProxyBroker], handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C between a question and its answer: the next thread must not be handed that connection."""
    broker = make_broker()
    cluster = Cluster([("127.0.0.1", broker._port)], handler)
    cluster.refresh()
    client = OffsetClient(cluster, None, None, 0)
    body = resets.list_offsets_body({TopicPartition(TOPIC, 0): OffsetType.LATEST}, 0, 1000)
    receive = Connection.receive_frame

    def interrupted(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(Connection, "receive_frame", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "receive_frame", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client._ask_leader(1, schemas.LIST_OFFSETS, body, 5000.0)
    assert client._ask_leader(1, schemas.LIST_OFFSETS, body, 5000.0)["topics"]
    cluster.close()
