"""The workers of a run, with the messages given to each and their progress. Pure."""

from __future__ import annotations

from collections import deque

from managedconsumer.processing.key_queues import KeyQueue


class WorkerSlot:
    """A worker: the key queues that it has to do, the one that it works on, and those that it has finished.

    The worker takes from ``todo`` and adds to ``through`` without a lock. The holder of the lock may take from either
    at any moment: each step is atomic under the GIL.
    """

    __slots__ = ("count", "current", "era", "since", "through", "todo", "until")

    def __init__(self) -> None:
        self.todo: deque[KeyQueue] = deque()
        #: Its ``place`` is the worker's progress in it.
        self.current: KeyQueue | None = None
        self.era = 0
        self.since = 0.0
        #: Until when (handler's clock) the worker may begin its messages.
        self.until = 0.0
        #: Key queues that the worker has finished or gives back; ``place`` is its progress in each.
        self.through: list[KeyQueue] = []
        #: Number of messages of this block that were noted as finished.
        self.count = 0

    def hand_in(self) -> list[KeyQueue]:
        """Return the key queues that the worker has finished or gives back; it may add more meanwhile."""
        key_queues = self.through[:]
        del self.through[: len(key_queues)]
        return key_queues
