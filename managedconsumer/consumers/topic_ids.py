"""The ids of a consumer's topics, for stores: an id changes when a topic is deleted and created again."""

from __future__ import annotations

from typing import Iterable

from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.structs import TopicPartition


class TopicIds:
    """Thread-safe. Ids have 16 bytes; None where the brokers have none (before Kafka 2.8)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
