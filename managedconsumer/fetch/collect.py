"""From the buffer to the user: one message after the other, and which of them count as finished.

A message is *in hand* from the moment a thread gets it until that thread comes back for the next. What is in hand
is not finished and never committed by the consumer itself. Each consuming thread has a hand of its own, so a
partition's finished offset is the lowest that is still in any hand. ``who`` is a number that no later thread gets.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Container, Sequence

from managedconsumer.errors import CorruptRecordError
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.arrow import chunk_to_columns
from managedconsumer.wire.records import Lane, Message, RecordChunk

Hand = tuple[tuple[PartitionQueue, int], ...]
#: Whose hand holds what threads had when they ended: it is never finished, and nobody waits for it.
_NOBODY = -1


class Dispenser:
    """Hands out the buffered messages of all partitions, chunk by chunk in turn."""

    def __init__(self, buffer: FetchBuffer, lane: Lane | None = None) -> None:
        """``lane``: the way past the lock for the one thread that consumes, if there may be one."""
        self._buffer = buffer
        #: Detached before anything here is looked at.
        self.lane = lane or Lane()
        self._shared = lane is None
        self._lane_who: int | None = None
        self._lane_seen = 0
        self._queue: PartitionQueue | None = None
        self._chunk: RecordChunk | None = None
        #: What each thread has in hand: the lowest offset by partition.
        self._hands: dict[int, Hand] = {}
        #: What each thread had in hand when its partition was taken away: the next offset, until the thread comes back.
        self._taken: dict[int, dict[TopicPartition, int]] = {}
        self._pushed: deque[tuple[PartitionQueue, int, Message]] = deque()
        self.handed_out = 0

    def take(self, who: int) -> Message | None:
        """The next message for the thread ``who``, whose last one is thereby finished; None: nothing is buffered.

        Raises CorruptRecordError when the next thing in turn cannot be read; the position stays before it.
        """
        message = self.take_for_task(who)
        if message is None or self._chunk is None or self._pushed or self._shared:
            return message
        if self._hands[who][0][0] is self._queue:  # not one that had been pushed back
            self._lane_who = who
            self.lane.attach(self._chunk)
        return message

    def take_for_task(self, who: int) -> Message | None:
        """:meth:`take` without the lane, which tells threads apart, not the tasks that share one."""
        self._look(who)
        found = self._next()
        if found is None:
            return None
        queue, message = found
        self._hands[who] = ((queue, message.offset),)
        return message

    def take_many(self, who: int, limit: int) -> list[Message]:
        """Up to ``limit`` messages at once; all of them are in hand until the thread comes back.

        A record that cannot be read ends the list; it is raised by the call that would start with it.
        """
        self._look(who)
        messages: list[Message] = []
        lowest: dict[PartitionQueue, int] = {}
        while len(messages) < limit:
            try:
                found = self._next_many(limit - len(messages))
            except CorruptRecordError:
                if messages:
                    break
                raise
            if found is None:
                break
            queue, more = found
            messages += more
            if queue not in lowest:
                # Right now: the end of a chunk settles what is finished, and these are not.
                lowest[queue] = more[0].offset
                self._hands[who] = tuple(lowest.items())
        return messages

    def _next_many(self, limit: int) -> tuple[PartitionQueue, list[Message]] | None:
        """Messages of one partition; what was pushed back comes first, one at a time."""
        first = self._next()
        if first is None:
            return None
        queue, message = first
        messages = [message]
        if queue is self._queue and self._chunk is not None and not self._pushed and limit > 1:
            messages += self._chunk.take(limit - 1)
            self.handed_out += len(messages) - 1
            queue.state.position = messages[-1].offset + 1
        return queue, messages

    def take_columns(self, who: int, columns: Sequence[str]) -> tuple[Any] | None:
        """What is left of one chunk as Arrow columns (in a tuple, as an Arrow batch has no truth); None: nothing."""
        self._look(who)
        while True:
            if (self._queue is None or self._chunk is None) and not self._open_chunk():
                return None
            queue, chunk = self._queue, self._chunk
            if queue is None or chunk is None:
                return None
            if chunk.exhausted:  # a batch without rows would say the same, but has to be built
                self._close_chunk()
                continue
            start = chunk.position
            try:
                batch = chunk_to_columns(chunk, columns=columns)
            except CorruptRecordError:
                self._set_aside()
                raise
            if batch.num_rows:
                queue.state.position = chunk.position
                self._hands[who] = ((queue, start),)
                self.handed_out += batch.num_rows
                return (batch,)
            self._close_chunk()

    def _open_chunk(self) -> bool:
        found = self._buffer.pop()
        if found is not None:
            self._queue, self._chunk = found
        return found is not None

    def _look(self, who: int) -> None:
        """``who`` is here: what it had in hand is finished. A second consuming thread ends the short way for good."""
        self.settle_lane()
        if self._lane_who is not None and self._lane_who != who:
            self._shared = True
        if who in self._hands or who in self._taken:
            self.finish(who)

    def settle_lane(self) -> None:
        """Detach the lane and take note of what went through it: before anything looks at positions or hands."""
        self.lane.detach()
        self._note_lane()

    def _note_lane(self) -> None:
        taken = self.lane.count - self._lane_seen
        if not taken or self._lane_who is None:
            return
        self._lane_seen += taken
        self.handed_out += taken
        queue, chunk = self._queue, self._chunk
        if queue is not None and chunk is not None and queue.state.active and queue.state.has_valid_position:
            # The thread may take one more in between: its offset is read last, so what is in hand is never too high.
            queue.state.position = chunk.position
            self._hands[self._lane_who] = ((queue, self.lane.last_offset),)
            self._settle(queue)

    def finish(self, who: int) -> None:
        """The thread ``who`` came back (or gave up waiting): what it had in hand is finished."""
        self.settle_lane()
        self._taken.pop(who, None)
        for queue, _ in self._hands.pop(who, ()):
            self._settle(queue)

    def _settle(self, queue: PartitionQueue) -> None:
        """Everything below the lowest offset still in a hand is finished."""
        state = queue.state
        if state.position is not None:
            low = self._lowest(queue)
            state.finish(state.position if low is None else low)

    def _lowest(self, queue: PartitionQueue, but: int | None = None) -> int | None:
        offsets = [o for who, hand in self._hands.items() if who != but for other, o in hand if other is queue]
        return min(offsets, default=None)

    def _next(self) -> tuple[PartitionQueue, Message] | None:
        if self._pushed:
            pushed = self._next_pushed()
            if pushed is not None:
                return pushed
        while True:
            queue, chunk = self._queue, self._chunk
            if queue is None or chunk is None:
                found = self._buffer.pop()
                if found is None:
                    return None
                queue, chunk = self._queue, self._chunk = found
            try:
                message = next(chunk, None)
            except CorruptRecordError:
                self._set_aside()
                raise
            if message is not None:
                queue.state.position = message.offset + 1
                self.handed_out += 1
                return queue, message
            self._close_chunk()

    def _close_chunk(self) -> None:
        """The chunk is used up: pass the gaps, control records and aborted messages at its end."""
        queue, chunk = self._queue, self._chunk
        self._queue = self._chunk = None
        if queue is None or chunk is None or not queue.state.active or not queue.state.has_valid_position:
            return
        if chunk.active:
            self._buffer.used_up(queue, chunk)
            self._reach(queue, chunk.position)
            self._settle(queue)

    def _set_aside(self) -> None:
        """The chunk cannot be read any further: the other partitions go on, and it comes again in its turn."""
        if self._queue is not None and self._chunk is not None:
            self._buffer.give_back(self._queue, self._chunk, last=True)
        self._queue = self._chunk = None

    def skip_corrupt(self, tp: TopicPartition) -> None:
        """Go on behind the batch of ``tp`` that could not be read."""
        self.settle_lane()
        queue = self._buffer.queues.get(tp)
        if queue is not None and queue.chunks and queue.state.has_valid_position:
            self._reach(queue, queue.chunks[0].skip_corrupt())
            self._settle(queue)

    # -- interruptions --------------------------------------------------------------------------------

    def push_back(self, who: int, messages: Sequence[Message]) -> None:
        """The thread ``who`` could not use these of its messages: they will be handed out again, in their order.

        What it can use of the same batch stays in its hand.
        """
        self.settle_lane()
        back: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            back.setdefault(TopicPartition(message.topic, message.partition_id), []).append(message)
        kept = []
        for queue, lowest in self._hands.pop(who, ()):
            unused = back.get(queue.tp)
            if unused is None or lowest < unused[0].offset:
                kept.append((queue, lowest))
            if unused is not None and queue.state.active and queue.state.has_valid_position:
                self._pushed.extend((queue, queue.version, message) for message in unused)
                self._reach(queue, queue.state.position or 0)
        if kept:
            self._hands[who] = tuple(kept)
        self._pushed = deque(sorted(self._pushed, key=lambda item: (item[0].tp, item[2].offset)))

    def _next_pushed(self) -> tuple[PartitionQueue, Message] | None:
        for _ in range(len(self._pushed)):
            queue, version, message = self._pushed.popleft()
            if queue.version != version or not queue.state.active:
                continue
            if queue.state.is_fetchable():
                ahead = self._chunk.position if queue is self._queue and self._chunk is not None else queue.frontier
                self._reach(queue, max(message.offset + 1, ahead or 0))
                return queue, message
            self._pushed.append((queue, version, message))
        return None

    def _reach(self, queue: PartitionQueue, offset: int) -> None:
        """The position goes to ``offset``, but not beyond a message that has been pushed back."""
        waiting = [m.offset for other, version, m in self._pushed if other is queue and version == queue.version]
        queue.state.position = min([offset, *waiting])

    def shelve(self) -> None:
        """Put the current chunk back: its partition may be held, paused or dropped next."""
        self.settle_lane()
        if self._chunk is not None and self._queue is not None:
            self._buffer.give_back(self._queue, self._chunk)
        self._queue = self._chunk = None

    def forget(self, tps: Container[TopicPartition]) -> None:
        """The partitions are gone, or were moved by a seek: nothing of them is in hand or waiting any more."""
        self.settle_lane()
        if self._queue is not None and self._queue.tp in tps:
            if self._chunk is not None:
                self._chunk.active = False
            self._queue = self._chunk = None
        self._hands = {
            who: kept
            for who, hand in self._hands.items()
            if (kept := tuple(pair for pair in hand if pair[0].tp not in tps))
        }
        self._pushed = deque(item for item in self._pushed if item[0].tp not in tps)

    def take_away(self, tps: Container[TopicPartition]) -> None:
        """:meth:`forget` partitions that are not ours any more; who has messages of them in hand can be told."""
        self.settle_lane()
        for who, hand in self._hands.items():
            for queue, _ in hand:
                if queue.tp in tps and queue.state.position is not None:
                    elsewhere = self._lowest(queue, but=who)
                    position = queue.state.position
                    self._taken.setdefault(who, {})[queue.tp] = (
                        position if elsewhere is None else min(position, elsewhere)
                    )
        self.forget(tps)

    def taken_away(self, who: int) -> dict[TopicPartition, int]:
        """What was taken away while the thread ``who`` had it in hand: the next offset by partition."""
        return dict(self._taken.get(who, {}))

    def forget_taken(self) -> None:
        """What was taken away matters to nobody any more: the consumer was stopped."""
        self._taken.clear()

    def in_hand(self, tps: Container[TopicPartition] | None = None, but: int | None = None) -> bool:
        """True if a thread other than ``but`` has a message of ``tps`` (None: any) in hand, and may come back."""
        self.settle_lane()
        return any(
            who not in (but, _NOBODY) and any(tps is None or queue.tp in tps for queue, _ in hand)
            for who, hand in self._hands.items()
        )

    def lowest_in_hand(self, tp: TopicPartition, but: int | None = None) -> int | None:
        """The lowest offset of ``tp`` that a thread other than ``but`` has in hand."""
        self.settle_lane()
        queue = self._buffer.queues.get(tp)
        return None if queue is None else self._lowest(queue, but)

    # -- owners ---------------------------------------------------------------------------------------

    def has_hand(self, who: int) -> bool:
        """True if ``who`` has something in hand, or is the one whose messages come past the lock."""
        return who in self._hands or who == self._lane_who

    def owners(self) -> list[int]:
        """Who has something in hand, or is the one whose messages come past the lock."""
        self.settle_lane()
        found = {who for who in self._hands if who != _NOBODY}
        return sorted(found if self._lane_who is None else found | {self._lane_who})

    def leave_behind(self, who: int) -> list[tuple[TopicPartition, int]]:
        """``who`` has ended: what it had in hand stays unfinished as long as the partition is ours. Returns that."""
        self.settle_lane()
        if who == self._lane_who:
            self._lane_who = None  # another thread may have the short way
        hand = self._hands.pop(who, ())
        lowest: dict[PartitionQueue, int] = {}
        for queue, offset in (*self._hands.get(_NOBODY, ()), *hand):
            lowest[queue] = min(offset, lowest.get(queue, offset))
        self._hands[_NOBODY] = tuple(lowest.items())
        return [(queue.tp, offset) for queue, offset in hand]

    def left_behind(self) -> bool:
        """True if somebody ended with messages in hand."""
        return bool(self._hands.get(_NOBODY))
