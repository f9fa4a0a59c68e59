"""A thread (greenlet, task) takes messages, commits them and ends: what comes after it is committed as well."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker

TP = TopicPartition("t", 0)
LONG = 60.0
broker = memory_broker({"t": 1}, [b"%d" % n for n in range(30)])


@pytest.fixture
def consumer(broker: MemoryBroker) -> Iterator[Any]:
    with ManagedBalancedConsumer(
        "t", broker.bootstrap, "g", auto_offset_reset="earliest", consumer_timeout_ms=20_000
    ) as consumer:
        yield consumer


def in_a_thread(what: Callable[[], object]) -> None:
    thread = threading.Thread(target=what)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()


WAYS: dict[str, Callable[[Any], Any]] = {
    "consume": lambda consumer: consumer.consume(),
    "iteration": lambda consumer: next(iter(consumer)),
    "consume_batch": lambda consumer: consumer.consume_batch(4, 20_000),
}


@pytest.mark.parametrize("named", [False, True], ids=["what is in flight", "named offsets"])
@pytest.mark.parametrize("way", list(WAYS))
def test_what_it_has_committed_is_finished(broker: MemoryBroker, consumer: Any, way: str, named: bool) -> None:
    def life() -> None:
        WAYS[way](consumer)
        consumer.commit_offsets({0: consumer.position(0)} if named else None)

    in_a_thread(life)
    for _ in range(3):
        for _ in range(5):
            consumer.consume()
        consumer.commit_offsets()
        assert broker.committed("g")[TP] == consumer.position(0)


def test_what_it_has_not_committed_is_not_passed(broker: MemoryBroker, consumer: Any) -> None:
    """It names an offset in the middle of its batch."""

    def life() -> None:
        assert len(consumer.consume_batch(4, 20_000)) == 4
        consumer.commit_offsets({0: 2})

    in_a_thread(life)
    consumer.consume()
    consumer.commit_offsets()
    assert broker.committed("g")[TP] == 2


def test_it_may_end_before_another_one_has_committed_what_came_first(broker: MemoryBroker, consumer: Any) -> None:
    """Its commit could not pass the other's message; it has said all the same that its own is done."""
    assert consumer.consume().offset == 0

    def life() -> None:
        assert consumer.consume().offset == 1
        consumer.commit_offsets()

    in_a_thread(life)
    assert broker.committed("g").get(TP, 0) == 0
    consumer.commit_offsets()
    assert broker.committed("g")[TP] == 2


def test_it_is_noticed_while_the_others_go_on(broker: MemoryBroker, consumer: Any) -> None:
    """The thread that reads on has a message in flight all the time."""
    took, committed = threading.Event(), threading.Event()

    def life() -> None:
        assert consumer.consume().offset == 0
        took.set()
        assert committed.wait(LONG)
        consumer.commit_offsets()

    thread = threading.Thread(target=life)
    thread.start()
    assert took.wait(LONG)
    assert consumer.consume().offset == 1
    committed.set()
    thread.join(LONG)
    assert consumer.consume().offset == 2
    consumer.commit_offsets()
    assert broker.committed("g")[TP] == 3
