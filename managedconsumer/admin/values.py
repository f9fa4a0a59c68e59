"""The values that :mod:`managedconsumer.admin` returns. Pure."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

from managedconsumer.structs import TopicPartition


class GroupListing(NamedTuple):
    """A group as its coordinator lists it.

    ``type`` is ``"classic"``, ``"consumer"`` (KIP-848), ``"share"`` or ``"streams"``; ``state`` is empty if the broker
    is older than Kafka 2.6. ``lag``: None unless it was asked for, and for groups of other clients than consumers.
    """

    name: str
    type: str
    state: str
    protocol_type: str
    coordinator: int
    lag: GroupLag | None = None

    @property
    def of_consumers(self) -> bool:
        """True for a group of consumers, which commit offsets and have a lag."""
        return self.type == "consumer" or (self.type == "classic" and self.protocol_type in ("consumer", ""))


class MemberDescription(NamedTuple):
    """A member of a group and the partitions that it has."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    """A group with its members. ``assignor`` is empty while the members have not agreed on one."""

    name: str
    type: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]

    @property
    def live(self) -> bool:
        """True while the group has members, so that its offsets must not be changed from outside."""
        return bool(self.members) or self.state.lower() not in ("empty", "dead", "")


class PartitionLag(NamedTuple):
    """A group's progress in a partition.

    ``committed`` is the committed next offset (None: no commit); ``start`` and ``end`` are those of the log. ``lag`` is
    in messages and never negative; ``seconds`` is the age of the first message that is not committed, 0.0 when there is
    none, None when it was not asked for or there is no commit. ``member``: the partition's owner.
    """

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    lag: int | None
    seconds: float | None
    member: MemberDescription | None


class GroupLag(NamedTuple):
    """A group with all partitions that it has committed or that its members own."""

    group: GroupDescription
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int:
        """Messages, over all partitions."""
        return sum(each.lag or 0 for each in self.partitions)

    @property
    def seconds(self) -> float | None:
        """The age (seconds) of the oldest message that is not committed; None when no partition's age is known."""
        return max((each.seconds for each in self.partitions if each.seconds is not None), default=None)


class PartitionEnds(NamedTuple):
    """A partition with its leader (-1: none) and the offsets that its log has.

    ``newest``: the highest timestamp (ms) of its records, None: no record, or a broker before Kafka 3.0.
    """

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start: int
    end: int
    newest: int | None


class TopicDescription(NamedTuple):
    """A topic with its partitions, in order."""

    name: str
    partitions: tuple[PartitionEnds, ...]


class Move(NamedTuple):
    """A reset of a partition's committed offset from ``old`` (None: no commit) to ``new``."""

    topic: str
    partition: int
    old: int | None
    new: int
    start: int
    end: int


class Reset(NamedTuple):
    """A plan to move a group's offsets; ``executed`` when it was carried out."""

    group: str
    moves: tuple[Move, ...]
    executed: bool


#: The doctor's judgement.
Level = Literal["ok", "note", "wrong"]


class Finding(NamedTuple):
    """``level``: all is well, worth knowing, or wrong; ``remedy``: how to mend it, empty if nothing is needed."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


ok = partial(Finding, "ok")
#: Not wrong, but worth knowing.
note = partial(Finding, "note")
#: Something that does not work, or loses messages.
wrong = partial(Finding, "wrong")
