"""A group member made by another client, in a process of its own: ``python -m tests.interop.stranger '{...}'``.

The argument is JSON: ``client``, ``assignor``, ``bootstrap``, ``topic``, ``group``. Every line printed is one event, as
a JSON list: ``["assigned", [partitions]]`` or ``["got", partition, offset, value]``. SIGTERM ends it cleanly.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

SESSION_MS, HEARTBEAT_MS, COMMIT_MS = 6000, 500, 200
ended = threading.Event()


def tell(*event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def confluent(given: dict[str, Any]) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": given["bootstrap"],
            "group.id": given["group"],
            "partition.assignment.strategy": given["assignor"],
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": COMMIT_MS,
        }
    )
    consumer.subscribe([given["topic"]], on_assign=lambda _, tps: tell("assigned", [tp.partition for tp in tps]))
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            tell("got", message.partition(), message.offset(), message.value().decode())
    consumer.close()


def kafka_python(given: dict[str, Any]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            pass

        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            tell("assigned", [tp.partition for tp in assigned])

    consumer = KafkaConsumer(
        bootstrap_servers=given["bootstrap"],
        group_id=given["group"],
        partition_assignment_strategy=[
            RangePartitionAssignor if given["assignor"] == "range" else RoundRobinPartitionAssignor
        ],
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=COMMIT_MS,
    )
    consumer.subscribe([given["topic"]], listener=Listener())
    while not ended.is_set():
        for messages in consumer.poll(timeout_ms=100).values():
            for message in messages:
                tell("got", message.partition, message.offset, message.value.decode())
    consumer.close()


async def _aiokafka(given: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            pass

        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            tell("assigned", [tp.partition for tp in assigned])

    consumer = AIOKafkaConsumer(
        bootstrap_servers=given["bootstrap"],
        group_id=given["group"],
        partition_assignment_strategy=(
            RangePartitionAssignor if given["assignor"] == "range" else RoundRobinPartitionAssignor,
        ),
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=COMMIT_MS,
    )
    consumer.subscribe([given["topic"]], listener=Listener())
    await consumer.start()
    while not ended.is_set():
        for messages in (await consumer.getmany(timeout_ms=100)).values():
            for message in messages:
                tell("got", message.partition, message.offset, message.value.decode())
    await consumer.stop()


def aiokafka(given: dict[str, Any]) -> None:
    asyncio.run(_aiokafka(given))


def pykafka(given: dict[str, Any]) -> None:
    from pykafka import KafkaClient
    from pykafka.membershipprotocol import RangeProtocol, RoundRobinProtocol

    client = KafkaClient(hosts=given["bootstrap"], broker_version="1.0.0")  # its topics need it to live
    consumer = client.topics[given["topic"].encode()].get_balanced_consumer(
        given["group"].encode(),
        managed=True,
        membership_protocol=RangeProtocol if given["assignor"] == "range" else RoundRobinProtocol,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_commit_enable=True,
        auto_commit_interval_ms=COMMIT_MS,
        consumer_timeout_ms=100,
        # With its usual 1000 it waits ten seconds at each rebalance for a commit that cannot succeed.
        offsets_channel_backoff_ms=10,
        post_rebalance_callback=lambda _consumer, _old, new: tell("assigned", sorted(new)),
    )
    while not ended.is_set():
        message = consumer.consume()
        if message is not None:
            tell("got", message.partition_id, message.offset, message.value.decode())
    consumer.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    settings = json.loads(sys.argv[1])
    {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka, "pykafka": pykafka}[
        settings["client"]
    ](settings)
    tell("stopped")
    sys.stdout.flush()
    os._exit(0)  # pykafka leaves threads behind that never end
