"""Kafka as the claim log: the group's own commit is the claim, and its metadata names the batch.

The broker refuses the commit of an evicted member, so a query that has lost its partitions cannot claim. No other
service is needed. As a commit names only the last claim, each batch has a *manifest*, written before the batch runs. It
names the batch's ranges and the previous batch of each partition, so manifests lead from the commit back to the first
batch, or to the last snapshot::

    _manifests/<batch>.json                {"topic": {"0": [start, stop, "the batch before"]}}
    _manifests/<batch>-<driver>.json       the same, for a driver that ran the batch again
    _manifests/snapshots/<number>.json     what counts up to there, made every thousand batches

Manifests may be kept anywhere where a new object can be created, also in an object store without conditions.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Callable, Collection, Iterator, Mapping, NamedTuple

from managedconsumer.errors import ConfigurationError, KafkaException
from managedconsumer.spark.claims.chains import EVERY
from managedconsumer.spark.claims.log import ClaimLog, Winners
from managedconsumer.spark.positions import Author
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.stores.objects import Objects
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

_TOP = "_manifests"
_SNAPSHOTS = f"{_TOP}/snapshots"

Commits = Mapping[TopicPartition, OffsetAndMetadata]
#: Returns the group's commits, for None those of all partitions.
Fetch = Callable[["Collection[TopicPartition] | None"], Commits]
#: Commits as the member; returns the partitions whose commit stands.
Commit = Callable[[Mapping[TopicPartition, int]], Collection[TopicPartition]]


class Link(NamedTuple):
    """A partition's part of a batch: its range, and the previous batch that counts ("": there is none)."""

    range: OffsetRange
    before: str


class Place(NamedTuple):
    """The next offset of a partition, and the last batch."""

    offset: int
    data: str


