"""``group_protocol="auto"``: which protocol a member speaks, and when it changes to the other one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.compat.membership import RangeProtocol, RoundRobinProtocol
from managedconsumer.coordinator.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.testing.memorykit import GROUP, TOPIC, numbers, values
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("short_pauses")

HEARTBEAT, JOIN = "ConsumerGroupHeartbeat", "JoinGroup"
UNSUPPORTED_VERSION, GROUP_ID_NOT_FOUND = 35, 69
broker = memory_broker({TOPIC: 4}, numbers(8), heartbeat_interval_ms=20)


def member(broker: MemoryBroker, protocol: Any = None, **more: Any) -> ManagedBalancedConsumer:
    """A member; without ``protocol`` it has the default, which is "auto"."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 5000, **more}
    if protocol is not None:
        options["group_protocol"] = protocol
    return ManagedBalancedConsumer(TOPIC, broker.bootstrap, GROUP, **options)


def spoken(consumer: ManagedBalancedConsumer) -> Any:
    return consumer.health()["group_protocol"]


def test_a_broker_that_speaks_kip_848(broker: MemoryBroker) -> None:
    consumer = member(broker)
    assert values(consumer, 8) == numbers(8)
    assert spoken(consumer) == "consumer"
    with KafkaClient(broker.bootstrap) as client:
        assert client.group(GROUP).type == "consumer"
    consumer.stop()
    assert spoken(consumer) is None


