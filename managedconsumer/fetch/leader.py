"""All decisions about fetching from one broker. Pure: the caller holds the consumer's lock.

A worker does the I/O and carries out the events. This module decides which partitions to request, whether to repeat
the last request, how long it may wait at the broker, when to cancel it for another one, and what a response, an error
or a response that is too large means for each partition.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Mapping, NamedTuple, Sequence, TypeAlias

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.request import FetchSession, Moved
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.wire.records import RecordChunk

# Pause (seconds) before a partition is fetched again after an error.
_ERROR_REST = 0.1
# After so many seconds without a message a request may wait at the broker for so many ms (the default of Kafka's own
# consumers). The first message ends the wait, and so does the need for another request (:meth:`look_again`).
_QUIET_AFTER = 1.0
QUIET_WAIT_MS = 500
# A response of at most so many bytes arrives in one piece; a consuming thread can receive it at almost no cost.
_SMALL_ANSWER = 12 * 1024
_LONGEST_NAP = 5.0


class FetchState(Enum):
    """The states of a :class:`LeaderFetch`."""

    RESTING = "resting"  # no request in flight: nothing to fetch, no memory, or a pause after an error
    ASKING = "asking"  # a request is in flight
    PATIENT = "patient"  # a long poll is in flight: no message came for a while
    LENT = "lent"  # a consuming thread repeats the request and receives its answers
    BROKEN_OFF = "broken off"  # the long poll is cancelled, because another request is needed now
    DELEGATED = "delegated"  # the client's long poll fetches in its place
    ENDED = "ended"  # it has no partition left


#: The allowed transitions between states.
MOVES: Mapping[FetchState, frozenset[FetchState]] = {
    FetchState.RESTING: frozenset({FetchState.ASKING, FetchState.PATIENT, FetchState.ENDED}),
    FetchState.ASKING: frozenset({FetchState.RESTING, FetchState.LENT, FetchState.DELEGATED}),
    FetchState.PATIENT: frozenset({FetchState.RESTING, FetchState.LENT, FetchState.BROKEN_OFF, FetchState.DELEGATED}),
    FetchState.LENT: frozenset({FetchState.ASKING, FetchState.PATIENT}),
    FetchState.BROKEN_OFF: frozenset({FetchState.RESTING, FetchState.ASKING}),
    FetchState.DELEGATED: frozenset(),
    FetchState.ENDED: frozenset(),
}


class OutOfRange(NamedTuple):
    """The position of the partition is not in its log."""

    queue: PartitionQueue


class Truncated(NamedTuple):
    """From ``end_offset`` on the leader's log differs from the one that was read (KIP-320)."""

    queue: PartitionQueue
    end_offset: int
    epoch: int


class Recreated(NamedTuple):
    """The topic was deleted and created again; ``topic_id`` is the new topic's."""

    queue: PartitionQueue
    topic_id: bytes | None


class TooLarge(NamedTuple):
    """A batch of the partition is too large to be received; reading it raises ``error``."""

    queue: PartitionQueue
    error: err.RecordTooLargeError


class Fatal(NamedTuple):
    """An error to raise for the user."""

    queue: PartitionQueue
    error: BaseException


class Signal(Enum):
    """Events that concern no single partition."""

    METADATA_OLD = "metadata is old"
    SOURCES_CHANGED = "sources changed"  # a partition moved to another broker
    BUDGET_FREED = "budget freed"  # another worker may reserve memory
    BUDGET_WANTED = "budget wanted"  # a worker has begun to wait for memory


FetchEvent: TypeAlias = OutOfRange | Truncated | Recreated | TooLarge | Fatal | Signal


class Lent(NamedTuple):
    """A request in flight that a consuming thread repeats."""

    #: True for a long poll.
    patient: bool
    session_id: int
    session_epoch: int
    #: For each partition its queue and version, topic id, number, leader epoch, fetch offset, last epoch, most bytes.
    lines: list[tuple[PartitionQueue, int, bytes, int, int, int, int, int]]
    #: After so many seconds without a message a request may wait for so many ms; 0: no longer than usual.
    quiet_after: float
    quiet_wait_ms: int


