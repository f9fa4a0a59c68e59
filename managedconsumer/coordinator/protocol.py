"""The "consumer" embedded protocol: what members put into JoinGroup and what the leader puts into SyncGroup.

Two blobs, both opaque to the broker: a member's *subscription* (topics, assignor data, and since KIP-429, KIP-792
and KIP-881 the owned partitions, their generation and the member's rack) and its *assignment*.  The classes keep
kafka-python's constructor shape: ``(version, subscription, user_data)`` and ``(version, assignment, user_data)``.

Other members' blobs are untrusted input.  Every count is checked against the bytes that are left before anything is
allocated, and :meth:`ConsumerProtocol.decode_members` lets one broken member cost only its own assignment: the leader
goes on.  (Java's leader throws, and the whole group stays without an assignment for as long as that member lives.)

Pure and immutable: safe to share between threads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

from managedconsumer.errors import MalformedResponseError
from managedconsumer.structs import TopicPartition
from managedconsumer.values import Value

#: Newest subscription schema (KIP-881).  Newer ones only ever append fields, so they are read as this one.
SUBSCRIPTION_VERSION = 3

TopicPartitions = Sequence[tuple[str, Sequence[int]]]


class BlobReader:
    """Cursor over an untrusted blob; every failure is a MalformedResponseError that says what was being read."""

    __slots__ = ("_data", "_pos", "_what")

    def __init__(self, data: bytes | bytearray | memoryview, what: str) -> None:
        self._data = bytes(data)
        self._pos = 0
        self._what = what

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._pos

    def fail(self, problem: str) -> MalformedResponseError:
        """The error to raise for ``problem`` at the current place."""
        return MalformedResponseError(f"malformed {self._what}: {problem} (at byte {self._pos} of {len(self._data)})")

    def _take(self, size: int, name: str) -> int:
        if size > self.remaining:
            raise self.fail(f"{name} needs {size} bytes, {self.remaining} are left")
        start = self._pos
        self._pos += size
        return start

    def int16(self, name: str) -> int:
        """A signed 16-bit number."""
        return int(struct.unpack_from(">h", self._data, self._take(2, name))[0])

    def int32(self, name: str) -> int:
        """A signed 32-bit number."""
        return int(struct.unpack_from(">i", self._data, self._take(4, name))[0])

    def count(self, name: str, item_size: int) -> int:
        """An array's length; null counts as empty, and no array may be longer than the bytes that are left allow."""
        number = self.int32(f"count of {name}")
        if number < -1 or number * item_size > self.remaining:
            raise self.fail(f"{number} {name} cannot fit into {self.remaining} bytes")
        return max(number, 0)

    def nullable_string(self, name: str) -> str | None:
        """A string or None."""
        size = self.int16(f"length of {name}")
        if size < -1:
            raise self.fail(f"{name} has length {size}")
        if size == -1:
            return None
        start = self._take(size, name)
        try:
            return self._data[start : start + size].decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{name} is not UTF-8") from None

    def string(self, name: str) -> str:
        """A string; null is malformed."""
        value = self.nullable_string(name)
        if value is None:
            raise self.fail(f"{name} is null")
        return value

    def nullable_bytes(self, name: str) -> bytes | None:
        """Bytes or None."""
        size = self.int32(f"length of {name}")
        if size < -1:
            raise self.fail(f"{name} has length {size}")
        if size == -1:
            return None
        start = self._take(size, name)
        return self._data[start : start + size]

    def topic_partitions(self) -> list[tuple[str, list[int]]]:
        """``[(topic, [partition, ...]), ...]``; a negative partition number is malformed."""
        result = []
        for _ in range(self.count("topics", 6)):
            topic = self.string("topic")
            size = self.count("partitions", 4)
            numbers = list(struct.unpack_from(f">{size}i", self._data, self._take(4 * size, "partitions")))
            if size and min(numbers) < 0:
                raise self.fail(f"topic {topic!r} has partition {min(numbers)}")
            result.append((topic, numbers))
        return result


