"""The "consumer" embedded protocol: the blobs that members put into JoinGroup and the leader into SyncGroup.

The broker does not read them. A member's *subscription* has topics, the assignor's data and, since KIP-429, KIP-792 and
KIP-881, the owned partitions, their generation and the member's rack; its *assignment* has partitions. The classes keep
kafka-python's constructors: ``(version, subscription, user_data)`` and ``(version, assignment, user_data)``.

Other members' blobs are untrusted: every count is checked against the bytes that are left, and
:meth:`ConsumerProtocol.decode_members` lets a broken blob cost only its own member's assignment. (Java's leader raises,
and the whole group has no assignment while that member lives.) Pure and immutable: safe to share between threads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

from managedconsumer.errors import MalformedResponseError
from managedconsumer.shown import short
from managedconsumer.structs import TopicPartition
from managedconsumer.values import Value
from managedconsumer.wire.protocol.decoder import value_reader
from managedconsumer.wire.protocol.encoder import value_writer
from managedconsumer.wire.protocol.primitives import Malformed, Reader, Writer
from managedconsumer.wire.protocol.table import parse_fields

#: Newest subscription schema (KIP-881). Newer ones only append fields, so they are read as this one.
SUBSCRIPTION_VERSION = 3

TopicPartitions = Sequence[tuple[str, Sequence[int]]]
Bytes = bytes | bytearray | memoryview


class Schema:
    """A kind of blob: its name in errors, its fields in order, and how many of them it must have.

    A ``version``, if there is one, is the first field; version N has 3 + N fields.
    """

    def __init__(self, what: str, text: str, needed: int) -> None:
        self._what, self._text, self._needed = what, text, needed

    @cached_property
    def _fields(self) -> list[tuple[str, Reader, Writer]]:
        fields = parse_fields(self._text)
        return [(field.name, value_reader(field, 0, False), value_writer(field, 0, False)) for field in fields]

    def encode(self, *values: Any) -> bytes:
        """Write the first fields, one for each of ``values``. Raises ValueError for one that does not fit."""
        parts: list[Any] = []
        for (name, _, write), value in zip(self._fields, values, strict=False):
            try:
                write(value, parts.append)
            except struct.error as error:
                raise ValueError(f"{name} does not fit into {self._what} ({error}): {short(repr(value), 40)}") from None
        return b"".join(parts)

    def decode(self, data: Bytes) -> tuple[list[Any], bytes]:
        """Return the fields, without those that the blob ends before, and the bytes behind them.

        Raises MalformedResponseError for a blob that ends inside a field or before a needed one, or has a wrong count.
        """
        blob, at, found = bytes(data), 0, list[Any]()
        for name, read, _ in self._fields:
            if (at == len(blob) and len(found) >= self._needed) or (len(found) > 2 and len(found) - 2 > found[0]):
                break
            problem = None
            try:
                at = read(blob, at, found)
            except Malformed as error:
                problem = f"{name}: {error}"
            except UnicodeDecodeError:
                problem = f"{name}: a string is not UTF-8"
            except struct.error:
                problem = f"{name} needs more than the {len(blob) - at} bytes that are left"
            if name == "version" and found and found[0] < 0:
                problem = f"version {found[0]}"
            if problem is not None:
                raise MalformedResponseError(f"malformed {self._what}: {problem} (at byte {at} of {len(blob)})")
        return found, blob[at:]

    def partitions(self, topics: Any) -> list[tuple[str, list[int]]]:
        """Return a decoded array of topics as ``[(topic, [partition, ...]), ...]``; null is empty."""
        named = [(each["topic"], each["partitions"] or []) for each in topics or ()]
        for topic, numbers in named:
            if min(numbers, default=0) < 0:
                raise MalformedResponseError(f"malformed {self._what}: topic {topic!r} has partition {min(numbers)}")
        return named


TOPICS = """[]?
    topic       string
    partitions  [int32]?
"""
_SUBSCRIPTION = Schema(
    "consumer subscription",
    f"""
version           int16
topics            [string]?
user_data         bytes?
owned_partitions  {TOPICS}
generation        int32
rack              string?
""",
    needed=2,
)
_ASSIGNMENT = Schema(
    "consumer assignment",
    f"""
