"""The workers of a run: what each has been given, and how far it is. Pure."""

from __future__ import annotations

from collections import deque

from managedconsumer.processing.strands import Strand


class Seat:
    """A worker: what it has been given, what it works on, and what it is through with.

    The worker takes from ``todo`` and adds to ``through`` without a lock. The holder of the lock may take from either
    at any moment: each step is one under the GIL.
    """

    __slots__ = ("count", "current", "era", "since", "through", "todo", "until")

    def __init__(self) -> None:
        self.todo: deque[Strand] = deque()
        #: It says itself, by ``place``, how far the worker is with it.
        self.current: Strand | None = None
        self.era = 0
        self.since = 0.0
        #: Until when (handler's clock) it may begin what it has been given.
        self.until = 0.0
        #: Strands that are finished, or go back: each says how far the worker came.
        self.through: list[Strand] = []
        #: How many messages of this block were noted as finished.
        self.count = 0

    def hand_in(self) -> list[Strand]:
        """Return the strands that the worker has finished or gives back; it may add more meanwhile."""
        strands = self.through[:]
        del self.through[: len(strands)]
        return strands
