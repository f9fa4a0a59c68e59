"""What goes into a join, and what comes of the answer."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.assignors.abstract import RebalanceProtocol
from managedconsumer.coordinator.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from managedconsumer.coordinator.assignors.sticky import StickyPartitionAssignor
from managedconsumer.coordinator.negotiation import Negotiation, assigned_in_group, rebalance_protocol
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from managedconsumer.errors import ConfigurationError
from managedconsumer.structs import ClusterSnapshot, Generation, TopicInfo, TopicPartition


class FakeCluster:
    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.partitions[topic])) if topic in self.partitions else None


class Spy(RangePartitionAssignor):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_assignment(self, assignment: Any) -> None:
        self.told.append(sorted(assignment.partitions()))

    def on_generation_assignment(self, generation: int) -> None:
        self.told.append(generation)


def elected(negotiation: Negotiation, protocol: str, members: dict[str, Any]) -> ev.Elected:
    """The coordinator made us leader; ``members`` are topics, or raw bytes, by member id."""
    roster = []
    for member_id, topics in members.items():
        blob = topics if isinstance(topics, bytes) else dict(negotiation.protocols(topics, [], -1))[protocol]
        roster.append(ev.GroupMemberInfo(member_id, None, blob))
    return ev.Elected(protocol, roster, skip_assignment=False)


def shares(blobs: dict[str, bytes]) -> dict[str, list[TopicPartition]]:
    return {m: sorted(ConsumerProtocolMemberAssignment.decode(blob).partitions()) for m, blob in blobs.items()}


def test_every_assignor_is_offered_in_order() -> None:
    negotiation = Negotiation([RoundRobinPartitionAssignor(), RangePartitionAssignor()])
    offered = negotiation.protocols({"b", "a"}, [], -1)
    assert [name for name, _ in offered] == ["roundrobin", "range"]
    for _, blob in offered:
        assert ConsumerProtocolMemberMetadata.decode(blob).subscription == ["a", "b"]


def test_owned_partitions_are_told_under_a_cooperative_assignor_only() -> None:
    owned = [TopicPartition("a", 1), TopicPartition("a", 0)]
    cooperative = Negotiation([CooperativeStickyPartitionAssignor()], rack="r1")
    assert cooperative.cooperative
    (_, blob) = cooperative.protocols({"a"}, owned, 5)[0]
    said = ConsumerProtocolMemberMetadata.decode(blob)
    assert (sorted(said.owned_partitions), said.generation_id, said.rack_id) == (sorted(owned), 5, "r1")
    eager = Negotiation([RangePartitionAssignor()])
    assert not eager.cooperative
    assert not ConsumerProtocolMemberMetadata.decode(eager.protocols({"a"}, owned, 5)[0][1]).owned_partitions


def test_one_eager_assignor_makes_the_member_eager() -> None:
    """KIP-429: the best protocol that all of them support. Under KIP-848 every member is cooperative."""
    assert not Negotiation([CooperativeStickyPartitionAssignor(), RangePartitionAssignor()]).cooperative
    assert not Negotiation([StickyPartitionAssignor()]).cooperative
    assert Negotiation([RangePartitionAssignor()], incremental=True).cooperative is True
    assert Negotiation([RangePartitionAssignor()]).cooperative is False


def test_the_leader_divides_all_topics_of_the_group() -> None:
    negotiation = Negotiation([RangePartitionAssignor()])
    event = elected(negotiation, "range", {"m1": ["a"], "m2": ["a", "b"]})
    assert negotiation.topics_of(event) == {"a", "b"}
    divided = shares(negotiation.assign(event, FakeCluster(a=3, b=1)))  # type: ignore[arg-type]
    assert divided == {
        "m1": [TopicPartition("a", 0), TopicPartition("a", 1)],
        "m2": [TopicPartition("a", 2), TopicPartition("b", 0)],
    }


def test_a_member_whose_subscription_cannot_be_read_gets_nothing_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    negotiation = Negotiation([RangePartitionAssignor()])
    event = elected(negotiation, "range", {"m1": ["a"], "m2": b"\xff\xff"})
    divided = shares(negotiation.assign(event, FakeCluster(a=2)))  # type: ignore[arg-type]
    assert divided["m1"] == [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert not divided.get("m2")
    text = "member m2 of the group sent a subscription that cannot be read: malformed consumer subscription: version -1"
    assert [record.getMessage() for record in caplog.records] == [f"{text} (at byte 2 of 2)"]


def assigned(blob: bytes = b"", target: Any = None) -> ev.Assigned:
    return ev.Assigned(Generation(9, "m1", "range"), blob, is_leader=False, continuous=True, target=target)


def test_our_share_is_sorted_and_the_assignor_is_told() -> None:
    spy = Spy()
    negotiation = Negotiation([spy])
    blob = ConsumerProtocolMemberAssignment(0, [("b", [1, 0]), ("a", [2])], b"").encode()
    expected = [TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1)]
    assert negotiation.accept(assigned(blob), ClusterSnapshot()) == (expected, [])
    assert spy.told == [expected, 9]


@pytest.mark.parametrize("blob", [ConsumerProtocolMemberAssignment(0, [], b"").encode(), b""])
def test_an_empty_share(blob: bytes) -> None:
    """What a member gets when there are more members than partitions, and what some leaders leave out altogether."""
    negotiation = Negotiation([RangePartitionAssignor()])
    assert negotiation.accept(assigned(blob), ClusterSnapshot()) == ([], [])


def test_a_share_by_topic_ids_tells_which_ids_are_not_known_yet() -> None:
    """KIP-848."""
    known, unknown = bytes([1]) * 16, bytes([2]) * 16
    cluster = ClusterSnapshot(topics=MappingProxyType({"a": TopicInfo("a", known, MappingProxyType({}), 0)}))
    negotiation = Negotiation([RangePartitionAssignor()])
    share, missing = negotiation.accept(assigned(target=((known, (1, 0)), (unknown, (0,)))), cluster)
    assert share == [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert missing == [unknown]


class Odd:
    """An assignor of the user's, which knows nothing of KIP-429."""

    name = "odd"