class GroupClaims(ClaimLog):
    """A :class:`~managedconsumer.spark.claims.log.ClaimLog` in the commits of a group. Used by one thread.

    ``fetch``: returns the group's commits. ``commit``: commits as the group's member; None: the log is read-only.
    """

    def __init__(self, objects: Objects, fetch: Fetch, commit: Commit | None = None, every: int = EVERY) -> None:
        self.objects = objects
        self._fetch = fetch
        self._commit = commit
        self._every = every
        self._planned = 0
        self._last: dict[TopicPartition, str] = {}
        self._manifests: dict[str, dict[TopicPartition, Link]] = {}

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.claim`. Raises ConfigurationError if read-only."""
        if self._commit is None:
            raise ConfigurationError("only the query that is a member of the group claims for it")
        self._last.update({tp: data for tp, entry in ranges.items() if entry.size > 0})
        done = self._commit({tp: entry.stop for tp, entry in ranges.items()})
        return {tp: entry for tp, entry in ranges.items() if tp in done}

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        tips, _ = self._snapshot()
        commits = self._fetch(tps)
        found = {tp: place.offset for tp, place in tips.items() if tps is None or tp in tps}
        return {**found, **{tp: commit.offset for tp, commit in commits.items()}}

    def repeat(self, data: str, name: str) -> None:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.repeat`. A batch without a manifest is not claimed."""
        content = self.objects.read(f"{_TOP}/{data}.json")
        if content is not None:
            self.objects.create(f"{_TOP}/{name}.json", content)

    def repeated(self, data: str) -> bool:
        return any(name.startswith(f"{data}-") for name in self.objects.names(_TOP))

    def winners(self) -> Winners:
        """See :meth:`~managedconsumer.spark.claims.log.ClaimLog.winners`.

        Raises ConfigurationError if a manifest is missing, or if another program has moved the group's offsets.
        """
        before, names = self._snapshot()
        found: Winners = {}
        for name in names:
            content = self.objects.read(f"{_SNAPSHOTS}/{name}")
            for data, topics in json.loads(content or b"{}").get("winners", {}).items():
                for topic, partitions in topics.items():
                    for number, entry in partitions.items():
                        found.setdefault(data, {})[TopicPartition(topic, int(number))] = OffsetRange(*entry)
        for tp, data, entry in self._since(before, self._now()):
            found.setdefault(data, {})[tp] = entry
        return found

    # -- what the query tells ---------------------------------------------------------------------------

    def announce(self, ranges: Ranges, data: str) -> None:
        """Write the manifest of a batch that was planned and did not run yet."""
        nested: dict[str, dict[str, list[Any]]] = {}
        links = {tp: Link(entry, self._last.get(tp, "")) for tp, entry in ranges.items()}
        for tp, link in links.items():
            nested.setdefault(tp.topic, {})[str(tp.partition)] = [*link.range, link.before]
        self.objects.create(f"{_TOP}/{data}.json", json.dumps(nested).encode())
        self._planned += 1
        if self._planned % self._every == 0:
            try:
                self.snapshot()
            except (KafkaException, OSError) as error:
                log.warning("no snapshot of the claims was made, another is tried later: %s", error)

    def found(
        self, tps: Collection[TopicPartition], commits: Commits, done: Ranges, data: str
    ) -> dict[TopicPartition, int]:
        """Return where newly assigned ``tps`` go on; those without a commit or a batch are left out.

        ``done``: the ranges of the batch ``data``, which is done and perhaps not claimed yet. The next commit claims it
        if the group still is at the batch's start, and at the batch that its manifest names. ``data`` "": it is unknown
        which run of the batch has ended, so it is read again.
        """
        tips, _ = self._snapshot()
        links = self._manifest(data) if data else None
        at: dict[TopicPartition, int] = {}
        for tp in tps:
            commit, entry = commits.get(tp), done.get(tp)
            place = tips.get(tp) if commit is None else Place(commit.offset, batch_of(commit))
            link = None if links is None else links.get(tp)
            goes_on = (
                link is not None and place is not None and (place.offset, place.data) == (link.range.start, link.before)
            )
            if entry is not None and link is not None and link.range == entry and (goes_on or commit is None):
                place = Place(entry.stop, data if entry.size else link.before)
            if place is None and entry is not None:
                place = Place(entry.start, "")  # the first batch of all, and not claimed
            if place is not None:
                at[tp] = place.offset
            self._last[tp] = "" if place is None else place.data
        return at

    def last(self, tp: TopicPartition) -> str:
        """Return the batch that the next commit of a partition claims."""
        return self._last.get(tp, "")

    # -- snapshots --------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Write what counts so far, so that readers need no older manifest. Of two at the same time one succeeds."""
        before, known = self._snapshot()
        now = self._now()
        new: dict[str, dict[str, dict[str, list[int]]]] = {}
        for tp, data, entry in self._since(before, now):
            new.setdefault(data, {}).setdefault(tp.topic, {})[str(tp.partition)] = list(entry)
        if not new:
            return
        places = [[*tp, *place] for tp, place in sorted({**before, **now}.items())]
        content = json.dumps({"tips": places, "winners": new}).encode()
        self.objects.create(f"{_SNAPSHOTS}/{len(known):09d}.json", content)
        self._manifests.clear()

    def vacuum(self, older_than: float) -> int:
        """Delete manifests older than ``older_than`` seconds, after a snapshot; returns their number.

        ``older_than`` must be longer than any batch may take, also that of a hanging driver.
        """
        self.snapshot()
        deleted = 0
        # A batch's own manifest goes before those of its repetitions, without which it would seem valid.
        for each in reversed(self.objects.names(_TOP)):
            name = f"{_TOP}/{each}"
            if each.endswith(".json") and self.objects.age(name) > older_than:
                self.objects.delete(name)
                deleted += 1
        return deleted

    def _snapshot(self) -> tuple[dict[TopicPartition, Place], list[str]]:
        """Return where the last snapshot ends, and the names of all snapshots."""
        names = [name for name in self.objects.names(_SNAPSHOTS) if name.endswith(".json")]
        content = self.objects.read(f"{_SNAPSHOTS}/{names[-1]}") if names else None
        if content is None:
            return {}, names
        tips = json.loads(content)["tips"]
        return {TopicPartition(topic, number): Place(offset, data) for topic, number, offset, data in tips}, names

    # -- the way back -----------------------------------------------------------------------------------

    def _now(self) -> dict[TopicPartition, Place]:
        return {tp: Place(commit.offset, batch_of(commit)) for tp, commit in self._fetch(None).items()}

    def _since(
        self, before: Mapping[TopicPartition, Place], now: Mapping[TopicPartition, Place]
    ) -> Iterator[tuple[TopicPartition, str, OffsetRange]]:
        """Yield the claims between the two, newest first. A commit that names a batch is a claim."""
        for tp, place in now.items():
            until = before[tp].data if tp in before else ""
            data = place.data
            while data != until:
                links = self._manifest(data) if data else {}
                if links is None:
                    raise ConfigurationError(f"{self.objects!r}: the manifest of batch {data}, which counts, is gone")
                link = links.get(tp)
                if link is None:
                    raise _moved(tp, place.offset)
                if link.range.size > 0:
                    yield tp, data, link.range
                data = link.before

    def _manifest(self, data: str) -> dict[TopicPartition, Link] | None:
        links = self._manifests.get(data)
        if links is None:
            content = self.objects.read(f"{_TOP}/{data}.json")
            if content is None:
                return None
            links = self._manifests[data] = {
                TopicPartition(topic, int(number)): Link(OffsetRange(start, stop), before)
                for topic, partitions in json.loads(content).items()
                for number, (start, stop, before) in partitions.items()
            }
        return links


def batch_of(commit: OffsetAndMetadata) -> str:
    """Return the batch that a commit claims; "" if it claims none."""
    author = Author.of(commit.metadata)
    return "" if author is None else author.data


def _moved(tp: TopicPartition, offset: int) -> ConfigurationError:
    return ConfigurationError(
        f"the group's commit of {tp.topic}-{tp.partition} at {offset} does not follow from its claims: another program "
        "has committed for the group, or reset its offsets, so what counts is unknown. Read the topic into a new "
        "place, or restore the group's offsets"
    )
