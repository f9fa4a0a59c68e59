"""What a user notices of the machinery between the fetch buffer and ``consume()``, on a broker in memory."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer.fetch import leader
from managedconsumer.testing import MemoryBroker


@pytest.mark.slow
def test_resuming_wakes_the_fetchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else does: the worker would sleep on for as long as it likes."""
    monkeypatch.setattr(leader, "_LONGEST_NAP", 600.0)
    asleep = threading.Event()
    with (
        MemoryBroker({"orders": 1}) as broker,
        SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=5000) as consumer,
    ):
        broker.produce("orders", [b"m0"])
        assert consumer.consume() is not None
        room = consumer._session.engine.not_full
        wait = room.wait

        def noted(timeout: float | None = None) -> Any:
            asleep.set()
            return wait(timeout)

        monkeypatch.setattr(room, "wait", noted)
        consumer.pause(0)
        assert asleep.wait(10), "the worker has nothing to ask for"
        broker.produce("orders", [b"m1"])
        with consumer._session.engine.lock:  # it is asleep, and not on its way there
            pass
        consumer.resume(0)
        message = consumer.consume()
        assert message is not None
        assert message.value == b"m1"


def test_what_is_in_flight_is_not_committed() -> None:
    """Not at an interval, and not at the stop; what was finished is."""
    options: dict[str, Any] = {"auto_commit_enable": True, "auto_commit_interval_ms": 10, "consumer_timeout_ms": 5000}
    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"m%d" % n for n in range(5)])
        with ManagedBalancedConsumer("orders", broker.bootstrap, "group", **options) as consumer:
            for _ in range(3):
                assert consumer.consume() is not None
            offsets = consumer._session.committer.finished()
            tp = TopicPartition("orders", 0)
            assert tp not in offsets or offsets[tp].offset == 2
            assert consumer._session.committer.commit_finished(5.0, "test")
            assert broker.committed("group") == {tp: 2}
