"""The assignors of a KIP-848 coordinator in memory. Pure.

Both take the partitions that exist, and the members by id. Sources: KIP-848; Kafka's ``UniformAssignor`` and
``RangeAssignor`` (their guarantees).
"""

from __future__ import annotations

from typing import Callable, Collection, Mapping

from managedconsumer.structs import TopicPartition
from managedconsumer.values import NamedTuple

Share = frozenset[TopicPartition]


class Wish(NamedTuple):
    """A member's topics, and its target so far."""

    topics: frozenset[str]
    target: Share


Assign = Callable[[Collection[TopicPartition], Mapping[str, Wish]], dict[str, Share]]


def uniform(partitions: Collection[TopicPartition], members: Mapping[str, Wish]) -> dict[str, Share]:
    """Give all members equally many partitions, and move as few as possible."""
    names = sorted(members)
    wanted = [tp for tp in sorted(partitions) if any(tp.topic in members[name].topics for name in names)]
    most = -(-len(wanted) // len(names)) if names else 0
    shares: dict[str, set[TopicPartition]] = {name: set() for name in names}
    homeless = []
    for tp in wanted:
        had = next((name for name in names if tp in members[name].target and tp.topic in members[name].topics), None)
        if had is not None and len(shares[had]) < most:
            shares[had].add(tp)
        else:
            homeless.append(tp)
    for tp in homeless:
        able = [name for name in names if tp.topic in members[name].topics]
        shares[min(able, key=lambda name: (len(shares[name]), name))].add(tp)
    return {name: frozenset(share) for name, share in shares.items()}


def in_ranges(partitions: Collection[TopicPartition], members: Mapping[str, Wish]) -> dict[str, Share]:
    """Give each member, by id, a range of each topic's partitions."""
    shares: dict[str, set[TopicPartition]] = {name: set() for name in members}
    for topic in {tp.topic for tp in partitions}:
        names = sorted(name for name in members if topic in members[name].topics)
        mine = sorted(tp for tp in partitions if tp.topic == topic)
        size, more = divmod(len(mine), len(names)) if names else (0, 0)
        begin = 0
        for number, name in enumerate(names):
            end = begin + size + (number < more)
            shares[name].update(mine[begin:end])
            begin = end
    return {name: frozenset(share) for name, share in shares.items()}


#: By the names that a member asks for.
ASSIGNORS: Mapping[str, Assign] = {"uniform": uniform, "range": in_ranges}
