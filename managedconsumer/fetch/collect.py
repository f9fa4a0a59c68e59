"""Delivers buffered messages to the user one by one, and tracks which of them are finished.

A message is *in flight* from the moment a thread gets it until that thread asks for the next. The consumer itself
never commits a message in flight. Each consuming thread has its own messages in flight, so a partition's finished
offset is the lowest one in flight in any thread. ``who``: the number of a thread; no later thread gets it.

A call that takes messages takes all or nothing: if anything interrupts it (damage, too little memory, a signal handler
that raises), its messages go back into the buffer, and the next call delivers them.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from typing import Any, Callable, Container, Protocol, Sequence, TypeVar

from managedconsumer.errors import CorruptRecordError, MissingPackageError
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.in_flight import InFlight
from managedconsumer.fetch.pushed import PushedBack
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Lane, Message, RecordChunk
from managedconsumer.wire.records.arrow import first_of, messages_to_columns, rest_of

T = TypeVar("T")

# Errors of a chunk itself: raised by the call that starts with it.
_OF_A_CHUNK = (CorruptRecordError, MissingPackageError, MemoryError)


class Source(Protocol):
    """Chunks that a consuming thread receives by itself (``runtime.engine._inline.InlineFetch``)."""

    #: True: a chunk has arrived, or the lane has used one up, and the collector does not know it yet.
    touched: bool
    moved_on: bool

    @property
    def current(self) -> tuple[PartitionQueue, RecordChunk] | None:
        """The chunk that the lane reads now; None: the chunk that it was attached to, or none."""

    def report(self) -> Sequence[tuple[PartitionQueue, int, int, int, int, int, int, int, int]]:
        """Return for each partition its queue, version, fetch offset, last epoch, largest batch, high watermark, last
        stable offset, log start, and the position behind the last delivered message (-1: none was delivered)."""

    def pop(self) -> tuple[PartitionQueue, int, RecordChunk] | None:
        """Take out the next chunk for the buffer, with its queue and version."""

    def settled(self) -> None:
        """The collector has noted everything that this source reported."""

    def clear(self) -> None:
        """Drop all chunks: the workers fetch them again."""


class FetchCollector:
    """Delivers the buffered messages of all partitions, chunk by chunk in turn."""

    def __init__(self, buffer: FetchBuffer, lane: Lane | None = None) -> None:
        """``lane``: the fast path of all consuming threads, which takes no lock; None: no fast path."""
        self._buffer = buffer
        #: Detach it (:meth:`settle_lane`) before you read positions or messages in flight.
        self.lane = lane or Lane()
        self._short = lane is not None
        self._lane_seen = 0
        #: The source of the lane's next chunks; None: the lane stops at the end of its chunk.
        self._source: Source | None = None
        self._settling = False
        self._queue: PartitionQueue | None = None
        self._chunk: RecordChunk | None = None
        #: The offset to which the open chunk is rewound when a signal interrupts the call that reads it.
        self._mark = 0
        #: The messages in flight, by thread.
        self.in_flight = InFlight()
        self._pushed = PushedBack()
        self.handed_out = 0

    def draw_from(self, source: Source, patience: float) -> None:
        """Let the lane read the chunks of ``source``; a thread waits up to ``patience`` seconds for the next one."""
        self._source = source
        self.lane.draw_from(source, patience)

    def take(self, who: int) -> Message | None:
        """Finish the last message of thread ``who`` and return its next one; None: no message is buffered.

        Further messages come to the thread through the lane. Raises CorruptRecordError when the next record in turn
        cannot be read; the position stays before it.
        """
        message = None
        try:
            message = self.take_for_task(who)
            if message is not None and self._short and not self._pushed:
                self._give_slot(who, message.offset)
            return message
        except BaseException:
            if message is not None:  # other threads may have taken from the lane by now: only this message goes back
                self.push_back(who, [message])
            raise

    def _give_slot(self, who: int, offset: int) -> None:
        """Open the lane to ``who``, and to threads that have no messages of other partitions in flight."""
        queue, chunk, in_flight = self._queue, self._chunk, self.in_flight
        if queue is None or chunk is None or in_flight[who][0][0] is not queue:
            return
        others: list[int] = []
        if len(in_flight) > 1:  # other threads take the lock first: a drain may wait for their messages in flight
            slots = ((other, had) for other, had in self.lane.slots() if in_flight.get(other) == ((queue, had),))
            others = [other for other, _ in slots if other != who and not in_flight.lost_something(other)]
        self.lane.attach(chunk, who, offset, others, self._source is not None and not self._buffer.holds_chunks())

    def take_for_task(self, who: int) -> Message | None:
        """:meth:`take` without the lane, which cannot tell the tasks of one thread apart."""
        self._look(who)
        taken: tuple[Message, ...] = ()
        try:
            if self._pushed and (pushed := self._pushed.first()) is not None:
                queue, message = pushed
                taken = (message,)
                self.in_flight.give(who, queue, message)
                self._take_pushed(queue, taken)
                self.handed_out += 1
                return message
            found = self._read(lambda chunk: next(chunk, None))
            if found is None or self._queue is None or self._chunk is None:
                return None
            # In this order: a message before the position is always in flight in some thread.
            self.in_flight.give(who, self._queue, found)
            self._queue.state.position = found.offset + 1
            self.handed_out += 1
            return found
        except BaseException:
            self._undo(who, taken)
            raise

    def take_many(self, who: int, limit: int) -> list[Message]:
        """Return up to ``limit`` messages; all of them are in flight until the thread asks for more.

        A record that cannot be read ends the list; the call that would start with it raises the error.
        """
        self._look(who)
        taken: list[Message] = []
        lowest: dict[PartitionQueue, int] = {}
        try:
            while len(taken) < limit and (found := self._next_many(limit - len(taken), taken)) is not None:
                queue, more, fresh = found
                taken += more
                # At once: the end of a chunk settles which messages are finished, and these are not.
                lowest.setdefault(queue, more[0].offset)
                self.in_flight[who] = tuple(lowest.items())
                self.in_flight.stamp(who, queue, more[0].offset, more[0].timestamp, more[-1].offset + 1)
                if fresh:
                    queue.state.position = self._mark = more[-1].offset + 1
                else:
                    self._take_pushed(queue, more)
            self.handed_out += len(taken)
            return taken
        except BaseException:
            self._undo(who, taken)
            raise

    def _next_many(self, limit: int, taken: list[Message]) -> tuple[PartitionQueue, list[Message], bool] | None:
        """Return messages of one partition, and False if they were pushed back; these come first, one at a time."""
        if self._pushed and (pushed := self._pushed.first()) is not None:
            return pushed[0], [pushed[1]], False
        try:
            more = self._read(lambda chunk: chunk.take(limit) or None)
        except _OF_A_CHUNK:
            if self._chunk is not None:  # there was no memory to open it, to close it, or for its messages
                self._chunk.rewind(self._mark)
                self._put_away()
            if taken:
                return None
            raise
        return None if more is None or self._queue is None else (self._queue, more, True)

    def take_columns(self, who: int, columns: Sequence[str]) -> tuple[Any] | None:
        """Return the rest of one chunk as Arrow columns (in a tuple: an Arrow batch has no truth); None: no message."""
        self._look(who)
        taken: list[Message] = []
        try:
            if self._pushed and (pushed := self._pushed.first()) is not None:
                queue = pushed[0]
                taken += self._pushed.of(queue)
                batch = messages_to_columns(queue.context, taken, columns)
                self.in_flight.give(who, queue, taken[0], taken[-1].offset + 1)
                self._take_pushed(queue, taken)
                self.handed_out += len(taken)
                return (batch,)
            found = self._read(lambda chunk: rest_of(chunk, columns))
            if found is None or self._queue is None or self._chunk is None:
                return None
            self.in_flight[who] = ((self._queue, self._mark),)
            self.in_flight.stamp(who, self._queue, *first_of(found[0], self._mark), self._chunk.position)
            self._queue.state.position = self._chunk.position
            self.handed_out += found[0].num_rows
            return found
        except BaseException:
            self._undo(who, taken)
            raise

    def _read(self, read: Callable[[RecordChunk], T | None]) -> T | None:
        """Call ``read`` with the open chunk, or else the next one that has messages; None: no message is buffered.

        A damaged chunk is put back into the buffer.
        """
        while True:
            chunk = self._chunk
            if chunk is None:
                if not self._open_chunk():
                    return None
                continue
            try:
                got = read(chunk)
            except CorruptRecordError:
                self._put_away(last=True)
                raise
            except _OF_A_CHUNK:
                chunk.rewind(self._mark)
                self._put_away(last=True)
                raise
            if got is not None:
                return got
            self._close_chunk()

    def _open_chunk(self) -> bool:
        found = self._buffer.peek()
        if found is None:
            return False
        self._mark, found[0].topic_handed_out = found[1].position, found[1].context.topic_id
        self._queue, self._chunk = found
        self._buffer.shift(found[0])
        return True

    def _undo(self, who: int, taken: Sequence[Message]) -> None:
        """Undo a call that was interrupted after it had gathered ``taken``; the open chunk returns the rest again."""
        self.lane.detach()
        queue, chunk, mark = self._queue, self._chunk, self._mark
        if queue is not None and chunk is not None:
            chunk.rewind(mark)
            tp = queue.tp
            taken = [m for m in taken if m.offset < mark or (m.topic, m.partition_id) != tp]
        self.push_back(who, taken)
        self.in_flight.pop(who, None)
        if queue is not None and queue.state.active and queue.state.has_valid_position:
            self._reach(queue, mark)
        self._put_away()

    def _look(self, who: int) -> None:
        """Finish the messages in flight of ``who``, which asks for more."""
        self.settle_lane()
        if who in self.in_flight or self.in_flight.lost_something(who):
            self.in_flight.come_back(who)
        if self._chunk is not None:
            self._mark = self._chunk.position

    def settle_lane(self) -> None:
        """Detach the lane and note the messages that it delivered. Call this before you read positions or hands."""
        self.lane.detach()
        count = self.lane.count
        source = self._source
        if source is not None and (source.touched or self._settling):
            self._note_received(source)
        if count != self._lane_seen:
            self._note_lane(count)

    def _note_received(self, source: Source) -> None:
        """Note the chunks that the source received, and those that the lane has used up."""
        if self._settling:  # a signal handler raised in the middle: the workers fetch undelivered messages again
            self._put_away()
            source.clear()
            for queue in list(self._buffer):
                self._buffer.fetch_again(queue)
            self._settling = False
            return
        self._settling = True
        if source.moved_on:
            for who, _ in self.lane.slots():  # its messages in flight are of another chunk now, see _note_lane
                self.in_flight.come_back(who)
            self._close_chunk()
        if source.current is not None:
            self._queue, self._chunk = source.current
            self._queue.topic_handed_out = self._queue.context.topic_id
        while (found := source.pop()) is not None:
            self._buffer.accept(*found)
        for queue, version, offset, epoch, batch_bytes, high, stable, start, position in source.report():
            if queue.version == version and queue.state.active:
                queue.fetch_offset, queue.last_epoch, queue.batch_bytes = offset, epoch, batch_bytes
                queue.state.highwater, queue.state.last_stable, queue.state.log_start = high, stable, start
                if position >= 0 and queue.state.has_valid_position:
                    self._reach(queue, position)
                    queue.topic_handed_out = queue.context.topic_id
                    self.in_flight.settle(queue)
        source.settled()
        self._settling = False

    def _note_lane(self, count: int) -> None:
        queue, chunk = self._queue, self._chunk
        if queue is not None and chunk is not None and queue.state.active and queue.state.has_valid_position:
            # The position first: until the hand is updated it is too low, so that too few messages count as finished.
            queue.state.position = chunk.position
            for who, offset in self.lane.slots():
                if offset >= 0:
                    self.in_flight[who] = ((queue, offset),)
            self.in_flight.settle(queue)
        # A signal handler may have run this method in the meantime, and counted them.
        taken, self._lane_seen = count - self._lane_seen, count
        self.handed_out += taken

    def finish(self, who: int) -> None:
        """Finish the messages in flight of the thread ``who``, which came back or gave up waiting."""
        self.settle_lane()
        self.in_flight.come_back(who)

    def _close_chunk(self) -> None:
        """Close a chunk without messages left: pass the gaps, control records and aborted messages at its end."""
        queue, chunk = self._queue, self._chunk
        if queue is not None and chunk is not None and queue.state.active and queue.state.has_valid_position:
            if chunk.active:
                self._buffer.used_up(queue, chunk)
                self._reach(queue, chunk.position)
                self.in_flight.settle(queue)
            else:
                self._buffer.fetch_again(queue)
        self._queue = self._chunk = None

    def _put_away(self, *, last: bool = False) -> None:
        """Put the open chunk back for its partition's next turn, or ``last``: the other partitions continue."""
        queue, chunk = self._queue, self._chunk
        if queue is not None and chunk is not None:
            if chunk.active:
                self._buffer.give_back(queue, chunk, last=last)
            else:  # it cannot be read again
                self._buffer.fetch_again(queue)
        self._queue = self._chunk = None

    def skip_corrupt(self, tp: TopicPartition, offset: int | None = None) -> None:
        """Move the position of ``tp`` past the batch that could not be read; the error named ``offset``.

        Of several threads that got the same error one skips the batch; the others skip nothing more.
        """
        self.settle_lane()
        queue = self._buffer.queues.get(tp)
        if queue is not None and queue.chunks and queue.state.has_valid_position:
            if offset is not None and offset < queue.chunks[0].position:
                return
            self._reach(queue, queue.chunks[0].skip_corrupt())
            self.in_flight.settle(queue)

    def take_back(self, who: int, first: int | None = None) -> None:
        """Deliver again the messages that thread ``who`` took last: they did not reach it.

        ``first``: those from this offset on did not; the others, of the same partition, stay in flight.
        """
        self.settle_lane()
        hand = self.in_flight.pop(who, ())
        for queue, lowest in hand:
            if queue.state.active and queue.state.has_valid_position:
                self._reach(queue, min(lowest if first is None else first, queue.state.position or 0))
                if queue is self._queue:
                    self._queue = self._chunk = None
                self._buffer.fetch_again(queue)
        if first is not None and hand:
            self.in_flight[who] = hand

    # -- interruptions --------------------------------------------------------------------------------

    def push_back(self, who: int, messages: Sequence[Message]) -> None:
        """Take back messages that thread ``who`` could not use, and deliver them again in their order.

        The messages of the same batch that it can use stay in flight.
        """
        try:
            self.settle_lane()
            self._push_back(who, messages)
        except BaseException:  # a signal: the workers fetch the messages again that are not back yet
            self.take_back(who)
            raise

    def _push_back(self, who: int, messages: Sequence[Message]) -> None:
        back: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            back.setdefault(TopicPartition(message.topic, message.partition_id), []).append(message)
        kept = []
        for queue, lowest in self.in_flight.get(who, ()):
            unused = back.get(queue.tp)
            if unused is None or lowest < unused[0].offset:
                kept.append((queue, lowest))
            if unused is not None and queue.state.active:
                self._pushed.add(queue, unused)
                if queue.state.has_valid_position:  # otherwise they wait for a reset, and still count
                    self._reach(queue, queue.state.position or 0)
        if kept:
            self.in_flight[who] = tuple(kept)
        else:
            self.in_flight.pop(who, None)

    def _take_pushed(self, queue: PartitionQueue, messages: Sequence[Message]) -> None:
        """Note that messages of ``queue`` that were pushed back are in flight again."""
        self._pushed.remove(messages)
        ahead = self._chunk.position if queue is self._queue and self._chunk is not None else queue.frontier
        self._reach(queue, max(messages[-1].offset + 1, ahead or 0))

    def _reach(self, queue: PartitionQueue, offset: int) -> None:
        """Move the position to ``offset``, but not beyond a message that was pushed back."""
        pushed = self._pushed.of(queue)
        queue.state.position = min([offset, *(message.offset for message in pushed)]) if pushed else offset

    def shelve(self) -> None:
        """Put the current chunk back: its partition may be suspended, paused or dropped next."""
        self.settle_lane()
        self._put_away()

    def forget(self, tps: Container[TopicPartition]) -> None:
        """Forget all messages of partitions that are gone or were moved by a seek."""
        self.settle_lane()
        if self._queue is not None and self._queue.tp in tps:
            if self._chunk is not None:
                self._chunk.active = False
            self._queue = self._chunk = None
        self.in_flight.forget(tps)
        self._pushed.forget(tps)

    def go_on(self, queue: PartitionQueue, offset: int, leader_epoch: int = -1) -> None:
        """See :meth:`TopicPartitionState.go_on`. Messages below ``offset`` that are in flight or pushed back count."""
        self.shelve()
        self.in_flight.forget({queue.tp}, offset)
        back = self._pushed.take_out(queue, offset)
        low, first = self.in_flight.lowest(queue), back[0].offset if back else offset
        queue.state.go_on(offset, min(first, offset if low is None else low), leader_epoch)
        queue.restart()
        self._pushed.add(queue, back)
        self._reach(queue, offset)

    # -- in flight ------------------------------------------------------------------------------------

    def take_away(self, tps: Container[TopicPartition]) -> None:
        """:meth:`forget` revoked partitions; remember which threads have messages of them in flight."""
        self.settle_lane()
        self.in_flight.note_taken(tps)
        self.forget(tps)

    def has_in_flight(self, tps: Container[TopicPartition] | None = None, but: int | None = None) -> bool:
        """True if a live thread other than ``but`` has a message of ``tps`` (None: any) in flight."""
        self.settle_lane()
        return self.in_flight.has(tps, but)

    def lowest_in_flight(self, tp: TopicPartition, but: int | None = None) -> int | None:
        """The lowest offset of ``tp`` that a thread other than ``but`` has in flight."""
        self.settle_lane()
        queue = self._buffer.queues.get(tp)
        return None if queue is None else self.in_flight.lowest(queue, but)

    def in_sight(self, queue: PartitionQueue) -> tuple[list[RecordChunk], dict[int, int]]:
        """The chunks of ``queue`` in memory, and the timestamps by offset of its messages in flight."""
        stamps = {message.offset: message.timestamp for message in self._pushed.of(queue)} | self.in_flight.stamps(
            queue
        )
        open_chunk = [self._chunk] if queue is self._queue and self._chunk is not None else []
        return [*open_chunk, *queue.chunks], stamps

    def owners(self) -> list[int]:
        """The threads that have messages in flight."""
        if not self.in_flight:  # then no thread of the lane has a message either
            return []
        self.settle_lane()
        return sorted(self.in_flight.owners())

    def leave_behind(self, who: int) -> list[tuple[TopicPartition, int]]:
        """Return the messages in flight of the ended thread ``who``. They stay unfinished until they are revoked."""
        self.settle_lane()
        return self.in_flight.leave_behind(who)
