"""Messages that were handed out and came back, because they could not be used: they are handed out again first.

Pure and not thread-safe: the consumer's lock is held around every call. A signal may interrupt each at any line, so
what waits is replaced as a whole.
"""

from __future__ import annotations

from typing import Container, Sequence

from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message


class PushedBack:
    """Messages that wait to be handed out again, in order."""

    def __init__(self) -> None:
        # Each with its queue and that one's version.
        self._items: list[tuple[PartitionQueue, int, Message]] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, queue: PartitionQueue, messages: Sequence[Message]) -> None:
        """These of ``queue`` wait from now on; those that wait already do so once."""
        waiting = {id(item[2]) for item in self._items}
        items = [(queue, queue.version, message) for message in messages if id(message) not in waiting]
        self._items = sorted(self._items + items, key=lambda item: (item[0].tp, item[2].offset))

    def first(self) -> tuple[PartitionQueue, Message] | None:
        """Return the next message that may be handed out; it stays here until :meth:`remove`."""
        for queue, version, message in self._items:
            if queue.version == version and queue.state.is_fetchable():
                return queue, message
        self._items = [item for item in self._items if item[0].version == item[1] and item[0].state.active]
        return None

    def of(self, queue: PartitionQueue) -> list[Message]:
        """All that waits of ``queue``, in order."""
        if not self._items:  # nearly always
            return []
        return [message for other, version, message in self._items if other is queue and version == queue.version]

    def take_out(self, queue: PartitionQueue, below: int) -> list[Message]:
        """Nothing of ``queue`` waits any more. Returns what did, below this offset, in order."""
        found = [message for message in self.of(queue) if message.offset < below]
        self.forget({queue.tp})
        return found

    def remove(self, messages: Sequence[Message]) -> None:
        """These are in a hand again."""
        gone = {id(message) for message in messages}
        self._items = [item for item in self._items if id(item[2]) not in gone]

    def forget(self, tps: Container[TopicPartition]) -> None:
        """The partitions are gone, or were moved by a seek."""
        self._items = [item for item in self._items if item[0].tp not in tps]
