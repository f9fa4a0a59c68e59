"""The way to the coordinator when its broker is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.net.connection import ConnectionSettings
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.protocol import schemas

GROUP = "billing"


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(topics={"t": 1}, brokers=2) as broker:
        yield broker


@pytest.fixture
def link(broker: MemoryBroker, handler: Handler) -> Iterator[CoordinatorLink]:
    cluster = Cluster(parse_bootstrap(broker.bootstrap), handler, ConnectionSettings(request_timeout_ms=2000))
    link = CoordinatorLink(cluster, GROUP)
    yield link
    link.close()
    cluster.close()


def _ask(link: CoordinatorLink, purpose: str) -> dict[str, Any]:
    body = {"group_id": GROUP, "generation_id": 1, "member_id": "x", "group_instance_id": None}
    return link.request(purpose, schemas.HEARTBEAT, body, 2000)


def test_a_coordinator_that_refuses_connections_is_looked_up_anew_at_once(
    link: CoordinatorLink, broker: MemoryBroker
) -> None:
    """Its place may have been taken long ago, so that its refusal alone says nothing about the group."""
    assert _ask(link, "heartbeat")["error_code"] == 25
    old = broker.coordinator(GROUP)
    broker.kill(old)
    assert _ask(link, "commit")["error_code"] == 25
    assert link.broker is not None
    assert link.broker.node_id == broker.coordinator(GROUP) != old


def test_a_coordinator_that_has_moved_is_found_at_its_new_address(link: CoordinatorLink, broker: MemoryBroker) -> None:
    """The metadata names the old one until it is refreshed, which nothing hurries if no partition is led there."""
    assert _ask(link, "heartbeat")["error_code"] == 25
    coordinator, cluster = link.broker, link._cluster
    assert coordinator is not None
    with socket.socket() as nobody:  # bound, but it does not listen
        nobody.bind(("127.0.0.1", 0))
        moved = cluster.snapshot.brokers[coordinator.node_id]._replace(port=nobody.getsockname()[1])
        cluster.snapshot = cluster.snapshot._replace(brokers={**cluster.snapshot.brokers, moved.node_id: moved})
        link.lost("it has moved")
        assert _ask(link, "commit")["error_code"] == 25


def test_when_nothing_listens_anywhere_the_error_says_that_connections_are_refused(
    link: CoordinatorLink, broker: MemoryBroker
) -> None:
    _ask(link, "heartbeat")
    for node in (1, 2):
        broker.kill(node)
    with pytest.raises(err.NoBrokersAvailableError) as caught:
        _ask(link, "commit")
    assert caught.value.refused
    assert link.broker is None
