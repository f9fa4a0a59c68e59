"""The order in which Java iterates over its hash tables.

Java's sticky assignors iterate over HashMaps of member ids and HashSets of partitions where any order would do. With
the same order our assignments equal Java's: partitions stay where they are when the leader changes between a Java
member and one of ours, and recorded Java assignments test ours.

Not modelled: Java turns a bucket with more than 8 keys into a tree (by chance below one in a million at the default
load); then another valid order results.
"""

from __future__ import annotations

from collections.abc import Iterable

from managedconsumer.coordinator.assignors.abstract import java_order
from managedconsumer.structs import TopicPartition

_CAPACITY = 16  # of an empty java.util.HashMap; doubled when it is more than three quarters full


def string_hash(text: str) -> int:
    """Return ``String.hashCode()`` as an unsigned number."""
    units = java_order(text)
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) & 0xFFFFFFFF
    return value


def partition_hash(tp: TopicPartition) -> int:
    """Return ``TopicPartition.hashCode()`` as an unsigned number."""
    return (31 * (31 + tp.partition) + string_hash(tp.topic)) & 0xFFFFFFFF


def _capacity_for(size: int) -> int:
    capacity = _CAPACITY
    while 4 * size > 3 * capacity:
        capacity *= 2
    return capacity


def _bucket(value: int, capacity: int) -> int:
    return (value ^ (value >> 16)) & (capacity - 1)


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """Return strings in the order of a HashMap into which they were put in the given order."""
    listed = list(keys)
    capacity = _capacity_for(len(listed))
    return sorted(listed, key=lambda key: _bucket(string_hash(key), capacity))


class PartitionHashSet:
    """A ``HashSet<TopicPartition>`` that knows its first element. Its table never shrinks."""

    __slots__ = ("_capacity", "_items")

    def __init__(self) -> None:
        self._items: dict[TopicPartition, None] = {}
        self._capacity = _CAPACITY

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, tp: TopicPartition) -> None:
        """Add an element, growing the table if it gets too full."""
        self._items[tp] = None
        self._capacity = max(self._capacity, _capacity_for(len(self._items)))

    def remove(self, tp: TopicPartition) -> None:
        """Remove an element."""
        del self._items[tp]

    def first(self) -> TopicPartition:
        """The element that Java's iterator yields first."""
        return min(self._items, key=lambda tp: _bucket(partition_hash(tp), self._capacity))
