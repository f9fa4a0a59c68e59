"""Claims as objects of a directory or an object store: one object for each range, created only if it is not there.

The claims of a partition form a chain: each names its stop, where the next one starts. Only claims in the chain count.
After every thousand claims one segment repeats them in a single object::

    _claims/<topic>/<partition>/root.json             where the chain begins
    _claims/<topic>/<partition>/<start>.json          {"stop": ..., "data": ...}
    _claims/<topic>/<partition>/segments/<start>.json [[start, stop, data], ...]
    _repeats/<data>.json                              {"as": name}: a batch that was run again
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Collection, Iterator

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.claims.log import ClaimLog, Winners, claimed, winners_of
from managedconsumer.spark.ranges import OffsetRange, Ranges
from managedconsumer.stores.objects import LocalObjects, Objects
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_input import is_legal

_TOP, _REPEATS = "_claims", "_repeats"
#: Claims in a segment.
EVERY = 1000


@dataclass(frozen=True)
class Claim:
    """Offsets ``start`` <= offset < ``stop`` of a partition are in the batch named ``data``."""

    start: int
    stop: int
    data: str


class Chains:
    """The chains of all partitions. Any number of processes may use the same objects, each by one thread at a time."""

    def __init__(self, objects: Objects, every: int = EVERY) -> None:
        self.objects = objects
        self._every = every
        # The last claim of each partition that was seen.
        self._tips: dict[TopicPartition, Claim] = {}
        # The number of claims seen since the last segment, and the end of that segment.
        self._loose: dict[TopicPartition, int] = {}
        self._floor: dict[TopicPartition, int] = {}
        self._settled = ""

    def partitions(self) -> list[TopicPartition]:
        names = self.objects.names
        return sorted(
            TopicPartition(topic, int(number))
            for topic in names(_TOP)
            for number in names(f"{_TOP}/{topic}")
            if number.isdecimal()
        )

    def ends(self, tps: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the first unclaimed offset of ``tps``, or of all partitions. Cheap when called again."""
        asked = self.partitions() if tps is None else tps
        return {tp: end for tp in asked if (end := self.end(tp)) is not None}

    def root(self, tp: TopicPartition) -> int | None:
        """Return where the partition's chain begins; None before its first claim."""
        found = self.objects.read(f"{_home(tp)}/root.json")
        return None if found is None else int(json.loads(found)["start"])

    def end(self, tp: TopicPartition) -> int | None:
        """Return the first unclaimed offset; None before the first claim."""
        tip = self._tips.get(tp)
        if tip is not None and self._read(tp, tip.start) != tip:
            tip = None  # it is in a segment by now, or this is an older copy of the directory
            del self._tips[tp]
        position = self._begin(tp) if tip is None else tip.stop
        if position is None:
            return None
        for claim in self._walk(tp, position):
            position = claim.stop
            self._tips[tp] = claim
            self._loose[tp] = self._loose.get(tp, 0) + 1
        if self._loose.get(tp, 0) >= self._every:
            self.snapshot(tp)
        return position

    def chain(self, tp: TopicPartition) -> Iterator[Claim]:
        """Yield the claims that count, in order."""
        position = self.root(tp)
        if position is None:
            return
        for claims in self._segments(tp, position):
            yield from claims
            position = claims[-1].stop
        yield from self._walk(tp, position)

    def _claim(self, tp: TopicPartition, entry: OffsetRange, data: str) -> bool:
        """See :meth:`ClaimStore.claim`. The data goes to the disk first: a claim must not outlive it."""
        if entry.size <= 0:
            return True
        home = _home(tp)
        if entry.start < self._floor.get(tp, 0):
            # The claim of these offsets may be in a segment only.
            return Claim(*entry, data) in self.chain(tp)
        if self._settled != data:  # a batch claims partition by partition
            self.objects.settle(data)
            self._settled = data
        # The first claim of a partition decides where its chain begins.
        if tp not in self._tips:
            self.objects.create(f"{home}/root.json", _dump({"start": entry.start}))
        if self.objects.create(_name(tp, entry.start), _dump({"stop": entry.stop, "data": data})):
            return True
        return self._read(tp, entry.start) == Claim(*entry, data)

    def snapshot(self, tp: TopicPartition) -> None:
        """Make a segment of the claims since the last one. Of two processes that do it at once, one succeeds."""
        begin = self._begin(tp)
        claims = [] if begin is None else list(self._walk(tp, begin))
        if claims:
            content = json.dumps([[claim.start, claim.stop, claim.data] for claim in claims])
            self.objects.create(_segment(tp, claims[0].start), content.encode())
            self._begin(tp)
        self._loose[tp] = 0

    def vacuum(self, older_than: float) -> int:
        """Delete claims that are in a segment and older than ``older_than`` seconds; returns their number.

        ``older_than`` must be longer than any batch may take, also that of a hanging driver.
        """
        deleted = 0
        for tp in self.partitions():
            self.snapshot(tp)
            floor = self._floor.get(tp, -1)
            for name in self.objects.names(_home(tp)):
                start = name.removesuffix(".json")
                if start.isdecimal() and int(start) < floor and self.objects.age(f"{_home(tp)}/{name}") > older_than:
                    self.objects.delete(f"{_home(tp)}/{name}")
                    deleted += 1
        return deleted

    def _begin(self, tp: TopicPartition) -> int | None:
        """Return where single claims begin: behind the last segment, or at the root."""
        position = self.root(tp)
        self._floor.pop(tp, None)
        if position is not None:
            for claims in self._segments(tp, position, last=True):
                position = self._floor[tp] = claims[-1].stop
        self._loose[tp] = 0
        return position

    def _segments(self, tp: TopicPartition, root: int, *, last: bool = False) -> Iterator[list[Claim]]:
        """Yield the segments of the chain in order, or only the last one."""
        starts = [int(name.removesuffix(".json")) for name in self.objects.names(f"{_home(tp)}/segments")]
        for start in starts[-1:] if last else starts:
            content = self.objects.read(_segment(tp, start))
            if content is None:
                raise ConfigurationError(
                    f"{self.objects!r}: the segment of {tp.topic}-{tp.partition} at {start} is gone"
                )
            claims = [Claim(int(begin), int(stop), str(data)) for begin, stop, data in json.loads(content)]
            if not last and claims[0].start != root:
                raise ConfigurationError(
                    f"{self.objects!r}: the claims of {tp.topic}-{tp.partition} from {root} to {start} are gone"
                )
            root = claims[-1].stop
            yield claims

    def _walk(self, tp: TopicPartition, position: int) -> Iterator[Claim]:
        while (claim := self._read(tp, position)) is not None:
            yield claim
            position = claim.stop

    def _read(self, tp: TopicPartition, start: int) -> Claim | None:
        content = self.objects.read(_name(tp, start))
        if content is None:
            return None
        found = json.loads(content)
        if int(found["stop"]) <= start:
            raise ConfigurationError(
                f"{self.objects!r}: the claim of {tp.topic}-{tp.partition} at {start} goes nowhere"
            )
        return Claim(start, int(found["stop"]), str(found["data"]))


