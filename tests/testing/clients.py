"""Four clients behind one face, each in this process: ours, confluent-kafka (librdkafka), kafka-python, aiokafka."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from managedconsumer import KafkaClient, ManagedBalancedConsumer, TopicPartition
from managedconsumer.structs import OffsetAndMetadata

SESSION_MS, HEARTBEAT_MS, METADATA_MS, POLL_MS, JOIN_POLL_MS = 10_000, 100, 300, 20, 500


def clear_away() -> None:
    """kafka-python leaves sockets to the garbage collector, whose warning would fail whichever test comes next."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Got(NamedTuple):
    """A message."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


class Wish(NamedTuple):
    """What a test wants of a member."""

    topics: Collection[str] = ()
    pattern: str | None = None
    #: None: range, and for a KIP-848 group the broker's choice.
    assignors: Collection[str] | None = None
    instance: str | None = None
    modern: bool = False
    committed_only: bool = False


class Ours:
    """Our consumer. The other clients have the same methods."""

    def __init__(self, bootstrap: str, group: str, wish: Wish) -> None:
        self._client = KafkaClient(bootstrap, metadata_max_age_ms=METADATA_MS)
        options: dict[str, Any] = {"group_protocol": "consumer"} if wish.modern else {}
        if not wish.modern:
            options["membership_protocol"] = list(wish.assignors or ["range"])
        elif wish.assignors:
            options["membership_protocol"] = next(iter(wish.assignors))
        try:
            self._consumer = ManagedBalancedConsumer(
                re.compile(wish.pattern) if wish.pattern else list(wish.topics),
                self._client,
                group,
                auto_offset_reset="earliest",
                consumer_timeout_ms=POLL_MS,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
                group_instance_id=wish.instance,
                isolation_level="read_committed" if wish.committed_only else "read_uncommitted",
                **options,
            )
        except BaseException:
            self._client.close()
            raise

    def poll(self) -> list[Got]:
        """What has come within some milliseconds."""
        return [
            Got(m.topic, m.partition_id, m.offset, m.value, m.partition_key, list(m.headers), m.timestamp)
            for m in self._consumer.consume_batch(100, POLL_MS)
        ]

    def assigned(self) -> set[TopicPartition]:
        """The partitions it has."""
        return {self._consumer.topic_partition(key) for key in self._consumer.partitions}

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, text: str = "") -> None:
        """Commit what poll() has given, or these."""
        chosen = None if offsets is None else {tp: OffsetAndMetadata(at, text) for tp, at in offsets.items()}
        self._consumer.commit_offsets(chosen)

    def committed(self, tp: TopicPartition) -> int | None:
        """What the group has committed."""
        return self._consumer.committed(tp)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read on from there."""
        self._consumer.seek(tp, offset)

    def position(self, tp: TopicPartition) -> int:
        """The next offset."""
        return self._consumer.position(tp)

    def at_time(self, tp: TopicPartition, ms: int) -> int:
        """The first offset of that time, the end if there is none."""
        self._consumer.reset_offsets({tp: datetime.fromtimestamp(ms / 1000, timezone.utc)})
        return self._consumer.position(tp)

    def pause(self, tp: TopicPartition) -> None:
        """Read no more of it."""
        self._consumer.pause(tp)

    def resume(self, tp: TopicPartition) -> None:
        """Read it again."""
        self._consumer.resume(tp)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.stop()
        self._client.close()


