"""The messages in flight of each thread ("hands"), and which of these were revoked.

Pure and not thread-safe: the consumer's lock is held around every call.
"""

from __future__ import annotations

from typing import Any, Callable, Container, Mapping, Protocol

from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

#: The lowest offset in flight of each partition.
Hand = tuple[tuple[PartitionQueue, int], ...]
#: Owns the messages that were in flight when their thread ended: they never finish, and no drain waits for them.
DEAD_OWNER = -1
#: Owns the messages that ``run()`` has taken, for all of its workers.
RUN_OWNER = -2


class RunState(Protocol):
    """A ``run()`` in progress: it knows which of its messages are finished. The consumer's lock is held."""

    def take_in(self, who: int) -> Any:
        """Context manager: inside it, ``run()`` alone takes messages."""

    def settle(self) -> None:
        """Update the messages in flight of ``RUN_OWNER``."""

    def busy(self, tps: Container[TopicPartition] | None) -> bool:
        """True while a worker has a message of ``tps`` (None: any)."""

    def interrupt(self) -> None:
        """Partitions were suspended, paused or resumed: check each before one of its messages starts."""

    def forget(self, tps: Container[TopicPartition], beyond: int = 0) -> None:
        """Forget the messages in flight of these partitions from the offset ``beyond`` on."""

    def health(self) -> dict[str, Any]:
        """The progress of the run; called without the lock."""


