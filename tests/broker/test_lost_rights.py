"""A user loses a right while its consumers run: they end, say so, and leave their group at ``stop()``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from tests.broker.consumerkit import fill
from tests.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.since("3.5")]

OPTIONS: dict[str, Any] = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 60_000}


@pytest.fixture(scope="module")
def guarded() -> Iterator[DevBroker]:
    """A broker that looks at ACLs, and lets everybody do what no ACL is about."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "group.initial.rebalance.delay.ms": "0",
    }
    with DevBroker("4.4.0", properties=properties) as broker:
        yield broker


def deny(broker: DevBroker, kind: str, name: str, *, undo: bool = False) -> None:
    """Nobody may read a topic or a group any more; with ``undo`` everybody may."""
    what = ("--remove", "--force") if undo else ("--add",)
    broker.run_tool("kafka-acls", *what, "--deny-principal", "User:*", "--operation", "Read", f"--{kind}", name)


def members(broker: DevBroker, group: str) -> list[Any]:
    with KafkaClient(broker.bootstrap) as client:
        return list(client.group(group).members)


@pytest.fixture
def filled(guarded: DevBroker, unique: Any) -> str:
    name = str(unique("rights"))
    guarded.create_topic(name, partitions=2)
    fill(guarded, name, 10)
    return name


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_has_lost_its_group_leaves_when_it_may_again(
    guarded: DevBroker, filled: str, protocol: str
) -> None:
    consumer = ManagedBalancedConsumer(
        filled, guarded.bootstrap, filled, group_protocol=protocol, heartbeat_interval_ms=100, **OPTIONS
    )
    assert consumer.consume() is not None
    deny(guarded, "group", filled)
    with pytest.raises(err.GroupAuthorizationFailed):
        until(lambda: consumer.consume() is None, 60)
    assert not consumer.health()["live"]
    deny(guarded, "group", filled, undo=True)
    assert len(members(guarded, filled)) == 1
    consumer.stop()
    assert members(guarded, filled) == []


@pytest.mark.parametrize("protocol", ["none", "classic", "consumer"])
def test_a_topic_that_may_not_be_read_any_more_ends_it_and_it_leaves(
    guarded: DevBroker, filled: str, protocol: str
) -> None:
    consumer: Any
    if protocol == "none":
        consumer = SimpleConsumer(filled, guarded.bootstrap, filled, **OPTIONS)
    else:
        consumer = ManagedBalancedConsumer(filled, guarded.bootstrap, filled, group_protocol=protocol, **OPTIONS)
    assert consumer.consume() is not None
    deny(guarded, "topic", filled)
    with pytest.raises(err.TopicAuthorizationFailed, match="READ on the topic must be allowed"):
        until(lambda: consumer.consume() is None, 60)
    health = consumer.health()
    assert (health["live"], health["ready"]) == (False, False)
    assert "may not read topic" in health["reasons"][0]
    consumer.stop()
    if protocol != "none":
        assert members(guarded, filled) == []
