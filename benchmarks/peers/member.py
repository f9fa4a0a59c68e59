"""One member of a consumer group, any client: writes ``partition offset received`` (ns, monotonic) for each message.

It says ``ready`` when its client is imported, and joins when it is told to go (one line on its standard input).
SIGTERM: a clean end. All clients commit once a second in the background and when they end. Timeouts that are not given
are the client's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

_COMMIT_MS = 1000


class Member:
    """Where to read, and where to write what came."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.bootstrap, self.topic, self.group = given.bootstrap, given.topic, given.group
        self._given = given
        self.ending = False
        # Without a buffer: what was received must be known after a kill -9.
        self._log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    def timeouts(self, session: str, beat: str, fetch: str) -> dict[str, int]:
        """Those that were given, in ms, under the client's names for them."""
        values = {session: self._given.session, beat: self._given.beat, fetch: self._given.fetch}
        return {name: value for name, value in values.items() if name and value is not None}

    def go(self) -> None:
        """Wait until the group may be joined."""
        print("ready", flush=True)
        sys.stdin.readline()

    def got(self, partition: int, offset: int) -> None:
        """A message was handed out."""
        os.write(self._log, b"%d %d %d\n" % (partition, offset, time.monotonic_ns()))


def ours(member: Member, protocol: str) -> None:
    """managedconsumer: ``range``, ``cooperative-sticky`` or ``consumer``."""
    from managedconsumer import ManagedBalancedConsumer

    options: dict[str, Any] = {"group_protocol": "consumer"}
    if protocol != "consumer":
        options = {"group_protocol": "classic", "membership_protocol": protocol}
    options |= member.timeouts("session_timeout_ms", "heartbeat_interval_ms", "fetch_wait_max_ms")
    member.go()
    consumer = ManagedBalancedConsumer(
        member.topic,
        member.bootstrap,
        member.group,
        auto_commit_enable=True,
        auto_commit_interval_ms=_COMMIT_MS,
        auto_offset_reset="earliest",
        consumer_timeout_ms=100,
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
        settings["group.protocol"] = "consumer"  # sessions and heartbeats are the broker's
        settings |= member.timeouts("", "", "fetch.wait.max.ms")
    else:
        settings["partition.assignment.strategy"] = protocol
        settings |= member.timeouts("session.timeout.ms", "heartbeat.interval.ms", "fetch.wait.max.ms")
    member.go()
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
    member.go()
    consumer = KafkaConsumer(
        member.topic,
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        auto_commit_interval_ms=_COMMIT_MS,
        partition_assignment_strategy=[assignors[protocol]],
        **member.timeouts("session_timeout_ms", "heartbeat_interval_ms", "fetch_max_wait_ms"),
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
    for name in ("session", "beat", "fetch"):
        parser.add_argument(f"--{name}", type=int, help="ms")
    given = parser.parse_args()
    CLIENTS[given.client](Member(given), given.protocol)


if __name__ == "__main__":
    main()
