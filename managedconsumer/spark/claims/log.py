"""A claim log: it alone says which batches count, and where a partition goes on.

Each run of a micro-batch has a unique name, and writes its rows with that name. When the batch is done, its ranges are
*claimed* for the run that has ended. Of several runs and batches with the same offsets one gets the claim, and readers
ignore the rows of all others, whether these were slow, evicted, killed, repeated, or left half of their rows. A crash
between rows and claim loses nothing: offsets without a claim are read again, or claimed by the restarted query.

The first run has the batch's own name. Before another driver repeats a batch, it notes that in the log. A third driver
then knows that it cannot tell which run has ended, and claims neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Collection, Iterable, Protocol

from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.structs import TopicPartition

Winners = dict[str, Ranges]
#: A range that counts, and the run that wrote its rows.
Won = tuple[TopicPartition, OffsetRange, str]


class ClaimLog(Protocol):
    """Claims of one group of queries. Any number of processes may use the same log at once."""

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        """Claim ``ranges`` for the run named ``data``, and return those that it has. Durable when it returns.

        A range that ``data`` claimed before is in the result again. Any other was claimed by another run, or is not
        claimed yet and may be tried again.
        """

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the first unclaimed offset of ``tps``, or of all partitions; those without a claim are left out."""

    def repeat(self, data: str, name: str) -> None:
        """Note that the batch ``data`` of another driver runs again as ``name``. Durable when it returns."""

    def repeated(self, data: str) -> bool:
        """True if any driver called :meth:`repeat` for the batch ``data``."""

    def winners(self) -> Winners:
        """Return which batches count, and for which ranges: ``{data: {partition: range}}``."""


class History(ClaimLog, ABC):
    """A claim log over a fence of :mod:`managedconsumer.stores`.

    The end of a partition moves as a store's next offset does: in one commit, and only from the range's start. That
    commit also notes the range and the run, so the notes are the history of the ends.
    """

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        wanted = {tp: entry for tp, entry in ranges.items() if entry.size > 0}
        won = self._move(wanted, data) if wanted else ()
        again = set(self._noted(data)) if len(won) < len(wanted) else set()
        return {tp: e for tp, e in ranges.items() if e.size <= 0 or tp in won or (tp, e, data) in again}

    def winners(self) -> Winners:
        """See :meth:`ClaimLog.winners`; without the notes that :meth:`vacuum` removed."""
        return winners_of(self._noted())

    @abstractmethod
    def vacuum(self, older_than: float) -> int:
        """Shrink the history; returns how much was removed. ``older_than``: seconds, more than any batch may take."""

    @abstractmethod
    def _move(self, ranges: Ranges, data: str) -> Collection[TopicPartition]:
        """Move the ends from the ranges' starts (or none) to their stops, and note it; returns the moved ones."""

    @abstractmethod
    def _noted(self, data: str | None = None) -> Iterable[Won]:
        """Return all notes; with ``data`` at least those of that run."""


def winners_of(notes: Iterable[Won]) -> Winners:
    """Return ``notes`` by run. The ranges of one run and partition are adjacent."""
    found: Winners = {}
    for tp, entry, data in notes:
        ranges = found.setdefault(data, {})
        before = ranges.get(tp, entry)
        ranges[tp] = OffsetRange(min(before.start, entry.start), max(before.stop, entry.stop))
    return found


def claimed(log: ClaimLog) -> dict[TopicPartition, int]:
    """Return how many offsets of each partition are claimed."""
    found: dict[TopicPartition, int] = {}
    for ranges in log.winners().values():
        for tp, entry in ranges.items():
            found[tp] = found.get(tp, 0) + entry.size
    return found
