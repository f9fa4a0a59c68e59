"""Fetched messages that wait for delivery, by partition and in order; bounded in messages and bytes.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Iterable, Iterator

from managedconsumer.errors import KafkaException
from managedconsumer.fetch.budget import FetchBudget
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import TopicPartitionState
from managedconsumer.wire.records import PartitionContext, RecordChunk


class PartitionQueue:
    """The fetched chunks of one assigned partition, and the offset of its next fetch.

    ``version`` changes with every seek, reset and pause: a response counts only under the version of its request.
    """

    __slots__ = (
        *("alone", "batch_bytes", "chunks", "context", "fetch_offset", "in_flight", "last_epoch", "leader_until"),
        *("nbytes", "read_replica", "records", "replica_until", "retry_at", "state", "topic_handed_out", "topic_id"),
        *("tp", "undecided", "version"),
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
        #: True: fetch it in a separate request until a response comes, because the last one was too large to receive.
        self.alone = False
        #: Size (bytes) of the largest batch received, still compressed; 0: none yet.
        self.batch_bytes = 0
        #: The follower to fetch from (KIP-392; -1: the leader), until when, and until when only the leader may serve.
        self.read_replica = -1
        self.replica_until = 0.0
        self.leader_until = 0.0
        #: Leader epoch of the batch before ``fetch_offset`` (KIP-320), -1: unknown.
        self.last_epoch = -1
        #: Id of the topic that ``fetch_offset`` belongs to; None: not known yet.
        self.topic_id: bytes | None = None
        #: The topic id of the messages that were delivered last.
        self.topic_handed_out: bytes | None = None
        #: The error after which only the user can set a position; the consumer fetches nothing until then.
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
        """Stop counting the delivered messages. The threads that have them see ``Message.fenced``."""
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
        # The estimate shrinks again after one large batch.
        self.batch_bytes = max(chunk.batch_bytes, self.batch_bytes * 7 // 8)
        self.state.note_epochs(chunk.epochs)
        self._count(chunk, 1)
        self.chunks.append(chunk)

    @property
    def frontier(self) -> int | None:
        """The first offset buffered here, or else the offset of the next fetch; None when neither is known."""
        if self.chunks:
            return self.chunks[0].position
        return self.fetch_offset if self.fetch_offset >= 0 else None

    def unshift(self, chunk: RecordChunk) -> None:
        """Put back a chunk that was taken out and has messages left."""
        if not (self.chunks and self.chunks[0] is chunk):
            self.chunks.appendleft(chunk)
        # Count again: a signal may have interrupted the call that took it out at any line.
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
    """The queues of all partitions, and which partition is next."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        """``max_messages`` per partition and ``max_bytes`` in all; fetching stops at either bound."""
        self.max_messages = max_messages
        #: The budget: how much each worker may fetch.
        self.budget = FetchBudget(max_bytes)
        self.queues: OrderedDict[TopicPartition, PartitionQueue] = OrderedDict()
        self._turn: deque[PartitionQueue] = deque()
        #: Grows when a chunk was taken out or a partition became fetchable: fetch workers check again.
        self.pops = 0
        #: Grows when a partition is added or removed.
        self.members = 0
        #: Grows when a partition moves to another broker without new metadata.
        self.moves = 0

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self.queues.values())

    @property
    def nbytes(self) -> int:
        """Bytes queued (still compressed)."""
        return sum(queue.nbytes for queue in self)

    @property
    def records(self) -> int:
        """Messages queued (an upper bound)."""
        return sum(queue.records for queue in self)

    def add(self, tp: TopicPartition, state: TopicPartitionState, partition: Any) -> PartitionQueue:
        """Add ``tp`` with an empty queue; drop the queue that it had before."""
        self.drop([tp])
        self.members += 1
        queue = self.queues[tp] = PartitionQueue(tp, state, partition)
        return queue

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Remove partitions and their fetched messages."""
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
        self.budget.note_chunk(chunk.unpack_bytes)
        if queue not in self._turn:
            self._turn.append(queue)
        # Move it to the end of the next request: a broker sends a batch that is larger than the fetch size only for
        # the first partition with data, and would never reach the others. One step, so that no signal interrupts it.
        self.queues.move_to_end(queue.tp)
        return True

    def give_back(self, queue: PartitionQueue, chunk: RecordChunk, *, last: bool = False) -> None:
        """Put back a chunk that has messages left, as the first in turn, or ``last``."""
        if self.queues.get(queue.tp) is queue:
            queue.unshift(chunk)
            if queue not in self._turn:
                (self._turn.append if last else self._turn.appendleft)(queue)
            if last:
                self._want()  # it may stay for long: the other partitions continue

    def used_up(self, queue: PartitionQueue, chunk: RecordChunk) -> None:
        """Note that ``chunk`` was read to its end. Behind a damaged chunk fetching resumes only now."""
        self.budget.note_end(chunk.unpack_bytes)
        self._tell_waiting()
        if chunk.corrupt and queue.fetch_offset < 0 and not queue.chunks:
            queue.fetch_offset = chunk.position
            self.pops += 1

    def fetch_again(self, queue: PartitionQueue) -> None:
        """Fetch again from the state's position: a chunk that was taken out of ``queue`` is lost."""
        if self.queues.get(queue.tp) is queue and queue.state.active:
            queue.restart()
            self.pops += 1

    def peek(self) -> tuple[PartitionQueue, RecordChunk] | None:
        """Return the next chunk in turn; it stays here until :meth:`shift`.

        Round robin: each partition with a chunk gets its turn before any gets a second one.
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
        """Note that no buffered message can be delivered now."""
        if not self.budget.hungry:
            self.budget.hungry = True
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Let workers that wait for memory check again."""
        if self.budget.waiting:
            self.pops += 1

    def shift(self, queue: PartitionQueue) -> None:
        """Take out the chunk that :meth:`peek` returned."""
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
        """True if any message is buffered, also of suspended or paused partitions."""
        return any(queue.chunks for queue in self._turn)

    def ready(self) -> bool:
        """True when :meth:`pop` would return a chunk."""
        return any(queue.chunks and queue.state.is_fetchable() for queue in self._turn)
