"""The messages that ``run()`` has in flight, by partition and by key; messages of one key run in order. Pure."""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import compress
from typing import Any, Protocol, Sequence

from managedconsumer.processing import offset_map
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.structs import TopicPartition

# With at most so many unfinished messages a map always fits.
_SURELY_FITS = 500
# Check again whether the map fits when the number of unfinished messages has changed by so many.
_LOOK_AGAIN = 32


class Fetchable(Protocol):
    """The part of a partition's state that decides whether messages may start: ``TopicPartitionState`` has it."""

    #: True while a rebalance suspends the partition.
    suspended: bool
    #: True while the user has paused it.
    paused: bool


class State(Enum):
    """The states of a key queue. It is in no queue while a worker has it."""

    FILLING = "filling"  # waits for its batch to become full, or old enough
    READY = "ready"
    RUNNING = "running"
    PARKED = "parked"  # waits for its next attempt
    DEFERRED = "deferred"  # waits for the end of a rebalance, or of a pause


class KeyQueue:
    """Messages that run in order: those of a key, of a partition, or a single one.

    ``waiting``: not begun; ``running``: a worker has them. While it runs, only its worker writes ``place`` and
    ``failed``. So the holder of the lock sees at any moment which messages are finished, and the worker needs no lock.
    """

    __slots__ = (
        "attempts",
        "due",
        "failed",
        "key",
        "part",
        "parts",
        "place",
        "running",
        "same",
        "seen",
        "since",
        "state",
        "until",
        "waiting",
    )

    def __init__(self, part: PartitionWork, key: Any, waiting: list[Any]) -> None:
        self.part = part
        #: None: no more messages are added to it.
        self.key = key
        self.waiting = waiting
        self.running: list[Any] = []
        #: How many of ``running`` are finished, and how many of these were noted.
        self.place = self.seen = 0
        #: True: the next message (or the batch) has failed, and a retry is due; or its time has not come.
        self.failed = False
        #: When its time comes (seconds), if it has not failed.
        self.until: float | None = None
        #: The partition of each message that was not noted as finished, if the key queue has several partitions.
        self.parts: list[PartitionWork] | None = None
        #: How often its first ``same`` messages (one, or the batch) have failed.
        self.attempts = 0
        #: Number of messages that are retried together; 0: no retry.
        self.same = 0
        self.state = State.READY
        #: When to check it again (seconds), if it waits for a time.
        self.due = 0.0
        self.since = 0.0

    def touches(self, tps: Any) -> bool:
        """True if it may have a message of ``tps`` (None: of any partition)."""
        if tps is None:
            return True
        return self.part.tp in tps if self.parts is None else any(part.tp in tps for part in self.parts)

    def settle(self) -> int:
        """Note newly finished messages; returns how many of them still count.

        A message counts while it is the pending one at its offset: after a seek or a reset that may be another one.
        """
        seen, place = self.seen, self.place
        if place == seen:
            return 0
        self.seen = place
        part, running, ours = self.part, self.running, 0
        if self.parts is None:
            if not part.alive:
                return 0
            pending, top = part.pending, part.top
            for message in running if place - seen == len(running) else running[seen:place]:
                offset = message.offset
                if pending.get(offset) is message:
                    del pending[offset]
                    ours += 1
                    if offset >= top:
                        top = part.top = offset + 1
            return ours
        for message, its in zip(running[seen:place], self.parts, strict=False):
            if its.has(message):
                del its.pending[message.offset]
                its.top = max(its.top, message.offset + 1)
                ours += 1
        del self.parts[: place - seen]
        return ours

    def take_up(self) -> None:
        """Take the running messages back from the worker: unfinished ones wait again, before the rest."""
        if self.place < len(self.running):
            self.waiting = self.running[self.place :] + self.waiting
        if self.place:
            self.attempts = self.same = 0
        self.running, self.failed = [], False
        self.place = self.seen = 0

    def sweep(self) -> None:
        """Drop waiting messages that do not count any more. No worker has the key queue."""
        parts = [self.part] * len(self.waiting) if self.parts is None else self.parts
        counts = [its.has(message) for message, its in zip(self.waiting, parts, strict=True)]
        self.waiting, self.same = list(compress(self.waiting, counts)), sum(counts[: self.same])
        if not self.same:  # what was tried belongs to an earlier assignment or position
            self.attempts = 0
        if self.parts is not None:
            self.parts = list(compress(parts, counts))

    def left(self) -> bool:
        """:meth:`sweep` it, unless it runs; False: no message of it waits any more."""
        if self.state is not State.RUNNING:
            self.sweep()
        return bool(self.waiting)