def test_a_user_s_own_assignor_is_eager() -> None:
    assert rebalance_protocol([Odd()]) is RebalanceProtocol.EAGER
    assert rebalance_protocol([CooperativeStickyPartitionAssignor(), Odd()]) is RebalanceProtocol.EAGER
    assert rebalance_protocol([CooperativeStickyPartitionAssignor()]) is RebalanceProtocol.COOPERATIVE


def test_assignors_without_a_common_protocol_are_named() -> None:
    class Never(Odd):
        name = "never"

        def supported_protocols(self) -> tuple[()]:
            return ()

    text = r"^the assignors odd, never have no rebalance protocol \(eager, cooperative\) in common$"
    with pytest.raises(ConfigurationError, match=text):
        Negotiation([Odd(), Never()])


def test_no_assignor_is_refused_in_these_words() -> None:
    with pytest.raises(ConfigurationError, match=r"^a group member needs at least one assignor$"):
        Negotiation([])


def test_all_that_were_offered_are_named() -> None:
    negotiation = Negotiation([RangePartitionAssignor(), RoundRobinPartitionAssignor()])
    event = ev.Elected("magic", [], skip_assignment=False)
    with pytest.raises(ConfigurationError) as caught:
        negotiation.assign(event, FakeCluster())  # type: ignore[arg-type]
    assert str(caught.value) == (
        "the group chose the assignor 'magic', which this member did not offer (range, roundrobin): is another program "
        "in this group id?"
    )


@pytest.mark.parametrize("protocol", ["unknown", None])
def test_a_share_of_an_unknown_assignor_is_a_share(protocol: str | None) -> None:
    spy = Spy()
    blob = ConsumerProtocolMemberAssignment(0, [("a", [2])], b"").encode()
    event = ev.Assigned(Generation(9, "m1", protocol), blob, is_leader=False, continuous=True)
    assert Negotiation([spy]).accept(event, ClusterSnapshot()) == ([TopicPartition("a", 2)], [])
    assert spy.told == []


def test_an_assignor_that_takes_no_generation_is_told_its_share_all_the_same() -> None:
    class Plain(Odd):
        share: Any = None

        def on_assignment(self, assignment: Any) -> None:
            self.share = assignment.partitions()

    plain = Plain()
    blob = ConsumerProtocolMemberAssignment(0, [("a", [2])], b"").encode()
    event = ev.Assigned(Generation(9, "m1", "odd"), blob, is_leader=False, continuous=True)
    Negotiation([plain]).accept(event, ClusterSnapshot())
    assert plain.share == [TopicPartition("a", 2)]


def described(*assignments: list[tuple[str, list[int]]], **group: Any) -> dict[str, Any]:
    blobs = [ConsumerProtocolMemberAssignment(1, each, None).encode() if each else b"" for each in assignments]
    members = [{"member_assignment": blob} for blob in blobs]
    return {"groups": [{"error_code": 0, "group_state": "Stable", "members": members, **group}]}


def test_of_all_members() -> None:
    answer = described([("t", [0, 1]), ("u", [3])], [("t", [2])], [])
    assert assigned_in_group(answer) == {"t": {0, 1, 2}, "u": {3}}
    assert assigned_in_group(described()) == {}


@pytest.mark.parametrize(
    ("group", "kind", "words"),
    [
        ({"group_state": "PreparingRebalance"}, err.RebalanceInProgress, "PreparingRebalance"),
        ({"error_code": 30}, err.GroupAuthorizationFailed, None),
    ],
)
def test_what_is_no_answer(group: dict[str, Any], kind: type[err.KafkaException], words: str | None) -> None:
    with pytest.raises(kind, match=words):
        assigned_in_group(described([("t", [0])], **group))
