"""KIP-848 groups: the same on the broker in memory and on Kafka 4.4, for the clients that speak it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from managedconsumer import TopicPartition
from managedconsumer.wire.protocol import schemas
from tests.testing.sameworld import World, numbers, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Guest:
    """A KIP-848 member made by hand: it says what the test says, when the test says it."""

    def __init__(self, world: World, instance: str | None = None, rebalance_ms: int = 30_000, **join: Any) -> None:
        self.world, self.id, self.epoch, self.instance = world, uuid.uuid4().hex, 0, instance
        self.share: set[TopicPartition] = set()
        (about,) = world.ask(schemas.METADATA, {"topics": [{"name": world.topic}]})["topics"]
        self._topic_id = bytes(about["topic_id"])
        self._join = {"rebalance_timeout_ms": rebalance_ms, "subscribed_topic_names": [world.topic], **join}

    def beat(self, **fields: Any) -> dict[str, Any]:
        """One heartbeat with these fields."""
        body = {"group_id": self.world.group, "member_id": self.id, "member_epoch": self.epoch}
        return self.world.ask(schemas.CONSUMER_GROUP_HEARTBEAT, {**body, "instance_id": self.instance, **fields})

    def join(self, **fields: Any) -> dict[str, Any]:
        """The first heartbeat."""
        return self._heard(self.beat(**{**self._join, "member_epoch": 0, "topic_partitions": [], **fields}))

    def go_on(self, owned: Iterable[TopicPartition] | None = None) -> dict[str, Any]:
        """A heartbeat that says what it owns (None: all that it was given)."""
        mine = sorted(tp.partition for tp in (self.share if owned is None else owned))
        topics = [{"topic_id": self._topic_id, "partitions": mine}] if mine else []
        return self._heard(self.beat(topic_partitions=topics))

    def _heard(self, answer: dict[str, Any]) -> dict[str, Any]:
        if not answer["error_code"]:
            self.epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                topics = answer["assignment"]["topic_partitions"]
                self.share = {self.world.tp(number) for topic in topics for number in topic["partitions"]}
        return answer

    def leave(self) -> None:
        assert self.beat(member_epoch=-1)["error_code"] == 0


def alone(world: World, **wish: Any) -> Any:
    """A member with everything."""
    member = world.joined(modern=True, **wish)
    world.until(lambda: world.described_modern()["group_state"] == "Stable")
    return member


@same("modern")
def test_one_reads_commits_and_its_successor_goes_on(world: World) -> None:
    world.write(numbers(8))
    first = alone(world)
    assert world.read(8) == numbers(8)
    first.commit()
    described = world.tools.group(world.group)
    assert (described.type, described.state, described.assignor) == ("consumer", "Stable", "uniform")
    assert set(described.members[0].partitions) == world.tps()
    assert world.tools.lag(world.group).lag == 0
    world.close(first)
    world.until(lambda: world.described_modern()["group_state"] == "Empty")
    world.write(numbers(4, 8))
    world.member(modern=True)
    assert world.read(12) == numbers(12)


@same("modern")
def test_it_shares_with_ours_and_takes_over(world: World) -> None:
    pair = [world.member(modern=True), world.member("ours", modern=True)]
    world.until(lambda: [len(each.assigned()) for each in pair] == [2, 2])
    world.write(numbers(8))
    world.until(lambda: {got.value for got in world.got} == set(numbers(8)))
    for each in pair:
        world.commit_of(each)
    world.close(pair[1])
    world.until(lambda: pair[0].assigned() == world.tps())
    world.write(numbers(4, 8))
    world.until(lambda: {got.value for got in world.got} == set(numbers(12)))


@same("modern")
def test_the_brokers_other_assignor(world: World) -> None:
    pair = [world.member(name, modern=True, assignors=["range"]) for name in (world.client, "ours")]
    world.until(lambda: [len(each.assigned()) for each in pair] == [2, 2])
    assert world.described_modern()["assignor_name"] == "range"
    first = min(pair, key=lambda each: min(each.assigned()))
    assert first.assigned() == {world.tp(0), world.tp(1)}


@same("modern")
def test_topics_by_a_pattern(world: World) -> None:
    member = world.joined(modern=True, pattern=f"{world.topic}.*")
    later = world.create(f"{world.topic}-later")
    world.until(lambda: member.assigned() == world.tps(world.topic, later))
    (entry,) = world.described_modern()["members"]
    assert entry["subscribed_topic_regex"] or set(entry["subscribed_topic_names"]) == {world.topic, later}


@same("modern")
def test_new_partitions_are_given_out(world: World) -> None:
    member = alone(world)
    world.broker.create_partitions(world.topic, 6)
    world.until(lambda: len(member.assigned()) == 6)
    world.write(numbers(1), partition=5)
    assert world.read(1) == numbers(1)


@same("modern")
def test_nothing_is_given_before_another_has_given_it_up(world: World) -> None:
    guest = Guest(world)
    assert guest.join()["error_code"] == 0
    world.until(lambda: guest.go_on() and guest.share == world.tps())
    member = world.made_of(world.begin_member(modern=True))
    world.until(lambda: guest.go_on(world.tps()) and len(guest.share) == 2)
    for _ in range(5):  # it keeps what it was told to give up
        guest.go_on(world.tps())
        world.until(lambda: True)
    assert member.assigned() == set()
    world.until(lambda: guest.go_on() and member.assigned() == world.tps() - guest.share)
    guest.leave()
    world.until(lambda: member.assigned() == world.tps())


@same("modern")
def test_who_gives_nothing_up_in_time_is_expelled(world: World) -> None:
    guest = Guest(world, rebalance_ms=400)
    guest.join()
    world.until(lambda: guest.go_on() and guest.share == world.tps())
    member = world.made_of(world.begin_member(modern=True))
    world.until(lambda: guest.go_on(world.tps())["error_code"] == 25)
    world.until(lambda: member.assigned() == world.tps())


@same("modern")
def test_a_member_that_nobody_knows(world: World) -> None:
    alone(world)
    guest = Guest(world)
    guest.epoch = 1
    assert guest.go_on()["error_code"] == 25
    assert guest.beat(member_epoch=-1)["error_code"] == 25
    assert world.commit({world.tp(0): 1}, generation=1, member="nobody")[world.tp(0)] == 25
    assert world.commit({world.tp(0): 1})[world.tp(0)] == 25
    world.group = "nobodys-group"
    assert guest.go_on()["error_code"] == 69
    assert guest.beat(member_epoch=-1)["error_code"] == 69
    assert world.described_modern()["error_code"] == 69


@same("modern")
def test_an_epoch_that_is_not_the_members(world: World) -> None:
    guest = Guest(world)
    guest.join()
    real = guest.epoch
    guest.epoch = real + 5
    assert guest.go_on()["error_code"] == 110
    member = {"generation": real + 5, "member": guest.id}
    assert world.commit({world.tp(0): 1}, **member)[world.tp(0)] == 113
    assert world.commit({world.tp(0): 1}, generation=real, member=guest.id)[world.tp(0)] == 0
    asked = [{"name": world.topic, "partition_indexes": [0]}]
    codes = [
        world.fetch_offsets([{"group_id": world.group, "member_id": who, "member_epoch": epoch, "topics": asked}])[0]
        for who, epoch in ((guest.id, real), (guest.id, real + 5), ("nobody", real))
    ]
    assert [each["error_code"] for each in codes] == [0, 113, 25]
    guest.epoch = real
    guest.leave()
    alone(world)


@same("modern")
def test_heartbeats_that_make_no_sense(world: World) -> None:
    alone(world)
    guest = Guest(world)
    said = [
        guest.join(member_id=""),
        guest.join(group_id=""),
        guest.join(instance_id=""),
        guest.join(rebalance_timeout_ms=-1),
        guest.join(topic_partitions=None),
        guest.join(subscribed_topic_names=None),
        guest.beat(member_epoch=-3),
        guest.beat(member_epoch=-2, instance_id=None),
    ]
    assert [each["error_code"] for each in said] == [42] * len(said)
    assert [each["error_message"] for each in said] == [
        "MemberId can't be empty.",
        "GroupId can't be empty.",
        "InstanceId can't be empty.",
        "RebalanceTimeoutMs must be provided in first request.",
        "TopicPartitions must be empty when (re-)joining.",
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        "MemberEpoch is invalid.",
        "InstanceId can't be null.",
    ]
    assert guest.join(server_assignor="nobodys")["error_code"] == 112
    assert guest.join(subscribed_topic_regex="(")["error_code"] == 128


@same("modern", "static")
def test_a_static_member_is_back_with_what_it_had(world: World) -> None:
    guest = Guest(world, "i-1")
    guest.join()
    member = world.made_of(world.begin_member(modern=True))
    world.until(lambda: guest.go_on() and len(guest.share) == 2 == len(member.assigned()))
    assert guest.beat(member_epoch=-2)["error_code"] == 0
    successor = Guest(world, "i-1")
    assert successor.join()["error_code"] == 0
    assert successor.share == guest.share
    assert len(member.assigned()) == 2
    assert guest.go_on()["error_code"] in (25, 82)
    successor.leave()
    world.until(lambda: member.assigned() == world.tps())


@same("modern", "static")
def test_an_instance_that_another_still_holds(world: World) -> None:
    guest = Guest(world, "i-1")
    guest.join()
    other = Guest(world, "i-1")
    assert other.join()["error_code"] == 111
    other.epoch = guest.epoch
    assert other.go_on()["error_code"] in (25, 82)
    assert guest.go_on()["error_code"] == 0
    guest.leave()
    alone(world)


@same("modern")
def test_a_group_is_described(world: World) -> None:
    member = alone(world)
    described = world.described_modern()
    (entry,) = described["members"]
    assert described["group_epoch"] == described["assignment_epoch"] == entry["member_epoch"]
    assert (entry["subscribed_topic_names"], entry["subscribed_topic_regex"]) == ([world.topic], "")
    assert entry["client_host"] == "/127.0.0.1"
    (has,) = entry["assignment"]["topic_partitions"]
    assert (has["topic_name"], sorted(has["partitions"])) == (world.topic, [0, 1, 2, 3])
    assert (world.described()["error_code"], world.state) == (69, "Dead")
    assert world.described()["error_message"] == f"Group {world.group} is not a classic group."
    answer = world.ask(schemas.LIST_GROUPS, {"types_filter": ["consumer"], "states_filter": ["stable"]})
    listed = {each["group_id"]: (each["group_type"], each["protocol_type"]) for each in answer["groups"]}
    assert listed[world.group] == ("consumer", "consumer")
    world.close(member)
    world.until(lambda: world.described_modern()["group_state"] == "Empty")


@same("modern")
def test_a_group_is_deleted_and_its_offsets(world: World) -> None:
    def deleted() -> int:
        answer = world.ask(schemas.DELETE_GROUPS, {"groups_names": [world.group]})
        return int(answer["results"][0]["error_code"])

    member = alone(world)
    member.commit({world.tp(0): 0})
    topics = [{"name": world.topic, "partitions": [{"partition_index": 0}]}]
    answer = world.ask(schemas.OFFSET_DELETE, {"group_id": world.group, "topics": topics})
    assert (answer["error_code"], answer["topics"][0]["partitions"][0]["error_code"]) == (0, 86)
    assert deleted() == 68
    world.close(member)
    world.until(lambda: deleted() == 0)
    assert world.committed() == {}


@same("modern")
def test_an_idle_group_changes_its_protocol_and_keeps_its_offsets(world: World) -> None:
    world.write(numbers(4))
    for number, modern in enumerate((False, True, False)):
        member = world.joined(modern=modern)
        world.read(4 * (number + 1))
        member.commit()
        world.close(member)
        world.until(lambda: world.tools.group(world.group).state == "Empty")
        world.write(numbers(4, 4 * (number + 1)))
    assert world.read(12) == numbers(12)
