"""Private or unused names of pykafka's consumers that its users' programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from managedconsumer.structs import TopicPartition

if TYPE_CHECKING:
    from managedconsumer.runtime.engine.engine import Engine

# How long (seconds) to look up a position that is not known yet.
_PATIENCE = 30.0


class OwnedPartition:
    """An entry of pykafka's ``consumer._partitions``. Thread-safe; its values are always current."""

    def __init__(self, partition: Any, tp: TopicPartition, engine: Engine) -> None:
        #: The Partition object.
        self.partition = partition
        self._tp = tp
        self._engine = engine

    @property
    def last_offset_consumed(self) -> int:
        """The offset last consumed, -1 if none was; at OffsetType.LATEST the log's last one, for which it waits."""
        return self.next_offset - 1

    @property
    def next_offset(self) -> int:
        """The offset of the next message; 0 where it is not known."""
        position = self._position()
        if position is None and not self._engine.life.closed:
            self._engine.positions.resolve(_PATIENCE)
            position = self._position()
        return position or 0

    @property
    def message_count(self) -> int:
        """The most messages of this partition that may be buffered."""
        with self._engine.lock:
            queue = self._engine.buffer.queues.get(self._tp)
            return 0 if queue is None else queue.records

    def _position(self) -> int | None:
        with self._engine.lock:
            assigned = self._engine.subscription.is_assigned(self._tp)
            return self._engine.assignment.position(self._tp) if assigned else None

    def __repr__(self) -> str:
        return f"OwnedPartition({self.partition!r}, last_offset_consumed={(self._position() or 0) - 1})"


class Owned(Protocol):
    """The part of a consumer's session that the names below need."""

    engine: Engine
    group: str | None

    @property
    def topic(self) -> Any:
        """The topic, or the topics, or their pattern."""


class PykafkaNames:
    """The part of a consumer that programs written for pykafka need. Thread-safe."""

    _session: Owned

    @property
    def consumer_id(self) -> bytes:
        """This member's id; empty without a membership."""
        return b""

    @property
    def generation_id(self) -> int:
        """The member's generation; -1 without a membership."""
        return -1

    @property
    def _consumer_id(self) -> bytes:
        return self.consumer_id

    @property
    def _generation_id(self) -> int:
        return self.generation_id

    @property
    def _consumer_group(self) -> bytes | None:
        return None if self._session.group is None else self._session.group.encode()

    @property
    def _topic(self) -> Any:
        return self._session.topic

    @property
    def _running(self) -> bool:
        return not self._session.engine.life.closed and self._session.engine.life.error is None

    @property
    def _partitions(self) -> Any:
        """pykafka's SimpleConsumer: ``{Partition: OwnedPartition}``."""
        with self._session.engine.lock:
            there = [(queue.context.partition, tp) for tp, queue in sorted(self._session.engine.buffer.queues.items())]
        return {partition: OwnedPartition(partition, tp, self._session.engine) for partition, tp in there}
