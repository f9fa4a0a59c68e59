"""A claim log: the one place that says which batches count, and where a partition goes on.

Each run of a micro-batch has a name that no other run has. Its rows are written first, with the name. When the batch is
done, its ranges are *claimed* for the name of the run that has ended. Of several runs and batches with the same offsets
one gets the claim, and the rows of the others are not looked at: it does not matter who was slow, thrown out of the
group, killed or run again, nor how much of its rows an interrupted run has left. A crash between rows and claim loses
nothing, because what is not claimed is read again, or claimed by the query when it is back.

The first run has the batch's own name. Before another driver runs a batch again, it says so in the log: who comes after
that one then knows that it cannot know which run has ended, and claims neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Collection, Iterable, Protocol

from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.structs import TopicPartition

Winners = dict[str, Ranges]
#: A range that counts, and the run whose rows it is.
Won = tuple[TopicPartition, OffsetRange, str]


class ClaimLog(Protocol):
    """Claims of one group of queries. Any number of processes may use the same log at once."""

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        """Claim ``ranges`` for the batch named ``data``; what was won. Durable when it returns.

        A range that this very ``data`` has claimed before is won again: a batch may be run again after its claims. What
        is not in the answer was claimed by another batch, or is not claimed yet and may be tried again.
        """

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """The first offset that nobody has claimed, of ``tps`` or of all; partitions without a claim are left out."""

    def repeat(self, data: str, name: str) -> None:
        """Say that the batch ``data``, which was planned by another driver, runs again as ``name``.

        Durable when it returns.
        """

    def repeated(self, data: str) -> bool:
        """True if :meth:`repeat` was called for the batch ``data``, by whomever."""

    def winners(self) -> Winners:
        """Which batches count, and for which ranges: ``{data: {partition: range}}``."""


class History(ABC):
    """A :class:`ClaimLog` over a fence of :mod:`managedconsumer.stores`.

    The end of a partition moves as a store's next offset does: in one commit, if it is still where the range begins.
    That commit also notes the range and the run. So the notes are the history of the ends.
    """

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        """See :meth:`ClaimLog.claim`."""
        wanted = {tp: entry for tp, entry in ranges.items() if entry.size > 0}
        won = self._move(wanted, data) if wanted else ()
        again = set(self._noted(data)) if len(won) < len(wanted) else set()
        return {tp: e for tp, e in ranges.items() if e.size <= 0 or tp in won or (tp, e, data) in again}

    def winners(self) -> Winners:
        """See :meth:`ClaimLog.winners`; what :meth:`vacuum` removed is not in it."""
        return winners_of(self._noted())

    @abstractmethod
    def vacuum(self, older_than: float) -> int:
        """Make the history small; how much was removed. ``older_than``: seconds, longer than any batch may take."""

    @abstractmethod
    def _move(self, ranges: Ranges, data: str) -> Collection[TopicPartition]:
        """Move the ends of ``ranges`` to their stops and note that, both or neither. Of which partitions.

        Only where the end is the range's start, or where there is none.
        """

    @abstractmethod
    def _noted(self, data: str | None = None) -> Iterable[Won]:
        """All that was noted. Of the run ``data`` at least, if it is named."""


def winners_of(notes: Iterable[Won]) -> Winners:
    """``notes`` by run. What a run has of a partition hangs together."""
    found: Winners = {}
    for tp, entry, data in notes:
        ranges = found.setdefault(data, {})
        before = ranges.get(tp, entry)
        ranges[tp] = OffsetRange(min(before.start, entry.start), max(before.stop, entry.stop))
    return found


def claimed(log: ClaimLog) -> dict[TopicPartition, int]:
    """How many offsets of each partition are claimed."""
    found: dict[TopicPartition, int] = {}
    for ranges in log.winners().values():
        for tp, entry in ranges.items():
            found[tp] = found.get(tp, 0) + entry.size
    return found
