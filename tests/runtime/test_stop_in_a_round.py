"""A stop in the middle of a rebalance: what is finished is committed, if the round can still come to its end."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.protocol import schemas
from tests.memory import memory_broker
from tests.waiting import until

TOPIC, GROUP = "orders", "billing"
READ = TopicPartition(TOPIC, 0)
broker = memory_broker({TOPIC: 2}, [b"v"] * 5, [0])


def member(broker: MemoryBroker) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer(
        TOPIC,
        broker.bootstrap,
        GROUP,
        membership_protocol="cooperative-sticky",
        heartbeat_interval_ms=50,
        auto_commit_enable=True,
        auto_commit_interval_ms=60_000,
        consumer_timeout_ms=50,
    )


def pair(broker: MemoryBroker) -> tuple[ManagedBalancedConsumer, ManagedBalancedConsumer]:
    """Two members with a partition each; the first has read all of its five messages, and finished them."""
    one, other = member(broker), member(broker)
    until(lambda: len(one.partitions) == len(other.partitions) == 1)
    reader, leaver = (one, other) if 0 in one.partitions else (other, one)
    offsets = 5
    while offsets:
        offsets -= reader.consume() is not None
    assert reader.consume() is None
    return reader, leaver


def test_between_join_and_sync(broker: MemoryBroker) -> None:
    """The coordinator refuses commits there; a moment later it takes them."""
    reader, leaver = pair(broker)
    broker.delay_next("SyncGroup", 0.3)
    leaver.stop()
    until(lambda: reader.health()["state"] == "completing rebalance")
    reader.stop()
    assert broker.committed(GROUP)[READ] == 5


def test_before_the_joins_answer_is_there(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is in its next generation already."""
    reader, leaver = pair(broker)
    link: Any = reader._member._link  # type: ignore[union-attr]
    ask = link.request
    answered = threading.Event()

    def late(purpose: str, api: Any, *rest: Any, **more: Any) -> Any:
        answer = ask(purpose, api, *rest, **more)
        if api is schemas.JOIN_GROUP:
            answered.set()
            time.sleep(0.05)
        return answer

    monkeypatch.setattr(link, "request", late)
    leaver.stop()
    assert answered.wait(10)
    reader.stop()
    assert broker.committed(GROUP)[READ] == 5


def test_a_round_that_does_not_end(broker: MemoryBroker) -> None:
    """The leader's SyncGroup does not come: a stop does not wait longer for it than a fifth of its time."""
    one, other = member(broker), member(broker)
    until(lambda: len(one.partitions) == len(other.partitions) == 1)
    broker.delay_next("SyncGroup", 30.0, times=None)
    other.stop()
    until(lambda: one.health()["state"] == "completing rebalance")
    began = time.monotonic()
    one.stop(2.0)
    assert time.monotonic() - began < 1.5
