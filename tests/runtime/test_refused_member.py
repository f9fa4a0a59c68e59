"""A member that a refusal has ended leaves its group at ``stop()``: nobody waits for the end of its session."""

from __future__ import annotations

import asyncio

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

HEARTBEATS = {"classic": "Heartbeat", "consumer": "ConsumerGroupHeartbeat"}
broker = memory_broker({"t": 1}, [b"a", b"b"], heartbeat_interval_ms=50)


def _consumer(broker: MemoryBroker, protocol: str) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer(
        "t",
        broker.bootstrap,
        "g",
        auto_start=False,
        auto_offset_reset=-2,
        group_protocol=protocol,
        heartbeat_interval_ms=50,
        consumer_timeout_ms=20_000,
    )


def _refuse(broker: MemoryBroker, protocol: str) -> None:
    broker.fail_next(HEARTBEATS[protocol], err.GroupAuthorizationFailed)


@pytest.mark.parametrize("protocol", HEARTBEATS)
def test_it_leaves_and_the_next_one_has_its_partitions_at_once(broker: MemoryBroker, protocol: str) -> None:
    consumer = _consumer(broker, protocol)
    consumer.start()
    assert consumer.consume().value == b"a"
    _refuse(broker, protocol)
    until(lambda: not consumer.health()["live"])
    with pytest.raises(err.GroupAuthorizationFailed):
        consumer.consume()
    assert len(broker.members("g")) == 1
    consumer.stop()
    assert broker.members("g") == []
    consumer.start()  # the same consumer, as a new member
    assert consumer.consume().value == b"a"
    consumer.stop()


@pytest.mark.parametrize("protocol", HEARTBEATS)
def test_in_an_event_loop_it_leaves(broker: MemoryBroker, protocol: str) -> None:
    async def read() -> None:
        async with _consumer(broker, protocol) as consumer:
            async for message in consumer:
                if message.value == b"a":
                    _refuse(broker, protocol)

    with pytest.raises(err.GroupAuthorizationFailed):
        asyncio.run(read())
    assert broker.members("g") == []
