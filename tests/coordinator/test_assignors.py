"""What every assignor promises, for thousands of random groups, and the shapes that users' code relies on."""

from __future__ import annotations

import random
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managedconsumer.coordinator.assignors import (
    AbstractPartitionAssignor,
    CooperativeStickyPartitionAssignor,
    RangePartitionAssignor,
    RebalanceProtocol,
    RoundRobinPartitionAssignor,
    StickyPartitionAssignor,
)
from managedconsumer.coordinator.assignors.sticky import decode_user_data, encode_user_data
from managedconsumer.coordinator.protocol import (
    ConsumerProtocol,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition

ALL = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor, CooperativeStickyPartitionAssignor]
STICKY = [StickyPartitionAssignor, CooperativeStickyPartitionAssignor]
Owned = dict[str, set[TopicPartition]]


class Topics:
    """The least that an assignor needs to know of a cluster."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.counts[topic])) if topic in self.counts else None


def snapshot(topics: dict[str, list[str]]) -> ClusterSnapshot:
    """``{"t": ["ab", "c"]}``: partition 0 of t has replicas in racks a and b, partition 1 in rack c."""
    brokers = {ord(rack): BrokerInfo(ord(rack), "host", 9092, rack) for rack in "abc"}
    infos = {
        name: TopicInfo(
            name,
            None,
            {n: PartitionInfo(name, n, ord(racks[0]), 0, tuple(map(ord, racks))) for n, racks in enumerate(partitions)},
        )
        for name, partitions in topics.items()
    }
    return ClusterSnapshot(brokers, infos)


def subscribe(
    assignor: type[AbstractPartitionAssignor],
    topics: Any,
    owned: Any = (),
    generation: int = 1,
    rack: str | None = None,
) -> ConsumerProtocolMemberMetadata:
    """A member's subscription as it arrives at the leader, with the memory that ``owned`` leaves in the assignor."""
    instance = assignor()
    by_topic = [(tp.topic, [tp.partition]) for tp in owned]
    if owned:
        instance.on_assignment(ConsumerProtocolMemberAssignment(0, by_topic))
        instance.on_generation_assignment(generation)
    kept = None if RebalanceProtocol.COOPERATIVE in assignor.supported_protocols() else ()
    sent = ConsumerProtocol.subscription(
        instance, topics, owned_partitions=kept, generation_id=generation if owned else -1, rack_id=rack
    )
    return ConsumerProtocolMemberMetadata.decode(sent.encode())


def assign(assignor: type[AbstractPartitionAssignor], cluster: Any, members: Any) -> Owned:
    result = assignor.assign(cluster, members)
    assert list(result) == list(members)
    shares = {member: share.partitions() for member, share in result.items()}
    for share in shares.values():
        assert share == sorted(set(share))
    return {member: set(share) for member, share in shares.items()}


def check_valid(topics: dict[str, int], wants: dict[str, set[str]], shares: Owned, complete: bool = True) -> None:
    given_out = Counter(tp for share in shares.values() for tp in share)
    assert not [tp for tp, count in given_out.items() if count > 1]
    assert all(tp.topic in wants[member] for member, share in shares.items() for tp in share)
    subscribed = set().union(*wants.values())
    everything = {TopicPartition(t, n) for t in subscribed & topics.keys() for n in range(topics[t])}
    assert given_out.keys() <= everything
    if complete:
        assert given_out.keys() == everything


def check_no_better_move(wants: dict[str, set[str]], shares: Owned) -> None:
    for owner, share in shares.items():
        for tp in share:
            for other, wanted in wants.items():
                assert tp.topic not in wanted or len(shares[other]) + 1 >= len(shares[owner]), (tp, owner, other)


def fewest_moves(before: Owned, members: int, total: int) -> int:
    """How many of the owned partitions must leave their owner so that all members differ by at most one."""
    low, over = divmod(total, members)
    kept = 0
    for size in sorted((len(share) for share in before.values()), reverse=True):
        if size > low and over:
            kept += low + 1
            over -= 1
        else:
            kept += min(size, low)
    return sum(len(share) for share in before.values()) - kept