class InFlight(dict[int, Hand]):
    """The messages in flight of each thread, greenlet or task, by its number, which is never used again."""

    def __init__(self) -> None:
        super().__init__()
        # By thread, the next offset of messages that were revoked while in flight, until the thread asks for more.
        self._taken: dict[int, dict[TopicPartition, int]] = {}
        # Of messages that were delivered under the lock: partition, first offset, its timestamp (ms; its bytes may be
        # gone), and the offset behind the last.
        self._stamps: dict[int, list[tuple[PartitionQueue, int, int, int]]] = {}
        # By thread, the messages in flight that it has committed itself: they are finished if the thread ends.
        self._said: dict[int, Hand] = {}
        #: The ``run()`` in progress, or None.
        self.run_state: RunState | None = None

    def give(self, who: int, queue: PartitionQueue, message: Message, behind: int = 0) -> None:
        """``who`` has only ``message`` in flight, or all messages from there to below the offset ``behind``."""
        self[who] = ((queue, message.offset),)
        self._stamps[who] = [(queue, message.offset, message.timestamp, behind)]

    def stamp(self, who: int, queue: PartitionQueue, offset: int, timestamp: int, behind: int) -> None:
        """``who`` gets messages from ``offset`` up to ``behind``; the first has this time (ms; -1: unknown)."""
        self._stamps.setdefault(who, []).append((queue, offset, timestamp, behind))

    def stamps(self, queue: PartitionQueue) -> dict[int, int]:
        """Known timestamps (ms) of messages in flight, by offset."""
        every = (stamp for stamps in self._stamps.values() for stamp in stamps)
        return {offset: time for other, offset, time, _ in every if other is queue and time >= 0}

    def lowest(self, queue: PartitionQueue, but: int | None = None) -> int | None:
        """The lowest offset of the partition that a thread other than ``but`` has in flight."""
        if len(self) == 1 and but in self:
            return None  # most consumers have one thread
        if not self:
            return None
        offsets = [o for who, hand in self.items() if who != but for other, o in hand if other is queue]
        return min(offsets, default=None)

    def has(self, tps: Container[TopicPartition] | None, but: int | None) -> bool:
        """True if a live thread other than ``but`` has a message of ``tps`` (None: any) in flight."""
        if self.run_state is not None and self.run_state.busy(tps):
            return True
        return any(
            who not in (but, DEAD_OWNER, RUN_OWNER) and any(tps is None or queue.tp in tps for queue, _ in hand)
            for who, hand in self.items()
        )

    def forget(self, tps: Container[TopicPartition], beyond: int = 0) -> None:
        """Forget the messages in flight of these partitions from the offset ``beyond`` on."""
        for who, hand in list(self.items()):
            kept = tuple(pair for pair in hand if pair[0].tp not in tps or pair[1] < beyond)
            if kept:
                self[who] = kept
            else:
                self.pop(who, None)
        for who, stamps in list(self._stamps.items()):
            self._stamps[who] = [each for each in stamps if each[0].tp not in tps or each[1] < beyond]
        self._said.clear()  # at worst a thread that has committed counts as one that has not
        if self.run_state is not None:
            self.run_state.forget(tps, beyond)

    def settle(self, queue: PartitionQueue, but: int | None = None) -> None:
        """Finish everything below the lowest offset that a thread other than ``but`` has in flight."""
        position = queue.state.position
        if position is not None:
            low = self.lowest(queue, but)
            queue.state.finish(position if low is None else low)

    def come_back(self, who: int) -> None:
        """Finish the messages in flight of ``who``, which asks for more, and forget those that were revoked."""
        self.forget_taken(who)
        for queue, _ in self.get(who, ()):
            self.settle(queue, who)
        self.pop(who, None)

    # -- run() ----------------------------------------------------------------------------------------

    def settle_kept(self) -> None:
        """Take note of the messages that ``run()`` has finished."""
        if self.run_state is not None:
            self.run_state.settle()

    def adopt(self, who: int) -> None:
        """Make ``run()`` the holder of the messages that ``who`` has in flight."""
        self._stamps.setdefault(RUN_OWNER, []).extend(self._stamps.pop(who, ()))
        lowest = dict(self.get(RUN_OWNER, ()))
        for queue, offset in self.pop(who, ()):
            lowest.setdefault(queue, offset)
        self[RUN_OWNER] = tuple(lowest.items())

    def settle_run(self, lowest: Callable[[TopicPartition], int | None]) -> None:
        """``lowest`` gives the lowest offset of a partition that ``run()`` has not finished; None: there is none."""
        before = self.pop(RUN_OWNER, ())
        left = [(queue, offset) for queue, _ in before if (offset := lowest(queue.tp)) is not None]
        if left:
            self[RUN_OWNER] = tuple(left)
        known, kept = dict(left), self._stamps.pop(RUN_OWNER, ())
        self._stamps[RUN_OWNER] = [each for each in kept if each[1] >= known.get(each[0], each[1] + 1)]
        for queue, _ in before:
            self.settle(queue)

    # -- revoked messages -----------------------------------------------------------------------------

    def note_taken(self, tps: Container[TopicPartition]) -> None:
        """Before a revocation: remember the next offset of each thread that has messages of ``tps`` in flight."""
        for who, hand in self.items():
            for queue, _ in hand if who != RUN_OWNER else ():
                position = queue.state.position
                if queue.tp in tps and position is not None:
                    elsewhere = self.lowest(queue, but=who)
                    offset = position if elsewhere is None else min(position, elsewhere)
                    self._taken.setdefault(who, {})[queue.tp] = offset

    def lost_something(self, who: int) -> bool:
        """True if messages in flight of ``who`` were revoked since it last asked for messages."""
        return who in self._taken

    def taken_away(self, who: int) -> dict[TopicPartition, int]:
        """Return the next offset by partition of messages that were revoked while ``who`` had them in flight."""
        return dict(self._taken.get(who, {}))

    def forget_taken(self, who: int | None = None) -> None:
        """Forget the revoked messages of ``who``, which asks for more (None: of all; the consumer was stopped)."""
        if who is None:
            self._taken.clear()
            self._stamps.clear()
            self._said.clear()
        else:
            self._taken.pop(who, None)
            self._said.pop(who, None)
            self._stamps.pop(who, None)

    # -- ended threads --------------------------------------------------------------------------------

    def owners(self) -> set[int]:
        """The threads with messages in flight that are not known to have ended."""
        return {who for who in self if who not in (DEAD_OWNER, RUN_OWNER)}

    def covered(self, who: int, offsets: Mapping[TopicPartition, int] | None) -> Hand:
        """Return the messages in flight of ``who`` that a commit of these offsets finishes (None: all of them)."""

        def behind(queue: PartitionQueue, lowest: int) -> int:
            return max([lowest + 1, *(stamp[3] for stamp in self._stamps.get(who, ()) if stamp[0] is queue)])

        hand = self.get(who, ())
        return hand if offsets is None else tuple(pair for pair in hand if offsets.get(pair[0].tp, 0) >= behind(*pair))

    def say(self, who: int, covered: Hand) -> None:
        """Note that ``who`` has committed messages that it still has in flight."""
        self._said[who] = covered

    def leave_behind(self, who: int) -> list[tuple[TopicPartition, int]]:
        """Note that ``who`` has ended. Its messages in flight stay unfinished until they are revoked; returns them.

        The messages that it has committed are finished.
        """
        said = self._said.pop(who, ())
        hand = tuple(pair for pair in self.pop(who, ()) if pair not in said)
        lowest: dict[PartitionQueue, int] = {}
        for queue, offset in (*self.get(DEAD_OWNER, ()), *hand):
            lowest[queue] = min(offset, lowest.get(queue, offset))
        self[DEAD_OWNER] = tuple(lowest.items())
        return [(queue.tp, offset) for queue, offset in hand]

    def left_behind(self) -> bool:
        """True if a thread ended with messages in flight."""
        return bool(self.get(DEAD_OWNER))