class Confluent:
    """confluent-kafka."""

    def __init__(self, bootstrap: str, group: str, wish: Wish) -> None:
        import confluent_kafka

        self._of = confluent_kafka.TopicPartition
        options: dict[str, Any] = {"group.protocol": "consumer"} if wish.modern else {}
        if not wish.modern:
            options |= {
                "partition.assignment.strategy": ",".join(wish.assignors or ["range"]),
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        elif wish.assignors:
            options["group.remote.assignor"] = next(iter(wish.assignors))
        if wish.instance:
            options["group.instance.id"] = wish.instance
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "isolation.level": "read_committed" if wish.committed_only else "read_uncommitted",
                **options,
            }
        )
        self._consumer.subscribe([f"^{wish.pattern}"] if wish.pattern else list(wish.topics))
        self._read = False

    def poll(self) -> list[Got]:
        found = [
            Got(m.topic(), m.partition(), m.offset(), m.value(), m.key(), m.headers() or [], m.timestamp()[1])
            for m in self._consumer.consume(100, POLL_MS / 1000)
            if not m.error()
        ]
        self._read = self._read or bool(found)
        return found

    def assigned(self) -> set[TopicPartition]:
        return {TopicPartition(tp.topic, tp.partition) for tp in self._consumer.assignment()}

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, text: str = "") -> None:
        """Commit what poll() has given (it raises where there is nothing), or these."""
        if offsets is not None:
            chosen = [self._of(tp.topic, tp.partition, at, text) for tp, at in offsets.items()]
            self._consumer.commit(offsets=chosen, asynchronous=False)
        elif self._read:
            self._consumer.commit(asynchronous=False)

    def committed(self, tp: TopicPartition) -> int | None:
        (found,) = self._consumer.committed([self._of(*tp)], timeout=10)
        return found.offset if found.offset >= 0 else None

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._consumer.seek(self._of(*tp, offset))

    def position(self, tp: TopicPartition) -> int:
        return int(self._consumer.position([self._of(*tp)])[0].offset)

    def at_time(self, tp: TopicPartition, ms: int) -> int:
        (found,) = self._consumer.offsets_for_times([self._of(*tp, ms)], timeout=10)
        return found.offset if found.offset >= 0 else self._consumer.get_watermark_offsets(self._of(*tp), timeout=10)[1]

    def pause(self, tp: TopicPartition) -> None:
        self._consumer.pause([self._of(*tp)])

    def resume(self, tp: TopicPartition) -> None:
        self._consumer.resume([self._of(*tp)])

    def close(self) -> None:
        self._consumer.close()


_ASSIGNORS = {
    "range": ("range", "RangePartitionAssignor"),
    "roundrobin": ("roundrobin", "RoundRobinPartitionAssignor"),
    "sticky": ("sticky.sticky_assignor", "StickyPartitionAssignor"),
    "cooperative-sticky": ("cooperative_sticky", "CooperativeStickyAssignor"),
}


def assignors(package: str, names: Collection[str]) -> list[Any]:
    """Classes of kafka-python (``"kafka"``) or of aiokafka."""
    where = [(f"{package}.coordinator.assignors.{_ASSIGNORS[name][0]}", _ASSIGNORS[name][1]) for name in names]
    return [getattr(importlib.import_module(module), name) for module, name in where]