def random_group(rng: random.Random, equal: bool) -> tuple[dict[str, int], dict[str, set[str]], Owned]:
    topics = {f"t{n}": rng.randint(1, 8) for n in range(rng.randint(1, 4))}
    names = [f"m{rng.randrange(10**6)}" for _ in range(rng.randint(1, 7))]
    wants = {name: set(topics) if equal else {t for t in topics if rng.random() < 0.6} for name in names}
    owned: Owned = {name: set() for name in names}
    for topic, count in topics.items():
        for n in range(count):
            owner = rng.choice([*names, None])
            if owner is not None and topic in wants[owner]:
                owned[owner].add(TopicPartition(topic, n))
    return topics, wants, owned


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ALL)
@pytest.mark.parametrize("equal", [True, False])
def test_ten_thousand_random_groups(assignor: type[AbstractPartitionAssignor], equal: bool) -> None:
    rng = random.Random(f"{assignor.name} {equal}")
    sticky = assignor in STICKY
    for _ in range(1250):  # times 8 parameter sets
        topics, wants, owned = random_group(rng, equal)
        cluster = Topics(**topics)
        members = {m: subscribe(assignor, wants[m], owned[m] if sticky else ()) for m in wants}
        shares = assign(assignor, cluster, members)
        check_valid(topics, wants, shares, complete=assignor is not CooperativeStickyPartitionAssignor)
        if assignor is CooperativeStickyPartitionAssignor:
            elsewhere = {m: set().union(*(o for other, o in owned.items() if other != m)) for m in owned}
            assert not [m for m, share in shares.items() if share & elsewhere[m]]
            # One more rebalance gives the rest out; with different subscriptions, balancing may go on for a few.
            for generation in range(2, 3 if equal else 6):
                members = {m: subscribe(assignor, wants[m], shares[m], generation) for m in wants}
                shares = assign(assignor, cluster, members)
            check_valid(topics, wants, shares)
        if equal and assignor is not RangePartitionAssignor:
            sizes = [len(share) for share in shares.values()]
            assert max(sizes) - min(sizes) <= 1
        if assignor is RangePartitionAssignor:
            for topic, count in topics.items():
                sizes = [sum(tp.topic == topic for tp in shares[m]) for m in wants if topic in wants[m]]
                assert not sizes or (max(sizes) - min(sizes) <= 1 and sum(sizes) == count)
        if sticky:
            check_no_better_move(wants, shares)
            if equal:
                moved = sum(len(owned[m] - shares[m]) for m in owned)
                assert moved == fewest_moves(owned, len(wants), sum(topics.values()))
            again = {m: subscribe(assignor, wants[m], shares[m], 3) for m in wants}
            assert assign(assignor, cluster, again) == shares


names_of_topics = st.sampled_from("tuvwxyz")
racks = st.sampled_from([None, "", "a", "b", "z"])
member = st.tuples(st.sets(names_of_topics), racks, st.integers(-1, 2))
replicas = st.lists(st.sampled_from(["a", "b", "ab", "abc"]), min_size=1, max_size=6)
groups = st.fixed_dictionaries(
    {
        "topics": st.dictionaries(st.sampled_from("tuvwx"), replicas, max_size=4),
        "members": st.dictionaries(st.text(min_size=1, max_size=4), member, min_size=1, max_size=6),
        "claims": st.lists(st.tuples(st.integers(0, 5), names_of_topics, st.integers(0, 9)), max_size=20),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ALL)
@given(group=groups)
@settings(max_examples=150, deadline=None)
def test_any_claims_racks_and_subscriptions(assignor: type[AbstractPartitionAssignor], group: dict[str, Any]) -> None:
    """Members that claim what is not theirs, does not exist or is claimed by others too, and racks of all kinds."""
    names = list(group["members"])
    owned: dict[str, set[TopicPartition]] = {name: set() for name in names}
    for number, topic, partition in group["claims"]:
        owned[names[number % len(names)]].add(TopicPartition(topic, partition))
    members = {
        name: subscribe(assignor, topics, sorted(owned[name]), generation, rack)
        for name, (topics, rack, generation) in group["members"].items()
    }
    wants = {name: topics for name, (topics, _, _) in group["members"].items()}
    counts = {topic: len(partitions) for topic, partitions in group["topics"].items()}
    shares = assign(assignor, snapshot(group["topics"]), members)
    check_valid(counts, wants, shares, complete=assignor is not CooperativeStickyPartitionAssignor)
    if assignor is RoundRobinPartitionAssignor or assignor in STICKY:
        same = len({frozenset(topics) for topics in wants.values()}) == 1
        sizes = [len(share) for share in shares.values()]
        assert not same or assignor is CooperativeStickyPartitionAssignor or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("assignor", "first", "second"),
    [
        (RangePartitionAssignor, [("t0", [0, 1]), ("t1", [0, 1])], [("t0", [2]), ("t1", [2])]),  # runs of each topic
        (RoundRobinPartitionAssignor, [("t0", [0, 2]), ("t1", [1])], [("t0", [1]), ("t1", [0, 2])]),  # in turn over all
    ],
)
def test_how_partitions_are_dealt(assignor: type[AbstractPartitionAssignor], first: Any, second: Any) -> None:
    members = {name: subscribe(assignor, ["t0", "t1"]) for name in ("C1", "C0")}
    assert assignor.assign(Topics(t0=3, t1=3), members) == {
        "C0": ConsumerProtocolMemberAssignment(0, first, b""),
        "C1": ConsumerProtocolMemberAssignment(0, second, b""),
    }


