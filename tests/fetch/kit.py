"""Short cuts of this room's tests: a buffer with partitions that have positions, and chunks to put into it."""

from __future__ import annotations

from typing import Any

from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.runtime.waiting.thread_ids import here
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import TopicPartitionState
from managedconsumer.wire.records import Lane, RecordChunk
from managedconsumer.wire.records.encode import Record, encode_batch

TOPIC = "orders"


def tp(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


def batch(first: int, count: int, **options: Any) -> bytes:
    """``count`` records with offsets from ``first``; each value names its offset."""
    return encode_batch([Record(b"v%d" % n) for n in range(first, first + count)], base_offset=first, **options)


def damaged(first: int, count: int) -> bytes:
    """A batch whose checksum does not fit: one bit of its last value is flipped."""
    data = bytearray(batch(first, count))
    data[-2] ^= 1
    return bytes(data)


class Kit:
    """A buffer, its collector, and partitions that start at offset 0."""

    def __init__(self, partitions: int = 1, max_messages: int = 1000, max_bytes: int = 1 << 20) -> None:
        self.buffer = FetchBuffer(max_messages, max_bytes)
        self.collector = FetchCollector(self.buffer, Lane(None, here))
        self.states = {}
        for number in range(partitions):
            state = self.states[number] = TopicPartitionState()
            state.seek(0)
            self.buffer.add(tp(number), state, f"partition {number}")
            self.buffer.restart(tp(number))

    def queue(self, partition: int = 0) -> PartitionQueue:
        return self.buffer.queues[tp(partition)]

    def fetched(self, partition: int = 0, data: bytes = b"", fetch_offset: int | None = None) -> bool:
        """An answer of the broker arrives."""
        queue = self.queue(partition)
        start = queue.fetch_offset if fetch_offset is None else fetch_offset
        return self.buffer.accept(queue, queue.version, RecordChunk(queue.context, data, start))

    def seek(self, partition: int, offset: int) -> None:
        """The buffer knows the new position."""
        self.states[partition].seek(offset)
        self.buffer.restart(tp(partition))

    def popped(self) -> tuple[PartitionQueue, Any]:
        """The chunk whose turn it is."""
        found = self.buffer.pop()
        assert found is not None
        return found

    def refuse(self, who: int = 1) -> None:
        """The next message comes back: a deserializer could not use it."""
        message = self.collector.take(who)
        assert message is not None
        self.collector.push_back(who, [message])

    def take(self, who: int = 1) -> tuple[int, int] | None:
        """Partition and offset of the next message for the thread ``who``."""
        message = self.collector.take(who)
        return None if message is None else (message.partition_id, message.offset)

    def take_all(self, who: int = 1) -> list[tuple[int, int]]:
        return list(iter(lambda: self.take(who), None))

    def finished(self, partition: int = 0) -> int | None:
        return self.states[partition].finished

    def position(self, partition: int = 0) -> int | None:
        return self.states[partition].position


def filled(*answers: bytes, **bounds: int) -> Kit:
    """A kit with a partition for each answer; they have come."""
    kit = Kit(len(answers), **bounds)
    for number, data in enumerate(answers):
        kit.fetched(number, data)
    return kit
