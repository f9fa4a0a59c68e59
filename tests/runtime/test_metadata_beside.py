"""Fetching goes on while the metadata are asked for: a broker may be slow to answer, or silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer.testing import MemoryBroker


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 2}, brokers=2) as made:
        for partition in (0, 1):
            made.move_leader("orders", partition, 1)
            made.produce("orders", [b"first"], partition=partition)
        yield made


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.gevent)], ids=["threads", "greenlets"])
def consumer(request: pytest.FixtureRequest, broker: MemoryBroker) -> Iterator[Any]:
    options = {"consumer_timeout_ms": 10_000, "fetch_wait_max_ms": 30_000}
    with SimpleConsumer("orders", broker.bootstrap, use_greenlets=request.param, **options) as made:
        assert [made.consume().value for _ in range(2)] == [b"first"] * 2
        yield made


def test_of_the_partitions_of_a_broker_one_has_moved(broker: MemoryBroker, consumer: Any) -> None:
    """The old leader's other partition is fetched meanwhile."""
    asked = broker.delay_next("Metadata", 60, times=None)
    broker.move_leader("orders", 1, 2)
    broker.produce("orders", [b"next"], partition=0)  # ends the long poll
    assert consumer.consume().value == b"next"
    while not asked.happened:
        consumer._session.engine.handler.sleep(0.01)
    broker.produce("orders", [b"last"], partition=0)
    assert consumer.consume().value == b"last"
    broker.heal()
