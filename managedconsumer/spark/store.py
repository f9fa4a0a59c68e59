"""Claims: how several queries write to one directory so that every record counts exactly once.

A micro-batch writes its data first, under a name that nobody else uses. Then it *claims* its ranges, partition by
partition: a file named by the range's first offset is created, which fails if it is there already. The claims of a
partition form a chain (each says where it stops, and there the next one starts); only data named by the chain counts.

So it does not matter who was slow, evicted, killed or run again: of two batches that read the same offsets one gets the
claim, and what the other wrote is never looked at. A new owner begins where the chain ends, which outranks the offset
that the group has committed. (The idea is the "offsets in an external store" of Java's consumer documentation.)

The directory must be on a file system with hard links and a common view of it for all drivers: a local disk, NFS.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping
from urllib.parse import unquote, urlparse

from managedconsumer.compat.naming import is_legal
from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.structs import TopicPartition

_ROOT = "root.json"


@dataclass(frozen=True)
class Claim:
    """Offsets ``start`` <= offset < ``stop`` of a partition are in ``data`` (a path relative to the store)."""

    start: int
    stop: int
    data: str


class ClaimStore:
    """A directory of claims. Any number of processes may use it at once; methods may be called from any thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path)
        self._ends: dict[TopicPartition, int] = {}
        self._synced = ""

    def __repr__(self) -> str:
        return f"ClaimStore({str(self.path)!r})"

    def claim(self, tp: TopicPartition, entry: OffsetRange, data: str) -> bool:
        """Claim a range for ``data``; False if another writer was first. Durable when it returns True.

        What ``data`` names (a file or directory in the store, if there is one) is written through to the disk before:
        a claim that outlived a power failure without its data would be a hole that nobody reads again.
        Claiming again what this very ``data`` has claimed is True: a batch may be run again after its claims.
        Raises ConfigurationError for a topic name that Kafka does not allow, OSError when the file cannot be written.
        """
        if entry.size <= 0:
            return True
        home = self._home(tp)
        home.mkdir(parents=True, exist_ok=True)
        if self._synced != data:  # a batch claims partition by partition
            _sync_data(self.path, data)
            self._synced = data
        # The first claim of a partition decides where its chain begins.
        if _create(home / _ROOT, {"start": entry.start}):
            for directory in (home.parent, self._claims(), self.path):
                _sync(directory)
        made = _create(home / f"{entry.start:019d}.json", {"stop": entry.stop, "data": data})
        if made:
            _sync(home)
            return True
        found = self._read(tp, entry.start)
        return found is not None and found.data == data and found.stop == entry.stop

    def chain(self, tp: TopicPartition) -> Iterator[Claim]:
        """The claims that count, in order."""
        position = self.root(tp)
        while position is not None:
            claim = self._read(tp, position)
            if claim is None:
                return
            yield claim
            position = claim.stop

    def root(self, tp: TopicPartition) -> int | None:
        """Where the partition's chain begins; None before its first claim."""
        try:
            return int(json.loads((self._home(tp) / _ROOT).read_text())["start"])
        except FileNotFoundError:
            return None

    def end(self, tp: TopicPartition) -> int | None:
        """The first offset that nobody has claimed; None before the first claim. Cheap when asked again."""
        position = self._ends.get(tp)
        if position is None:
            position = self.root(tp)
        while position is not None:
            claim = self._read(tp, position)
            if claim is None:
                self._ends[tp] = position
                return position
            position = claim.stop
        return None

    def partitions(self) -> list[TopicPartition]:
        """Every partition of which something was claimed."""
        homes = [home for home in self._claims().glob("*/*") if home.name.isdecimal()]
        return sorted(TopicPartition(home.parent.name, int(home.name)) for home in homes)

    def ends(self) -> dict[TopicPartition, int]:
        """The end of every chain."""
        return {tp: end for tp in self.partitions() if (end := self.end(tp)) is not None}

    def winners(self) -> dict[str, set[TopicPartition]]:
        """Which data counts, and for which partitions: ``{data: partitions}``."""
        found: dict[str, set[TopicPartition]] = {}
        for tp in self.partitions():
            for claim in self.chain(tp):
                found.setdefault(claim.data, set()).add(tp)
        return found

    def claimed(self) -> dict[TopicPartition, int]:
        """How many offsets of each partition are claimed."""
        return {tp: (self.end(tp) or 0) - (self.root(tp) or 0) for tp in self.partitions()}

    def _claims(self) -> Path:
        return self.path / "_claims"

    def _home(self, tp: TopicPartition) -> Path:
        # Kafka's own rule makes safe file names. The name may come from a broker that does not keep to it.
        if not is_legal(tp.topic):
            raise ConfigurationError(
                f"{tp.topic!r} is no legal topic name (1 to 249 of a-z A-Z 0-9 . _ -), so nothing is claimed for it: "
                "claims are files in a directory of the topic's name"
            )
        return self._claims() / tp.topic / str(tp.partition)

    def _read(self, tp: TopicPartition, start: int) -> Claim | None:
        try:
            found = json.loads((self._home(tp) / f"{start:019d}.json").read_text())
        except FileNotFoundError:
            return None
        if int(found["stop"]) <= start:
            raise ConfigurationError(f"{self.path}: the claim of {tp.topic}-{tp.partition} at {start} goes nowhere")
        return Claim(start, int(found["stop"]), str(found["data"]))


def local_path(path: str | os.PathLike[str]) -> Path:
    """A plain path or a ``file:`` URL as an absolute path; other schemes raise ConfigurationError."""
    text = os.fspath(path)
    parsed = urlparse(text)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path)).absolute()
    if "://" in text:
        raise ConfigurationError(f"{text!r}: claims need a local (or NFS) directory, not {parsed.scheme}")
    return Path(text).expanduser().absolute()


def _create(target: Path, content: Mapping[str, object]) -> bool:
    """Make a file with its whole content at once, unless it is there; True if it was made."""
    if target.exists():
        return False
    draft = target.with_name(f".{uuid.uuid4().hex}")
    with draft.open("w", encoding="utf-8") as out:
        json.dump(content, out)
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(draft, target)
        return True
    except FileExistsError:
        return False
    finally:
        draft.unlink()


def _sync_data(store: Path, data: str) -> None:
    """Write a batch's files through to the disk, and the names by which they are found; once for each batch.

    Spark closes its files without asking for that.
    """
    target = store / data
    if not target.exists():
        return  # what the batch wrote is kept elsewhere, and its writer answers for it
    for directory, _, names in os.walk(target, topdown=False):
        for name in names:
            _sync(Path(directory) / name)
        if Path(directory) != target:
            _sync(Path(directory))
    while target != store and target.is_relative_to(store):
        _sync(target)
        target = target.parent
    _sync(store)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
