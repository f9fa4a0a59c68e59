"""The parts of the sticky assignors: which partition moves in place of which, how uneven shares are, Java's hashes."""

from __future__ import annotations

from typing import Any

import pytest

import managedconsumer.coordinator.assignors as package
from managedconsumer.coordinator.assignors import StickyPartitionAssignor
from managedconsumer.coordinator.assignors._java_hash import PartitionHashSet, partition_hash, string_hash
from managedconsumer.coordinator.assignors._sticky_general import GeneralAssignment, _Movements
from managedconsumer.coordinator.assignors.abstract import partition_racks
from managedconsumer.coordinator.assignors.sticky import encode_user_data
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


T2 = TopicPartition("t", 2)
# Moves (partition, from, to), and for further ones which partition moves in place of the one that is named.
MOVES: dict[str, tuple[list[Any], list[Any]]] = {
    "what moved the other way moves back instead, of its own topic only": (
        [(T0, "a", "b")],
        [(T1, "b", "a", T0), (T1, "a", "b", T1), (T1, "b", "c", T1), (U0, "b", "a", U0)],
    ),
    "moves of a partition add up": (
        [(T0, "a", "b"), (T0, "b", "c")],
        [(T1, "c", "a", T0), (T1, "b", "a", T1), (T1, "c", "b", T1)],
    ),
    "back to the start is no move": ([(T0, "a", "b"), (T0, "b", "a")], [(T1, "b", "a", T1), (T1, "a", "b", T1)]),
    "after that it moves as others do": ([(T0, "a", "b"), (T0, "b", "a"), (T0, "a", "c")], [(T1, "c", "a", T0)]),
    "the others that went the same way still count": (
        [(T0, "a", "b"), (T1, "a", "b"), (T0, "b", "c")],
        [(T2, "b", "a", T1), (T2, "c", "a", T0)],
    ),
    "one that moved already is judged by where it came from": ([(T0, "c", "a"), (T1, "a", "b")], [(T1, "b", "c", T0)]),
}


@pytest.mark.parametrize(("recorded", "wanted"), MOVES.values(), ids=MOVES)
def test_partitions_do_not_swap_owners_for_nothing(recorded: list[Any], wanted: list[Any]) -> None:
    """KIP-54."""
    moves = _Movements()
    for move in recorded:
        moves.record(*move)
    for *move, instead in wanted:
        assert moves.instead_of(*move) == instead


@pytest.mark.parametrize(
    ("sizes", "score"), [([], 0), ([4], 0), ([2, 2, 2], 0), ([0, 1], 1), ([5, 0, 2], 10), ([3, 1, 1, 0], 9)]
)
def test_how_uneven_shares_are(sizes: list[int], score: int) -> None:
    """The sum of the differences between all pairs."""
    shares = {str(n): {TopicPartition("t", i) for i in range(size)} for n, size in enumerate(sizes)}
    assert GeneralAssignment._score(shares, list(shares)) == score
    assert score == sum(abs(a - b) for at, a in enumerate(sizes) for b in sizes[:at])


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("t", 116), ("hello", 99162322), ("BB", 2112), ("\U0001f600", 1772899)]
)
def test_hashes_of_strings_are_java_s(text: str, code: int) -> None:
    assert string_hash(text) == code


def test_hashes_of_partitions_are_java_s() -> None:
    assert partition_hash(T0) == 31 * 31 + 116
    assert partition_hash(TopicPartition("t", 3)) == 31 * (31 + 3) + 116


def test_the_first_of_a_set_is_the_one_that_java_finds_first() -> None:
    """Of numbers 0 to 15 that with the lowest hash by the table's size, which grows with its elements."""
    found = PartitionHashSet()
    assert not found
    for number in range(4):
        found.add(TopicPartition("t", number))
    # 1077, 1108, 1139, 1170 by 16: 5, 4, 3, 2
    assert found.first() == TopicPartition("t", 3)
    found.remove(TopicPartition("t", 3))
    assert found.first() == TopicPartition("t", 2)
    assert found


def test_before_its_first_share_a_sticky_member_remembers_nothing() -> None:
    assignor = StickyPartitionAssignor()
    assert assignor.user_data() is None
    assignor.on_assignment(assignor.assign(_Two(), {"me": assignor.metadata({"t"})})["me"])
    assert assignor.user_data() == encode_user_data([T0, T1], -1)
    assignor.on_generation_assignment(7)
    assert assignor.user_data() == encode_user_data([T0, T1], 7)


class _Two:
    """A cluster in which every topic has two partitions."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1}


def test_replicas_on_brokers_that_are_away_or_without_a_rack_are_in_no_rack() -> None:
    brokers = {1: BrokerInfo(1, "h", 9092, "r1"), 2: BrokerInfo(2, "h", 9092)}
    parts = {0: PartitionInfo("t", 0, 1, 0, (1, 2, 3)), 1: PartitionInfo("t", 1, 2, 0, (2, 3))}
    cluster = ClusterSnapshot(brokers, {"t": TopicInfo("t", None, parts)})
    assert partition_racks(cluster, {"t": [0, 1], "u": [0]}) == {T0: {"r1"}, T1: frozenset(), U0: frozenset()}


def test_the_package_loads_what_it_is_asked_for_and_nothing_else() -> None:
    for name in package.__all__:
        assert package.__getattr__(name).__name__ == name
    with pytest.raises(
        AttributeError, match=r"^module 'managedconsumer.coordinator.assignors' has no attribute 'Other'$"
    ):
        package.Other  # noqa: B018
