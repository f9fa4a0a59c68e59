"""``Lane`` in Python, the twin of the accelerator's class: consuming threads take messages past the consumer's lock.

A lane is attached to the chunk that is being read. Each thread with a slot takes messages without the lock; its call
for the next message finishes its last one. A thread gets its slot under the lock, and keeps it while its message in
flight is of the lane's partition. A thread that holds the lock detaches the lane before it reads positions or takes
partitions away: then ``count`` is the number of messages that were taken past the lock, ``slots()`` has the messages in
flight, and the chunk's ``position`` is right.

The accelerator's ``take`` is one step under the GIL. Here that step is ``list.pop`` on the chunk's ready messages; the
last message taken follows from the number of messages left. With several slots the same step also stores the message in
the thread's slot. The slow path makes more messages ready. The fast path has no lock: a signal handler may interrupt it
anywhere and call the consumer, while another thread holds the consumer's lock and detaches.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Container, Iterator
from weakref import ref

from managedconsumer.clock import monotonic
from managedconsumer.wire.records._message_py import Message

#: A deserializer's results for value and key.
Deserializer = Callable[[Any, Any], "tuple[Any, Any]"]
#: Decides about a message at which the deserializer raised this: returns where it is skipped, otherwise raises.
Refused = Callable[[Message, BaseException], object]


def _nothing() -> Message:
    raise IndexError


_EVER = float("inf")
#: Marks the slot of a thread that has the lane for itself.
_NOTHING: deque[Message] = deque(maxlen=0)


class _ThreadSlot:
    """A thread (or greenlet) that takes from the lane: its number, and the offset of its message in flight."""

    __slots__ = ("greenlet", "kept", "offset", "take", "who")

    def __init__(self, who: int, greenlet: Callable[[], Any] | None) -> None:
        """``greenlet``: a weak reference; None: it is a thread."""
        self.who = who
        self.greenlet = greenlet
        self.offset = -1
        self.kept: deque[Message] = _NOTHING

    def open(self, ready: list[Message]) -> None:
        """Let ``take()`` move the next message of ``ready`` to ``kept``."""
        if self.kept is _NOTHING:  # otherwise the thread may be about to get its last message out of it
            self.kept = deque(maxlen=1)
        # One call, which no other thread interrupts: the message is in one of the two.
        self.take: Callable[[], None] = partial(next, map(self.kept.append, iter(ready.pop, None)))

    def look(self) -> None:
        """Note the message that was taken."""
        if self.kept:
            self.offset = self.kept[0].offset


class Lane:
    """See above.

    ``here.number`` is the calling thread's, which no other thread has, nor had; without it ``current()`` returns the
    calling greenlet. With neither there is no fast path. ``clock``: seconds, in place of the system's monotonic clock.
    """

    def __init__(
        self, current: Callable[[], Any] | None = None, here: Any = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._current = None if here is not None else current
        self._here = here
        self._open = here is not None or current is not None
        self._chunk: Any = None
        self._slots: dict[int, _ThreadSlot] = {}  # by the thread's number, or the greenlet's id
        # One slot: its thread, and how that takes. Several: the slots again.
        self._owner: Any = None
        self._pop: Callable[[], Message] = _nothing
        self._several: dict[int, _ThreadSlot] = {}
        self._rest: list[Message] = []  # receives the messages that no thread has taken
        # The messages ready at the last look: how many, the offset of the next, and all of them if there are gaps.
        self._left = 0
        self._next = 0
        self._offsets: list[int] | None = None
        self._detaching = False
        self._clock = monotonic if clock is None else clock
        self._until = _EVER
        self.count = 0

    def allow(self, seconds: float) -> None:
        """End the fast path after so many seconds; the slow path checks whether the consumer still may hand out."""
        self._until = _EVER if seconds == _EVER else self._clock() + seconds

    def _late(self) -> bool:
        return self._until != _EVER and self._clock() > self._until

    def draw_from(self, source: Any, patience: float) -> None:
        """Ignored: the accelerator's lane takes chunks from ``source``, this one from the slow path."""

    def since(self) -> float:
        """Return 0.0: no thread waits for the source."""
        return 0.0

    def attach(self, chunk: Any, who: int, offset: int, others: Container[int] = (), last: bool = False) -> None:
        """Let the calling thread, ``who``, take from ``chunk``; its message in flight has ``offset``.

        ``others`` keep their slots. ``last``: no other chunk is buffered.
        """
        del last  # it has no source
        if not self._open:
            return
        me = self._here.number if self._current is None else self._current()
        key = me if self._current is None else id(me)
        mine = self._slots.get(key)
        if others or len(self._slots) != 1 or mine is None or mine.who != who or mine.kept is not _NOTHING:
            slots = {number: slot for number, slot in self._slots.items() if slot.who in others}
            mine = slots[key] = _ThreadSlot(who, None if self._current is None else ref(me))
            self._slots = slots
        mine.offset = offset
        self._note_ready(chunk)
        self._rest = []
        self._chunk = chunk
        self._let_in(chunk.ready, me)  # the next message is the last one
        if self._chunk is not chunk:  # a signal's handler has detached it in the meantime
            self._shut()

    def _let_in(self, ready: list[Message], me: Any) -> None:
        slots = self._slots
        if len(slots) == 1:
            self._pop, self._owner = ready.pop, me
            return
        for slot in slots.values():
            slot.open(ready)
        self._several = slots

    def _note_ready(self, chunk: Any) -> None:
        ready: list[Message] = chunk.ready
        self._left = len(ready)
        self._offsets = None
        if ready:
            self._next = ready[-1].offset
            if ready[0].offset - self._next != self._left - 1:
                self._offsets = [message.offset for message in ready]

    def _note_taken(self, chunk: Any, left: int) -> None:
        """Note that ``left`` of the ready messages are left."""
        taken = self._left - left
        if taken > 0:  # below 0: a signal came in between when there were new ones
            last = self._next + taken - 1 if self._offsets is None else self._offsets[left]
            for slot in self._slots.values():
                if slot.kept is _NOTHING:
                    slot.offset = last
                else:
                    slot.look()
            chunk.position = last + 1
            self.count, self._left = self.count + taken, left

    def detach(self) -> None:
        """End the fast path; the caller holds the consumer's lock.

        A signal may interrupt it at any line. If the signal's handler raises, the next call completes it.
        """
        if self._detaching:
            return  # called by a signal handler that has interrupted this method
        try:
            self._detaching = True
            self._let_go()
        finally:
            self._detaching = False

    def _let_go(self) -> None:
        chunk = self._chunk
        if chunk is None:
            return
        self._shut()
        ready, rest = chunk.ready, self._rest
        if ready is not rest:
            # From the other end and one by one, as a thread may take one more meanwhile. In one call, so that no signal
            # interrupts it while a message is in neither list.
            with suppress(IndexError):
                rest.extend(iter(partial(ready.pop, 0), None))
            self._note_taken(chunk, len(rest))
            chunk.ready = rest
        self._chunk = self._offsets = None

    def _shut(self) -> None:
        self._owner, self._pop, self._several = None, _nothing, {}

    def slots(self) -> list[tuple[int, int]]:
        """Return the threads that have a slot, each with the offset of its message in flight; the lane is detached."""
        return [(slot.who, slot.offset) for slot in self._slots.values()]

    def leave(self) -> None:
        """Let each thread take the slow path for its next message. Needs no lock: for signal handlers."""
        self._owner = None
        self._several = {}

    def cut(self) -> None:
        """:meth:`detach` in the child of a fork, which has the one thread only."""
        self._chunk = None
        self._shut()

    @property
    def attached(self) -> bool:
        """True while a thread may take messages without the lock."""
        return self._chunk is not None

    def take(self) -> Message | None:
        """Return the next message, or None where the slow path is needed."""
        if self._late():
            return None
        if self._several:
            return self._take_in_slot()
        owner = self._owner
        if owner is None or (self._here.number if self._current is None else self._current()) != owner:
            return None
        try:
            return self._pop()
        except IndexError:
            return None

    def _take_in_slot(self) -> Message | None:
        """:meth:`take` where several threads have a slot."""
        me = self._here.number if self._current is None else self._current()
        slot = self._several.get(me if self._current is None else id(me))
        if slot is None or (slot.greenlet is not None and slot.greenlet() is not me):  # the id of one that is gone
            return None
        try:
            return slot.take() or slot.kept[0]
        except IndexError:
            return None

    def take_deserialized(self, deserializer: Deserializer, refused: Refused) -> Message | None:
        """:meth:`take` with what ``deserializer`` makes of value and key; ``refused`` decides about what it raises."""
        while True:
            message = raw = None
            try:
                message = self.take()
                if message is None:
                    return None
                raw = message.value, message.partition_key
                message.value, message.partition_key = deserializer(*raw)
                return message
            except BaseException as error:
                if message is None:
                    raise
                if raw is not None:
                    message.value, message.partition_key = raw
                refused(message, error)

    def iterate(
        self,
        slow: Callable[[], Message | None],
        deserializer: Deserializer | None = None,
        refused: Refused | None = None,
    ) -> Iterator[Message]:
        """Return an iterator that calls ``slow`` where the fast path ends, until ``slow`` returns None."""
        if deserializer is None or refused is None:
            return self._iterate(slow)
        take = partial(self.take_deserialized, deserializer, refused)
        return iter(lambda: take() or slow(), None)

    def _iterate(self, slow: Callable[[], Message | None]) -> Iterator[Message]:
        here, current, clock = self._here, self._current, self._clock
        while (message := self.take() or slow()) is not None:
            yield message
            if not self._open:
                continue
            # A lane that is detached in between is emptied, so this pop finds nothing.
            pop = self._pop
            while (here.number if current is None else current()) == self._owner and clock() <= self._until:
                try:
                    message = pop()
                except IndexError:
                    break
                yield message


