"""For stores and other libraries' producers: the membership (KIP-447), committed offsets, and topic ids."""

from __future__ import annotations

import struct
from typing import Any, Iterable, Mapping

from managedconsumer import consumers
from managedconsumer import errors as err
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.values import NamedTuple

_GENERATION = struct.Struct("=i")


class GroupMetadata(NamedTuple):
    """The present membership of a consumer. Kafka refuses offsets that are sent under an older one (KIP-447).

    ``generation`` is the member's epoch in a group of KIP-848. ``group_instance_id``: None for a dynamic member.
    """

    group: str
    generation: int
    member_id: str
    group_instance_id: str | None = None

    def for_confluent(self) -> bytes:
        """Return the argument of confluent-kafka's ``Producer.send_offsets_to_transaction``.

        The format is that of librdkafka 1.6 and newer (``rd_kafka_consumer_group_metadata_write``).
        """
        name, member = self.group.encode(), self.member_id.encode()
        instance = b"\x01" if self.group_instance_id is None else b"\x00%b\x00" % self.group_instance_id.encode()
        return b"CGMDv2:%b%b\x00%b\x00%b" % (_GENERATION.pack(self.generation), name, member, instance)

    def for_kafka_python(self) -> Any:
        """Return the argument of kafka-python's ``KafkaProducer.send_offsets_to_transaction``.

        Raises MissingPackageError without kafka-python 3: older ones send the group's name alone, so that Kafka cannot
        refuse an evicted member.
        """
        try:
            from kafka.structs import ConsumerGroupMetadata
        except ImportError as error:
            raise err.MissingPackageError(
                "kafka-python 3 or newer is needed (pip install 'kafka-python>=3'): an older producer sends the "
                "group's name alone with its offsets, so that Kafka cannot refuse a member that was evicted"
            ) from error
        return ConsumerGroupMetadata(self.group, self.generation, self.member_id, self.group_instance_id)


class GroupOffsets:
    """The committed offsets of a group, for stores that commit them in a producer's transaction. Thread-safe."""

    def __init__(self, session: consumers.Session) -> None:
        self._session = session

    def committed(self, tps: Iterable[TopicPartition], seconds: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return next offset and metadata of each of ``tps`` with a committed offset; asks the coordinator.

        Waits for open transactions that have sent offsets, for at most ``seconds`` (KIP-447); then raises
        UnstableOffsetCommit, or the error of the request.
        """
        self._session.require_running()
        engine = self._session.engine
        found = engine.offsets.committed(tps, seconds, lambda: not engine.life.running)
        return {tp: OffsetAndMetadata(e.offset, e.metadata) for tp, e in found.items() if e.offset >= 0}

    def note(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note the next offsets of a commit, for ``progress()``."""
        self._session.committer.note({tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()})


class TopicIds:
    """Thread-safe. Ids have 16 bytes; None where the brokers have none (before Kafka 2.8)."""

    def __init__(self, session: consumers.Session) -> None:
        self._engine = session.engine

    def of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes | None]:
        """Return the topic ids of the positions of ``tps``, without partitions that are not assigned."""
        return self._engine.assignment.topic_ids(tps)

    def look_again(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes | None]:
        """Refresh the metadata (blocks), and return :meth:`of`."""
        self._engine.assignment.refresh_metadata()
        return self._engine.assignment.topic_ids(tps)

    def handed_out(self, tp: TopicPartition) -> bytes | None:
        """Return the topic id of the last delivered messages."""
        with self._engine.lock:
            queue = self._engine.buffer.queues.get(tp)
            return None if queue is None else queue.topic_handed_out

    def begin_anew(self, tp: TopicPartition, why: str) -> None:
        """Reset ``tp``, whose position belongs to another topic, by ``auto_offset_reset``.

        With "none" the next consuming call raises an error that begins with ``why``.
        """
        self._engine.assignment.begin_anew(tp, why)
