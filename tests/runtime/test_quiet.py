"""A consumer to which nothing comes asks less often, and is as quick as before when something is to be done.

The long wait is a minute here: what does not end it fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, TopicPartition
from managedconsumer.fetch import leader
from managedconsumer.testing import MemoryBroker
from tests.conftest import Ended
from tests.waiting import until

TOPIC = "orders"
Open = Callable[..., Any]
every_handler = pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])


class WatchedBroker(MemoryBroker):
    """Keeps how long each Fetch may wait."""

    def __init__(self) -> None:
        super().__init__({TOPIC: 2})
        self.waits: list[int] = []

    def _fetch(self, body: dict[str, Any], node: int, answer: Callable[[Any], None]) -> None:
        self.waits.append(body["max_wait_ms"])
        super()._fetch(body, node, answer)

    @property
    def is_patient(self) -> bool:
        return bool(self.waits) and self.waits[-1] == leader.QUIET_WAIT_MS


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedBroker]:
    monkeypatch.setattr(leader, "QUIET_WAIT_MS", 60_000)
    monkeypatch.setattr(leader, "_QUIET_AFTER", 0.02)
    with WatchedBroker() as made:
        made.produce(TOPIC, [b"a0", b"a1"], partition=0)
        yield made


@pytest.fixture
def opened(broker: WatchedBroker, ended: Ended) -> Open:
    def open_one(**options: Any) -> Any:
        options = {"fetch_wait_max_ms": 5, "consumer_timeout_ms": 10_000, "heartbeat_interval_ms": 50, **options}
        return ended(ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g", auto_offset_reset="earliest", **options))

    return open_one


def let_it_be_quiet(broker: WatchedBroker, consumer: Any) -> None:
    assert [consumer.consume().value for _ in range(2)] == [b"a0", b"a1"]
    wait_until_patient(broker, consumer)


def wait_until_patient(broker: WatchedBroker, consumer: Any) -> None:
    """In calls that wait, as greenlets need it."""
    until(lambda: consumer.consume_batch(timeout_ms=5) or broker.is_patient)
    assert broker.is_patient


@every_handler
def test_a_message_ends_the_wait(broker: WatchedBroker, opened: Open, greenlets: bool) -> None:
    consumer = opened(use_greenlets=greenlets)
    let_it_be_quiet(broker, consumer)
    broker.produce(TOPIC, [b"new"], partition=1)
    assert consumer.consume().value == b"new"


@every_handler
def test_a_seek_is_asked_for_at_once(broker: WatchedBroker, opened: Open, greenlets: bool) -> None:
    consumer = opened(use_greenlets=greenlets)
    let_it_be_quiet(broker, consumer)
    consumer.seek(TopicPartition(TOPIC, 0), 1)
    assert consumer.consume().value == b"a1"
    wait_until_patient(broker, consumer)
    consumer.seek(TopicPartition(TOPIC, 0), 0)
    assert consumer.consume().value == b"a0"
    assert consumer.health()["trouble"] is None


def test_a_resumed_partition_is_asked_for_at_once(broker: WatchedBroker, opened: Open) -> None:
    consumer = opened()
    let_it_be_quiet(broker, consumer)
    consumer.pause(TopicPartition(TOPIC, 1))
    broker.produce(TOPIC, [b"new"], partition=1)
    consumer.resume(TopicPartition(TOPIC, 1))
    assert consumer.consume().value == b"new"


def test_partitions_of_a_member_that_left_are_asked_for_at_once(broker: WatchedBroker, opened: Open) -> None:
    one, other = opened(membership_protocol="cooperative-sticky"), opened(membership_protocol="cooperative-sticky")
    until(lambda: len(one.partitions) == len(other.partitions) == 1)
    until(lambda: broker.is_patient)
    (moves,) = other.partitions
    broker.produce(TOPIC, [b"new"], partition=moves)
    until(lambda: broker.is_patient)
    other.stop()
    until(lambda: len(one.partitions) == 2)
    message = one.consume()
    while message.value != b"new":
        message = one.consume()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"fetch_min_bytes": 2}, {"fetch_wait_max_ms": 70_000}])
def test_a_wait_that_means_something_stays_as_it_was_asked_for(
    broker: WatchedBroker, opened: Open, options: dict[str, Any]
) -> None:
    consumer = opened(**options)
    assert [consumer.consume().value for _ in range(2)] == [b"a0", b"a1"]
    seen = len(broker.waits)
    if "fetch_min_bytes" in options:
        until(lambda: len(broker.waits) > seen + 20)
    assert set(broker.waits) == {options.get("fetch_wait_max_ms", 5)}


def test_a_stop_ends_the_wait(broker: WatchedBroker, opened: Open) -> None:
    consumer = opened()
    let_it_be_quiet(broker, consumer)
    began = time.monotonic()
    consumer.stop()
    assert time.monotonic() - began < leader.QUIET_WAIT_MS / 1000 / 2
