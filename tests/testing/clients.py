"""Three clients behind one face, each in this process: ours, confluent-kafka, aiokafka."""

from __future__ import annotations

import asyncio

from managedconsumer import ManagedBalancedConsumer

SESSION_MS, HEARTBEAT_MS = 10_000, 100


class Ours:
    """Our consumer."""

    def __init__(self, bootstrap: str, topic: str, group: str, assignor: str) -> None:
        self._consumer = ManagedBalancedConsumer(
            topic,
            bootstrap,
            group,
            membership_protocol=assignor,
            auto_offset_reset="earliest",
            consumer_timeout_ms=20,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )

    def poll(self) -> list[bytes]:
        """What has come within some milliseconds."""
        return [bytes(message.value or b"") for message in self._consumer.consume_batch(100, 20)]

    def assigned(self) -> set[int]:
        """The partitions it has."""
        return set(self._consumer.partitions)

    def commit(self) -> None:
        """Commit what poll() has given."""
        self._consumer.commit_offsets()

    def close(self) -> None:
        """Leave the group."""
        self._consumer.stop()


class Confluent:
    """confluent-kafka."""

    def __init__(self, bootstrap: str, topic: str, group: str, assignor: str) -> None:
        import confluent_kafka

        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": assignor,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        )
        self._consumer.subscribe([topic])
        self._read = False

    def poll(self) -> list[bytes]:
        """What has come within some milliseconds."""
        found = [m.value() for m in self._consumer.consume(100, 0.02) if not m.error()]
        self._read = self._read or bool(found)
        return found

    def assigned(self) -> set[int]:
        """The partitions it has."""
        return {tp.partition for tp in self._consumer.assignment()}

    def commit(self) -> None:
        """Commit what poll() has given; it raises where there is nothing."""
        if self._read:
            self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


class Aiokafka:
    """aiokafka, on a loop that runs while a method does."""

    def __init__(self, bootstrap: str, topic: str, group: str, assignor: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open(bootstrap, topic, group, assignor))

    async def _open(self, bootstrap: str, topic: str, group: str, assignor: str) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        chosen = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[assignor]
        self._consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[chosen],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        await self._consumer.start()

    def poll(self) -> list[bytes]:
        """What has come within some milliseconds."""
        found = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=20))
        return [m.value for records in found.values() for m in records]

    def assigned(self) -> set[int]:
        """The partitions it has."""
        return {tp.partition for tp in self._consumer.assignment()}

    def commit(self) -> None:
        """Commit what poll() has given."""
        self._loop.run_until_complete(self._consumer.commit())

    def close(self) -> None:
        """Leave the group."""
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


Client = Ours | Confluent | Aiokafka
CLIENTS: dict[str, type[Client]] = {
    "ours": Ours,
    "confluent": Confluent,
    "aiokafka": Aiokafka,
}
