"""Fetched messages that wait to be handed out, by partition and in order; bounded in messages and bytes.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Iterable, Iterator

from managedconsumer.errors import KafkaException
from managedconsumer.fetch.room import Room
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import TopicPartitionState
from managedconsumer.wire.records import PartitionContext, RecordChunk


class PartitionQueue:
    """The fetched chunks of one assigned partition and where its next fetch starts.

    ``version`` changes with every seek, reset and pause: an answer counts only under the version of its request.
    """

    __slots__ = (
        "alone",
        "batch_bytes",
        "chunks",
        "context",
        "fetch_offset",
        "in_flight",
        "last_epoch",
        "leader_until",
        "nbytes",
        "read_replica",
        "records",
        "replica_until",
        "retry_at",
        "state",
        "topic_handed_out",
        "topic_id",
        "tp",
        "undecided",
        "version",
    )

    def __init__(self, tp: TopicPartition, state: TopicPartitionState, partition: Any) -> None:
        self.tp = tp
        self.state = state
        self.context = PartitionContext(tp.topic, tp.partition, partition)
        self.chunks: deque[RecordChunk] = deque()
        self.records = 0
        self.nbytes = 0
        self.fetch_offset = -1
        self.version = 0
        self.in_flight = False
        self.retry_at = 0.0
        #: True: fetch it in a separate request until that is answered, because an answer was too large to be received.
        self.alone = False
        #: The largest batch that came, as it came; 0: none has come.
        self.batch_bytes = 0
        #: The follower to fetch from (KIP-392), -1: the leader; until when, and until when it has to be the leader.
        self.read_replica = -1
        self.replica_until = 0.0
        self.leader_until = 0.0
        #: Leader epoch of the batch before ``fetch_offset`` (KIP-320), -1: unknown.
        self.last_epoch = -1
        #: Id of the topic that ``fetch_offset`` belongs to, None: not asked for yet.
        self.topic_id: bytes | None = None
        #: The same of what was handed out last.
        self.topic_handed_out: bytes | None = None
        #: Why only the user can say where to go on; nothing is fetched until then.
        self.undecided: KafkaException | None = None

    def restart(self) -> int:
        """Drop the fetched messages; the next fetch starts at the state's position. Returns the bytes given back."""
        freed = self.nbytes
        self.chunks.clear()
        self.records = self.nbytes = 0
        self.version += 1
        self.in_flight = False
        self.retry_at = 0.0
        self.state.forget_epochs_ahead()
        self.last_epoch = self.state.leader_epoch
        position = self.state.position
        self.fetch_offset = -1 if position is None or self.undecided is not None else position
        return freed

    def part_with(self) -> None:
        """Stop counting the messages that were handed out. Their holders see ``Message.fenced``."""
        old = self.context
        old.fenced = True
        self.context = PartitionContext(old.topic, old.partition_id, old.partition, self.topic_id)

    def belongs_to(self, topic_id: bytes) -> None:
        """Note the topic's id, to which the offsets and the messages fetched from now on belong."""
        self.topic_id = self.context.topic_id = topic_id

    def push(self, chunk: RecordChunk) -> None:
        """Append a chunk that was fetched at ``fetch_offset``.

        Nothing is fetched behind a damaged batch until it is skipped: the broker would send the same batch again and
        again.
        """
        self.fetch_offset = -1 if chunk.corrupt else chunk.next_fetch_offset
        self.last_epoch = -1 if chunk.corrupt else chunk.last_leader_epoch
        self.batch_bytes = max(chunk.batch_bytes, self.batch_bytes * 7 // 8)  # one large batch is forgotten in the end
        self.state.note_epochs(chunk.epochs)
        self._count(chunk, 1)
        self.chunks.append(chunk)

    def note_received(self, offset: int, last_epoch: int, batch_bytes: int) -> None:
        """Set what :meth:`push` sets, for chunks that a consuming thread has received."""
        self.fetch_offset, self.last_epoch, self.batch_bytes = offset, last_epoch, batch_bytes

    @property
    def frontier(self) -> int | None:
        """Where the chunks that wait here begin, or the next fetch; None when neither is known."""
        if self.chunks:
            return self.chunks[0].position
        return self.fetch_offset if self.fetch_offset >= 0 else None

    def unshift(self, chunk: RecordChunk) -> None:
        """Put a chunk back that was taken out and is not used up."""
        if not (self.chunks and self.chunks[0] is chunk):
            self.chunks.appendleft(chunk)
        # Counted anew: what took it out may have been interrupted at any line.
        self.records = sum(each.record_count for each in self.chunks)
        self.nbytes = sum(each.nbytes for each in self.chunks)

    def shift(self) -> RecordChunk:
        """Take the oldest chunk out; from here on it does not count as queued."""
        chunk = self.chunks.popleft()
        self._count(chunk, -1)
        return chunk

    def _count(self, chunk: RecordChunk, sign: int) -> None:
        self.records += sign * chunk.record_count
        self.nbytes += sign * chunk.nbytes


class FetchBuffer:
    """All partitions' queues, and whose turn it is."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        """``max_messages`` per partition and ``max_bytes`` in all; at either no more is fetched."""
        self.max_messages = max_messages
        #: The budget: how much each worker may fetch.
        self.room = Room(max_bytes)
        self.queues: OrderedDict[TopicPartition, PartitionQueue] = OrderedDict()
        self._turn: deque[PartitionQueue] = deque()
        #: Moves whenever a chunk was taken out or a partition became fetchable again: the fetchers may find work.
        self.pops = 0
        #: Moves whenever a partition comes or goes.
        self.members = 0
        #: Moves whenever a partition is to be fetched from another broker without new metadata.
        self.moves = 0

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self.queues.values())

    @property
    def nbytes(self) -> int:
        """Bytes queued (as they came from the broker, still compressed)."""
        return sum(queue.nbytes for queue in self.queues.values())

    @property
    def records(self) -> int:
        """Messages queued (an upper bound)."""
        return sum(queue.records for queue in self.queues.values())

    def add(self, tp: TopicPartition, state: TopicPartitionState, partition: Any) -> PartitionQueue:
        """Start to keep ``tp``; whatever was kept for it before is dropped."""
        self.drop([tp])
        self.members += 1
        queue = self.queues[tp] = PartitionQueue(tp, state, partition)
        return queue

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Forget partitions with everything that was fetched for them."""
        for tp in tps:
            queue = self.queues.pop(tp, None)
            if queue is not None:
                self.members += 1
                queue.version += 1
                queue.context.fenced = True
                for chunk in queue.chunks:
                    chunk.active = False
                queue.chunks.clear()
                if queue in self._turn:
                    self._turn.remove(queue)

    def restart(self, tp: TopicPartition) -> None:
        """Drop the fetched messages of ``tp``: its position has changed."""
        queue = self.queues.get(tp)
        if queue is not None:
            queue.restart()

    def accept(self, queue: PartitionQueue, version: int, chunk: RecordChunk) -> bool:
        """Take a fetched chunk; False if its partition was lost or moved in the meantime."""
        if queue.version != version or not queue.state.active or self.queues.get(queue.tp) is not queue:
            return False
        queue.push(chunk)
        self.room.note_chunk(chunk.unpack_bytes)
        if queue not in self._turn:
            self._turn.append(queue)
        # Last in the next request: a broker sends a batch that is larger than the fetch size only for the first
        # partition with data, and would never get to the others. One step, so that no signal comes in between.
        self.queues.move_to_end(queue.tp)
        return True

    def give_back(self, queue: PartitionQueue, chunk: RecordChunk, *, last: bool = False) -> None:
        """Put back a chunk that is not used up; it comes first again, or ``last``."""
        if self.queues.get(queue.tp) is queue:
            queue.unshift(chunk)
            if queue not in self._turn:
                (self._turn.append if last else self._turn.appendleft)(queue)
            if last:
                self._want()  # it may stay for long: the others go on

    def used_up(self, queue: PartitionQueue, chunk: RecordChunk) -> None:
        """``chunk`` was read to its end; behind one with damage fetching goes on only now."""
        self.room.note_end(chunk.unpack_bytes)
        self._tell_waiting()
        if chunk.corrupt and queue.fetch_offset < 0 and not queue.chunks:
            queue.fetch_offset = chunk.position
            self.pops += 1

    def fetch_again(self, queue: PartitionQueue) -> None:
        """Fetch again from the state's position on: a chunk that was taken out of ``queue`` is lost."""
        if self.queues.get(queue.tp) is queue and queue.state.active:
            queue.restart()
            self.pops += 1

    def peek(self) -> tuple[PartitionQueue, RecordChunk] | None:
        """The next chunk in turn, which stays here until :meth:`shift`.

        Every partition that has one comes before any comes twice.
        """
        turn = self._turn
        for _ in range(len(turn)):
            queue = turn[0]
            if not queue.chunks:
                turn.popleft()
            elif queue.state.is_fetchable():
                return queue, queue.chunks[0]
            else:
                turn.rotate(-1)
        self._want()
        return None

    def _want(self) -> None:
        """Note that none of the buffered messages can be handed out."""
        if not self.room.hungry:
            self.room.hungry = True
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Let workers that wait for room check again: there may be some."""
        if self.room.waiting:
            self.pops += 1

    def shift(self, queue: PartitionQueue) -> None:
        """Take out the chunk that :meth:`peek` has found."""
        queue.shift()
        self.pops += 1
        if not queue.chunks:
            self._turn.popleft()
        else:
            self._turn.rotate(-1)

    def pop(self) -> tuple[PartitionQueue, RecordChunk] | None:
        """:meth:`peek` and :meth:`shift`."""
        found = self.peek()
        if found is not None:
            self.shift(found[0])
        return found

    def holds_chunks(self) -> bool:
        """True if anything waits to be handed out, now or later."""
        return any(queue.chunks for queue in self._turn)

    def ready(self) -> bool:
        """True when :meth:`pop` would give a chunk."""
        return any(queue.chunks and queue.state.is_fetchable() for queue in self._turn)
