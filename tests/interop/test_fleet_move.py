"""A pykafka fleet on Kafka 3.9 becomes ours one by one, then its broker becomes Kafka 4.4 on the same data."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka._kafka_config import free_port
from tests.broker.groupkit import Fleet, Load, ProcessMember, committed, running

# Other programs have to start and to be balanced in time, on a machine that runs other tests as well.
pytestmark = [pytest.mark.busy, pytest.mark.broker]

PARTITIONS = 6
PATIENCE_S = 60.0
Strange = Callable[..., ProcessMember]
Started = Callable[[str], DevBroker]


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Started]:
    """``release("3.9.2")``: this Kafka on the data and at the address of the one before, which has been stopped."""
    port, started = free_port(set()), []

    def start(version: str) -> DevBroker:
        started.append(DevBroker(version, port=port, data_dir=tmp_path / "data"))
        return started[-1].start()

    yield start
    for each in started:
        each.stop()


def spread(group: Fleet, old: list[ProcessMember]) -> bool:
    """Three members have two partitions each."""
    shares = [each.owned for each in [*old, *group.members]]
    return sorted(p for share in shares for p in share) == list(range(PARTITIONS)) and [*map(len, shares)] == [2] * 3


@pytest.mark.parametrize("mode", ["threads"], indirect=True)
def test_a_pykafka_fleet_and_then_its_broker_are_replaced(
    release: Started, mode: Handler, unique: Callable[[str], str], stranger: Strange
) -> None:
    broker = release("3.9.2")
    topic = broker.create_topic(unique("topic"), PARTITIONS)
    address: Any = SimpleNamespace(bootstrap=broker.bootstrap)  # the same before and after
    with running(Fleet(address, topic, unique("group"), mode)) as group, Load(address, topic, PARTITIONS) as load:

        def goes_on() -> None:
            seen = len(load.acked)
            group.until(lambda: len(load.acked) > seen + 50, PATIENCE_S, "load goes on")
            group.until(lambda: set(load.acked[:seen]) <= received().keys(), PATIENCE_S, "all of it is read")

        def received() -> Counter[bytes]:
            return group.values() + Counter(value for each in old for value in each.values)

        old = [stranger(group, "pykafka") for _ in range(3)]
        group.until(lambda: spread(group, old), PATIENCE_S, "three of pykafka")
        for number, leaving in enumerate(old):
            leaving.signal(signal.SIGTERM)
            group.until(lambda left=leaving: left.process.poll() is not None, PATIENCE_S, "it ends")  # type: ignore[misc]
            group.join(auto_commit_enable=True, auto_commit_interval_ms=200)
            group.until(lambda after=number + 1: spread(group, old[after:]), PATIENCE_S, "replaced")  # type: ignore[misc]
            goes_on()
        broker.stop()
        newer = release("4.4.0")
        goes_on()
        group.until(lambda: spread(group, []), PATIENCE_S, "the group is as it was")
        acked = load.stop()
        group.until(lambda: not set(acked) - received().keys(), PATIENCE_S, f"all of {len(acked)} messages")

        def all_committed() -> bool:
            return sum(committed(newer, group.group, topic, PARTITIONS).values()) >= len(acked)

        group.until(all_committed, PATIENCE_S, "all is committed")
    group.check()
    print(f"fleet and broker: {len(acked)} messages, {received().total() - len(received())} duplicates")