class PartitionWork:
    """One assigned partition: its messages in flight, and its finished offsets."""

    __slots__ = (
        "_fits",
        "_looked",
        "_lots",
        "alive",
        "deferred",
        "full",
        "gate",
        "key_queues",
        "next",
        "pending",
        "skip",
        "top",
        "tp",
    )

    def __init__(self, tp: TopicPartition, gate: Fetchable, skip: OffsetMap | None = None) -> None:
        """``skip``: the finished messages behind the group's committed offset."""
        self.tp = tp
        self.gate = gate
        self.alive = True
        #: The messages that were taken and are not finished, by ascending offset.
        self.pending: dict[int, Any] = {}
        # For each batch taken: the offset behind it, and the time of taking (seconds).
        self._lots: deque[tuple[int, float]] = deque()
        self.key_queues: dict[Any, KeyQueue] = {}
        #: Key queues that wait for the end of a rebalance, or of a pause.
        self.deferred: list[KeyQueue] = []
        self.skip = skip
        #: The next offset after the last message taken, and after the highest finished one.
        self.next = 0
        self.top = 0
        #: True while the run takes no more messages of it.
        self.full = False
        self._looked = 0
        self._fits = True

    @property
    def waits(self) -> bool:
        """True while no message of it may start."""
        return self.gate.suspended or self.gate.paused

    def has(self, message: Any) -> bool:
        """True if ``message`` is in flight, unfinished, and counts."""
        return self.alive and self.pending.get(message.offset) is message

    def take(self, messages: Sequence[Any], now: float) -> Sequence[Any]:
        """Take new messages; returns those that are not finished already."""
        self.next = messages[-1].offset + 1
        skip = self.skip
        if skip is not None:
            messages = [message for message in messages if not skip.finished(message.offset)]
            self.believe(None)
        self.pending.update(zip([message.offset for message in messages], messages, strict=True))
        self._lots.append((self.next, now))
        return messages

    def cut(self, offset: int) -> int:
        """Forget messages in flight from ``offset`` on: the log has other records there. Returns their number."""
        beyond = [each for each in self.pending if each >= offset]
        for each in beyond:
            del self.pending[each]
        self.next, self.top = min(self.next, offset), min(self.top, offset)
        self._lots = deque((min(end, offset), taken) for end, taken in self._lots)
        self.believe(offset)
        return len(beyond)

    def sweep(self) -> None:
        """Drop messages that do not count any more from key queues that do not run."""
        for key, key_queue in list(self.key_queues.items()):
            if key_queue.state is State.RUNNING:
                key_queue.waiting = [message for message in key_queue.waiting if self.has(message)]
            elif not key_queue.left():
                del self.key_queues[key]
        self.deferred = [key_queue for key_queue in self.deferred if key_queue.left()]

    def end(self) -> dict[Any, KeyQueue]:
        """End it: it was revoked, or its position was set. No message counts. Returns the running key queues by key."""
        self.alive, self.deferred = False, []
        self.key_queues = {
            key: key_queue for key, key_queue in self.key_queues.items() if key_queue.state is State.RUNNING
        }
        for key_queue in self.key_queues.values():
            key_queue.waiting = []
        return self.key_queues

    def believe(self, newer: int | None) -> None:
        """Forget finished offsets from ``newer`` on: the messages there were written under a later epoch."""
        if self.skip is not None:
            self.skip = self.skip if newer is None else self.skip.below(newer)
            if self.skip.top <= self.next:
                self.top, self.skip = max(self.top, self.skip.top), None

    def lowest(self) -> int | None:
        """The lowest unfinished offset; None: all messages taken are finished."""
        return next(iter(self.pending), None)

    def since(self) -> float | None:
        """When the lowest unfinished message was taken (seconds); None: all messages taken are finished."""
        low = self.lowest()
        if low is None:
            return None
        while self._lots[0][0] <= low:
            self._lots.popleft()
        return self._lots[0][1]

    def known(self, epoch: int = -1, log: bytes = b"") -> OffsetMap:
        """Return the map of finished messages behind an unfinished one.

        ``epoch``: the leader epoch of the record before ``top``; ``log``: which log it is.
        """
        skip, unfinished = self.skip, list(self.pending)
        known = OffsetMap(tuple(unfinished), self.top, epoch, log)
        if skip is None:
            return known
        unfinished += [offset for offset in skip.unfinished if offset >= self.next]
        if skip.top > self.top:
            known = known._replace(top=skip.top, epoch=skip.epoch)
        return known._replace(unfinished=tuple(unfinished))

    def text(self, base: int, room: int, epoch: int = -1, log: bytes = b"") -> str:
        """The map for a commit of ``base``, in at most ``room`` characters; the others as in :meth:`known`."""
        known = self.known(epoch, log)
        text = offset_map.encode(known, base)
        return text if len(text) <= room else offset_map.shortened(known, base, room)

    def map_fits(self, room: int) -> bool:
        """False while the map is longer than ``room``."""
        count = len(self.pending)
        if count <= _SURELY_FITS:
            self._fits = True
        elif abs(count - self._looked) >= _LOOK_AGAIN:
            self._looked = count
            lowest = self.lowest()
            text = "" if lowest is None else offset_map.encode(self.known(), lowest)
            # Until the next check messages may finish in the order that makes the map longest.
            self._fits = len(text) + 4 * _LOOK_AGAIN <= room
        return self._fits
