"""From which topics a consumer reads, by the ids that change when a topic is deleted and made anew. For stores."""

from __future__ import annotations

from typing import Iterable

from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.structs import TopicPartition


class TopicIds:
    """Thread-safe. Ids are 16 bytes; None where the brokers tell none (before Kafka 2.8)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes | None]:
        """Of which topics the positions of ``tps`` are. Partitions that the consumer does not have are left out."""
        return self._engine.assignment.topic_ids(tps)

    def look_again(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes | None]:
        """The same, after the brokers were asked (blocks)."""
        self._engine.assignment.refresh_metadata()
        return self._engine.assignment.topic_ids(tps)

    def handed_out(self, tp: TopicPartition) -> bytes | None:
        """Of which topic the messages are that were handed out last."""
        with self._engine.lock:
            queue = self._engine.buffer.queues.get(tp)
            return None if queue is None else queue.topic_handed_out

    def begin_anew(self, tp: TopicPartition, why: str) -> None:
        """The position of ``tp`` is of another topic: begin where ``auto_offset_reset`` says.

        With "none" the user is asked where to go on, by an error that begins with ``why``.
        """
        self._engine.assignment.begin_anew(tp, why)
