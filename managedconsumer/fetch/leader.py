"""All decisions about fetching from one broker. Pure: the caller holds the consumer's lock.

A worker does the I/O and carries out the events. All decisions are made here: which partitions are asked for, whether
the last request is repeated, how long it may wait at the broker, when it is broken off for another one, and what an
answer, an error or an answer that is too large means for each partition.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Mapping, NamedTuple, Sequence, TypeAlias, cast

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch import request
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.refused import refused_batch
from managedconsumer.fetch.repeats import Line, Moved, Repeat
from managedconsumer.fetch.sessions import FetchSession
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.wire.records import RecordChunk

# How long (seconds) a partition rests after an error before it is asked for again.
_ERROR_REST = 0.1
# After so many seconds without a message a request may wait at the broker for so many ms: what Kafka's own consumers
# do by default. The first message ends the wait, and so does whatever else there is to ask for (:meth:`look_again`).
_QUIET_AFTER = 1.0
QUIET_WAIT_MS = 500
# An answer of at most so many bytes comes in one piece, and costs a consuming thread next to nothing to receive.
_SMALL_ANSWER = 12 * 1024
_LONGEST_NAP = 5.0


class FetchState(Enum):
    """Where a :class:`LeaderFetch` is."""

    RESTING = "resting"  # nothing is on its way: there is nothing to ask for, no room, or a pause after an error
    ASKING = "asking"  # a request is on its way
    PATIENT = "patient"  # a request is on its way that may wait long at the broker, as nothing came for a while
    LENT = "lent"  # a consuming thread repeats the request and receives its answers
    BROKEN_OFF = "broken off"  # such a request, which is given up as another one is needed now
    PARKED = "parked"  # the client's watch asks in its place
    ENDED = "ended"  # no partition is left for it


#: From which state to which others.
MOVES: Mapping[FetchState, frozenset[FetchState]] = {
    FetchState.RESTING: frozenset({FetchState.ASKING, FetchState.PATIENT, FetchState.ENDED}),
    FetchState.ASKING: frozenset({FetchState.RESTING, FetchState.LENT, FetchState.PARKED}),
    FetchState.PATIENT: frozenset({FetchState.RESTING, FetchState.LENT, FetchState.BROKEN_OFF, FetchState.PARKED}),
    FetchState.LENT: frozenset({FetchState.ASKING, FetchState.PATIENT}),
    FetchState.BROKEN_OFF: frozenset({FetchState.RESTING, FetchState.ASKING}),
    FetchState.PARKED: frozenset(),
    FetchState.ENDED: frozenset(),
}


class OutOfRange(NamedTuple):
    """The position of the partition is not in its log."""

    queue: PartitionQueue


class Truncated(NamedTuple):
    """The leader's log is another one from ``end_offset`` on than the one that was read (KIP-320)."""

    queue: PartitionQueue
    end_offset: int
    epoch: int


class Recreated(NamedTuple):
    """The topic was deleted and made anew; ``topic_id`` is the new one's."""

    queue: PartitionQueue
    topic_id: bytes | None


class TooLarge(NamedTuple):
    """A batch of the partition is too large to be received; reading it raises ``error``."""

    queue: PartitionQueue
    error: BaseException


class Fatal(NamedTuple):
    """The user must know of an error."""

    queue: PartitionQueue
    error: BaseException


class Signal(Enum):
    """Events that say nothing of one partition."""

    METADATA_OLD = "metadata is old"
    SOURCES_CHANGED = "sources changed"  # a partition is fetched from another broker now
    ROOM_FREED = "room freed"  # another worker's turn has come
    ROOM_WANTED = "room wanted"  # a worker has begun to wait for room


FetchEvent: TypeAlias = OutOfRange | Truncated | Recreated | TooLarge | Fatal | Signal


class Lent(NamedTuple):
    """A request in flight that a consuming thread repeats."""

    #: True if it may wait for long at the broker.
    patient: bool
    session_id: int
    session_epoch: int
    lines: list[Line]
    #: After so many seconds without a message a request may wait for so many ms; 0: for no longer than usual.
    quiet_after: float
    quiet_wait_ms: int