def test_range_counts_partitions_as_numbers_unlike_pykafka() -> None:
    members = {name: subscribe(RangePartitionAssignor, ["t"]) for name in ("a", "b")}
    shares = RangePartitionAssignor.assign(Topics(t=12), members)
    assert shares["a"].assignment == [("t", [0, 1, 2, 3, 4, 5])]


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor])
def test_static_members_keep_their_share_across_a_restart(assignor: type[AbstractPartitionAssignor]) -> None:
    """KIP-345: a restarted process has a new member id, but its instance id decides the order."""

    def shares(first_id: str) -> Owned:
        blob = assignor().metadata({"t"}).encode()
        members, _ = ConsumerProtocol.decode_members(
            [(first_id, "worker-1", blob), ("m5", "worker-2", blob), ("a-dynamic-one", None, blob)]
        )
        return assign(assignor, Topics(t=6), members)

    assert shares("zzz")["zzz"] == shares("aaa")["aaa"]
    assert shares("zzz")["m5"] == shares("aaa")["m5"]


def test_range_matches_racks_without_hurting_balance() -> None:
    """KIP-881: each member gets the partitions of its own rack, two topics alike."""
    cluster = snapshot({"t": ["a", "b", "c"], "u": ["a", "b", "c"]})
    members = {
        name: subscribe(RangePartitionAssignor, ["t", "u"], rack=rack) for name, rack in zip("xyz", "cba", strict=True)
    }
    shares = assign(RangePartitionAssignor, cluster, members)
    assert shares == {
        "x": {TopicPartition("t", 2), TopicPartition("u", 2)},
        "y": {TopicPartition("t", 1), TopicPartition("u", 1)},
        "z": {TopicPartition("t", 0), TopicPartition("u", 0)},
    }


def test_sticky_moves_back_into_the_members_rack() -> None:
    cluster = snapshot({"t": ["a", "b", "a", "b"]})
    owned = {
        "x": [TopicPartition("t", 0), TopicPartition("t", 1)],
        "y": [TopicPartition("t", 2), TopicPartition("t", 3)],
    }
    members = {
        name: subscribe(StickyPartitionAssignor, ["t"], owned[name], rack=rack)
        for name, rack in zip("xy", "ab", strict=True)
    }
    shares = assign(StickyPartitionAssignor, cluster, members)
    assert {tp.partition for tp in shares["x"]} == {0, 2}


def test_cooperative_members_give_up_before_others_get() -> None:
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    first = {
        "old": subscribe(CooperativeStickyPartitionAssignor, ["t"], both),
        "new": subscribe(CooperativeStickyPartitionAssignor, ["t"]),
    }
    shares = assign(CooperativeStickyPartitionAssignor, Topics(t=2), first)
    assert shares == {"old": {both[0]}, "new": set()}
    second = {
        "old": subscribe(CooperativeStickyPartitionAssignor, ["t"], both[:1], 2),
        "new": subscribe(CooperativeStickyPartitionAssignor, ["t"], (), 2),
    }
    assert assign(CooperativeStickyPartitionAssignor, Topics(t=2), second) == {"old": {both[0]}, "new": {both[1]}}