class LeaderFetch:
    """The decisions of one fetch worker. ``key``: the broker's id and the worker's number (below ``slots``)."""

    def __init__(
        self,
        key: tuple[int, int],
        buffer: FetchBuffer,
        limits: fp.FetchLimits,
        backoff: Backoff,
        *,
        slots: int = 1,
        sessions: bool = True,
    ) -> None:
        """``backoff``: the pauses while the broker cannot be reached. ``sessions``: see :class:`FetchSession`."""
        self.key = key
        self.state = FetchState.RESTING
        #: When (handler's clock) the last message came.
        self.quiet_since = 0.0
        #: True: the buffer has new messages, and the consuming threads have not been woken yet.
        self.must_wake = False
        #: True: the last response was small, and a consuming thread was waiting for it.
        self.starved = False
        self._buffer, self._limits, self._slots = buffer, limits, slots
        self._backoff = backoff
        self._session = FetchSession(used=sessions)
        # The last request, if it may be repeated: it has all partitions of the worker, each fetched from its leader.
        self._last: fp.FetchPlan | None = None
        # The changed partitions of the next request, if it repeats the last one; None: it does not.
        self._moved: Moved | None = None
        self._may_be_patient = limits.min_bytes <= 1 and limits.max_wait_ms < QUIET_WAIT_MS
        # Offsets of responses that went past their own high watermark, see :meth:`_past_watermark`.
        self._refetched: dict[TopicPartition, int] = {}

    def _move(self, state: FetchState) -> None:
        if state is not self.state:
            if state not in MOVES[self.state]:
                raise err.IllegalStateError(f"fetching from broker {self.key[0]}: {self.state.value} to {state.value}")
            self.state = state

    # -- requests -------------------------------------------------------------------------------------

    def next_request(self, snapshot: ClusterSnapshot, now: float) -> tuple[fp.FetchPlan | None, Sequence[FetchEvent]]:
        """Return the next request, and the events to carry out first. No plan: see ``state`` and :meth:`next_deadline`.

        After a :class:`Recreated` call it again.
        """
        self._moved = None if self._last is None else self._last.again(snapshot, now, self.key)
        if self._moved is not None:
            self._move(FetchState.PATIENT if self._may_be_patient and self.quiet(now) else FetchState.ASKING)
            return self._last, ()
        self._last, self.quiet_since = None, now
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
        budget = self._buffer.budget
        waiting = budget.waiting
        plan = fp.plan_fetch(self._buffer, mine, snapshot, self._limits, now, self.key)
        if budget.waiting != waiting:
            events.append(Signal.BUDGET_FREED if budget.waiting < waiting else Signal.BUDGET_WANTED)
        if plan is not None:
            if plan.whole and not self._limits.rack and plan.asks_leaders_for(mine):
                self._last = plan
            self._move(FetchState.ASKING)
        return plan

    def _mine(self, snapshot: ClusterSnapshot) -> list[PartitionQueue]:
        node, slot = self.key
        mine = [q for q in self._buffer if fp.source_node(q, snapshot) == node]
        return mine if self._slots == 1 else [q for q in mine if q.tp.partition % self._slots == slot]

    def next_deadline(self, snapshot: ClusterSnapshot, now: float) -> float:
        """The longest wait (seconds) before :meth:`next_request` may have a plan again."""
        return min([_LONGEST_NAP, *(q.retry_at - now for q in self._mine(snapshot) if q.retry_at > now)])

    def _ask_leaders_again(self, now: float, events: list[FetchEvent]) -> None:
        """Fetch from leaders again: another replica may be the closest by now, and only leaders know (KIP-392)."""
        for queue in self._buffer if self._limits.rack else ():
            if queue.read_replica >= 0 and now >= queue.replica_until and not queue.in_flight:
                queue.read_replica = -1
                self._sources_changed(events)

    def _sources_changed(self, events: list[FetchEvent]) -> None:
        self._buffer.moves += 1
        if Signal.SOURCES_CHANGED not in events:
            events.append(Signal.SOURCES_CHANGED)

    def body(self, plan: fp.FetchPlan, version: int) -> dict[str, Any]:
        """The body of the request, also again after :meth:`accept` was False."""
        body = self._session.body(plan.body, version, self._moved)
        if self.state is FetchState.PATIENT:
            body["max_wait_ms"] = QUIET_WAIT_MS
        return body

    @property
    def wait_ms(self) -> int:
        """How long (ms) the request made by :meth:`body` may wait at the broker."""
        return self._limits.max_wait_ms + (QUIET_WAIT_MS if self.state is FetchState.PATIENT else 0)

    # -- how long to wait -----------------------------------------------------------------------------

    def quiet(self, now: float) -> bool:
        """True when no message came for a while and the request repeats the last one."""
        return not self._moved and now - self.quiet_since >= _QUIET_AFTER

    @property
    def repeats(self) -> bool:
        """True if the request repeats the last one with the present positions."""
        return self._moved is not None

    # -- lending: a consuming thread repeats the request (:mod:`managedconsumer.runtime.engine._inline`) ----------

    @property
    def lends(self) -> bool:
        """True if a consuming thread may receive the response: it waits, and the request repeats the last one."""
        return self.starved and self._moved is not None

    def lend(self, plan: fp.FetchPlan) -> Lent:
        """Lend the request in flight."""
        patient, session = self.state is FetchState.PATIENT, self._session
        self._move(FetchState.LENT)
        self._moved = []
        lines = []
        for line in plan.lines:
            entry = line.entry
            place = (entry["current_leader_epoch"], line.offset, line.last_epoch, entry["partition_max_bytes"])
            lines.append((line.queue, line.version, line.key[1], line.key[2], *place))
        wait_ms = QUIET_WAIT_MS if self._may_be_patient else 0
        return Lent(patient, session.id, session.epoch, lines, _QUIET_AFTER, wait_ms)

    def may_go_on(self, snapshot: ClusterSnapshot, quiet_since: float, now: float) -> bool:
        """True while no request other than the lent one is needed. ``quiet_since``: when the last message came."""
        self.quiet_since = max(self.quiet_since, quiet_since)
        return self._last is not None and self._last.may_go_on(snapshot, now)

    def returned(
        self, plan: fp.FetchPlan, places: Sequence[tuple[int, int]], *, epoch: int, patient: bool, quiet_since: float
    ) -> None:
        """Take the request back. ``places``: for each partition the offset and the epoch in the broker's session.

        ``epoch``: the session epoch of the request in flight; ``patient``: True for a long poll.
        """
        self._moved = plan.moved_to(places)
        self._session.moved_to(epoch, self._moved)
        self.quiet_since = max(self.quiet_since, quiet_since)
        self._move(FetchState.PATIENT if patient else FetchState.ASKING)

    def look_again(self) -> bool:
        """Check again after a change outside. False: another request is needed than the one in flight, if any.

        The caller cancels a long poll then: the state is BROKEN_OFF.
        """
        if self._last is not None and self._last.holds():
            return True
        if self.state is FetchState.PATIENT:
            self._move(FetchState.BROKEN_OFF)
        return False

    def delegate(self, plan: fp.FetchPlan) -> None:
        """Leave ``plan`` to the client's long poll from here on."""
        self._move(FetchState.DELEGATED)
        plan.release()

    # -- connections ----------------------------------------------------------------------------------

    def connected(self) -> None:
        """Note a new connection: the broker has no session for it."""
        self._session.reset()
        if self.state is FetchState.BROKEN_OFF:
            self._move(FetchState.ASKING)

    def accept(self, answer: Mapping[str, Any]) -> bool:
        """Note the session in ``answer``; False: it is gone, and the caller sends :meth:`body` again.

        Raises the error of the whole response, if it has another one.
        """
        return self._session.accept(answer)

    def failed(self, plan: fp.FetchPlan, error: err.KafkaException, now: float) -> Sequence[FetchEvent] | None:
        """Note that no response came. Returns None if the request was cancelled: the next one follows at once."""
        broken_off = self.state is FetchState.BROKEN_OFF
        self._move(FetchState.RESTING)
        if broken_off and isinstance(error, err.SocketDisconnectedError):
            plan.release()
            return None
        plan.failed(now, now + self._backoff.fail(now))
        self._buffer.moves += 1
        return [Signal.SOURCES_CHANGED]

    def released(self, plan: fp.FetchPlan, snapshot: ClusterSnapshot) -> Sequence[FetchEvent]:
        """Note that ``plan`` is not in flight any more: other workers may wait for its memory or its partitions.

        A leader may have changed meanwhile. Its worker has seen the partition in flight here, and sleeps.
        """
        if plan.ask_new_leaders(self.key[0], snapshot):
            self._buffer.moves += 1
            return [Signal.SOURCES_CHANGED]
        return [Signal.BUDGET_FREED] if self._buffer.budget.waiting else ()

    # -- responses --------------------------------------------------------------------------------------

    def receive(
        self,
        plan: fp.FetchPlan,
        results: Sequence[fp.PartitionResult],
        snapshot: ClusterSnapshot,
        now: float,
        *,
        leaders_again: float,
        waiting: bool = False,
    ) -> Sequence[FetchEvent]:
        """Take over all partitions of the response to ``plan``, and release its reserved memory.

        ``leaders_again``: when (handler's clock) to fetch from a leader again, which names the closest replica.
        ``waiting``: a consuming thread was waiting for this response.
        """
        self._backoff.succeed()
        plan.answered()
        self._move(FetchState.RESTING)
        events: list[FetchEvent] = []
        for result in results:
            queue, chunk = result.queue, result.chunk
            if queue.version == result.version and queue.state.active:
                if chunk is None:
                    self._take_error(result, now, events)
                else:
                    self._note_ends(queue, result.answer)
                    preferred = result.answer.get("preferred_read_replica", -1)
                    if preferred >= 0 and preferred != queue.read_replica:  # the closest to this consumer
                        fp.go_to_replica(queue, preferred, leaders_again, snapshot, now)
                        self._sources_changed(events)
                    if not self._take_data(queue, chunk, result, now):
                        result.outcome = fp.Outcome.RETRY
                        result.error = err.KafkaException("offsets beyond the log's end")
            if chunk is None or chunk.nbytes:  # empty responses of an idle topic wake no thread
                self.must_wake, self.quiet_since = True, now
        self.starved = waiting and sum(r.chunk.nbytes for r in results if r.chunk is not None) <= _SMALL_ANSWER
        return events

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

    def _note_ends(self, queue: PartitionQueue, answer: Mapping[str, Any]) -> None:
        state = queue.state
        state.highwater = answer["high_watermark"]
        state.last_stable = answer.get("last_stable_offset", -1)
        state.log_start = answer.get("log_start_offset", -1)

    def _take_data(self, queue: PartitionQueue, chunk: RecordChunk, result: fp.PartitionResult, now: float) -> bool:
        """Buffer the data; False: it was not accepted and must be fetched again."""
        if chunk.next_fetch_offset > result.answer["high_watermark"] >= 0:
            return self._past_watermark(queue, chunk.fetch_offset, now)
        if self._refetched:
            self._refetched.pop(queue.tp, None)
        if chunk.record_count or chunk.corrupt or chunk.next_fetch_offset > chunk.fetch_offset:
            self._buffer.accept(queue, result.version, chunk)
        return True

    def _past_watermark(self, queue: PartitionQueue, offset: int, now: float) -> bool:
        """Handle records above the reported high watermark: at first fetch again at once (True), then back off (False).

        Kafka's checksum does not cover a batch's base offset, and a wrong one would skip messages. But a broker reads
        the high watermark before the log, so records that were written in between are above it and valid: the second
        response has them below it.
        """
        if self._refetched.get(queue.tp) == offset:
            queue.retry_at = now + _ERROR_REST
            return False
        self._refetched[queue.tp] = offset
        return True

    def too_large(self, plan: fp.FetchPlan, error: err.FrameTooLargeError) -> Sequence[FetchEvent] | None:
        """The response is too large to receive: find its partition, and raise the error for its reader. The others
        continue. None: it was no response.

        A broker sends the first batch whole, however large (KIP-74), so it is one partition's.
        """
        self._move(FetchState.RESTING)
        line = plan.separate()
        if line is None:
            return ()
        from managedconsumer.fetch.refused import refused_batch

        queue = line.queue
        batch = refused_batch(queue.context, line.offset, error, self._limits.size_option)
        if batch is None:
            return None
        self._buffer.accept(queue, line.version, batch)
        return [TooLarge(queue, batch.error)]

    def end(self, plan: fp.FetchPlan | None) -> None:
        """End the worker: release its partitions, its reserved memory and its place in the queue for memory."""
        if plan is not None:
            plan.release()
        self._buffer.budget.leave(self.key)
