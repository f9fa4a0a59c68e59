"""``consumer.progress()`` and ``health()``, as a user sees them: on the broker in memory, every kind of consumer."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, PartitionProgress, SimpleConsumer, TopicPartition
from managedconsumer.fetch import stuck
from managedconsumer.testing import MemoryBroker
from tests.conftest import Ended
from tests.memory import memory_broker
from tests.waiting import until

Open = Callable[..., Any]
broker = memory_broker({"orders": 1, "bills": 1})


@pytest.fixture
def opened(broker: MemoryBroker, ended: Ended) -> Open:
    """``opened(kind, **options)``: a started consumer; stopped at the end of the test."""

    def open_one(kind: str, topic: Any = "orders", **options: Any) -> Any:
        options = {"consumer_timeout_ms": 20_000, **options}
        if kind == "simple":
            return ended(SimpleConsumer(topic, broker.bootstrap, **options))
        options["group_protocol"] = kind
        return ended(ManagedBalancedConsumer(topic, broker.bootstrap, "g", heartbeat_interval_ms=50, **options))

    return open_one


def only(consumer: Any) -> PartitionProgress:
    (found,) = consumer.progress().values()
    return found


every_kind = pytest.mark.parametrize("kind", ["simple", "classic", "consumer"])


@every_kind
@pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])
def test_from_a_burst_to_its_end(broker: MemoryBroker, opened: Open, kind: str, greenlets: bool) -> None:
    before = time.time()
    broker.produce("orders", [b"x"] * 10)
    consumer = opened(kind, use_greenlets=greenlets)
    assert consumer.consume().offset == 0
    seen = only(consumer)
    assert (seen.position, seen.end, seen.lag, seen.exact, seen.paused) == (1, 10, 10, True, False)
    assert seen.oldest_unfinished is not None
    assert before - 0.01 <= seen.oldest_unfinished.timestamp() <= time.time()
    assert 0 <= seen.lag_seconds <= time.time() - before + 0.01
    for _ in range(9):
        consumer.consume()
    assert (only(consumer).lag, only(consumer).exact) == (1, True), "the last message is in flight, not finished"
    assert consumer.consume(block=False) is None
    seen = only(consumer)
    assert (seen.position, seen.lag, seen.lag_seconds, seen.exact) == (10, 0, 0.0, True)


@pytest.mark.parametrize("how", ["batch", "arrow", "asyncio"])
def test_what_is_in_flight_is_known_when_its_bytes_are_gone(broker: MemoryBroker, opened: Open, how: str) -> None:
    broker.produce("orders", [b"x"] * 3)
    consumer = opened("classic")
    if how == "batch":
        assert len(consumer.consume_batch(500)) == 3
    elif how == "arrow":
        assert consumer.consume_arrow().num_rows == 3
    else:

        async def one() -> PartitionProgress:
            async for _ in consumer:
                return only(consumer)
            raise AssertionError("no message")

        assert asyncio.run(one()).exact
        return
    seen = only(consumer)
    assert (seen.position, seen.lag, seen.exact) == (3, 3, True)
    assert seen.oldest_unfinished is not None


def test_a_slow_thread_among_quick_ones(broker: MemoryBroker, opened: Open) -> None:
    consumer, has_one, let_go = opened("classic", consumer_timeout_ms=200), threading.Event(), threading.Event()

    def slow() -> None:
        consumer.consume()
        has_one.set()
        let_go.wait(60)

    broker.produce("orders", [b"x"] * 5)
    thread = threading.Thread(target=slow)
    thread.start()
    assert has_one.wait(60)
    try:
        while consumer.consume() is not None:
            pass
        seen = only(consumer)
        assert (seen.position, seen.lag, seen.exact) == (5, 5, True)
    finally:
        let_go.set()
        thread.join()


def test_a_paused_partition_remembers_what_waits(broker: MemoryBroker, opened: Open) -> None:
    broker.produce("orders", [b"x"] * 4)
    consumer = opened("classic")
    consumer.consume()
    consumer.consume(block=False)  # the second is in flight
    consumer.pause()
    seen = only(consumer)
    assert (seen.paused, seen.lag, seen.exact) == (True, 3, True)


def test_where_it_is_committed_and_after_a_restart(broker: MemoryBroker, opened: Open) -> None:
    broker.produce("orders", [b"x"] * 4)
    consumer = opened("classic")
    consumer.consume(), consumer.consume()
    consumer.commit_offsets()
    assert only(consumer).committed == 2
    consumer.stop()
    assert consumer.progress() == {}
    consumer.start()
    seen = until(lambda: only(consumer).end is not None and only(consumer))
    assert (seen.position, seen.lag, seen.exact) == (2, 2, True)


def test_keys_are_those_of_the_offset_dicts(broker: MemoryBroker, opened: Open) -> None:
    consumer = opened("classic", topic=["orders", "bills"])
    assert list(consumer.progress()) == [TopicPartition("bills", 0), TopicPartition("orders", 0)]


def test_a_reader_of_committed_messages_that_is_at_the_end(broker: MemoryBroker, opened: Open) -> None:
    broker.produce("orders", [b"x"])
    consumer = opened("simple", isolation_level="read_committed", consumer_timeout_ms=200)
    while consumer.consume() is not None:
        pass
    seen = only(consumer)
    assert (seen.lag, seen.lag_seconds, seen.exact) == (0, 0.0, True)


class TestHealth:
    def test_live_and_ready(self, broker: MemoryBroker, opened: Open) -> None:
        consumer = opened("classic")
        health = until(lambda: consumer.health()["ready"] and consumer.health())
        assert (health["live"], health["reasons"]) == (True, [])
        assert json.loads(json.dumps(health)) == health

    def test_a_stuck_partition_is_named(self, broker: MemoryBroker, opened: Open) -> None:
        broker.produce("orders", [b"x"] * 3)
        consumer = opened("classic")
        consumer.consume()
        assert consumer.health()["live"]
        health = until(lambda: not (found := consumer.health(stuck_after_s=0.05))["ready"] and found)
        assert health["live"]
        health = until(lambda: not (found := consumer.health(dead_after_s=0.05))["live"] and found)
        assert not health["ready"]
        assert health["reasons"][0].startswith("partition 0 has not moved for 0 s: it is at offset 1, 3 behind the end")
        consumer.consume()
        assert only(consumer).stuck_for < 60
        assert consumer.health()["live"]

    def test_a_stuck_partition_is_in_the_log(
        self, broker: MemoryBroker, opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Again and again while it stands still, and once when it moves."""
        monkeypatch.setattr(stuck, "STUCK_AFTER_S", 0.05)
        broker.produce("orders", [b"x"] * 3)
        consumer = opened("classic")
        consumer.consume()

        def lines(word: str) -> list[Any]:
            consumer._session.engine.progress_tracker.sample()  # what the position worker does every five seconds
            return [each for each in caplog.records if word in each.getMessage()]

        with caplog.at_level("INFO", "managedconsumer"):
            first, *_ = until(lambda: len(found := lines("has not moved")) >= 3 and found)
            assert re.fullmatch(
                r"orders-0: has not moved for \d+ s: it is at offset 1, 3 behind the end", first.getMessage()
            )
            assert (first.levelname, first.group, first.topic, first.partition) == ("WARNING", "g", "orders", 0)
            consumer.consume()
            consumer.consume()
            (moved,) = until(lambda: lines("moves again"))
            assert moved.levelname == "INFO"

    def test_a_stopped_consumer_is_neither(self, opened: Open) -> None:
        consumer = opened("classic")
        consumer.stop()
        health = consumer.health()
        assert (health["live"], health["ready"], health["reasons"]) == (False, False, ["the consumer does not run"])

    @pytest.mark.slow
    def test_a_member_that_joins_is_not_ready(self) -> None:
        with MemoryBroker({"orders": 1}, rebalance_delay_ms=1000) as broker:
            consumer = ManagedBalancedConsumer(
                "orders", broker.bootstrap, "g", auto_start=False, group_protocol="classic"
            )
            thread = threading.Thread(target=consumer.start)
            thread.start()
            try:
                health = until(lambda: (found := consumer.health())["live"] and found["reasons"] and found, 60)
                assert not health["ready"]
                assert "the membership is" in health["reasons"][0]
            finally:
                thread.join()
                consumer.stop()


class TestShown:
    def test_a_repr_says_state_group_and_partitions(self, broker: MemoryBroker, opened: Open) -> None:
        consumer = opened("classic")
        until(lambda: "(consumer_group=g) stable, topic orders, partitions 0>" in repr(consumer))
        consumer.stop()
        assert "stopped, topic orders, partitions none>" in repr(consumer)

    def test_a_notebook_shows_tables(self, broker: MemoryBroker, opened: Open) -> None:
        broker.produce("orders", [b"x"] * 3)
        consumer = opened("simple")
        consumer.consume()
        assert "<td>0</td><td>1</td>" in consumer.progress()._repr_html_()
        assert "<th>lag_seconds</th>" in consumer._repr_html_()
        assert "&lt;managedconsumer.simpleconsumer.SimpleConsumer" in consumer._repr_html_()
        assert "<td>queued_messages</td>" in consumer.health()._repr_html_()


def test_progress_is_frozen() -> None:
    fields = (1, None, 2, 1, 1.5, datetime.now(timezone.utc), True, 0.0, None, 0.0, False)
    seen = PartitionProgress(*fields)
    assert tuple(seen) == fields
    with pytest.raises(AttributeError):
        seen.lag = 2  # type: ignore[misc]
