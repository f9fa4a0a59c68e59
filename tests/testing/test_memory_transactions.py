"""Transactions in the logs of the broker in memory, as readers see them."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer.errors import IllegalStateError
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.testing.memorykit import TOPIC, values

broker = memory_broker({TOPIC: 1})


def read(broker: MemoryBroker, isolation: Any) -> SimpleConsumer:
    return SimpleConsumer(
        TOPIC, broker.bootstrap, auto_offset_reset="earliest", isolation_level=isolation, consumer_timeout_ms=5000
    )


def test_committed_and_aborted_and_open(broker: MemoryBroker) -> None:
    broker.produce(TOPIC, [b"a"])
    with broker.transaction() as done:
        done.produce(TOPIC, [b"b", b"c"], key=b"k", headers=[("h", b"1")])
    with pytest.raises(ZeroDivisionError), broker.transaction() as undone:
        undone.produce(TOPIC, [b"never"])
        raise ZeroDivisionError
    under_way = broker.transaction()
    under_way.produce(TOPIC, [b"later"])
    broker.produce(TOPIC, [b"d"])

    assert [m.value for m in broker.messages(TOPIC)] == [b"a", b"b", b"c", b"never", b"later", b"d"]
    assert [m.value for m in broker.messages(TOPIC, committed=True)] == [b"a", b"b", b"c"]
    everything, committed = read(broker, "read_uncommitted"), read(broker, "read_committed")
    try:
        assert len(values(everything, 6)) == 6
        assert values(committed, 3) == [b"a", b"b", b"c"]
        assert committed.consume(block=False) is None
        under_way.commit()
        assert values(committed, 2) == [b"d", b"later"]
    finally:
        everything.stop()
        committed.stop()


def test_two_at_a_time(broker: MemoryBroker) -> None:
    first, second = broker.transaction(), broker.transaction()
    for number in range(3):
        first.produce(TOPIC, [b"first %d" % number])
        second.produce(TOPIC, [b"second %d" % number])
    first.abort()
    consumer = read(broker, "read_committed")
    try:
        assert consumer.consume(block=False) is None
        second.commit()
        assert values(consumer, 3) == [b"second 0", b"second 1", b"second 2"]
    finally:
        consumer.stop()


def test_one_that_has_ended(broker: MemoryBroker) -> None:
    transaction = broker.transaction()
    transaction.commit()
    for call in (transaction.commit, transaction.abort, lambda: transaction.produce(TOPIC, [b"x"])):
        with pytest.raises(IllegalStateError, match="the transaction has ended"):
            call()
