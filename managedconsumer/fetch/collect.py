"""From the buffer to the user: one message after the other, and which of them count as finished.

A message is *in hand* from the moment a thread gets it until that thread comes back for the next. What is in hand
is not finished and never committed by the consumer itself. Each consuming thread has a hand of its own, so a
partition's finished offset is the lowest that is still in any hand.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from collections import deque
from typing import Container, Iterable

from managedconsumer.errors import CorruptRecordError
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message, RecordChunk


class Dispenser:
    """Hands out the buffered messages of all partitions, chunk by chunk in turn."""

    def __init__(self, buffer: FetchBuffer) -> None:
        self._buffer = buffer
        self._queue: PartitionQueue | None = None
        self._chunk: RecordChunk | None = None
        self._hands: dict[int, tuple[PartitionQueue, int]] = {}
        self._pushed: deque[tuple[PartitionQueue, int, Message]] = deque()
        self.handed_out = 0

    def take(self, who: int) -> Message | None:
        """The next message for the thread ``who``, whose last one is thereby finished; None: nothing is buffered.

        Raises CorruptRecordError when the next thing in turn cannot be read; the position stays before it.
        """
        if who in self._hands:
            self.finish(who)
        if self._pushed:
            message = self._take_pushed(who)
            if message is not None:
                return message
        while True:
            if self._chunk is None and not self._next_chunk():
                return None
            assert self._chunk is not None and self._queue is not None
            queue = self._queue
            try:
                message = next(self._chunk, None)
            except CorruptRecordError:
                self._set_aside()
                raise
            if message is not None:
                offset = message.offset
                queue.state.position = offset + 1
                self._hands[who] = (queue, offset)
                self.handed_out += 1
                return message
            self._close_chunk()

    def finish(self, who: int) -> None:
        """The thread ``who`` came back (or gave up waiting): what it had in hand is finished."""
        hand = self._hands.pop(who, None)
        if hand is not None:
            self._settle(hand[0])

    def _settle(self, queue: PartitionQueue) -> None:
        """Everything below the lowest offset still in a hand is finished."""
        state = queue.state
        if state.position is not None:
            in_hand = [offset for other, offset in self._hands.values() if other is queue]
            state.finish(min(in_hand, default=state.position))

    def _next_chunk(self) -> bool:
        found = self._buffer.pop()
        if found is None:
            return False
        self._queue, self._chunk = found
        return True

    def _close_chunk(self) -> None:
        """The chunk is used up: pass the gaps, control records and aborted messages at its end."""
        queue, chunk = self._queue, self._chunk
        self._queue = self._chunk = None
        if queue is None or chunk is None or not queue.state.active or not queue.state.has_valid_position:
            return
        if chunk.active and chunk.position > (queue.state.position or 0):
            queue.state.position = chunk.position
            if not any(other is queue for other, _ in self._hands.values()):
                queue.state.finish(chunk.position)

    def _set_aside(self) -> None:
        """The chunk cannot be read any further: the other partitions go on, and it comes again in its turn."""
        if self._queue is not None and self._chunk is not None:
            self._buffer.give_back(self._queue, self._chunk, last=True)
        self._queue = self._chunk = None

    def skip_corrupt(self, tp: TopicPartition) -> None:
        """Go on behind the batch of ``tp`` that could not be read."""
        queue = self._buffer.queues.get(tp)
        if queue is not None and queue.chunks and queue.state.has_valid_position:
            queue.chunks[0].skip_corrupt()
            queue.state.position = queue.chunks[0].position
            self._settle(queue)

    # -- interruptions --------------------------------------------------------------------------------

    def push_back(self, who: int, message: Message) -> None:
        """The thread ``who`` could not use its message (deserializer): it will be handed out again."""
        hand = self._hands.pop(who, None)
        if hand is not None and hand[0].state.active and hand[0].state.has_valid_position:
            queue = hand[0]
            self._pushed.append((queue, queue.version, message))

    def _take_pushed(self, who: int) -> Message | None:
        for _ in range(len(self._pushed)):
            queue, version, message = self._pushed.popleft()
            if queue.version != version or not queue.state.active:
                continue
            if not queue.state.is_fetchable():
                self._pushed.append((queue, version, message))
                continue
            self._hands[who] = (queue, message.offset)
            return message
        return None

    def pushed_offset(self, tp: TopicPartition) -> int | None:
        """The offset of a message of ``tp`` that waits to be handed out again."""
        return min((m.offset for q, v, m in self._pushed if q.tp == tp and q.version == v), default=None)

    def shelve(self) -> None:
        """Put the current chunk back: its partition may be held, paused or dropped next."""
        if self._chunk is not None and self._queue is not None:
            self._buffer.give_back(self._queue, self._chunk)
        self._queue = self._chunk = None

    def forget(self, tps: Container[TopicPartition]) -> None:
        """The partitions are gone, or were moved by a seek: nothing of them is in hand or waiting any more."""
        if self._queue is not None and self._queue.tp in tps:
            if self._chunk is not None:
                self._chunk.active = False
            self._queue = self._chunk = None
        self._hands = {who: hand for who, hand in self._hands.items() if hand[0].tp not in tps}
        self._pushed = deque(item for item in self._pushed if item[0].tp not in tps)

    def in_hand(self, tps: Iterable[TopicPartition] | None = None, but: int | None = None) -> bool:
        """True if a thread other than ``but`` has a message of ``tps`` (None: any) in hand."""
        chosen = None if tps is None else set(tps)
        return any(who != but and (chosen is None or q.tp in chosen) for who, (q, _) in self._hands.items())

    def lowest_in_hand(self, tp: TopicPartition, but: int | None = None) -> int | None:
        """The lowest offset of ``tp`` that a thread other than ``but`` has in hand."""
        return min((offset for who, (q, offset) in self._hands.items() if who != but and q.tp == tp), default=None)
