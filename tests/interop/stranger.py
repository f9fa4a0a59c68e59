"""A group member made by another client, in a process of its own: ``python -m tests.interop.stranger '{...}'``.

The argument is JSON: ``client``, ``assignor``, ``bootstrap``, ``topic``, ``group``. Every line printed is one event, as
a JSON list: ``["assigned", [all that it owns now]]`` or ``["got", partition, offset, value]``. SIGTERM ends it cleanly.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from typing import Any

from tests.testing.clients import assignors

SESSION_MS, HEARTBEAT_MS, COMMIT_MS = 6000, 500, 200
#: A client that asks too early, and finds the new topic without leaders, asks again soon, not after five minutes.
METADATA_MS = 2000
ended = threading.Event()


def tell(*event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


class Ownership:
    """A rebalance listener in the manner of kafka-python and aiokafka; tells what is owned after every change.

    Cooperative members are told of differences only, eager ones are first told that they lose everything.
    """

    def __init__(self) -> None:
        self.owned: set[int] = set()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.owned |= {tp.partition for tp in assigned}
        tell("assigned", sorted(self.owned))

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self.owned -= {tp.partition for tp in revoked}
        tell("assigned", sorted(self.owned))


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
            "topic.metadata.refresh.interval.ms": METADATA_MS,
        }
    )
    ownership = Ownership()
    consumer.subscribe(
        [given["topic"]],
        on_assign=lambda _, tps: ownership.on_partitions_assigned(tps),
        on_revoke=lambda _, tps: ownership.on_partitions_revoked(tps),
    )
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            tell("got", message.partition(), message.offset(), message.value().decode())
    consumer.close()


def options(package: str, given: dict[str, Any]) -> dict[str, Any]:
    """For kafka-python and aiokafka, which share their names."""
    return {
        "bootstrap_servers": given["bootstrap"],
        "group_id": given["group"],
        "partition_assignment_strategy": assignors(package, [given["assignor"]]),
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": COMMIT_MS,
        "metadata_max_age_ms": METADATA_MS,
    }


def kafka_python(given: dict[str, Any]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    class Listener(Ownership, ConsumerRebalanceListener):  # type: ignore[misc]
        pass

    consumer = KafkaConsumer(**options("kafka", given))
    consumer.subscribe([given["topic"]], listener=Listener())
    while not ended.is_set():
        for messages in consumer.poll(timeout_ms=100).values():
            for message in messages:
                tell("got", message.partition, message.offset, message.value.decode())
    consumer.close()


async def _aiokafka(given: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    class Listener(Ownership, ConsumerRebalanceListener):  # type: ignore[misc]
        pass

    consumer = AIOKafkaConsumer(**options("aiokafka", given))
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


JAVA_ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


def java(given: dict[str, Any]) -> None:
    """Kafka's own consumer, in the program with which Kafka's system tests watch it; it commits after every poll."""
    from managedconsumer.testing.kafka._jars import DEFAULT_VERSION, kafka_jars, parse_version
    from managedconsumer.testing.kafka._java import require_java

    version = parse_version(DEFAULT_VERSION)
    path = ":".join(map(str, kafka_jars(version)))
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        settings.write(f"heartbeat.interval.ms={HEARTBEAT_MS}\nmetadata.max.age.ms={METADATA_MS}\n")
        settings.flush()
        command = [require_java(version.java_minimum, "Kafka's consumer"), "-Xmx96m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", path, "org.apache.kafka.tools.VerifiableConsumer"]
        command += ["--bootstrap-server", given["bootstrap"], "--topic", given["topic"], "--group-id", given["group"]]
        command += ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{JAVA_ASSIGNORS[given['assignor']]}"]
        command += ["--session-timeout", str(SESSION_MS), "--verbose", "--command-config", settings.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        if ended.is_set():  # a SIGTERM that came before there was anything to end
            process.terminate()
        assert process.stdout is not None
        owned: set[int] = set()
        for line in process.stdout:
            event = json.loads(line)
            if event["name"] == "record_data":
                tell("got", event["partition"], event["offset"], event["value"])
            elif event["name"] in ("partitions_assigned", "partitions_revoked"):
                partitions = {entry["partition"] for entry in event["partitions"]}
                owned = owned | partitions if event["name"] == "partitions_assigned" else owned - partitions
                tell("assigned", sorted(owned))
        process.wait()


CLIENTS = {
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "pykafka": pykafka,
    "java": java,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    settings = json.loads(sys.argv[1])
    CLIENTS[settings["client"]](settings)
    tell("stopped")
    sys.stdout.flush()
    os._exit(0)  # pykafka leaves threads behind that never end