class ObjectClaims(Chains, ClaimLog):
    """A :class:`~managedconsumer.spark.claims.log.ClaimLog` of small objects. Used by one thread at a time."""

    def __repr__(self) -> str:
        return f"ObjectClaims({self.objects!r})"

    def claim(self, ranges: Ranges, data: str) -> Ranges:
        return {tp: entry for tp, entry in ranges.items() if self._claim(tp, entry, data)}

    def repeat(self, data: str, name: str) -> None:
        self.objects.create(f"{_REPEATS}/{data}.json", _dump({"as": name}))

    def repeated(self, data: str) -> bool:
        return self.objects.read(f"{_REPEATS}/{data}.json") is not None

    def winners(self) -> Winners:
        return winners_of(
            (tp, OffsetRange(c.start, c.stop), c.data) for tp in self.partitions() for c in self.chain(tp)
        )


class ClaimStore(Chains):
    """A directory of claims: several writers share it, and each record counts once.

    A writer writes its data under a unique name. Then it *claims* its ranges one by one: it creates a file named by the
    range's first offset, which fails if that exists. Any number of processes may use the directory at once, each by one
    thread at a time. It must be on a file system with hard links and a common view for all of them: a local disk, NFS.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        objects = LocalObjects(path)
        super().__init__(objects)
        self.path = objects.path
        #: The same claims, as a claim log.
        self.log = ObjectClaims(objects)

    def __repr__(self) -> str:
        return f"ClaimStore({str(self.path)!r})"

    def claim(self, tp: TopicPartition, entry: OffsetRange, data: str) -> bool:
        """Claim a range for ``data``; False if another writer was first. Durable when it returns True.

        Before the claim, the file or directory of the store that ``data`` names, if there is one, is written through to
        the disk. A range that ``data`` claimed before is True. Raises ConfigurationError for a topic name that Kafka
        does not allow, OSError when the file cannot be written.
        """
        return self._claim(tp, entry, data)

    def winners(self) -> dict[str, set[TopicPartition]]:
        """Return which data counts, and for which partitions: ``{data: partitions}``."""
        return {data: set(ranges) for data, ranges in self.log.winners().items()}

    def claimed(self) -> dict[TopicPartition, int]:
        """Return how many offsets of each partition are claimed."""
        return claimed(self.log)


def _home(tp: TopicPartition) -> str:
    # Kafka's own rule makes safe file names. The name may come from a broker that does not keep to it.
    if not is_legal(tp.topic):
        raise ConfigurationError(
            f"{tp.topic!r} is no legal topic name (1 to 249 of a-z A-Z 0-9 . _ -), so nothing is claimed for it: "
            "claims are files in a directory of the topic's name"
        )
    return f"{_TOP}/{tp.topic}/{tp.partition}"


def _name(tp: TopicPartition, start: int) -> str:
    return f"{_home(tp)}/{start:019d}.json"


def _segment(tp: TopicPartition, start: int) -> str:
    return f"{_home(tp)}/segments/{start:019d}.json"


def _dump(content: object) -> bytes:
    return json.dumps(content).encode()