def _options(package: str, bootstrap: str, group: str, wish: Wish) -> dict[str, Any]:
    """For kafka-python and aiokafka, which share their names."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "partition_assignment_strategy": assignors(package, wish.assignors or ["range"]),
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "metadata_max_age_ms": METADATA_MS,
        "fetch_max_wait_ms": 100,
        "isolation_level": "read_committed" if wish.committed_only else "read_uncommitted",
        **({"group_protocol": "consumer"} if wish.modern else {}),
        **({"group_instance_id": wish.instance} if wish.instance else {}),
    }


def _subscribe(consumer: Any, wish: Wish) -> None:
    if wish.pattern:
        consumer.subscribe(pattern=f"^{wish.pattern}")
    else:
        consumer.subscribe(list(wish.topics))


def _records(found: Mapping[Any, Any]) -> list[Got]:
    return [
        Got(m.topic, m.partition, m.offset, m.value, m.key, list(m.headers), m.timestamp)
        for records in found.values()
        for m in records
    ]


class _Alike:
    """What kafka-python and aiokafka have in common: the names, but not who waits."""

    _consumer: Any
    _tp: Any

    def _do(self, call: Callable[[], Any]) -> Any:
        return call()

    def assigned(self) -> set[TopicPartition]:
        return {TopicPartition(*tp) for tp in self._consumer.assignment()}

    def committed(self, tp: TopicPartition) -> int | None:
        found: int | None = self._do(lambda: self._consumer.committed(self._tp(*tp)))
        return found if found is not None and found >= 0 else None

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._do(lambda: self._consumer.seek(self._tp(*tp), offset))

    def position(self, tp: TopicPartition) -> int:
        return int(self._do(lambda: self._consumer.position(self._tp(*tp))))

    def at_time(self, tp: TopicPartition, ms: int) -> int:
        key = self._tp(*tp)
        found = self._do(lambda: self._consumer.offsets_for_times({key: ms}))[key]
        return int(self._do(lambda: self._consumer.end_offsets([key]))[key] if found is None else found.offset)

    def pause(self, tp: TopicPartition) -> None:
        self._do(lambda: self._consumer.pause(self._tp(*tp)))

    def resume(self, tp: TopicPartition) -> None:
        self._do(lambda: self._consumer.resume(self._tp(*tp)))


class KafkaPython(_Alike):
    """kafka-python. It is asked about its topics before it joins: as a leader it assigns by what it knows by then.

    A round of the group that is completed between two of its polls is lost to it, on both brokers (3.0.12: the broker
    has its new share, it goes on with the old one). So a poll is long here, and its tests are for the long run.
    """

    def __init__(self, bootstrap: str, group: str, wish: Wish) -> None:
        import kafka

        self._tp, self._offset = kafka.TopicPartition, kafka.structs.OffsetAndMetadata
        self._consumer = kafka.KafkaConsumer(**_options("kafka", bootstrap, group, wish))
        for topic in wish.topics:
            self._consumer.partitions_for_topic(topic)
        _subscribe(self._consumer, wish)

    def poll(self) -> list[Got]:
        return _records(self._consumer.poll(JOIN_POLL_MS))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, text: str = "") -> None:
        chosen = None
        if offsets is not None:
            chosen = {self._tp(*tp): self._offset(at, text, -1) for tp, at in offsets.items()}
        self._consumer.commit(chosen, 10_000)

    def close(self) -> None:
        self._consumer.close(timeout_ms=5000)
        del self._consumer
        clear_away()


class Aiokafka(_Alike):
    """aiokafka, on a loop that runs while a method does."""

    def __init__(self, bootstrap: str, group: str, wish: Wish) -> None:
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._open(_options("aiokafka", bootstrap, group, wish), wish))
        except BaseException:
            self._loop.close()
            raise

    def _do(self, call: Callable[[], Any]) -> Any:
        """Some of its methods that do not wait want a running loop all the same."""

        async def inside() -> Any:
            found = call()
            return await found if inspect.isawaitable(found) else found

        return self._loop.run_until_complete(inside())

    async def _open(self, options: dict[str, Any], wish: Wish) -> None:
        import aiokafka

        self._tp = aiokafka.TopicPartition
        self._consumer = aiokafka.AIOKafkaConsumer(**options)
        _subscribe(self._consumer, wish)
        await self._consumer.start()

    def poll(self) -> list[Got]:
        return _records(self._do(lambda: self._consumer.getmany(timeout_ms=POLL_MS)))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, text: str = "") -> None:
        chosen = None if offsets is None else {self._tp(*tp): (at, text) for tp, at in offsets.items()}
        self._do(lambda: self._consumer.commit(chosen))

    def close(self) -> None:
        try:
            self._do(self._consumer.stop)
        finally:
            self._loop.close()


Client = Ours | Confluent | KafkaPython | Aiokafka
CLIENTS: dict[str, type[Client]] = {
    "ours": Ours,
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}
#: What a client has not got; tests/testing/test_same_table.py sees that it is so.
LACKS: dict[str, frozenset[str]] = {
    "ours": frozenset(),
    "confluent": frozenset({"sticky"}),
    # It reads lz4 with a package that is not installed here.
    "kafka-python": frozenset({"lz4", "modern"}),
    "aiokafka": frozenset({"cooperative-sticky", "modern"}),
}
