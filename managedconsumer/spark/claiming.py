"""How a query claims what it has read: at the boundary between two batches, when the one before is done.

The sink only writes the batch's name with its rows (the column ``range``). A sink that has a transaction may claim in
it, earlier: the query claims the same again, and what had no rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Collection, Mapping

from managedconsumer.spark.claims.group import Commit, Commits, GroupClaims
from managedconsumer.spark.claims.log import ClaimLog
from managedconsumer.spark.claims.objects import objects_at
from managedconsumer.spark.claims.places import log_at
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.ranges import StreamOffset
from managedconsumer.spark.topics import Offsets, TopicView
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

_PATIENCE = 30.0


class Claiming(ABC):
    """What the query asks. Used by one thread."""

    #: The group's commits are the claims, so a query that ends must wait for them.
    by_group = False

    @abstractmethod
    def done(self, start: StreamOffset, positions: Mapping[TopicPartition, int], *, here: bool) -> Offsets:
        """The batch ``start`` is done: claim it; where the partitions go on. ``here``: it was planned in this life."""

    @abstractmethod
    def found(self, tps: Collection[TopicPartition], commits: Commits, start: StreamOffset) -> Offsets:
        """Where partitions go on that are new here, as far as claims say so."""

    def planned(self, batch: StreamOffset) -> None:
        """A batch was planned, and has not begun."""
        del batch

    def last(self, tp: TopicPartition) -> str:
        """The batch that the group's commit of a partition names; "": none."""
        del tp
        return ""


class LogClaiming(Claiming):
    """Claims in a log beside the group: a directory, an object store, a database."""

    def __init__(self, claims: ClaimLog) -> None:
        self.log = claims
        self._done = ""

    def done(self, start: StreamOffset, positions: Mapping[TopicPartition, int], *, here: bool) -> Offsets:  # noqa: ARG002
        """See :meth:`Claiming.done`. What was planned before a crash is claimed as well."""
        if start.data and start.data != self._done:
            wanted = {tp: entry for tp, entry in start.ranges.items() if entry.size > 0}
            ends = self.log.ends(list(wanted))
            # Elsewhere another query has claimed already, or the sink in its own transaction.
            open_ = {tp: entry for tp, entry in wanted.items() if ends.get(tp, entry.start) == entry.start}
            if open_:
                self.log.claim(open_, start.data)
            self._done = start.data
        return self.log.ends(list(positions))

    def found(self, tps: Collection[TopicPartition], commits: Commits, start: StreamOffset) -> Offsets:  # noqa: ARG002
        """See :meth:`Claiming.found`. The group's commits are for monitors only."""
        return self.log.ends(tps)


class GroupClaiming(Claiming):
    """The group's commits are the claims."""

    by_group = True

    def __init__(self, claims: GroupClaims) -> None:
        self.log = claims

    def done(self, start: StreamOffset, positions: Mapping[TopicPartition, int], *, here: bool) -> Offsets:
        """See :meth:`Claiming.done`."""
        if here and start.data:
            self.log.claim({tp: entry for tp, entry in start.ranges.items() if tp in positions}, start.data)
        return {}

    def found(self, tps: Collection[TopicPartition], commits: Commits, start: StreamOffset) -> Offsets:
        """See :meth:`Claiming.found`."""
        return self.log.found(tps, commits, start.ranges if start.data else {}, start.data)

    def planned(self, batch: StreamOffset) -> None:
        """See :meth:`Claiming.planned`."""
        self.log.announce(batch.ranges, batch.data)

    def last(self, tp: TopicPartition) -> str:
        """See :meth:`Claiming.last`."""
        return self.log.last(tp)


def claiming_of(view: TopicView, commit: Commit) -> Claiming | None:
    """As the options of ``view`` ask for; None without claims."""
    options = view.options
    if options.claims is not None:
        return GroupClaiming(GroupClaims(objects_at(options.claims), lambda tps: commits_of(view, tps), commit))
    return None if options.store is None else LogClaiming(log_at(options.store))


def commits_of(view: TopicView, tps: Collection[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
    """The group's commits, of all partitions that are read for None."""
    return view.commits(view.partitions() if tps is None else tps, _PATIENCE)


def group_claims(options: Mapping[str, str], place: str) -> GroupClaims:
    """The claims of a group for reading, with the options of its queries. It opens connections for each call.

    ``place``: what the queries have as the option ``claims``. Raises ConfigurationError for wrong options.
    """
    found = SourceOptions.parse({**options, "claims": place}, streaming=True)

    def fetch(tps: Collection[TopicPartition] | None) -> Commits:
        view = TopicView(found)
        try:
            return commits_of(view, tps)
        finally:
            view.close()

    return GroupClaims(objects_at(place), fetch)
