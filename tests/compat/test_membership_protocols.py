"""Membership protocols and assignors as users pass them."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.compat.membership import (
    GroupMembershipProtocol,
    ProtocolAssignor,
    RangeProtocol,
    RoundRobinProtocol,
    accept_assignors,
)
from managedconsumer.coordinator.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from managedconsumer.coordinator.assignors.sticky import StickyPartitionAssignor
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberMetadata
from managedconsumer.structs import TopicPartition
from tests.compat.views import FakeView, snapshot


def members(**topics: list[str]) -> dict[str, ConsumerProtocolMemberMetadata]:
    return {name: ConsumerProtocolMemberMetadata(0, subscribed) for name, subscribed in topics.items()}


def shares(assignor: Any, cluster: Any, group: Any) -> dict[str, list[tuple[str, int]]]:
    return {member: list(a.partitions()) for member, a in assignor.assign(cluster, group).items()}


def custom(decide: Any, name: bytes = b"mine", kind: bytes = b"consumer") -> GroupMembershipProtocol:
    return GroupMembershipProtocol(kind, name, ConsumerProtocolMemberMetadata(0, [], b"weight=3"), decide)


def everything_to_the_first(participants: Any, partitions: Any, consumer_id: bytes) -> Any:
    return set(partitions.values()) if consumer_id == min(participants) else set()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, RangePartitionAssignor),
        (RangeProtocol, RangePartitionAssignor),
        (RoundRobinProtocol, RoundRobinPartitionAssignor),
        ("range", RangePartitionAssignor),
        (b"roundrobin", RoundRobinPartitionAssignor),
        ("sticky", StickyPartitionAssignor),
        ("cooperative-sticky", CooperativeStickyPartitionAssignor),
        (StickyPartitionAssignor, StickyPartitionAssignor),
        (StickyPartitionAssignor(), StickyPartitionAssignor),
    ],
)
def test_what_gives_which_assignor(given: Any, expected: type) -> None:
    (assignor,) = accept_assignors(given)
    assert type(assignor) is expected


def test_pykafkas_own_protocols_get_javas_algorithms() -> None:
    theirs = pytest.importorskip("pykafka.membershipprotocol")
    assert isinstance(accept_assignors(theirs.RangeProtocol)[0], RangePartitionAssignor)
    assert isinstance(accept_assignors(theirs.RoundRobinProtocol)[0], RoundRobinPartitionAssignor)
    # pykafka replaces the metadata of the tuple for each consumer.
    changed = theirs.RangeProtocol._replace(metadata=object())
    assert isinstance(accept_assignors(changed)[0], RangePartitionAssignor)
    renamed = theirs.RangeProtocol._replace(protocol_name=b"ours")
    assert isinstance(accept_assignors(renamed)[0], ProtocolAssignor)


def test_the_tuples_have_pykafkas_fields() -> None:
    theirs = pytest.importorskip("pykafka.membershipprotocol")
    assert RangeProtocol._fields == theirs.RangeProtocol._fields
    assert RangeProtocol[:2] == theirs.RangeProtocol[:2]
    assert RoundRobinProtocol[:2] == theirs.RoundRobinProtocol[:2]


@pytest.mark.parametrize("name", ["decide_partitions_range", "decide_partitions_roundrobin"])
def test_our_deciding_functions_agree_with_pykafkas(name: str) -> None:
    theirs = pytest.importorskip("pykafka.membershipprotocol")
    from managedconsumer.compat import membership as ours

    for count in range(1, 10):  # from ten partitions on pykafka orders "10" before "2"
        partitions = FakeView(snapshot(1, clicks=count)).topic("clicks").partitions
        for size in range(1, 5):
            ids = [f"member-{n}".encode() for n in range(size)]
            for member in ids:
                expected = getattr(theirs, name)(list(ids), partitions, member)
                assert getattr(ours, name)(iter(ids), partitions, member) == expected


def test_a_list_in_its_order() -> None:
    assert [a.name for a in accept_assignors(["cooperative-sticky", RangeProtocol])] == ["cooperative-sticky", "range"]


@pytest.mark.parametrize("wrong", [5, object(), object, ["range", None], FakeView])
def test_no_assignor_at_all(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"membership_protocol.*RangeProtocol.*'cooperative-sticky'"):
        accept_assignors(wrong)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("fair", "'range'.*'fair'"),
        ([], "empty"),
        (["range", RangeProtocol], "same name"),
        (custom(everything_to_the_first, kind=b"connect"), "protocol_type='connect'"),
    ],
)
def test_impossible_choices(wrong: Any, text: str) -> None:
    with pytest.raises(err.ConfigurationError, match=text):
        accept_assignors(wrong)


def test_a_decide_that_is_no_function() -> None:
    with pytest.raises(TypeError, match="decide_partitions must be a function, not int: 7"):
        accept_assignors(custom(7))


def test_a_protocol_of_the_users_own_decides() -> None:
    (assignor,) = accept_assignors(custom(everything_to_the_first))
    assert assignor.name == "mine"
    assert assignor.metadata({"clicks", "views"}).user_data == b"weight=3"
    group = members(b=["clicks"], a=["clicks", "views"])
    assert shares(assignor, snapshot(1, clicks=2, views=1), group) == {
        "a": [("clicks", 0), ("clicks", 1), ("views", 0)],
        "b": [],
    }


def test_it_is_given_what_pykafka_gives() -> None:
    seen = []

    def decide(participants: Any, partitions: Any, consumer_id: bytes) -> Any:
        ids = list(participants)
        seen.append((ids, consumer_id, sorted(partitions)))
        ordered = sorted(partitions.values(), key=lambda p: f"{p.topic.name}-{p.leader.id}-{p.id}")
        return set(ordered[ids.index(consumer_id) :: len(ids)])

    group = members(a=["clicks"], b=["clicks"], c=["views"])
    (assignor,) = accept_assignors(custom(decide))
    assert shares(assignor, snapshot(1, clicks=3, views=1), group)["b"] == [("clicks", 1)]
    assert ([b"a", b"b"], b"b", [0, 1, 2]) in seen
    assert ([b"c"], b"c", [0]) in seen


def test_metadata_without_leaders_is_enough() -> None:
    class OnlyPartitions:
        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return {0, 1} if topic == "clicks" else None

    def by_leader(participants: Any, partitions: Any, consumer_id: bytes) -> Any:
        return [n for n, p in partitions.items() if p.leader.id == -1]

    (assignor,) = accept_assignors(custom(by_leader))
    group = members(a=["clicks", "unknown"])
    assert shares(assignor, OnlyPartitions(), group) == {
        "a": [TopicPartition("clicks", 0), TopicPartition("clicks", 1)]
    }


def test_one_partition_for_two_members_is_refused() -> None:
    (assignor,) = accept_assignors(custom(lambda _ids, partitions, _id: set(partitions.values())))
    with pytest.raises(err.KafkaException, match=r"'mine'.*partition 0 of 'clicks' to both a and b"):
        assignor.assign(snapshot(1, clicks=1), members(a=["clicks"], b=["clicks"]))


def test_partitions_that_do_not_exist_are_refused() -> None:
    (assignor,) = accept_assignors(custom(lambda *_: [7]))
    with pytest.raises(err.KafkaException, match=r"gave 7 to a; the partitions of 'clicks' are \[0\]"):
        assignor.assign(snapshot(1, clicks=1), members(a=["clicks"]))


def test_partitions_given_to_nobody_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    (assignor,) = accept_assignors(custom(lambda *_: []))
    assert shares(assignor, snapshot(1, clicks=2), members(a=["clicks"])) == {"a": []}
    assert "assigned partitions [0, 1] of topic clicks to no member" in caplog.text


def test_what_it_raises_passes_through() -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        accept_assignors(custom(broken))[0].assign(snapshot(1, clicks=1), members(a=["clicks"]))
