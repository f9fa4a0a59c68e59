"""KIP-392 on three nodes in three racks: a consumer reads from the node of its own rack, while that lives."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from managedconsumer import SimpleConsumer, TopicPartition
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import write


def read_to(consumer: SimpleConsumer, offset: int, seconds: float = 20.0) -> list[int]:
    """Offsets up to ``offset``."""
    end, found = time.monotonic() + seconds, [-1]
    while found[-1] < offset:
        assert time.monotonic() < end, f"{found[-1]} of {offset}; {consumer.health()}"
        message = consumer.consume()
        if message is not None:
            found.append(message.offset)
    return found[1:]


@pytest.mark.since("2.4")
def test_the_replica_of_our_rack_serves_us(kafka44x3: DevBroker, topic: Callable[..., str]) -> None:
    name = topic(kafka44x3, configs={"min.insync.replicas": 1})
    write(kafka44x3, name, 1, 20)
    tp = TopicPartition(name, 0)
    plain = SimpleConsumer(name, kafka44x3.bootstrap, consumer_timeout_ms=200)
    try:
        info = plain._session.engine.cluster.snapshot.partition(tp)
        assert info is not None
        assert read_to(plain, 19) == list(range(20))
        assert plain._session.engine.buffer.queues[tp].read_replica == -1
    finally:
        plain.stop()

    follower = next(node for node in info.replicas if node != info.leader)
    consumer = SimpleConsumer(name, kafka44x3.bootstrap, consumer_timeout_ms=200, client_rack=f"rack-{follower}")
    try:
        assert read_to(consumer, 19) == list(range(20))
        queue = consumer._session.engine.buffer.queues[tp]
        assert queue.read_replica == follower
        assert (follower, 0) in consumer._session.engine.fetchers._workers

        kafka44x3.kill(follower)
        began = time.monotonic()
        write(kafka44x3, name, 1, 20, start=20)
        assert read_to(consumer, 39) == list(range(20, 40))
        assert time.monotonic() - began < 10, "it waited for the follower"
        assert queue.read_replica == -1
    finally:
        consumer.stop()
        kafka44x3.start_node(follower)
        kafka44x3.wait_in_sync()
