"""``Message`` and ``PartitionContext`` in Python, the twins of the accelerator's classes (see ``wire.records``)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Iterable, Sequence

from managedconsumer.shown import content, line
from managedconsumer.wire.records.format import read_varint

Header = tuple[str, "bytes | None"]

_EPOCH = datetime(1970, 1, 1)
_FIXED_BYTES = 14  # what pykafka counts besides key and value: CRC, magic byte, attributes and two lengths
_TIMESTAMP_BYTES = 8
#: How much of a key or value (bytes or characters) a ``repr`` has.
_SHOWN = 60


class PartitionContext:
    """The values that all messages of a partition share: the topic's name, the partition's number, the user's object.

    ``fenced``: the consumer has given the partition up, or lost it. ``topic_id``: see :class:`Message`.
    """

    __slots__ = ("fenced", "partition", "partition_id", "topic", "topic_id")

    def __init__(self, topic: str, partition_id: int, partition: Any = None, topic_id: bytes | None = None) -> None:
        self.topic = topic
        self.partition_id = partition_id
        self.partition = partition
        self.topic_id = topic_id
        self.fenced = False

    def __repr__(self) -> str:
        return f"PartitionContext({self.topic!r}, {self.partition_id})"


class Origin:
    """The values that all messages of one batch share."""

    __slots__ = ("context", "leader_epoch", "protocol_version", "timestamp_type")

    def __init__(
        self, context: PartitionContext, protocol_version: int, timestamp_type: int, leader_epoch: int
    ) -> None:
        self.context = context
        self.protocol_version = protocol_version
        self.timestamp_type = timestamp_type
        self.leader_epoch = leader_epoch


class Message:
    """One record as a user holds it: pykafka's attributes, and Kafka's newer ones.

    ``value`` and ``partition_key`` (alias ``key``) are bytes or None, or what a deserializer made of them.
    ``offset`` is the record's own offset, ``timestamp`` milliseconds since 1970 (0 where the format has none),
    ``timestamp_type`` 0 (the producer's clock), 1 (the broker's) or -1 (none).  ``headers`` is a list of
    (str, bytes or None), ``leader_epoch`` -1 where unknown.  ``topic_id``: the 16 bytes that the brokers have given to
    the topic, others when it is deleted and made anew; None where unknown.  A message is true even when it is empty.
    """

    __slots__ = ("offset", "origin", "partition_key", "raw_headers", "timestamp", "value")

    # Pykafka has these for producing; on a consumed message they are constant.
    compression_type = 0
    produce_attempt = 0
    delivery_report_q = None

    def __init__(
        self,
        value: Any,
        partition_key: Any = None,
        *,
        offset: int = -1,
        timestamp: int | datetime | None = None,
        headers: Sequence[Header] = (),
        topic: str = "",
        partition_id: int = -1,
        partition: Any = None,
        timestamp_type: int = 0,
        leader_epoch: int = -1,
        protocol_version: int = 2,
        topic_id: bytes | None = None,
    ) -> None:
        self.value = value
        self.partition_key = partition_key
        self.offset = offset
        self.raw_headers: bytes | list[Header] | None = list(headers) or None  # bytes are decoded when asked for
        context = PartitionContext(topic, partition_id, partition, topic_id)
        self.origin = Origin(context, protocol_version, timestamp_type, leader_epoch)
        if isinstance(timestamp, datetime):
            self.timestamp_dt = timestamp
        else:
            self.timestamp = timestamp or 0

    @property
    def key(self) -> Any:
        """Kafka's name for ``partition_key``."""
        return self.partition_key

    @key.setter
    def key(self, key: Any) -> None:
        self.partition_key = key

    @property
    def headers(self) -> list[Header]:
        """The record's headers in order; empty if it has none.  The list is the message's own."""
        if not isinstance(self.raw_headers, list):
            self.raw_headers = _decode_headers(self.raw_headers) if self.raw_headers else []
        return self.raw_headers

    @headers.setter
    def headers(self, headers: Sequence[Header]) -> None:
        self.raw_headers = list(headers)

    @property
    def fenced(self) -> bool:
        """True once the consumer has given the message's partition up, or lost it: another consumer may have it."""
        return self.origin.context.fenced

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.origin.context.topic

    @property
    def topic_id(self) -> bytes | None:
        """The id of the topic that it was read from; None where it is not known, as before Kafka 2.8."""
        return self.origin.context.topic_id

    @property
    def partition_id(self) -> int:
        """The partition's number."""
        return self.origin.context.partition_id

    @partition_id.setter
    def partition_id(self, partition_id: int) -> None:
        self._change_context(PartitionContext(self.topic, partition_id, self.partition, self.topic_id))

    @property
    def partition(self) -> Any:
        """The partition object of the consumer that read this message; None for a message made by hand."""
        return self.origin.context.partition

    @partition.setter
    def partition(self, partition: Any) -> None:
        self._change_context(PartitionContext(self.topic, self.partition_id, partition, self.topic_id))

    def _change_context(self, context: PartitionContext) -> None:
        old = self.origin
        self.origin = Origin(context, old.protocol_version, old.timestamp_type, old.leader_epoch)

    @property
    def protocol_version(self) -> int:
        """The version of the record format: 2 since Kafka 0.11, 0 and 1 in older logs."""
        return self.origin.protocol_version

    @property
    def timestamp_type(self) -> int:
        """0: set by the producer, 1: set by the broker when it appended the record, -1: the record has none."""
        return self.origin.timestamp_type

    @property
    def leader_epoch(self) -> int:
        """The leader's epoch when the batch was appended (KIP-320), -1 where unknown."""
        return self.origin.leader_epoch

    @property
    def timestamp_dt(self) -> datetime | None:
        """The timestamp as a datetime in UTC without a time zone; None where there is none, or no calendar has it."""
        try:
            return _EPOCH + timedelta(milliseconds=self.timestamp) if self.timestamp > 0 else None
        except OverflowError:
            return None

    @timestamp_dt.setter
    def timestamp_dt(self, value: datetime) -> None:
        self.timestamp = (value - _EPOCH) // timedelta(milliseconds=1)

    def __len__(self) -> int:
        """Bytes as pykafka counts them: key and value, and the fixed fields of the old format."""
        size = _FIXED_BYTES
        if self.value is not None:
            size += len(self.value)
        if self.partition_key is not None:
            size += len(self.partition_key)
        if self.protocol_version > 0 and self.timestamp:
            size += _TIMESTAMP_BYTES
        return size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return shown_of(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold everything but ``partition``, which belongs to a live consumer."""
        from managedconsumer.wire.records import rebuild_message

        return rebuild_message, (
            *(self.value, self.partition_key, self.offset, self.timestamp, self.headers or None),
            *(self.topic, self.partition_id, self.timestamp_type, self.leader_epoch, self.protocol_version),
            self.topic_id,
        )


def shown_of(message: Any) -> str:
    """Return the ``repr`` of a message of either twin: its place, and the beginning of its key and value."""
    key, value = (content(getattr(message, name, None), _SHOWN) for name in ("partition_key", "value"))
    return f"<Message {line(message.topic)}-{message.partition_id} offset {message.offset} key {key} value {value}>"


def messages_of(context: PartitionContext, lot: list[Any]) -> tuple[list[Message], int]:
    """Convert librdkafka's messages, the last one first; return them and the bytes of their values."""
    made = []
    size = 0
    for theirs in reversed(lot):
        # Theirs: 0 none, 1 the producer's clock, 2 the broker's.
        kind, timestamp = theirs.timestamp()
        epoch = theirs.leader_epoch()
        message: Message = Message.__new__(Message)
        message.value, message.partition_key, message.raw_headers = theirs.value(), theirs.key(), theirs.headers()
        message.offset = theirs.offset()
        message.timestamp = timestamp if kind else 0
        message.origin = Origin(context, 2, kind - 1, -1 if epoch is None else epoch)
        size += len(message.value or b"")
        made.append(message)
    return made, size


def runs_of(lot: list[Any]) -> list[tuple[str | None, int, Any, list[Any]]]:
    """Group neighbouring messages of librdkafka by partition: topic, partition, error, messages.

    An error is a group of its own; without a topic if it is of no partition.
    """
    runs: list[tuple[str | None, int, Any, list[Any]]] = []
    place: tuple[str, int] | None = None
    for message in lot:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is not None or topic is None:
            runs.append((topic, partition, error, [message]))
            place = None
        elif (topic, partition) == place:
            runs[-1][3].append(message)
        else:
            runs.append((topic, partition, None, [message]))
            place = topic, partition
    return runs


def extents_of(messages: Iterable[Any]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first and last offset of each partition's messages, by topic and partition.

    The messages may have any order, and any type with ``topic``, ``partition_id`` and ``offset``.
    """
    found: dict[tuple[str, int], tuple[int, int]] = {}
    place: tuple[str, int] | None = None
    topic, number, first, last = "", 0, 0, 0
    for message in messages:  # those of one partition mostly follow each other
        offset = message.offset
        if place is not None and message.partition_id == number and message.topic == topic:
            if offset > last:
                last = offset
            elif offset < first:
                first = offset
            continue
        if place is not None:
            found[place] = first, last
        topic, number = place = message.topic, message.partition_id
        first, last = found.get(place, (offset, offset))
        first, last = min(first, offset), max(last, offset)
    if place is not None:
        found[place] = first, last
    return found


def topic_ids_of(messages: Iterable[Any]) -> dict[tuple[str, int], list[bytes]]:
    """Return the known topic ids of each partition's messages, by topic and partition, in the messages' order.

    A partition has more than one if its topic was deleted and created again in between.
    """
    found: dict[tuple[str, int], list[bytes]] = {}
    last: PartitionContext | None = None
    for message in messages:
        if not isinstance(message, Message) or message.origin.context is last:
            continue
        last = message.origin.context
        if last.topic_id is not None:
            ids = found.setdefault((last.topic, last.partition_id), [])
            if last.topic_id not in ids:
                ids.append(last.topic_id)
    return found


def _decode_headers(raw: bytes) -> list[Header]:
    """Decode the headers, from their count on; they were checked when the record was read."""
    count, place = read_varint(raw, 0)
    headers: list[Header] = []
    for _ in range(count):
        size, place = read_varint(raw, place)
        name_end = place + size
        size, start = read_varint(raw, name_end)
        # As in Java, a name that is no UTF-8 is shown with replacement characters, not refused.
        name = raw[place:name_end].decode("utf-8", "replace")
        headers.append((name, None if size < 0 else raw[start : start + size]))
        place = start + max(size, 0)
    return headers