def test_a_late_member_does_not_win_its_partitions_back() -> None:
    """KIP-792: a member that missed a rebalance still claims what others were given since."""
    taken = [TopicPartition("t", n) for n in range(3)]
    members = {
        "late": subscribe(CooperativeStickyPartitionAssignor, ["t"], taken, 4),
        "now": subscribe(CooperativeStickyPartitionAssignor, ["t"], taken[:2], 5),
    }
    assert assign(CooperativeStickyPartitionAssignor, Topics(t=3), members)["now"] == set(taken[:2])


def test_sticky_user_data_is_java_s() -> None:
    blob = encode_user_data([TopicPartition("t", 1), TopicPartition("t", 0)], 7)
    assert blob == b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x07"
    assert decode_user_data(blob) == ([("t", 0), ("t", 1)], 7)
    for cut in (4, 3):
        assert decode_user_data(blob[:-cut]) == ([("t", 0), ("t", 1)], None)  # schema version 0
    assert encode_user_data([TopicPartition("t", 0)], -1)[-4:] == b"\xff\xff\xff\xff"


@given(st.binary(max_size=60))
def test_no_user_data_stops_the_leader(noise: bytes) -> None:
    for assignor in STICKY:
        members = {
            "good": subscribe(assignor, ["t"]),
            "odd": ConsumerProtocolMemberMetadata(0, ["t"], noise, [TopicPartition("t", 0)]),
        }
        check_valid({"t": 4}, {"good": {"t"}, "odd": {"t"}}, assign(assignor, Topics(t=4), members))


def test_assignors_remember_per_instance_not_per_class() -> None:
    """pykafka's protocols are module-level objects, where two consumers in a process overwrite each other's topic."""
    for assignor in STICKY:
        one, two = assignor(), assignor()
        one.on_assignment(ConsumerProtocolMemberAssignment(0, [("t", [0])]))
        one.on_generation_assignment(3)
        assert one.metadata({"t"}).encode() != two.metadata({"t"}).encode()
    assert struct.pack(">i", 3) in one.metadata({"t"}).encode()


def test_names_versions_and_protocols() -> None:
    assert [assignor.name for assignor in ALL] == ["range", "roundrobin", "sticky", "cooperative-sticky"]
    assert [assignor.version for assignor in ALL] == [0, 0, 0, 1]
    assert CooperativeStickyPartitionAssignor.supported_protocols()[0] is RebalanceProtocol.COOPERATIVE
    assert RangePartitionAssignor.supported_protocols() == (RebalanceProtocol.EAGER,)


@pytest.mark.parametrize("assignor", ALL)
def test_edges(assignor: type[AbstractPartitionAssignor]) -> None:
    assert assignor.assign(Topics(t=3), {}) == {}
    lonely = assignor.assign(Topics(t=3), {"m": subscribe(assignor, [])})
    assert lonely["m"].assignment == []
    unknown = assignor.assign(Topics(t=3), {"m": subscribe(assignor, ["t", "nowhere"])})
    assert unknown["m"].assignment == [("t", [0, 1, 2])]


@pytest.mark.parametrize("assignor", ALL)
def test_topics_with_missing_partitions(assignor: type[AbstractPartitionAssignor]) -> None:
    """Metadata may lack a partition; only those that are there are given out."""

    class Gaps:
        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return {1, 3, 7}

    members = {name: subscribe(assignor, ["t"], rack="a") for name in "ab"}
    shares = assign(assignor, Gaps(), members)
    assert sorted(tp.partition for share in shares.values() for tp in share) == [1, 3, 7]


def test_a_large_group_is_decided_in_time() -> None:
    """200 members, 2,000 partitions, different subscriptions: the leader has to answer well within a session."""
    topics = {f"t{n}": 100 for n in range(20)}
    rng = random.Random(3)
    wants = {f"m{n}": {t for t in topics if rng.random() < 0.5} for n in range(200)}
    members = {m: subscribe(StickyPartitionAssignor, wants[m]) for m in wants}
    first = assign(StickyPartitionAssignor, Topics(**topics), members)
    check_valid(topics, wants, first)
    remaining = {m: subscribe(StickyPartitionAssignor, wants[m], sorted(first[m]), 1) for m in list(wants)[5:]}
    second = assign(StickyPartitionAssignor, Topics(**topics), remaining)
    assert sum(len(first[m] - second[m]) for m in remaining) <= 20  # only what had to move
