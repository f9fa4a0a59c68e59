"""Messages that a thread got but could not use: the consumer delivers them again first.

Pure and not thread-safe: the consumer's lock is held around every call. A signal may interrupt each call at any line,
so the list is replaced as a whole.
"""

from __future__ import annotations

from typing import Container, Sequence

from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message


class PushedBack:
    """Messages that wait to be delivered again, in order."""

    def __init__(self) -> None:
        # Each with its queue and the queue's version.
        self._items: list[tuple[PartitionQueue, int, Message]] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, queue: PartitionQueue, messages: Sequence[Message]) -> None:
        """Add ``messages`` of ``queue``; one that waits already is not added twice."""
        waiting = {id(item[2]) for item in self._items}
        items = [(queue, queue.version, message) for message in messages if id(message) not in waiting]
        self._items = sorted(self._items + items, key=lambda item: (item[0].tp, item[2].offset))

    def first(self) -> tuple[PartitionQueue, Message] | None:
        """Return the next message that may be delivered; it stays here until :meth:`remove`."""
        for queue, version, message in self._items:
            if queue.version == version and queue.state.is_fetchable():
                return queue, message
        self._items = [item for item in self._items if item[0].version == item[1] and item[0].state.active]
        return None

    def of(self, queue: PartitionQueue) -> list[Message]:
        """The waiting messages of ``queue``, in order."""
        if not self._items:  # nearly always
            return []
        return [message for other, version, message in self._items if other is queue and version == queue.version]

    def take_out(self, queue: PartitionQueue, below: int) -> list[Message]:
        """Remove all messages of ``queue``. Returns those below the offset ``below``, in order."""
        found = [message for message in self.of(queue) if message.offset < below]
        self.forget({queue.tp})
        return found

    def remove(self, messages: Sequence[Message]) -> None:
        """Remove messages that are in flight again."""
        gone = {id(message) for message in messages}
        self._items = [item for item in self._items if id(item[2]) not in gone]

    def forget(self, tps: Container[TopicPartition]) -> None:
        """Remove the messages of partitions that are gone, or were moved by a seek."""
        self._items = [item for item in self._items if item[0].tp not in tps]
