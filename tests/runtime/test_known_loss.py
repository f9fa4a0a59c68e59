"""Nothing comes of lost partitions after a refused commit, even if the thread that heard of the loss is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker

pytestmark = pytest.mark.usefixtures("short_pauses")

COUNT = 50
WAYS: dict[str, Callable[[Any], list[Any]]] = {
    "consume": lambda consumer: [consumer.consume()],
    "iteration": lambda consumer: [next(iter(consumer))],
    "consume_batch": lambda consumer: consumer.consume_batch(1, 20_000),
}


class Slow:
    """The thread that hears of a loss gets no processor for a while, between the machine's change and the fence."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.knows = threading.Event()
        self.released = threading.Event()
        fence = Assignment.fence

        def slowly(assignment: Assignment, tps: Collection[TopicPartition]) -> None:
            self.knows.set()
            self.released.wait(0.3)
            fence(assignment, tps)

        monkeypatch.setattr(Assignment, "fence", slowly)


broker = memory_broker({"t": 1}, [b"%d" % number for number in range(COUNT)])


@pytest.fixture
def consumer(broker: MemoryBroker) -> Iterator[Any]:
    options = {"auto_offset_reset": -2, "heartbeat_interval_ms": 30, "consumer_timeout_ms": 20_000}
    with ManagedBalancedConsumer("t", broker.bootstrap, "g", **options) as made:
        yield made


@pytest.fixture(params=list(WAYS))
def consume(request: pytest.FixtureRequest) -> Callable[[Any], list[Any]]:
    return WAYS[request.param]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["waits", "later"])
def test_after_a_refused_commit_nothing_comes_that_is_not_read_again(
    broker: MemoryBroker, consumer: Any, consume: Any, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    consume(consumer)
    consumer.commit_offsets()
    (message,) = consume(consumer)
    slow = Slow(monkeypatch)
    broker.evict("g")
    assert slow.knows.wait(20)
    with pytest.raises(err.KafkaException):
        if asynchronous:
            consumer.commit_offsets(wait=False).result(20_000)
        else:
            consumer.commit_offsets()
    (again,) = consume(consumer)
    slow.released.set()
    assert (message.offset, again.offset) == (1, 1), "a message came after the commit was refused"


def test_nothing_comes_between_the_loss_and_its_fence(
    broker: MemoryBroker, consumer: Any, consume: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is that of the next membership, which may be committed."""
    consume(consumer)
    slow = Slow(monkeypatch)
    broker.evict("g")
    assert slow.knows.wait(20)
    consume(consumer)
    consumer.commit_offsets()
    slow.released.set()
    assert broker.committed("g")[TopicPartition("t", 0)] == 1, "it was read before the loss was fenced"