def _put_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    raw = value.encode("utf-8")
    if len(raw) > 0x7FFF:
        raise ValueError(f"string of {len(raw)} bytes is longer than Kafka's 32767: {value[:40]!r}...")
    out += struct.pack(">h", len(raw)) + raw


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    out += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def put_topic_partitions(out: bytearray, items: TopicPartitions) -> None:
    """Append ``[(topic, [partition, ...]), ...]`` as the embedded protocol and the sticky user data write it."""
    out += struct.pack(">i", len(items))
    for topic, partitions in items:
        _put_string(out, topic)
        out += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)


def group_by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """``[(topic, [partition, ...]), ...]``, topics and numbers ascending, each partition once."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        grouped.setdefault(topic, []).append(partition)
    return list(grouped.items())


class ConsumerProtocolMemberMetadata(Value):
    """A member's subscription, as it goes into JoinGroup.

    ``version`` 0 carries ``subscription`` (topic names) and ``user_data`` (the assignor's own bytes); 1 adds
    ``owned_partitions`` (KIP-429), 2 ``generation_id`` (the generation those are from, -1 if none; KIP-792), 3
    ``rack_id`` (KIP-881).  ``group_instance_id`` (KIP-345) is not part of the blob: the JoinGroup answer gives it
    beside the blob, and the assignors order by it.
    """

    _fields = ("version", "subscription", "user_data", "owned_partitions", "generation_id", "rack_id")

    version: int
    subscription: Sequence[str]
    user_data: bytes | None
    owned_partitions: Sequence[TopicPartition]
    generation_id: int
    rack_id: str | None
    group_instance_id: str | None

    def __init__(
        self,
        version: int,
        subscription: Sequence[str],
        user_data: bytes | None = b"",
        owned_partitions: Sequence[TopicPartition] = (),
        generation_id: int = -1,
        rack_id: str | None = None,
        group_instance_id: str | None = None,
    ) -> None:
        self.__dict__.update(
            version=version,
            subscription=list(subscription),
            user_data=user_data,
            owned_partitions=[TopicPartition(*tp) for tp in owned_partitions],
            generation_id=generation_id,
            rack_id=rack_id,
            group_instance_id=group_instance_id,
        )

    @property
    def topics(self) -> list[str]:
        """The subscribed topics (kafka-python 3's name for ``subscription``)."""
        return list(self.subscription)

    def encode(self) -> bytes:
        """The blob, in schema ``version``; fields that this version does not have are left out."""
        out = bytearray(struct.pack(">hi", self.version, len(self.subscription)))
        for topic in self.subscription:
            _put_string(out, topic)
        _put_bytes(out, self.user_data)
        if self.version >= 1:
            put_topic_partitions(out, group_by_topic(self.owned_partitions))
        if self.version >= 2:
            out += struct.pack(">i", self.generation_id)
        if self.version >= 3:
            _put_string(out, self.rack_id)
        return bytes(out)

    @classmethod
    def decode(
        cls, data: bytes | bytearray | memoryview, group_instance_id: str | None = None
    ) -> ConsumerProtocolMemberMetadata:
        """Read a blob of any version; raises MalformedResponseError.

        A blob that ends before the fields its version promises is accepted (clients exist that write version 1 and
        stop after the user data); one that ends inside a field is not.
        """
        reader = BlobReader(data, "consumer subscription")
        version = reader.int16("version")
        if version < 0:
            raise reader.fail(f"version {version}")
        topics = [reader.string("topic") for _ in range(reader.count("topics", 2))]
        user_data = reader.nullable_bytes("user data") if reader.remaining else None
        owned: list[TopicPartition] = []
        if version >= 1 and reader.remaining:
            owned = [TopicPartition(topic, p) for topic, numbers in reader.topic_partitions() for p in numbers]
        generation = reader.int32("generation") if version >= 2 and reader.remaining else -1
        rack = reader.nullable_string("rack") if version >= 3 and reader.remaining else None
        # Java reads an empty rack as none, and any negative generation as "no generation".
        return cls(version, topics, user_data, owned, max(generation, -1), rack or None, group_instance_id)


class ConsumerProtocolMemberAssignment(Value):
    """A member's share, as SyncGroup carries it; ``assignment`` is ``[(topic, [partition, ...]), ...]``."""

    _fields = ("version", "assignment", "user_data")

    version: int
    assignment: TopicPartitions
    user_data: bytes | None

    def __init__(self, version: int, assignment: TopicPartitions, user_data: bytes | None = b"") -> None:
        copied = [(topic, list(numbers)) for topic, numbers in assignment]
        self.__dict__.update(version=version, assignment=copied, user_data=user_data)

    def partitions(self) -> list[TopicPartition]:
        """The assigned partitions, in the order of the blob."""
        return [TopicPartition(topic, number) for topic, numbers in self.assignment for number in numbers]

    def encode(self) -> bytes:
        """The blob.  Its layout has not changed since version 0, so ``version`` only says who wrote it.

        The user data is always written, null included: without it ``kafka-consumer-groups.sh --describe`` dies of a
        BufferUnderflowException on the whole group, which is what pykafka's blobs do to it.
        """
        out = bytearray(struct.pack(">h", self.version))
        put_topic_partitions(out, self.assignment)
        _put_bytes(out, self.user_data)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> ConsumerProtocolMemberAssignment:
        """Read a blob of any version; raises MalformedResponseError.

        No bytes at all mean no partitions (the broker answers so when the leader forgot a member), and the user data
        may be missing: pykafka never writes it.
        """
        if not len(data):
            return cls(0, [], None)
        reader = BlobReader(data, "consumer assignment")
        version = reader.int16("version")
        if version < 0:
            raise reader.fail(f"version {version}")
        assigned = reader.topic_partitions()
        user_data = reader.nullable_bytes("user data") if reader.remaining else None
        return cls(version, assigned, user_data)


class Offering(Protocol):
    """The part of an :class:`~managedconsumer.coordinator.assignors.abstract.Assignor` that a subscription needs."""

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return the metadata that this member sends to the leader."""


class ConsumerProtocol:
    """Names of the protocol (kafka-python's attributes) and the two conversions that a group member needs."""

    PROTOCOL_TYPE = "consumer"
    ASSIGNMENT_STRATEGIES = ("range", "roundrobin")
    METADATA = ConsumerProtocolMemberMetadata
    ASSIGNMENT = ConsumerProtocolMemberAssignment

    @staticmethod
    def subscription(
        assignor: Offering,
        topics: Iterable[str],
        *,
        owned_partitions: Iterable[TopicPartition] | None = None,
        generation_id: int = -1,
        rack_id: str | None = None,
    ) -> ConsumerProtocolMemberMetadata:
        """Return this member's metadata for ``assignor``: its own, raised to version 3 with the member's state.

        ``owned_partitions``: what the member still holds while it joins, so nothing under an eager assignor; None
        leaves it to the assignor's memory.  ``generation_id``: the generation those were assigned in.
        """
        metadata = assignor.metadata(set(topics))
        return ConsumerProtocolMemberMetadata(
            SUBSCRIPTION_VERSION,
            metadata.subscription,
            metadata.user_data,
            metadata.owned_partitions if owned_partitions is None else list(owned_partitions),
            generation_id,
            rack_id,
            metadata.group_instance_id,
        )

    @staticmethod
    def decode_members(
        members: Iterable[tuple[str, str | None, bytes]],
    ) -> tuple[dict[str, ConsumerProtocolMemberMetadata], dict[str, str]]:
        """Read the blobs of a JoinGroup answer: ``(member_id, group_instance_id, metadata)`` each.

        Returns ``(subscriptions, problems)``, both by member id.  A member whose blob is broken appears in both:
        with no topics, so it gets an empty assignment and the others share its partitions, and with the reason, which
        the leader should log.  Never raises for a member's blob.
        """
        subscriptions: dict[str, ConsumerProtocolMemberMetadata] = {}
        problems: dict[str, str] = {}
        for member_id, instance_id, blob in members:
            try:
                subscriptions[member_id] = ConsumerProtocolMemberMetadata.decode(blob, instance_id)
            except MalformedResponseError as error:
                problems[member_id] = str(error)
                subscriptions[member_id] = ConsumerProtocolMemberMetadata(0, [], None, group_instance_id=instance_id)
        return subscriptions, problems
