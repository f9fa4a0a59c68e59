"""Claim what a query has read, at the boundary between two batches, when the one before is done.

The sink only writes the run's name with its rows (the column ``range``). A sink with a transaction may claim in it; the
query then claims the same again, and ranges without rows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Callable, Collection, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.ranges import StreamOffset
from managedconsumer.spark.topics import Offsets, TopicView
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

# Most queries have no claims: their start does not wait for the logs and stores.
if TYPE_CHECKING:
    from managedconsumer.spark.claims.group import Commit, Commits, GroupClaims
    from managedconsumer.spark.claims.log import ClaimLog

log = logging.getLogger(__name__)

_PATIENCE = 30.0


class Claiming:
    """The claims of a query; this base class is those of a query without any. Used by one thread."""

    #: True if claims say where partitions go on, and not the checkpoint or the group.
    decide = False
    #: True if the group's commits are the claims, so that a query must not end before they are made.
    by_group = False

    def planned(self, batch: StreamOffset) -> None:
        """Note a batch that was planned and did not run yet."""

    def name_run(self, batch: StreamOffset) -> str:
        """Return the name for the rows of a batch that is about to run."""
        return batch.data

    def done(self, start: StreamOffset, positions: Mapping[TopicPartition, int], *, here: bool) -> Offsets:
        """Claim the finished batch ``start``; return where partitions go on. ``here``: this process planned it."""
        return start.moved if here else {}

    def found(self, tps: Collection[TopicPartition], commits: Commits, start: StreamOffset) -> Offsets:
        """Return where newly assigned partitions go on, as far as claims say so."""
        return {}

    def last(self, tp: TopicPartition) -> str:
        """Return the batch that the group's commit of a partition names; "": none."""
        return ""


class _Logged(Claiming):
    decide = True

    def __init__(self, log: ClaimLog, new_id: Callable[[], str]) -> None:
        self.log = log
        self._driver = new_id().replace("-", "")[:8]
        # The batch that ran last in this process, or was found done, and the name of the run: "" if it is unknown.
        self._known = ("", "")

    def planned(self, batch: StreamOffset) -> None:
        """See :meth:`Claiming.planned`. The first run has the batch's name."""
        self._known = (batch.data, batch.data)

    def name_run(self, batch: StreamOffset) -> str:
        """See :meth:`Claiming.name_run`. A batch of an earlier driver, which may have written rows, gets a new name."""
        if batch.data and batch.data != self._known[0]:
            name = f"{batch.data}-{self._driver}"
            self.log.repeat(batch.data, name)
            self._known = (batch.data, name)
        return self._known[1] if batch.data else ""

    def _ended(self, batch: StreamOffset) -> str:
        """Return the name of the run that has ended ``batch``; "" if it is unknown."""
        if batch.data and batch.data != self._known[0]:
            self._known = (batch.data, "" if self.log.repeated(batch.data) else batch.data)
        return self._known[1] if batch.data else ""


class LogClaiming(_Logged):
    """Claims in a log outside of the group: a directory, an object store, a database."""

    def __init__(self, claims: ClaimLog, new_id: Callable[[], str]) -> None:
        super().__init__(claims, new_id)
        self._done = ""
        self._ends: dict[TopicPartition, int] = {}

    def done(self, start: StreamOffset, positions: Mapping[TopicPartition, int], *, here: bool) -> Offsets:
        """See :meth:`Claiming.done`. Also claims a batch that was planned before a crash."""
        name = self._ended(start)
        if name and start.data != self._done:
            wanted = {tp: entry for tp, entry in start.ranges.items() if entry.size > 0}
            ends = self._look(list(wanted))
            # Another query, or the sink in its own transaction, may have claimed some of them already.
            open_ = {tp: entry for tp, entry in wanted.items() if ends.get(tp, entry.start) == entry.start}
            if open_:
                self.log.claim(open_, name)
            self._done = start.data
        return self.found(list(positions), {}, start)

    def found(self, tps: Collection[TopicPartition], commits: Commits, start: StreamOffset) -> Offsets:
        """See :meth:`Claiming.found`. Ignores the group's commits, which are for monitors."""
        ends = self._look(tps)
        if start.data and not self._ended(start):  # it is read again, also if it is the first batch
            return {**{tp: start.ranges[tp].start for tp in tps if tp in start.ranges}, **ends}
        return ends

    def _look(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log's ends. If the log has lost claims (a restored backup), their rows are read again."""
        ends = self.log.ends(tps)
        for tp in tps:
            before, end = self._ends.get(tp), ends.get(tp)
            if before is not None and end is None:
                raise ConfigurationError(
                    f"the claims of {tp.topic}-{tp.partition} up to offset {before} are gone from {self.log!r}: the "
                    "next claim would be the first one, and no earlier row would count. Restore the claims, or read "
                    "the topic into a new place"
                )
            if before is not None and end is not None and end < before:
                log.warning("the claims of %s-%d went back from %d to %d; reading again from there", *tp, before, end)
        self._ends.update(ends)
        return ends


class GroupClaiming(_Logged):
    by_group = True

    log: GroupClaims

    def done(self, start: StreamOffset, positions: Mapping[TopicPartition, int], *, here: bool) -> Offsets:
        if here and start.data:
            self.log.claim({tp: entry for tp, entry in start.ranges.items() if tp in positions}, self._ended(start))
        return {}

    def found(self, tps: Collection[TopicPartition], commits: Commits, start: StreamOffset) -> Offsets:
        return self.log.found(tps, commits, start.ranges if start.data else {}, self._ended(start))

    def planned(self, batch: StreamOffset) -> None:
        super().planned(batch)
        self.log.announce(batch.ranges, batch.data)

    def last(self, tp: TopicPartition) -> str:
        return self.log.last(tp)


def claiming_of(view: TopicView, commit: Commit) -> Claiming:
    options, new_id = view.options, view.handler.new_id
    if options.claims is not None:
        return GroupClaiming(_group_claims(options.claims, lambda tps: commits_of(view, tps), commit), new_id)
    if options.store is None:
        return Claiming()
    from managedconsumer.spark.claims.places import log_at

    return LogClaiming(log_at(options.store), new_id)


def commits_of(view: TopicView, tps: Collection[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the group's commits of ``tps``; None: of all partitions."""
    return view.commits(view.partitions() if tps is None else tps, _PATIENCE)


def group_claims(options: Mapping[str, str], place: str) -> GroupClaims:
    """Return the claims of a group, read-only, with the options of its queries. Each call opens connections.

    ``place``: the option ``claims`` of the queries. Raises ConfigurationError for wrong options.
    """
    found = SourceOptions.parse({**options, "claims": place}, streaming=True)

    def fetch(tps: Collection[TopicPartition] | None) -> Commits:
        view = TopicView(found)
        try:
            return commits_of(view, tps)
        finally:
            view.close()

    return _group_claims(place, fetch)


def _group_claims(
    place: str, fetch: Callable[[Collection[TopicPartition] | None], Commits], commit: Commit | None = None
) -> GroupClaims:
    from managedconsumer.spark.claims.group import GroupClaims
    from managedconsumer.stores.objects import objects_at

    return GroupClaims(objects_at(place), fetch, commit)