@pytest.mark.parametrize("refusal", ["not offered", "refused"])
def test_a_broker_that_does_not(refusal: str, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka before 3.7 does not offer it, 3.9 offers and refuses it. That is no reason for a warning."""
    protocols = ("classic",) if refusal == "not offered" else ("classic", "consumer")
    caplog.set_level(logging.INFO)
    with MemoryBroker({TOPIC: 4}, group_protocols=protocols) as broker:
        if refusal == "refused":
            broker.fail_next(HEARTBEAT, UNSUPPORTED_VERSION, None)
        broker.produce(TOPIC, numbers(8))
        with member(broker) as consumer:
            assert values(consumer, 8) == numbers(8)
            assert spoken(consumer) == "classic"
    (line,) = [record for record in caplog.records if "is refused, using 'classic'" in record.message]
    assert line.levelno == logging.INFO


def test_each_start_asks_anew(broker: MemoryBroker) -> None:
    refused = broker.fail_next(HEARTBEAT, UNSUPPORTED_VERSION, None)
    consumer = member(broker)
    assert spoken(consumer) == "classic"
    consumer.stop()
    refused.cancel()
    consumer.start()
    assert spoken(consumer) == "consumer"
    consumer.stop()


def test_a_classic_group_that_stays_classic_is_joined(broker: MemoryBroker) -> None:
    with member(broker, "classic", heartbeat_interval_ms=50) as first, member(broker, heartbeat_interval_ms=50):
        pass
    with member(broker, "classic", heartbeat_interval_ms=50) as first, member(broker) as second:
        until(lambda: sorted(len(each.partitions) for each in (first, second)) == [2, 2])
        assert spoken(second) == "classic"
        assert len(broker.members(GROUP)) == 2  # the refused join has left nobody behind


def test_the_coordinator_changes_its_mind_and_back(broker: MemoryBroker) -> None:
    """Nothing is lost; what is committed is not handed out again.

    For as long as the group keeps the member's old place, the classic protocol is refused, too: that passes.
    """
    consumer = member(broker)
    values(consumer, 6)
    consumer.commit_offsets()
    refused = broker.fail_next(HEARTBEAT, UNSUPPORTED_VERSION, None)
    until(lambda: refused.happened >= 3)
    broker.evict(GROUP)
    until(lambda: spoken(consumer) == "classic" and consumer.health()["ready"])
    assert len(values(consumer, 2)) == 2
    broker.produce(TOPIC, numbers(4, 8))
    assert values(consumer, 4) == numbers(4, 8)
    consumer.commit_offsets()
    assert sum(broker.committed(GROUP).values()) == 12
    refused.cancel()
    away = broker.delay_next("Heartbeat", 0.3, None)
    broker.evict(GROUP)
    with member(broker, "consumer"):  # the group is one of KIP-848 when our member comes back
        away.cancel()
        until(lambda: spoken(consumer) == "consumer" and consumer.health()["ready"])
    until(lambda: len(consumer.partitions) == 4)
    broker.produce(TOPIC, numbers(4, 12))
    assert values(consumer, 4) == numbers(4, 12)
    consumer.commit_offsets()
    assert sum(broker.committed(GROUP).values()) == 16
    consumer.stop()


def test_an_expelled_member_finds_a_classic_group(broker: MemoryBroker) -> None:
    """As after a freeze: the heartbeat hears that there is no such KIP-848 group."""
    consumer = member(broker)
    values(consumer, 8)
    held = broker.delay_next(HEARTBEAT, 0.3, None)
    broker.evict(GROUP)
    with member(broker, "classic", heartbeat_interval_ms=50) as other:
        held.cancel()
        until(lambda: spoken(consumer) == "classic")
        until(lambda: sorted(len(each.partitions) for each in (consumer, other)) == [2, 2])
    consumer.stop()


def test_a_group_of_another_kind_is_told(broker: MemoryBroker) -> None:
    """Not for ever from one protocol to the other."""
    refused = broker.fail_next(HEARTBEAT, GROUP_ID_NOT_FOUND, None), broker.fail_next(JOIN, 23, None)
    with pytest.raises(err.InconsistentGroupProtocol):
        member(broker)
    assert 1 <= refused[0].happened <= 3 and 1 <= refused[1].happened <= 3


def test_a_rebalance_on_greenlets(broker: MemoryBroker) -> None:
    refused = broker.fail_next(HEARTBEAT, UNSUPPORTED_VERSION, None)
    with member(broker, use_greenlets=True) as consumer:
        assert (spoken(consumer), len(values(consumer, 8))) == ("classic", 8)
        assert refused.happened == 1


def test_a_static_member_takes_the_place_of_one_that_was_killed(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-848 keeps that for a session, so the classic protocol does it; the one that had it learns of it, and ends."""
    caplog.set_level(logging.INFO)
    with member(broker, group_instance_id="till-1") as killed, member(broker, group_instance_id="till-1") as heir:
        assert spoken(heir) == "classic"
        assert values(heir, 8) == numbers(8)
        with pytest.raises(err.FencedInstanceId, match="another member has taken over group_instance_id='till-1'"):
            while True:
                killed.consume()
        broker.produce(TOPIC, numbers(4, 8))
        assert values(heir, 4) == numbers(4, 8)
    (line,) = [record for record in caplog.records if "is refused, using 'classic'" in record.message]
    assert "group_instance_id='till-1' belongs to a member that has not left" in line.message


def test_a_place_that_cannot_be_taken_over_is_told(broker: MemoryBroker) -> None:
    """This broker lets no classic member into a KIP-848 group that has other members."""
    options = {"group_instance_id": "till-1"}
    refused = pytest.raises(err.UnreleasedInstanceId, match="group_instance_id='till-1'")
    with member(broker), member(broker, **options), refused:
        member(broker, **options)


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("consumer", {}),
        ("consumer", {"membership_protocol": RangeProtocol}),
        ("consumer", {"membership_protocol": "range"}),
        ("consumer", {"membership_protocol": "uniform"}),
        ("consumer", {"session_timeout_ms": 45000, "rebalance_timeout_ms": 7000, "group_instance_id": "till-1"}),
        ("classic", {"session_timeout_ms": 10000}),
        ("classic", {"heartbeat_interval_ms": 500}),
        ("classic", {"membership_protocol": "cooperative-sticky"}),
        ("classic", {"membership_protocol": RoundRobinProtocol}),
        ("classic", {"membership_protocol": ["cooperative-sticky", "range"]}),
    ],
)
def test_an_option_that_one_protocol_has_chooses_it(
    broker: MemoryBroker, protocol: str, options: dict[str, Any]
) -> None:
    with member(broker, **options) as consumer:
        assert spoken(consumer) == protocol


@pytest.mark.parametrize(
    ("protocol", "assignor", "said"),
    [
        *(
            ("consumer", each, r"the broker assigns; it knows 'uniform' and 'range'.*'classic'")
            for each in ("sticky", RoundRobinProtocol, CooperativeStickyPartitionAssignor, ["range", "roundrobin"])
        ),
        ("classic", "uniform", "membership_protocol must be one of"),
    ],
)
def test_a_protocol_alone_refuses_the_assignors_of_the_other(protocol: Any, assignor: Any, said: str) -> None:
    options = {"auto_start": False, "group_protocol": protocol, "membership_protocol": assignor}
    with pytest.raises(err.ConfigurationError, match=said):
        ManagedBalancedConsumer(TOPIC, "127.0.0.1:1", GROUP, **options)
