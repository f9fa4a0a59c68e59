"""The workers of a run, and what they report."""

from __future__ import annotations

from collections import deque

from managedconsumer.processing.strands import Strand
from managedconsumer.values import NamedTuple


class Report(NamedTuple):
    """How far a worker came with a strand: see :meth:`managedconsumer.processing.work.Work.report`."""

    strand: Strand
    finished: int
    failed: bool = False
    dead: int = 0


class Seat:
    """A worker: what it has been given, what it works on, and what it is through with."""

    __slots__ = ("current", "era", "reports", "since", "through", "todo", "until")

    def __init__(self) -> None:
        self.todo: deque[Strand] = deque()
        self.current: Strand | None = None
        self.era = 0
        self.since = 0.0
        #: Until when (handler's clock) it may begin what it has been given.
        self.until = 0.0
        #: Strands that are finished as a whole, and how far it came with others.
        self.through: list[Strand] = []
        self.reports: list[Report] = []
