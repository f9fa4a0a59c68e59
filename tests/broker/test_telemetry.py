"""KIP-714 and KIP-1076: what a broker with a plugin for clients' metrics gets of our consumers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.listenerkit import configure
from tests.broker.telemetrykit import PREFIX, REQUIRED, Push, plugin, pushes, total
from tests.waiting import until

SUBSCRIPTION = 16
MESSAGES = 500


@pytest.mark.since("3.7")
def test_what_the_broker_gets(dev_broker: Any, topic: Any, unique: Any, tmp_path: Path) -> None:
    got, home = tmp_path / "got", tmp_path / "jar"
    got.mkdir()
    home.mkdir()
    agent = f"-javaagent:{plugin('4.4.0', home)}={got}"
    broker = dev_broker("4.4.0", properties={"metric.reporters": "TelemetryFiles"}, jvm_options=(agent,))
    configure(broker, SUBSCRIPTION, "everything", {"interval.ms": "500", "metrics": "*"})
    name = topic(broker, partitions=2)
    with Producer(broker.bootstrap) as producer:
        for partition in (0, 1):
            producer.produce(name, [Record(b"secret", b"secret")] * (MESSAGES // 2), partition=partition)

    def of(consumer: Any) -> list[Push]:
        return [each for each in pushes(got) if each.instance == consumer.client_instance_id()]

    def pushed(consumer: Any, wanted: Any, what: str) -> None:
        until(lambda: wanted(of(consumer)), 60, lambda: f"{what}: {of(consumer)}")

    group = unique("group")
    with ManagedBalancedConsumer(
        name, broker.bootstrap, group, client_rack="r1", consumer_timeout_ms=100, group_instance_id="till-1"
    ) as member:
        member.register_metric("shop.orders.open", lambda: 7.5, {"shop": "north"})
        member.register_metric("shop.orders.total", lambda: 3, kind="counter")
        member.register_metric("shop.broken", lambda: 1 / 0)
        pushed(member, len, "a first push")
        assert sum(1 for _ in member) == MESSAGES
        member.commit_offsets()
        pushed(
            member, lambda mine: {key for push in mine for key, _ in push.values} >= REQUIRED, "all that is required"
        )
        pushed(member, lambda mine: total(mine, "fetch.manager.records.consumed.total") == MESSAGES, "all messages")
        last = of(member)[-1]
        assert last.values["coordinator.assigned.partitions", ""] == 2
        assert last.values["shop.orders.open", "shop=north"] == 7.5
        assert last.sums == {
            *("connection.creation.total", "coordinator.rebalance.latency.total"),
            *("fetch.manager.records.consumed.total", "shop.orders.total"),
        }
        assert total(of(member), "shop.orders.total") == 3
        assert last.resource["group_id"] == group
        assert last.resource["group_instance_id"] == "till-1"
        assert last.resource["client_rack"] == "r1"
        assert last.resource["group_member_id"]
        assert any("node_id=1" in told for _, told in last.values)

        member.unregister_metric("shop.orders.open", {"shop": "north"})
        # The subscription changes: the broker answers UNKNOWN_SUBSCRIPTION_ID, and is asked again.
        configure(broker, SUBSCRIPTION, "everything", {"metrics": f"{PREFIX}coordinator.assigned,shop."})
        names = {"coordinator.assigned.partitions", "shop.orders.total"}
        pushed(member, lambda mine: {key for key, _ in mine[-1].values} == names, "what is wanted now")
        assert not any(push.terminating for push in of(member))
    pushed(member, lambda mine: mine[-1].terminating, "a last push")
    assert not any(b"secret" in push.raw for push in pushes(got))

    configure(broker, SUBSCRIPTION, "everything", {"metrics": f"{PREFIX}fetch"})
    consumed = "fetch.manager.records.consumed.total"
    with SimpleConsumer(name, broker.bootstrap, use_rdkafka=True, consumer_timeout_ms=1000) as simple:
        assert sum(1 for _ in simple) == MESSAGES
        pushed(simple, lambda mine: total(mine, consumed) == MESSAGES, "what librdkafka fetched")
    with SimpleConsumer(name, broker.bootstrap, enable_metrics_push=False, consumer_timeout_ms=1000) as silent:
        assert sum(1 for _ in silent) == MESSAGES
        assert silent.client_instance_id() is None

    async def read() -> None:
        with SimpleConsumer(name, broker.bootstrap, consumer_timeout_ms=1000) as simple:
            found = [message async for message in simple]
            assert len(found) == MESSAGES
            await asyncio.to_thread(pushed, simple, lambda mine: total(mine, consumed) == MESSAGES, "asyncio's")

    asyncio.run(read())
    assert len({push.instance for push in pushes(got)}) == 3
