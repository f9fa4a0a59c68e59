"""The messages of all partitions in the order of their timestamps, for ``run(order="time")``. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any, Callable, Iterable, Sequence

from managedconsumer.processing.key_queues import PartitionWork
from managedconsumer.structs import TopicPartition

# Look so often (seconds) whether a partition has reached the end of its log: an empty answer wakes nobody.
_LOOK_S = 0.05

#: The partitions that may deliver (neither paused nor suspended), and whether all messages of their logs were taken.
Sources = Callable[[], Iterable[tuple[TopicPartition, bool]]]


class Merge:
    """The messages that were taken and wait for their turn, by partition.

    The next one is that with the lowest timestamp of the first ones of all partitions; so each partition keeps its
    order. A partition without a message holds the others up as long as its log goes on, and ``idle`` seconds more.
    """

    def __init__(self, idle: float, sources: Sources) -> None:
        self._idle = idle
        self._sources = sources
        self._waiting: dict[TopicPartition, tuple[PartitionWork, deque[Any]]] = {}
        # Since when partitions without a message are at the end of their logs.
        self._quiet: dict[TopicPartition, float] = {}
        #: The number of partitions that may deliver.
        self.partitions = 1
        #: When to ask again (seconds), while a partition holds others up.
        self.due: float | None = None

    def add(self, part: PartitionWork, messages: Sequence[Any]) -> None:
        """Add messages of one partition, in order."""
        if messages:
            self._waiting.setdefault(part.tp, (part, deque()))[1].extend(messages)

    def sweep(self) -> None:
        """Drop messages that do not count any more."""
        for tp, (part, waiting) in list(self._waiting.items()):
            kept = deque(message for message in waiting if part.has(message))
            if kept:
                self._waiting[tp] = part, kept
            else:
                del self._waiting[tp]

    def take(self, limit: int, now: float) -> list[tuple[PartitionWork, Any]]:
        """Return up to ``limit`` messages, in order. The last one of a partition ends the list."""
        free = self._free_at(now)
        self.due = free if free > now and self._waiting else None
        if free > now:
            return []
        heads = [(its[0].timestamp, tp, its, part) for tp, (part, its) in self._waiting.items() if not part.waits]
        heapq.heapify(heads)
        taken: list[tuple[PartitionWork, Any]] = []
        while heads and len(taken) < limit:
            _, tp, waiting, part = heads[0]
            taken.append((part, waiting.popleft()))
            if not waiting:
                del self._waiting[tp]
                break
            heapq.heapreplace(heads, (waiting[0].timestamp, tp, waiting, part))
        return taken

    def _free_at(self, now: float) -> float:
        """Return when the first of the partitions that hold others up may hold them no longer (0: there is none)."""
        before, self._quiet, self.partitions, times = self._quiet, {}, 0, []
        for tp, at_end in self._sources():
            self.partitions += 1
            if tp not in self._waiting:
                if at_end:
                    self._quiet[tp] = before.get(tp, now)
                free = self._quiet[tp] + self._idle if at_end else now + _LOOK_S
                if free > now:
                    times.append(free)
        self.partitions = max(1, self.partitions)
        return min(times, default=0.0)
