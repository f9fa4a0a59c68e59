"""One member of a consumer group, any client: writes ``partition offset received`` (ns, monotonic) for each message.

SIGTERM: a clean end. All clients commit once a second in the background and when they end.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from typing import Any

_SESSION_MS, _HEARTBEAT_MS, _COMMIT_MS = 6000, 1000, 1000


class Member:
    """Where to read, and where to write what came."""

    def __init__(self, bootstrap: str, topic: str, group: str, log: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.ending = False
        # Without a buffer: what was received must be known after a kill -9.
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    def got(self, partition: int, offset: int) -> None:
        """A message was handed out."""
        os.write(self._log, b"%d %d %d\n" % (partition, offset, time.monotonic_ns()))


def ours(member: Member, protocol: str) -> None:
    """managedconsumer: ``range``, ``cooperative-sticky`` or ``consumer``."""
    from managedconsumer import ManagedBalancedConsumer

    options: dict[str, Any] = {"group_protocol": "consumer"} if protocol == "consumer" else {}
    if protocol != "consumer":
        options["membership_protocol"] = protocol
    consumer = ManagedBalancedConsumer(
        member.topic,
        member.bootstrap,
        member.group,
        auto_commit_enable=True,
        auto_commit_interval_ms=_COMMIT_MS,
        auto_offset_reset="earliest",
        consumer_timeout_ms=100,
        session_timeout_ms=_SESSION_MS,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        **options,
    )
    while not member.ending:
        message = consumer.consume()
        if message is not None:
            member.got(message.partition_id, message.offset)
    consumer.commit_offsets()  # the last message too: stop() alone would leave it to the next owner
    consumer.stop()


def confluent(member: Member, protocol: str) -> None:
    """confluent-kafka: ``range``, ``cooperative-sticky`` or ``consumer``."""
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {
        "bootstrap.servers": member.bootstrap,
        "group.id": member.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "auto.commit.interval.ms": _COMMIT_MS,
        "fetch.queue.backoff.ms": 1,
    }
    if protocol == "consumer":
        settings["group.protocol"] = "consumer"  # timeouts are the broker's
    else:
        settings["partition.assignment.strategy"] = protocol
        settings["session.timeout.ms"] = _SESSION_MS
        settings["heartbeat.interval.ms"] = _HEARTBEAT_MS
    consumer = Consumer(settings)
    consumer.subscribe([member.topic])
    while not member.ending:
        message: Any = consumer.poll(0.1)
        if message is not None and not message.error():
            member.got(message.partition(), message.offset())
    consumer.close()


def kafkapython(member: Member, protocol: str) -> None:
    """kafka-python: ``range`` or ``cooperative-sticky``."""
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    assignors = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
    consumer = KafkaConsumer(
        member.topic,
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        auto_commit_interval_ms=_COMMIT_MS,
        session_timeout_ms=_SESSION_MS,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        partition_assignment_strategy=[assignors[protocol]],
    )
    while not member.ending:
        for messages in consumer.poll(timeout_ms=100).values():
            for message in messages:
                member.got(message.partition, message.offset)
    consumer.close()


CLIENTS: dict[str, Callable[[Member, str], None]] = {
    "managedconsumer": ours,
    "confluent": confluent,
    "kafka-python": kafkapython,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", choices=sorted(CLIENTS), required=True)
    parser.add_argument("--protocol", choices=("range", "cooperative-sticky", "consumer"), required=True)
    for name in ("bootstrap", "topic", "group", "log"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    CLIENTS[given.client](Member(given.bootstrap, given.topic, given.group, given.log), given.protocol)


if __name__ == "__main__":
    main()
