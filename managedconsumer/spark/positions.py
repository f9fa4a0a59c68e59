"""Decide where a partition is read from: claims, checkpoint, the group's commit, or ``startingOffsets``. Pure.

A commit's metadata names its query and the number of its batch. So a commit that differs from the checkpoint is either
the query's own (then the checkpoint was restored, and is replayed) or another member's (which has read meanwhile).
"""

from __future__ import annotations

import re
import zlib
from types import MappingProxyType
from typing import Mapping, NamedTuple

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

#: The values of the option ``offsetConflict``; ``auto`` is its default.
AUTO, FAIL, CHECKPOINT, GROUP = CONFLICTS = ("auto", "fail", "checkpoint", "group")

_METADATA = re.compile(r"managedconsumer query=(\w+) batch=(\d+)(?: start=([\w-]+))?(?: data=([\w-]+))?\Z")
# How many partitions one line of the log names.
_SHOWN = 12


class Author(NamedTuple):
    """The author of a commit: query, number of batches, starting option; ``data``: the batch that it claims, if any."""

    query: str
    batch: int
    start: str = ""
    data: str = ""

    def text(self) -> str:
        """Return the metadata for a commit."""
        begun = f" start={self.start}" if self.batch == 0 and self.start else ""
        claims = f" data={self.data}" if self.data else ""
        return f"managedconsumer query={self.query} batch={self.batch}{begun}{claims}"

    @classmethod
    def of(cls, metadata: str | None) -> Author | None:
        """Read the result of :meth:`text`; None for the commit of another program."""
        found = _METADATA.match(metadata or "")
        return None if found is None else cls(found[1], int(found[2]), found[3] or "", found[4] or "")


def start_word(text: str) -> str:
    """Return a short word for the user's starting option, to compare it with that in a commit."""
    return text if re.fullmatch(r"[a-z]+", text) else f"{zlib.crc32(text.encode()):08x}"


class Query(NamedTuple):
    """The state of the query.

    ``initial``: its checkpoint is new. ``explicit``: the user gave a start other than ``committed``. ``shared``: other
    members of the group read the same topics.
    """

    author: Author
    initial: bool
    explicit: bool
    shared: bool = False
    conflict: str = AUTO


class Known(NamedTuple):
    """The known offsets of one partition; each is the next one to read.

    ``done``: the checkpoint's, None if the partition is not in it. ``begin``: where ``startingOffsets`` points.
    """

    claimed: int | None = None
    done: int | None = None
    begin: int | None = None
    committed: OffsetAndMetadata | None = None


class Choice(NamedTuple):
    """``offset`` None: the log's start. ``said``: why it is not the user's. ``group``: the group's, if outvoted."""

    offset: int | None
    said: str = ""
    group: int | None = None


def choose(known: Known, query: Query, *, has_store: bool = False) -> Choice:
    """Decide where one partition is read from; strongest first: claims, checkpoint, group, ``startingOffsets``."""
    if known.claimed is not None:
        return Choice(known.claimed)
    if has_store or known.committed is None:
        own = known.begin if query.initial else known.done
        return Choice(
            own, "" if own is not None else "that is the log's start; neither checkpoint nor group name the partition"
        )
    return _fresh(known, query) if query.initial else _resumed(known, query)


def _resumed(known: Known, query: Query) -> Choice:
    """The query has a checkpoint, and the group a commit."""
    assert known.committed is not None  # asked by the caller
    there, author = known.committed.offset, Author.of(known.committed.metadata)
    own = author is not None and author.query == query.author.query
    if known.done is None:
        if own and author is not None and author.batch > query.author.batch:
            # The checkpoint was restored to a time before the query had this partition.
            return _decide(query, None, there, "the checkpoint is older than what this query has committed")
        return Choice(there, "that is where the group is; the checkpoint does not name the partition")
    if there == known.done or (own and there < known.done):
        return Choice(known.done)
    if own:
        return _decide(query, known.done, there, "the checkpoint is older than what this query has committed")
    further = CHECKPOINT if there < known.done else GROUP
    return _decide(query, known.done, there, "another member, or a tool, has committed for the group", further)


def _fresh(known: Known, query: Query) -> Choice:
    """The checkpoint is new, and the group has a commit."""
    assert known.committed is not None  # asked by the caller
    there, author = known.committed.offset, Author.of(known.committed.metadata)
    if not query.explicit or known.begin is None or there == known.begin:
        return Choice(there)
    if author is not None and author.batch == 0 and author.start == query.author.start:
        # The same start, which has read nothing yet: what came since then must not be skipped.
        return Choice(there, "a query with the same start began there, and has read nothing since")
    if query.shared:
        return _decide(query, known.begin, there, "other members of the group are at work on the topic", GROUP)
    return _decide(query, known.begin, there, "startingOffsets outranks the group when the checkpoint is new")


def _decide(query: Query, own: int | None, group: int, why: str, default: str = CHECKPOINT) -> Choice:
    """Choose between the query's offset ``own`` (None: the log's start) and that of the group."""
    mode = default if query.conflict == AUTO else query.conflict
    mine = "the log's start" if own is None else f"{own}"
    if mode == FAIL:
        raise ConfigurationError(
            f"the query would go on at {mine} and the group at {group}: {why}. The option offsetConflict decides: "
            "checkpoint (what the query says), group, or auto"
        )
    if mode == GROUP:
        return Choice(group, f"that is where the group is; {why}")
    return Choice(own, f"that is not where the group is; {why}", group)


def left_to_read(ranges: Ranges, commits: Mapping[TopicPartition, OffsetAndMetadata], query: str) -> Ranges:
    """Return ``ranges`` of a batch that ``query`` repeats, without offsets that others have committed since."""
    left: Ranges = {}
    for tp, entry in ranges.items():
        commit = commits.get(tp)
        author = None if commit is None else Author.of(commit.metadata)
        foreign = commit is not None and (author is None or author.query != query)
        begin = commit.offset if commit is not None and foreign else entry.start
        left[tp] = OffsetRange(min(max(begin, entry.start), entry.stop), entry.stop)
    return left


def lines(choices: Mapping[TopicPartition, Choice], found: Mapping[TopicPartition, int]) -> list[str]:
    """Return the log's lines: each reason once, with its partitions and their offsets."""
    by_reason: dict[str, dict[TopicPartition, int]] = {}
    for tp, choice in choices.items():
        if choice.said:
            by_reason.setdefault(choice.said, {})[tp] = found[tp]
    groups = {tp: choice.group for tp, choice in choices.items()}
    return [f"read from {places(at, groups)}: {said}" for said, at in by_reason.items()]


def places(at: Mapping[TopicPartition, int], groups: Mapping[TopicPartition, int | None] = MappingProxyType({})) -> str:
    """``t-0 at 50 (group: 900), t-1 at 7``, twelve of them at most."""
    shown = []
    for tp in sorted(at)[:_SHOWN]:
        group = groups.get(tp)
        shown.append(f"{tp.topic}-{tp.partition} at {at[tp]}" + ("" if group is None else f" (group: {group})"))
    return ", ".join(shown) + (f" and {len(at) - _SHOWN} more" if len(at) > _SHOWN else "")
