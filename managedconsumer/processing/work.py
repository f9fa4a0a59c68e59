"""Decides which messages start, which are finished, when failed ones are retried, which partitions wait. Pure.

The driver takes messages from the consumer and offers them; workers take key queues and process them. Each key queue
has its worker's progress. No method waits, and the class is not thread-safe: the consumer's lock is held around every
call. Only the worker that has a key queue reads it, and writes its progress, without the lock.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import Any, Callable, Container, Sequence

from managedconsumer.processing.key_queues import Fetchable, KeyQueue, PartitionWork, State
from managedconsumer.processing.merge import Merge, Sources
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.processing.pace import Throttle
from managedconsumer.processing.values import ALL, KEY, NONE, PARTITION, TIME, Plan
from managedconsumer.processing.worker_slots import WorkerSlot
from managedconsumer.structs import TopicPartition

# Stop taking from a partition with more than 4 x the free capacity in flight, and resume below 2 x: a partition whose
# messages are stuck leaves capacity to the others.
_FULL_AT, _GOES_ON_AT = 4, 2
# Check which partitions can resume each time this fraction (1/n) of ``max_in_flight`` messages has finished.
_LOOKS = 32
#: The key of key queues that are not sorted by keys.
_ALL = object()


class Work:
    """All messages that one ``run()`` has in flight. With the order "time" it has one worker."""

    def __init__(self, plan: Plan, map_room: int = 3800, sources: Sources = tuple) -> None:
        """``map_room``: the most characters of a partition's map. ``sources``: for the order "time"."""
        self._plan = plan
        self._merge = Merge(plan.idle, sources) if plan.order == TIME else None
        self._throttle = None if plan.rate is None else Throttle(*plan.rate)
        self.map_room = map_room
        self.parts: dict[TopicPartition, PartitionWork] = {}
        self._ready: deque[KeyQueue] = deque()
        self._timers: list[tuple[float, int, KeyQueue]] = []
        self._numbers = count()
        self._deferred: set[TopicPartition] = set()
        # Running messages of revoked partitions, by key: if such a partition comes back, they run before new ones.
        self._left: dict[TopicPartition, dict[Any, KeyQueue]] = {}
        self._full: set[TopicPartition] = set()
        # Messages finished since the last check which partitions can resume.
        self._unseen = 0
        #: Partitions whose ``full`` has changed; the driver removes them.
        self.turned: set[TopicPartition] = set()
        # Messages of any partition that wait for their batch to become full (order "none").
        self._mixed: KeyQueue | None = None
        #: True: :meth:`next_deadline` may be earlier now, and a worker that waits has to learn it.
        self.sooner = False
        #: Grows when workers have to give back messages that they have not begun.
        self.era = 0
        self.ending = False
        self.in_flight = self.ready = self.parked = 0
        self.done = self.retried = self.dead = self.unfinished = 0

    # -- new messages---------------------------------------------------------------------------------

    def capacity(self) -> int:
        """How many messages may be taken now. Waiting messages of paused partitions use no capacity."""
        if self.ending:
            return 0
        room = self._plan.max_in_flight - self.in_flight + self._set_aside()
        # What is missing for the next message in order may be behind what is in flight.
        return room if self._merge is None else max(1, min(room, self._share()))

    def _share(self) -> int:
        """How many messages of one partition may be in flight."""
        most = self._plan.max_in_flight
        return most if self._merge is None else max(1, most // self._merge.partitions)

    def _set_aside(self) -> int:
        parts = [part for tp in self._deferred if (part := self.parts.get(tp)) is not None] if self._deferred else []
        return sum(len(part.pending) for part in parts if part.gate.paused)

    def open(self, tp: TopicPartition, gate: Fetchable, skip: OffsetMap | None) -> PartitionWork:
        """Add a partition; ``skip``: the finished messages behind the committed offset, from the commit's map."""
        part = self.parts[tp] = PartitionWork(tp, gate, skip)
        part.key_queues = self._left.pop(tp, part.key_queues)
        for key_queue in part.key_queues.values():
            key_queue.part = part
        return part

    def offer(self, part: PartitionWork, messages: Sequence[Any], now: float) -> None:
        """Add messages of one partition, in order."""
        fresh = part.take(messages, now)
        self.in_flight += len(fresh)
        if self._merge is not None:
            self._merge.add(part, fresh)
            self.sooner = True
        elif self._plan.order == NONE:
            self._offer_single(part, fresh, now)
        elif self._plan.order == KEY:
            self._offer_keys(part, fresh, now)
        elif fresh:
            self._append(part, _ALL, list(fresh), now)
        self._look_whether_full(part)

    def _offer_keys(self, part: PartitionWork, messages: Sequence[Any], now: float) -> None:
        key_queues, ready = part.key_queues, self._ready
        batched = self._plan.batch is not None
        for message in messages:
            key = message.partition_key
            if key is not None:
                key_queue = key_queues.get(key)
                if key_queue is not None or batched:
                    self._append(part, key, [message], now)
                    continue
            elif batched:  # each is a key of its own: any of them may be in one batch
                self._offer_single(part, [message], now)
                continue
            key_queue = KeyQueue(part, key, [message])
            self.ready += 1
            ready.append(key_queue)
            if key is not None:
                key_queues[key] = key_queue

    def _append(self, part: PartitionWork, key: Any, messages: list[Any], now: float) -> None:
        key_queue = part.key_queues.get(key)
        if key_queue is None:
            key_queue = part.key_queues[key] = KeyQueue(part, key, messages)
            key_queue.since = now
            self._queue(key_queue)
            return
        if not key_queue.waiting:
            key_queue.since = now
        key_queue.waiting += messages
        if key_queue.state is State.READY:
            self.ready += len(messages)
        elif key_queue.state is State.FILLING:
            self._queue(key_queue)

    def _offer_single(self, part: PartitionWork, messages: Sequence[Any], now: float) -> None:
        batch = self._plan.batch
        if batch is None:
            self._ready.extend([KeyQueue(part, None, [message]) for message in messages])
            self.ready += len(messages)
            return
        for message in messages:
            key_queue = self._mixed
            if key_queue is None:
                key_queue = self._mixed = KeyQueue(part, None, [])
                key_queue.parts, key_queue.since = [], now
            key_queue.waiting.append(message)
            if key_queue.parts is not None:
                key_queue.parts.append(part)
            if len(key_queue.waiting) >= batch[0] or len(key_queue.waiting) == 1:
                self._queue(key_queue)

    def _queue(self, key_queue: KeyQueue, *, first: bool = False) -> None:
        """Queue a key queue that has messages and does not run: as ready, or until its batch is complete."""
        batch, waiting = self._plan.batch, len(key_queue.waiting)
        if batch is None or key_queue.same or waiting >= batch[0] or batch[1] <= 0.0:
            key_queue.state = State.READY
            self.ready += waiting
            (self._ready.appendleft if first else self._ready.append)(key_queue)
            if key_queue is self._mixed:
                self._mixed = None
        elif key_queue.state is not State.FILLING or key_queue.due != key_queue.since + batch[1]:
            key_queue.state = State.FILLING
            self._set_timer(key_queue, key_queue.since + batch[1])

    def _set_timer(self, key_queue: KeyQueue, due: float) -> None:
        key_queue.due = due
        heapq.heappush(self._timers, (due, next(self._numbers), key_queue))

    # -- starting messages----------------------------------------------------------------------------

    @property
    def held_up(self) -> bool:
        """True if messages wait for one of another partition, with the order "time"."""
        return self._merge is not None and self._merge.due is not None

    def next_deadline(self) -> float | None:
        """When to call :meth:`wake` next; None: no time is known."""
        if self.ending:
            return None
        times = [self._timers[0][0]] if self._timers else []
        if self._merge is not None and self._merge.due is not None:
            times.append(self._merge.due)
        if (throttle := self._throttle) is not None:
            if throttle.by == ALL and self._ready:
                times.append(throttle.due(ALL))
            elif throttle.by == PARTITION:
                parts = (self.parts.get(tp) for tp in self._deferred)
                times += [throttle.due(part.tp) for part in parts if part is not None and not part.waits]
        return min(times, default=None)

    def wake(self, now: float) -> None:
        """Make messages ready whose pause, rebalance or retry time is over."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            due, _, key_queue = heapq.heappop(timers)
            if key_queue.due != due or key_queue.state not in (State.PARKED, State.FILLING):
                continue
            if key_queue.state is State.PARKED:
                self.parked -= 1
            elif key_queue is self._mixed:
                self._mixed = None
            key_queue.state = State.READY
            self.ready += len(key_queue.waiting)
            self._ready.append(key_queue)
        for tp in list(self._deferred):
            part = self.parts.get(tp)
            if part is None or not part.waits:
                self._deferred.discard(tp)
                if part is not None:
                    self._resume(part, now)

    def _resume(self, part: PartitionWork, now: float) -> None:
        most, throttle = len(part.deferred), self._throttle
        if throttle is not None and throttle.by == PARTITION:
            most = min(most, throttle.room_at(part.tp, now))
        for key_queue in part.deferred[:most]:
            key_queue.state = State.READY
            self.ready += len(key_queue.waiting)
        self._ready.extendleft(reversed(part.deferred[:most]))
        part.deferred = part.deferred[most:]
        if part.deferred:
            self._deferred.add(part.tp)

    def take(self, limit: int, now: float) -> list[KeyQueue]:
        """Up to ``limit`` messages for one worker (with batches: batches), key queue by key queue."""
        if self._timers or self._deferred:
            self.wake(now)
        merge, taken = self._merge, list[KeyQueue]()
        if merge is not None:
            merge.due = None
            limit = 0 if self.parked else limit  # nothing passes a message that waits for its time
        batch, queue, running, throttle = self._plan.batch, self._ready, State.RUNNING, self._throttle
        while limit > 0 and not self.ending and (queue or (merge is not None and self._draw(merge, limit, now))):
            key_queue = queue.popleft()
            self.ready -= len(key_queue.waiting)
            if key_queue.parts is None:
                if not key_queue.part.alive:
                    continue
                if (gate := key_queue.part.gate).suspended or gate.paused:  # PartitionWork.waits, without a call
                    self._defer(key_queue)
                    continue
            elif not self._sort_out(key_queue):
                continue
            waiting = key_queue.waiting
            size, most = len(waiting), limit if batch is None else key_queue.same or batch[0]
            if throttle is not None:
                room = throttle.room(key_queue, now)
                if not room and self._hold_back(key_queue, throttle):
                    continue
                if not room:
                    break
                most = min(most, room) if batch is None else most
                throttle.spend(key_queue, min(size, most), now)
            if size <= most:
                key_queue.running, key_queue.waiting = waiting, key_queue.running  # that is empty
            else:
                key_queue.running = waiting[:most]
                del waiting[:most]
                key_queue.since, size = now, most
            key_queue.state = running
            limit -= size if batch is None else 1
            taken.append(key_queue)
            if merge is not None:  # if it fails, what follows has to wait
                break
        if not taken and (self._unseen or self._deferred or merge is not None):
            self._check_full()
        return taken

    def _draw(self, merge: Merge, limit: int, now: float) -> bool:
        """Make up to ``limit`` next messages in order ready (with batches: one batch); False: none are."""
        batch, line = self._plan.batch, self._mixed
        if batch is not None:
            limit = batch[0] - (0 if line is None else len(line.waiting))
        elif self._throttle is not None:
            limit = min(limit, max(1, self._throttle.room_at(ALL, now)))
        pairs = merge.take(limit, now)
        if pairs:
            if line is None:
                line = KeyQueue(pairs[0][0], None, [])
                line.parts, line.since = [], now
                self._mixed = line
            line.waiting += [message for _, message in pairs]
            line.parts = [*(line.parts or ()), *(part for part, _ in pairs)]
            self._queue(line)
        return bool(self._ready)

    def _hold_back(self, key_queue: KeyQueue, throttle: Throttle) -> bool:
        """Let a key queue wait that may not start yet; False: no other one may either."""
        if throttle.by == ALL:
            self._ready.appendleft(key_queue)
            self.ready += len(key_queue.waiting)
            return False
        self.sooner = True
        if throttle.by == PARTITION:
            self._defer(key_queue)
        else:
            key_queue.state = State.PARKED
            self.parked += 1
            self._set_timer(key_queue, throttle.due_of(key_queue))
        return True

    def _defer(self, key_queue: KeyQueue) -> None:
        key_queue.state = State.DEFERRED
        key_queue.part.deferred.append(key_queue)
        self._deferred.add(key_queue.part.tp)

    def _sort_out(self, key_queue: KeyQueue) -> bool:
        """Keep only the messages of several partitions that may start; False: none may."""
        pairs = list(zip(key_queue.waiting, key_queue.parts or (), strict=True))
        tried = [part for _, part in pairs[: key_queue.same]]  # the attempts are those of these messages
        pairs = [(message, part) for message, part in pairs if part.alive]
        for part in {part for _, part in pairs if part.waits}:
            aside = KeyQueue(part, None, [message for message, its in pairs if its is part])
            aside.parts = [part] * len(aside.waiting)
            aside.same = tried.count(part)
            aside.attempts = key_queue.attempts if aside.same else 0
            self._defer(aside)
        pairs = [(message, part) for message, part in pairs if not part.waits]
        key_queue.waiting, key_queue.parts = [message for message, _ in pairs], [part for _, part in pairs]
        key_queue.same = sum(part.alive and not part.waits for part in tried)
        key_queue.attempts = key_queue.attempts if key_queue.same else 0
        return bool(pairs)

    # -- finished messages----------------------------------------------------------------------------

    def again(self, key_queue: KeyQueue, place: int, error: BaseException) -> bool:
        """True if a failed message is to be tried again. Its worker calls this without the lock."""
        retry = self._plan.retry
        return retry is not None and retry.again(error, 1 if place else key_queue.attempts + 1)

    def note(self, key_queue: KeyQueue, dead: int = 0) -> int:
        """Note a worker's progress, with the last ``dead`` messages dead; returns the number of newly finished ones."""
        seen = key_queue.seen
        ours = key_queue.settle()
        dead = min(ours, dead)
        self.in_flight -= ours
        self.done += ours - dead
        self.dead += dead
        self._note_finished(ours)
        return key_queue.seen - seen

    def take_back(self, key_queues: Sequence[KeyQueue], now: float, chance: Callable[[], float] = lambda: 0.5) -> int:
        """Take key queues back from workers: messages before a key queue's ``place`` are finished, the rest waits
        again.

        ``chance()`` decides the jitter of a retry's pause. Returns the number of newly finished messages.
        """
        count = ours = 0
        for key_queue in key_queues:
            place = key_queue.place
            count += place - key_queue.seen
            ours += key_queue.settle()
            if place < len(key_queue.running):
                self._give_back(key_queue, now, chance)
            elif key_queue.waiting:
                key_queue.take_up()
                self._queue(key_queue)
            elif key_queue.key is not None:
                del key_queue.part.key_queues[key_queue.key]
        self.in_flight -= ours
        self.done += ours
        self._note_finished(ours)
        return count

    def collect(self, slots: Sequence[WorkerSlot], now: float, chance: Callable[[], float] = lambda: 0.5) -> None:
        """Note the progress of all workers of ``slots``, also in the middle of their blocks."""
        for slot in slots:
            if slot.through:
                slot.count += self.take_back(slot.hand_in(), now, chance)
            if slot.current is not None:
                slot.count += self.note(slot.current)

    def _give_back(self, key_queue: KeyQueue, now: float, chance: Callable[[], float]) -> None:
        """Take back a key queue with unfinished messages."""
        failed, rest = key_queue.failed, len(key_queue.running) - key_queue.place
        until, key_queue.until = key_queue.until, None
        if self._throttle is not None:
            begun = 0 if not failed or until is not None else rest if self._plan.batch is not None else 1
            self._throttle.spend(key_queue, begun - rest, now)
        key_queue.take_up()
        key_queue.same = rest if self._plan.batch is not None else 1
        key_queue.sweep()
        rest = key_queue.same
        if failed and rest:
            self._park(key_queue, rest, self._retry_at(key_queue, now, chance) if until is None else until)
        elif key_queue.waiting:
            key_queue.state = State.RUNNING
            # A list of the order "time" does not wait for more messages again: later ones must not pass it.
            key_queue.same = rest if key_queue.attempts or self._merge is not None else 0
            self._queue(key_queue, first=bool(rest))
        elif key_queue.key is not None:
            del key_queue.part.key_queues[key_queue.key]

    def _retry_at(self, key_queue: KeyQueue, now: float, chance: Callable[[], float]) -> float:
        key_queue.attempts += 1
        self.retried += 1
        retry = self._plan.retry
        return now + (0.0 if retry is None else retry.pause(key_queue.attempts, chance()))

    def _park(self, key_queue: KeyQueue, size: int, until: float) -> None:
        key_queue.same = size
        key_queue.state = State.PARKED
        self.parked += 1
        self.sooner = True
        self._set_timer(key_queue, until)

    # -- revoked partitions -----------------------------------------------------------------------------

    def interrupt(self) -> None:
        """A rebalance or the end begins: workers give back messages that they have not begun."""
        self.era += 1
        self.sooner = self.sooner or self._merge is not None  # it may go on without a partition, or with one

    def forget(self, tps: Container[TopicPartition], beyond: int = 0) -> None:
        """Forget messages of ``tps`` in flight from the offset ``beyond`` on.

        0: the partitions were revoked, or moved by a seek. Otherwise their logs have other records there.
        """
        gone = [part for tp, part in self.parts.items() if tp in tps and (part.next > beyond or not beyond)]
        for part in gone:
            dropped = part.cut(beyond) if part.alive else 0  # else it was abandoned, and its messages were reported
            self.in_flight -= dropped
            self.unfinished += dropped
            if beyond:
                continue
            left = part.end()
            if left:
                self._left[part.tp] = left
            del self.parts[part.tp]
            self._deferred.discard(part.tp)
            if part.full:
                self._full.discard(part.tp)
                self.turned.add(part.tp)
        if gone:
            self._sweep()

    def _sweep(self) -> None:
        """Drop waiting messages of partitions that were lost or reset; the first message not begun comes back."""
        self.interrupt()
        self._ready = deque(key_queue for key_queue in self._ready if key_queue.left())
        self.ready = sum(len(key_queue.waiting) for key_queue in self._ready)
        self._timers = [entry for entry in self._timers if entry[2].left()]
        heapq.heapify(self._timers)
        self.parked = sum(
            1 for due, _, key_queue in self._timers if key_queue.state is State.PARKED and key_queue.due == due
        )
        if self._mixed is not None and not self._mixed.left():
            self._mixed = None
        for part in self.parts.values():
            part.sweep()
        self._left = {tp: key_queues for tp, key_queues in self._left.items() if key_queues}
        if self._merge is not None:
            self._merge.sweep()
        self._check_full()

    def end(self) -> None:
        """Start no message any more; running ones may finish."""
        self.ending = True
        self.interrupt()

    def abandon(self) -> None:
        """Give up the messages that have not finished: their results do not count."""
        self.end()
        self.unfinished += self.in_flight
        self.in_flight = 0
        for part in self.parts.values():
            part.alive = False

    # -- offsets for commits ----------------------------------------------------------------------------

    def oldest(self) -> float | None:
        """When the oldest message in flight was taken (seconds); None: no message is in flight."""
        firsts = (part.since() for part in self.parts.values())
        return min((first for first in firsts if first is not None), default=None)

    def _look_whether_full(self, part: PartitionWork) -> None:
        held, room = len(part.pending), self._plan.max_in_flight - self.in_flight + self._set_aside()
        bound = (_GOES_ON_AT if part.full else _FULL_AT) * room
        if self._merge is not None:  # in any case each partition has room
            bound = self._share() // (4 if part.full else 2) if room > 0 else 0
        full = held > 0 and (held >= bound or not part.map_fits(self.map_room))
        if full is not part.full:
            part.full = full
            (self._full.add if full else self._full.discard)(part.tp)
            self.turned.add(part.tp)

    def _note_finished(self, count: int) -> None:
        """Check now and then which partitions can resume. A worker without messages checks, too."""
        self._unseen += count
        if self._unseen * _LOOKS >= self._share():
            self._check_full()

    def _check_full(self) -> None:
        self._unseen = 0
        for tp in list(self._full):
            self._look_whether_full(self.parts[tp])
