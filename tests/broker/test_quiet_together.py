"""Several quiet consumers of one client on a real broker: what they share, and what ends their silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer.runtime.cluster import sharing
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.waiting import until


def _fetchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if ".fetcher" in thread.name]


@pytest.mark.parametrize(("protocol", "isolation"), [("classic", "read_uncommitted"), ("consumer", "read_committed")])
def test_messages_after_silence(
    kafka44x3: DevBroker,
    topic: Callable[..., str],
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    isolation: str,
) -> None:
    monkeypatch.setattr(sharing, "QUIET_AFTER", 0.5)
    name, client = topic(kafka44x3, partitions=6), KafkaClient(kafka44x3.bootstrap)
    options: dict[str, Any] = {
        "group_protocol": protocol,
        "isolation_level": isolation,
        "consumer_timeout_ms": 20_000,
        "auto_offset_reset": "earliest",
    }
    several = [ManagedBalancedConsumer(name, client, unique("group"), **options) for _ in range(4)]
    try:
        for turn in range(3):
            until(lambda: not _fetchers(), 60.0)
            for number in range(6):
                with Producer(kafka44x3.bootstrap) as producer:
                    producer.produce(name, [Record(b"%d-%d" % (turn, number))], partition=number)
            for consumer in several:
                assert {consumer.consume().value for _ in range(6)} == {b"%d-%d" % (turn, n) for n in range(6)}
                consumer.commit_offsets()
    finally:
        for consumer in several:
            consumer.stop()
        client.close()