version           int16
topics            {TOPICS}
user_data         bytes?
""",
    needed=2,
)


def topics_of(partitions: TopicPartitions) -> list[dict[str, Any]]:
    """Return ``[(topic, [partition, ...]), ...]`` as a Schema writes it."""
    return [{"topic": topic, "partitions": numbers} for topic, numbers in partitions]


def group_by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Return ``[(topic, [partition, ...]), ...]``, topics and numbers ascending, each partition once."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        grouped.setdefault(topic, []).append(partition)
    return list(grouped.items())


class ConsumerProtocolMemberMetadata(Value):
    """A member's subscription, as JoinGroup carries it.

    ``version`` 0 has ``subscription`` (topic names) and ``user_data`` (the assignor's own bytes); 1 adds
    ``owned_partitions`` (KIP-429), 2 their ``generation_id`` (-1: none; KIP-792), 3 ``rack_id`` (KIP-881).
    ``group_instance_id`` (KIP-345) is not part of the blob: the JoinGroup response has it beside the blob, and
    assignors order members by it.
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
        """The subscribed topics (kafka-python 3's name)."""
        return list(self.subscription)

    def encode(self) -> bytes:
        """Return the blob in schema ``version``, without the fields that this version lacks."""
        owned = topics_of(group_by_topic(self.owned_partitions))
        fields = (self.version, self.subscription, self.user_data, owned, self.generation_id, self.rack_id)
        return _SUBSCRIPTION.encode(*fields[: 3 + self.version])

    @classmethod
    def decode(cls, data: Bytes, group_instance_id: str | None = None) -> ConsumerProtocolMemberMetadata:
        """Read a blob of any version; raises MalformedResponseError.

        It may end before any field after the topics: clients exist that write version 1 and stop after the user data.
        """
        found, _ = _SUBSCRIPTION.decode(data)
        fields: list[Any] = [*found, *(None, None, -1, None)[len(found) - 2 :]]
        version, topics, user_data, owned, generation, rack = fields
        partitions = [TopicPartition(topic, n) for topic, ns in _SUBSCRIPTION.partitions(owned) for n in ns]
        # Java reads an empty rack as none, and any negative generation as "no generation".
        return cls(version, topics or (), user_data, partitions, max(generation, -1), rack or None, group_instance_id)


class ConsumerProtocolMemberAssignment(Value):
    """A member's assignment, as SyncGroup carries it; ``assignment`` is ``[(topic, [partition, ...]), ...]``."""

    _fields = ("version", "assignment", "user_data")

    version: int
    assignment: TopicPartitions
    user_data: bytes | None

    def __init__(self, version: int, assignment: TopicPartitions, user_data: bytes | None = b"") -> None:
        copied = [(topic, list(numbers)) for topic, numbers in assignment]
        self.__dict__.update(version=version, assignment=copied, user_data=user_data)

    def partitions(self) -> list[TopicPartition]:
        """Return the assigned partitions in the order of the blob."""
        return [TopicPartition(topic, number) for topic, numbers in self.assignment for number in numbers]

    def encode(self) -> bytes:
        """Return the blob. All versions have the same layout.

        The user data are always written, null included: without them ``kafka-consumer-groups.sh --describe`` fails for
        the whole group with a BufferUnderflowException, as it does with pykafka's blobs.
        """
        return _ASSIGNMENT.encode(self.version, topics_of(self.assignment), self.user_data)

    @classmethod
    def decode(cls, data: Bytes) -> ConsumerProtocolMemberAssignment:
        """Read a blob of any version; raises MalformedResponseError.

        No bytes at all mean no partitions (the broker's response when the leader left a member out), and the user data
        may be missing: pykafka never writes them.
        """
        if not len(data):
            return cls(0, [], None)
        (version, topics, *user_data), _ = _ASSIGNMENT.decode(data)
        return cls(version, _ASSIGNMENT.partitions(topics), user_data[0] if user_data else None)


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
        """Return the metadata of ``assignor`` for this member, in version 3 and with the member's state.

        ``owned_partitions``: those that the member keeps while it joins (none under an eager assignor), assigned in
        ``generation_id``; None: those that the assignor remembers.
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
        """Read ``(member_id, group_instance_id, metadata)`` of each member in a JoinGroup response.

        Returns ``(subscriptions, problems)``, both by member id. A member whose blob is malformed is in both: without
        topics, so that it gets an empty assignment, and with the reason, which the leader should log.
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