class FastPath:
    """Base of the consumers: ``consume()`` takes from a lane, and calls ``_consume_waiting()`` where the lane ends."""

    _lane: Lane | None = None
    _applied: Deserializer | None = None

    def _open_lane(self, lane: Lane, deserializer: Deserializer | None = None) -> None:
        """From now on ``consume()`` takes from ``lane``."""
        self._lane, self._applied = lane, deserializer

    def _not_deserialized(self, message: Message, error: BaseException) -> bool:
        """False: skip the message; otherwise what is raised leaves the position before it."""
        raise NotImplementedError

    def consume(self, block: bool = True, unblock_event: Any = None) -> Message | None:
        """The next message, or None after ``consumer_timeout_ms`` without one (at once with ``block=False``).

        Coming back for the next message tells the consumer that the last one is finished. Several threads may call.
        With ``unblock_event`` (pykafka's) it returns None as soon as the event is set, also where messages are there.
        Raises what ended the consumer, ConsumerStoppedException when it is not running, an exception of a callback
        once, CorruptRecordError and the deserializer's exceptions as ``on_error`` decides.
        """
        lane, apply = self._lane, self._applied
        if lane is not None and unblock_event is None:
            take = lane.take if apply is None else partial(lane.take_deserialized, apply, self._not_deserialized)
            # In one line: a signal between two lines would lose the message.
            return take() or self._consume_waiting(block, unblock_event)
        return self._consume_waiting(block, unblock_event)

    def _consume_waiting(self, block: bool, unblock_event: Any) -> Message | None:
        """The slow path: under the lock, and waiting where nothing is there."""
        raise NotImplementedError
