"""Both consumers under one roof: opened the same way, on threads or on greenlets, and stopped at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.groupkit import until

# Records are a second apart, so that times can be looked up.
FIRST_MS = 1_700_000_000_000
# What "at once" may take on a machine that is busy with other things (seconds).
SOON = 5.0


def fill(broker: DevBroker, topic: str, count: int = 100, partition: int = 0, start: int = 0, **options: Any) -> None:
    """``count`` records: value ``b"v<n>"``, key ``b"k<n>"``, a header, and a time n seconds after FIRST_MS."""
    records = [
        Record(b"v%d" % n, b"k%d" % n, FIRST_MS + 1000 * n, [("n", b"%d" % n)]) for n in range(start, start + count)
    ]
    with Producer(broker.bootstrap, **options) as producer:
        producer.produce(topic, records, partition=partition, batch_records=10)


class Opener:
    """``opener("simple" | "managed", topic, ...)``; ``group`` is the test's own group."""

    def __init__(self, broker: DevBroker, group: str, mode: Handler) -> None:
        self.broker, self.group, self.mode = broker, group, mode
        self.made: list[Any] = []

    def __call__(self, kind: str, topic: Any, **options: Any) -> Any:
        options = {
            "consumer_group": self.group,
            "consumer_timeout_ms": 250,
            "use_greenlets": isinstance(self.mode, GEventHandler),
            **options,
        }
        if kind == "managed":
            options.setdefault("heartbeat_interval_ms", 300)
        make = {"simple": SimpleConsumer, "managed": ManagedBalancedConsumer}[kind]
        self.made.append(make(topic, self.broker.bootstrap, **options))
        return self.made[-1]

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
        return until(self.mode, condition, seconds, what)

    def close(self) -> None:
        for consumer in self.made:
            consumer.stop()


def take(consumer: Any, count: int, seconds: float = 20.0) -> list[Any]:
    """Exactly ``count`` messages, however often ``consume()`` has to be called for them."""
    got: list[Any] = []
    end = time.monotonic() + seconds
    while len(got) < count:
        message = consumer.consume()
        if message is not None:
            got.append(message)
        elif time.monotonic() > end:
            raise AssertionError(f"only {len(got)} of {count} messages came: {consumer.health()}")
    return got


def offsets(messages: Any, partition: int | None = None) -> list[int]:
    """The messages' offsets, or those of one partition's."""
    return [message.offset for message in messages if partition in (None, message.partition_id)]


def places(messages: Any) -> Counter[tuple[int, int]]:
    """How often each partition and offset came."""
    return Counter((message.partition_id, message.offset) for message in messages)