class LeaderFetch:
    """The decisions of one fetch worker. ``key``: the broker's id and the worker's number at it, of ``slots``."""

    def __init__(
        self, key: tuple[int, int], buffer: FetchBuffer, limits: fp.FetchLimits, backoff: Backoff, *, slots: int = 1
    ) -> None:
        """``backoff``: the pauses after a broker that cannot be reached."""
        self.key = key
        self.state = FetchState.RESTING
        #: When (handler's clock) the last message came.
        self.quiet_since = 0.0
        #: True: something has been put into the buffer, and the consuming threads have not been woken.
        self.must_wake = False
        #: True: when the last answer came, which was small, a consuming thread had nothing to do.
        self.starved = False
        self._buffer, self._limits, self._slots = buffer, limits, slots
        self._backoff = backoff
        self._session = FetchSession()
        self._repeat = Repeat()
        # The partitions that the next request has to name, if it repeats the last one; None: it is another one.
        self._moved: Moved | None = None
        self._may_be_patient = limits.min_bytes <= 1 and limits.max_wait_ms < QUIET_WAIT_MS
        # Offsets of answers that went past the high watermark which came with them, see :meth:`_past_watermark`.
        self._refetched: dict[TopicPartition, int] = {}

    def _move(self, state: FetchState) -> None:
        if state is not self.state:
            if state not in MOVES[self.state]:
                raise err.IllegalStateError(f"fetching from broker {self.key[0]}: {self.state.value} to {state.value}")
            self.state = state

    # -- asking ---------------------------------------------------------------------------------------

    def next_request(self, snapshot: ClusterSnapshot, now: float) -> tuple[fp.FetchPlan | None, Sequence[FetchEvent]]:
        """Return the next request, and the events to carry out first. No plan: see ``state`` and :meth:`next_deadline`.

        After a :class:`Recreated` it is to be called again.
        """
        again = self._repeat.again(self._buffer, snapshot, now, self.key)
        if again is not None:
            plan, self._moved = again
            self._move(self._how_patient(now))
            return plan, ()
        self._repeat.forget()
        self._moved, self.quiet_since = None, now
        self._move(FetchState.RESTING)
        events: list[FetchEvent] = []
        self._ask_leaders_again(now, events)
        mine = self._mine(snapshot)
        if not mine:
            self._move(FetchState.ENDED)
            return None, events
        events += [Recreated(q, snapshot.topics[q.tp.topic].topic_id) for q in mine if fp.recreated(q, snapshot)]
        if events and isinstance(events[-1], Recreated):
            return None, events
        return self._plan(mine, snapshot, now, events), events

    def _plan(
        self, mine: list[PartitionQueue], snapshot: ClusterSnapshot, now: float, events: list[FetchEvent]
    ) -> fp.FetchPlan | None:
        room = self._buffer.room
        waiting = room.waiting
        plan = fp.plan_fetch(self._buffer, mine, snapshot, self._limits, now, self.key)
        if room.waiting != waiting:
            events.append(Signal.ROOM_FREED if room.waiting < waiting else Signal.ROOM_WANTED)
        if plan is not None:
            if not self._limits.rack and plan.asks_leaders_for(mine):
                self._repeat.keep(plan, self._buffer, snapshot)
            self._move(FetchState.ASKING)
        return plan

    def _mine(self, snapshot: ClusterSnapshot) -> list[PartitionQueue]:
        node, slot = self.key
        mine = [q for q in self._buffer if fp.source_node(q, snapshot) == node]
        return mine if self._slots == 1 else [q for q in mine if q.tp.partition % self._slots == slot]

    def next_deadline(self, snapshot: ClusterSnapshot, now: float) -> float:
        """How long (seconds) to wait for the next request at most, while nothing is to be asked for."""
        return min([_LONGEST_NAP, *(q.retry_at - now for q in self._mine(snapshot) if q.retry_at > now)])

    def _ask_leaders_again(self, now: float, events: list[FetchEvent]) -> None:
        """Another replica may be the closest by now; only leaders know (KIP-392)."""
        for queue in self._buffer if self._limits.rack else ():
            if queue.read_replica >= 0 and now >= queue.replica_until and not queue.in_flight:
                queue.read_replica = -1
                self._sources_changed(events)

    def _sources_changed(self, events: list[FetchEvent]) -> None:
        self._buffer.moves += 1
        if Signal.SOURCES_CHANGED not in events:
            events.append(Signal.SOURCES_CHANGED)

    def body(self, plan: fp.FetchPlan, version: int) -> dict[str, Any]:
        """The request, which says what has changed since the last one where that is known."""
        if version < request.EPOCH_VERSION:
            request.forget_epochs(plan.body["topics"])
        body = None if self._moved is None else self._session.repeat(plan.body, self._moved)
        if body is None:
            body = self._session.shorten(plan.body, version)
        if self.state is FetchState.PATIENT:
            body["max_wait_ms"] = QUIET_WAIT_MS
        return body

    def whole_body(self, plan: fp.FetchPlan, version: int) -> dict[str, Any]:
        """The request once more, as the broker has forgotten the session (:meth:`accept` was False)."""
        return self._session.shorten(plan.body, version)

    @property
    def wait_ms(self) -> int:
        """How long the request that :meth:`body` has made may wait at the broker."""
        return self._limits.max_wait_ms + (QUIET_WAIT_MS if self.state is FetchState.PATIENT else 0)

    # -- how long to wait -----------------------------------------------------------------------------

    def quiet(self, now: float) -> bool:
        """True when nothing has come for a while, and the same is asked for again."""
        return not self._moved and now - self.quiet_since >= _QUIET_AFTER

    def _how_patient(self, now: float) -> FetchState:
        return FetchState.PATIENT if self._may_be_patient and self.quiet(now) else FetchState.ASKING

    @property
    def repeats(self) -> bool:
        """True if the request is the last one again, with the positions of now."""
        return self._moved is not None

    # -- lending: a consuming thread repeats the request (:mod:`managedconsumer.runtime.engine._inline`) ----------

    @property
    def lends(self) -> bool:
        """True if the answer may be received by a consuming thread: the last request again, and the thread waits."""
        return self.starved and self._moved is not None

    def lend(self, plan: fp.FetchPlan) -> Lent:
        """Lend the request in flight."""
        patient, session = self.state is FetchState.PATIENT, self._session
        self._move(FetchState.LENT)
        self._moved = []
        wait_ms = QUIET_WAIT_MS if self._may_be_patient else 0
        return Lent(patient, session.id, session.epoch, self._repeat.lines(plan), _QUIET_AFTER, wait_ms)

    def may_go_on(self, snapshot: ClusterSnapshot, quiet_since: float, now: float) -> bool:
        """True while a request that was lent is the one that is needed. ``quiet_since``: when the last message came."""
        self.quiet_since = max(self.quiet_since, quiet_since)
        return self._repeat.may_go_on(self._buffer, snapshot, now)

    def returned(
        self, plan: fp.FetchPlan, places: Sequence[tuple[int, int]], *, epoch: int, patient: bool, quiet_since: float
    ) -> None:
        """The request is back: ``places`` has for each partition the offset and the epoch that the broker knows of.

        ``epoch`` is the session's in the request in flight, ``patient`` whether that may wait for long.
        """
        self._moved = self._repeat.moved_to(plan, places)
        self._session.moved_to(epoch, self._moved)
        self.quiet_since = max(self.quiet_since, quiet_since)
        self._move(FetchState.PATIENT if patient else FetchState.ASKING)

    def look_again(self) -> bool:
        """Something has changed outside. False: another request is needed than the one that is on its way, if any.

        A request that may wait long at the broker is to be broken off then: its state is BROKEN_OFF.
        """
        if self._repeat.holds(self._buffer):
            return True
        if self.state is FetchState.PATIENT:
            self._move(FetchState.BROKEN_OFF)
        return False

    def park(self, plan: fp.FetchPlan) -> None:
        """``plan`` is asked by the client's watch from here on."""
        self._move(FetchState.PARKED)
        fp.release(plan, 0.0)

    # -- connections ----------------------------------------------------------------------------------

    def connected(self) -> None:
        """The next request goes over a new connection, whose broker knows of no session."""
        self._session.reset()
        if self.state is FetchState.BROKEN_OFF:
            self._move(FetchState.ASKING)

    def forget(self) -> None:
        """The last request says nothing about the next."""
        self._repeat.forget()

    def accept(self, answer: Mapping[str, Any]) -> bool:
        """Take note of the session in ``answer``; False: it is gone, and :meth:`whole_body` is to be asked."""
        return self._session.accept(answer)

    def failed(self, plan: fp.FetchPlan, error: err.KafkaException, now: float) -> Sequence[FetchEvent] | None:
        """No answer came. None: it was broken off, and the next request follows at once."""
        broken_off = self.state is FetchState.BROKEN_OFF
        self._move(FetchState.RESTING)
        if broken_off and isinstance(error, err.SocketDisconnectedError):
            fp.release(plan, 0.0)
            return None
        events: list[FetchEvent] = []
        fp.failed(plan, now, now + self._backoff.fail(now))
        self._sources_changed(events)
        return events

    def succeeded(self) -> None:
        """The broker has answered."""
        self._backoff.succeed()

    def failed_over(self, plan: fp.FetchPlan, snapshot: ClusterSnapshot) -> Sequence[FetchEvent]:
        """There is new metadata after a failure: partitions that have another leader by now do not wait."""
        fp.ask_new_leaders(plan, self.key[0], snapshot)
        events: list[FetchEvent] = []
        self._sources_changed(events)
        return events

    # -- answers --------------------------------------------------------------------------------------

    def answered(self, plan: fp.FetchPlan) -> None:
        """The answer came: its partitions may be asked for again, and its reserved room is free."""
        self._move(FetchState.RESTING)
        fp.answered(plan)

    def receive(
        self, results: Sequence[fp.PartitionResult], snapshot: ClusterSnapshot, now: float, *, leaders_again: float
    ) -> Sequence[FetchEvent]:
        """Take over all parts of an answer.

        ``leaders_again``: when (handler's clock) a leader is asked again which replica is the closest.
        """
        self._move(FetchState.RESTING)
        events: list[FetchEvent] = []
        for result in results:
            queue, chunk = result.queue, result.chunk
            if queue.version == result.version and queue.state.active:
                if chunk is None:
                    self._take_error(result, now, events)
                else:
                    self._follow(queue, result.answer, snapshot, now, leaders_again, events)
                    if not self._take_data(queue, chunk, result, now):
                        result.outcome = fp.Outcome.RETRY
                        result.error = err.KafkaException("offsets beyond the log's end")
            if chunk is None or chunk.nbytes:  # an idle topic's answers wake nobody
                self.must_wake, self.quiet_since = True, now
        return events

    def note_size(self, results: Sequence[fp.PartitionResult], waiting: bool) -> None:
        """``waiting``: a consuming thread had nothing to do when this answer came."""
        self.starved = waiting and sum(r.chunk.nbytes for r in results if r.chunk is not None) <= _SMALL_ANSWER

    def _take_error(self, result: fp.PartitionResult, now: float, events: list[FetchEvent]) -> None:
        queue, outcome = result.queue, result.outcome
        if outcome is fp.Outcome.TRUNCATED:
            diverging = result.answer["diverging_epoch"]
            events.append(Truncated(queue, diverging["end_offset"], diverging["epoch"]))
            return
        queue.retry_at = now + _ERROR_REST
        follower = queue.read_replica >= 0
        if follower:
            fp.leave_replica(queue, now)
            self._sources_changed(events)
        if outcome is fp.Outcome.RESET and not follower:  # a follower may lag behind (KIP-392): the leader decides
            events.append(OutOfRange(queue))
        elif outcome is fp.Outcome.RAISE:
            events.append(Fatal(queue, result.error or err.UnknownError()))
        elif outcome is fp.Outcome.REFRESH and Signal.METADATA_OLD not in events:
            events.append(Signal.METADATA_OLD)

    def _follow(
        self,
        queue: PartitionQueue,
        answer: Mapping[str, Any],
        snapshot: ClusterSnapshot,
        now: float,
        until: float,
        events: list[FetchEvent],
    ) -> None:
        """Take note of the log's ends, and go to the replica that the leader prefers for us."""
        state = queue.state
        state.highwater = answer["high_watermark"]
        state.last_stable = answer.get("last_stable_offset", -1)
        state.log_start = answer.get("log_start_offset", -1)
        preferred = answer.get("preferred_read_replica", -1)
        if preferred >= 0 and preferred != queue.read_replica:
            fp.go_to_replica(queue, preferred, until, snapshot, now)
            self._sources_changed(events)

    def _take_data(self, queue: PartitionQueue, chunk: RecordChunk, result: fp.PartitionResult, now: float) -> bool:
        """False: the data is not accepted and must be fetched again."""
        if chunk.next_fetch_offset > result.answer["high_watermark"] >= 0:
            return self._past_watermark(queue, chunk.fetch_offset, now)
        if self._refetched:
            self._refetched.pop(queue.tp, None)
        if chunk.record_count or chunk.corrupt or chunk.next_fetch_offset > chunk.fetch_offset:
            self._buffer.accept(queue, result.version, chunk)
        return True

    def _past_watermark(self, queue: PartitionQueue, offset: int, now: float) -> bool:
        """Records above the reported high watermark. First time: fetch again at once (True). Again: back off (False).

        Kafka's checksum does not cover a batch's base offset, and a wrong one would skip messages. But a broker reads
        the high watermark before the log, so records that were written in between are above it and sound: the second
        answer has them below it.
        """
        if self._refetched.get(queue.tp) == offset:
            queue.retry_at = now + _ERROR_REST
            return False
        self._refetched[queue.tp] = offset
        return True

    def too_large(self, plan: fp.FetchPlan, error: err.FrameTooLargeError) -> Sequence[FetchEvent] | None:
        """The answer is too large to be received: find out for which partition, and let its reader know. The others go
        on. None: it was no answer.

        A broker sends the first batch whole, however large (KIP-74), so it is one partition's.
        """
        self._move(FetchState.RESTING)
        ticket = fp.separate(plan)
        if ticket is None:
            return ()
        queue, version, offset = ticket
        batch = refused_batch(queue.context, offset, error, "fetch_message_max_bytes")
        if batch is None:
            return None
        # The buffer and the collector see the interface only.
        self._buffer.accept(queue, version, cast("RecordChunk", batch))
        return [TooLarge(queue, batch.error)]

    def end(self, plan: fp.FetchPlan | None) -> None:
        """The worker ends: what it may have fetched, and its place in the line, are for the others."""
        if plan is not None:
            fp.release(plan, 0.0)
        self._buffer.room.leave(self.key)
