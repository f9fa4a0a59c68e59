"""Decides which messages start, which are finished, when failed ones are retried, which partitions wait. Pure.

The driver takes messages from the consumer and offers them; workers take strands and process them. Each strand has its
worker's progress. No method waits, and the class is not thread-safe: the consumer's lock is held around every call.
Only the worker that has a strand reads it, and writes its progress, without the lock.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import Any, Callable, Container, Sequence

from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.processing.seats import Seat
from managedconsumer.processing.strands import Gate, Part, State, Strand
from managedconsumer.processing.values import KEY, NONE, Plan
from managedconsumer.structs import TopicPartition

# Stop taking from a partition with more than 4 x the free capacity in flight, and resume below 2 x: a partition whose
# messages are stuck leaves capacity to the others.
_FULL_AT, _GOES_ON_AT = 4, 2
# Check which partitions can resume each time this fraction (1/n) of ``max_in_flight`` messages has finished.
_LOOKS = 32
#: The key of strands that are not sorted by keys.
_ALL = object()


class Work:
    """All messages that one ``run()`` has in flight."""

    def __init__(self, plan: Plan, map_room: int = 3800) -> None:
        """``map_room``: the most characters of a partition's map."""
        self._plan = plan
        self.map_room = map_room
        self.parts: dict[TopicPartition, Part] = {}
        self._ready: deque[Strand] = deque()
        self._timers: list[tuple[float, int, Strand]] = []
        self._numbers = count()
        self._shelved: set[TopicPartition] = set()
        # Running messages of revoked partitions, by key: if such a partition comes back, they run before new ones.
        self._left: dict[TopicPartition, dict[Any, Strand]] = {}
        self._full: set[TopicPartition] = set()
        # Messages finished since the last check which partitions can resume.
        self._unseen = 0
        #: Partitions whose ``full`` has changed; the driver removes them.
        self.turned: set[TopicPartition] = set()
        # Messages of any partition that wait for their batch to become full (order "none").
        self._mixed: Strand | None = None
        #: Grows when workers have to give back messages that they have not begun.
        self.era = 0
        self.ending = False
        self.in_hand = self.ready = self.parked = 0
        self.done = self.retried = self.dead = self.unfinished = 0

    # -- new messages---------------------------------------------------------------------------------

    def room(self) -> int:
        """How many messages may be taken now. Waiting messages of paused partitions use no capacity."""
        return 0 if self.ending else self._plan.max_in_flight - self.in_hand + self._set_aside()

    def _set_aside(self) -> int:
        parts = [part for tp in self._shelved if (part := self.parts.get(tp)) is not None] if self._shelved else []
        return sum(len(part.pending) for part in parts if part.gate.paused)

    def open(self, tp: TopicPartition, gate: Gate, skip: OffsetMap | None) -> Part:
        """Add a partition; ``skip``: the finished messages behind the committed offset, from the commit's map."""
        part = self.parts[tp] = Part(tp, gate, skip)
        part.strands = self._left.pop(tp, part.strands)
        for strand in part.strands.values():
            strand.part = part
        return part

    def offer(self, part: Part, messages: Sequence[Any], now: float) -> None:
        """Add messages of one partition, in order."""
        fresh = part.take(messages, now)
        self.in_hand += len(fresh)
        if self._plan.order == NONE:
            self._offer_single(part, fresh, now)
        elif self._plan.order == KEY:
            self._offer_keys(part, fresh, now)
        elif fresh:
            self._append(part, _ALL, list(fresh), now)
        self._look_whether_full(part)

    def _offer_keys(self, part: Part, messages: Sequence[Any], now: float) -> None:
        strands, ready = part.strands, self._ready
        batched = self._plan.batch is not None
        for message in messages:
            key = message.partition_key
            if key is not None:
                strand = strands.get(key)
                if strand is not None or batched:
                    self._append(part, key, [message], now)
                    continue
            elif batched:  # each is a key of its own: any of them may be in one batch
                self._offer_single(part, [message], now)
                continue
            strand = Strand(part, key, [message])
            self.ready += 1
            ready.append(strand)
            if key is not None:
                strands[key] = strand

    def _append(self, part: Part, key: Any, messages: list[Any], now: float) -> None:
        strand = part.strands.get(key)
        if strand is None:
            strand = part.strands[key] = Strand(part, key, messages)
            strand.since = now
            self._queue(strand)
            return
        if not strand.waiting:
            strand.since = now
        strand.waiting += messages
        if strand.state is State.READY:
            self.ready += len(messages)
        elif strand.state is State.FILLING:
            self._queue(strand)

    def _offer_single(self, part: Part, messages: Sequence[Any], now: float) -> None:
        batch = self._plan.batch
        if batch is None:
            self._ready.extend([Strand(part, None, [message]) for message in messages])
            self.ready += len(messages)
            return
        for message in messages:
            strand = self._mixed
            if strand is None:
                strand = self._mixed = Strand(part, None, [])
                strand.parts, strand.since = [], now
            strand.waiting.append(message)
            if strand.parts is not None:
                strand.parts.append(part)
            if len(strand.waiting) >= batch[0] or len(strand.waiting) == 1:
                self._queue(strand)

    def _queue(self, strand: Strand, *, first: bool = False) -> None:
        """Queue a strand that has messages and does not run: as ready, or until its batch is complete."""
        batch, waiting = self._plan.batch, len(strand.waiting)
        if batch is None or strand.same or waiting >= batch[0] or batch[1] <= 0.0:
            strand.state = State.READY
            self.ready += waiting
            (self._ready.appendleft if first else self._ready.append)(strand)
            if strand is self._mixed:
                self._mixed = None
        elif strand.state is not State.FILLING or strand.due != strand.since + batch[1]:
            strand.state = State.FILLING
            self._set_timer(strand, strand.since + batch[1])

    def _set_timer(self, strand: Strand, due: float) -> None:
        strand.due = due
        heapq.heappush(self._timers, (due, next(self._numbers), strand))

    # -- starting messages----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When to call :meth:`wake` next; None: no time is known."""
        return self._timers[0][0] if self._timers and not self.ending else None

    def wake(self, now: float) -> None:
        """Make messages ready whose pause, rebalance or retry time is over."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            due, _, strand = heapq.heappop(timers)
            if strand.due != due or strand.state not in (State.PARKED, State.FILLING):
                continue
            if strand.state is State.PARKED:
                self.parked -= 1
            elif strand is self._mixed:
                self._mixed = None
            strand.state = State.READY
            self.ready += len(strand.waiting)
            self._ready.append(strand)
        for tp in list(self._shelved):
            part = self.parts.get(tp)
            if part is None or not part.waits:
                self._shelved.discard(tp)
                if part is not None:
                    self._unshelve(part)

    def _unshelve(self, part: Part) -> None:
        for strand in part.shelf:
            strand.state = State.READY
            self.ready += len(strand.waiting)
        self._ready.extendleft(reversed(part.shelf))
        part.shelf = []

    def take(self, limit: int, now: float) -> list[Strand]:
        """Up to ``limit`` messages for one worker (with batches: batches), strand by strand."""
        if self._timers or self._shelved:
            self.wake(now)
        taken: list[Strand] = []
        batch, queue, running = self._plan.batch, self._ready, State.RUNNING
        while queue and limit > 0 and not self.ending:
            strand = queue.popleft()
            self.ready -= len(strand.waiting)
            if strand.parts is None:
                if not strand.part.alive:
                    continue
                if (gate := strand.part.gate).held or gate.paused:  # Part.waits, without a call
                    self._shelve(strand)
                    continue
            elif not self._sort_out(strand):
                continue
            waiting = strand.waiting
            size, most = len(waiting), limit if batch is None else strand.same or batch[0]
            if size <= most:
                strand.running, strand.waiting = waiting, strand.running  # that is empty
            else:
                strand.running = waiting[:most]
                del waiting[:most]
                strand.since, size = now, most
            strand.state = running
            limit -= size if batch is None else 1
            taken.append(strand)
        if not taken and (self._unseen or self._shelved):
            self._look_who_goes_on()
        return taken

    def _shelve(self, strand: Strand) -> None:
        strand.state = State.SHELVED
        strand.part.shelf.append(strand)
        self._shelved.add(strand.part.tp)

    def _sort_out(self, strand: Strand) -> bool:
        """Keep only the messages of several partitions that may start; False: none may."""
        pairs = list(zip(strand.waiting, strand.parts or (), strict=True))
        pairs = [(message, part) for message, part in pairs if part.alive]
        for part in {part for _, part in pairs if part.waits}:
            aside = Strand(part, None, [message for message, its in pairs if its is part])
            aside.parts = [part] * len(aside.waiting)
            aside.attempts, aside.same = strand.attempts, len(aside.waiting) if strand.same else 0
            self._shelve(aside)
        pairs = [(message, part) for message, part in pairs if not part.waits]
        strand.waiting, strand.parts = [message for message, _ in pairs], [part for _, part in pairs]
        strand.same = min(strand.same, len(pairs))
        return bool(pairs)

    # -- finished messages----------------------------------------------------------------------------

    def again(self, strand: Strand, place: int, error: BaseException) -> bool:
        """True if the message at ``place`` of ``strand``, which failed with ``error``, is to be tried again.

        Called by the worker that has the strand, without the lock.
        """
        retry = self._plan.retry
        return retry is not None and retry.again(error, 1 if place else strand.attempts + 1)

    def note(self, strand: Strand, dead: int = 0) -> int:
        """Note a worker's progress in ``strand``; the last ``dead`` messages are dead. Returns the newly finished."""
        seen = strand.seen
        ours = strand.settle()
        dead = min(ours, dead)
        self.in_hand -= ours
        self.done += ours - dead
        self.dead += dead
        self._note_finished(ours)
        return strand.seen - seen

    def take_back(self, strands: Sequence[Strand], now: float, chance: Callable[[], float] = lambda: 0.5) -> int:
        """Take strands back from workers: messages before a strand's ``place`` are finished, the rest waits again.

        ``chance()`` decides the jitter of a retry's pause. Returns the number of newly finished messages.
        """
        count = ours = 0
        for strand in strands:
            place = strand.place
            count += place - strand.seen
            ours += strand.settle()
            if place < len(strand.running):
                self._give_back(strand, now, chance)
            elif strand.waiting:
                strand.take_up()
                self._queue(strand)
            elif strand.key is not None:
                del strand.part.strands[strand.key]
        self.in_hand -= ours
        self.done += ours
        self._note_finished(ours)
        return count

    def collect(self, seats: Sequence[Seat], now: float, chance: Callable[[], float] = lambda: 0.5) -> None:
        """Note the progress of all workers of ``seats``, also in the middle of their blocks."""
        for seat in seats:
            if seat.through:
                seat.count += self.take_back(seat.hand_in(), now, chance)
            if seat.current is not None:
                seat.count += self.note(seat.current)

    def _give_back(self, strand: Strand, now: float, chance: Callable[[], float]) -> None:
        """Take back a strand with unfinished messages."""
        failed, rest = strand.failed, len(strand.running) - strand.place
        strand.take_up()
        strand.same = rest
        strand.sweep()
        if not strand.same:  # it belongs to an earlier assignment or position
            strand.attempts = 0
        rest = strand.same
        if failed and rest:
            self._park(strand, rest, now, chance())
        elif strand.waiting:
            strand.state = State.RUNNING
            strand.same = rest if self._plan.batch is not None and strand.attempts else 0
            self._queue(strand, first=bool(rest))
        elif strand.key is not None:
            del strand.part.strands[strand.key]

    def _park(self, strand: Strand, size: int, now: float, chance: float) -> None:
        strand.attempts += 1
        strand.same = size if self._plan.batch is not None else 0
        strand.state = State.PARKED
        self.retried += 1
        self.parked += 1
        retry = self._plan.retry
        self._set_timer(strand, now + (0.0 if retry is None else retry.pause(strand.attempts, chance)))

    # -- revoked partitions -----------------------------------------------------------------------------

    def interrupt(self) -> None:
        """A rebalance or the end begins: workers give back messages that they have not begun."""
        self.era += 1

    def forget(self, tps: Container[TopicPartition], beyond: int = 0) -> None:
        """Forget messages of ``tps`` in flight from the offset ``beyond`` on.

        0: the partitions were revoked, or moved by a seek. Otherwise their logs have other records there.
        """
        gone = [part for tp, part in self.parts.items() if tp in tps and (part.next > beyond or not beyond)]
        for part in gone:
            dropped = part.cut(beyond) if part.alive else 0  # else it was abandoned, and its messages were reported
            self.in_hand -= dropped
            self.unfinished += dropped
            if beyond:
                continue
            left = part.end()
            if left:
                self._left[part.tp] = left
            del self.parts[part.tp]
            self._shelved.discard(part.tp)
            if part.full:
                self._full.discard(part.tp)
                self.turned.add(part.tp)
        if gone:
            self._sweep()

    def _sweep(self) -> None:
        """Drop waiting messages of partitions that were lost or reset; the first message not begun comes back."""
        self.interrupt()
        self._ready = deque(strand for strand in self._ready if strand.left())
        self.ready = sum(len(strand.waiting) for strand in self._ready)
        self._timers = [entry for entry in self._timers if entry[2].left()]
        heapq.heapify(self._timers)
        self.parked = sum(1 for due, _, strand in self._timers if strand.state is State.PARKED and strand.due == due)
        if self._mixed is not None and not self._mixed.left():
            self._mixed = None
        for part in self.parts.values():
            part.sweep()
        self._left = {tp: strands for tp, strands in self._left.items() if strands}
        self._look_who_goes_on()

    def end(self) -> None:
        """Start no message any more; running ones may finish."""
        self.ending = True
        self.interrupt()

    def abandon(self) -> None:
        """Give up the messages that have not finished: their results do not count."""
        self.end()
        self.unfinished += self.in_hand
        self.in_hand = 0
        for part in self.parts.values():
            part.alive = False

    # -- offsets for commits ----------------------------------------------------------------------------

    def oldest(self) -> float | None:
        """When the oldest message in flight was taken (seconds); None: no message is in flight."""
        firsts = (part.since() for part in self.parts.values())
        return min((first for first in firsts if first is not None), default=None)

    def _look_whether_full(self, part: Part) -> None:
        held, room = len(part.pending), self._plan.max_in_flight - self.in_hand + self._set_aside()
        bound = (_GOES_ON_AT if part.full else _FULL_AT) * room
        full = held > 0 and (held >= bound or not part.map_fits(self.map_room))
        if full is not part.full:
            part.full = full
            (self._full.add if full else self._full.discard)(part.tp)
            self.turned.add(part.tp)

    def _note_finished(self, count: int) -> None:
        """Check now and then which partitions can resume. A worker without messages checks, too."""
        self._unseen += count
        if self._unseen * _LOOKS >= self._plan.max_in_flight:
            self._look_who_goes_on()

    def _look_who_goes_on(self) -> None:
        self._unseen = 0
        for tp in list(self._full):
            self._look_whether_full(self.parts[tp])
