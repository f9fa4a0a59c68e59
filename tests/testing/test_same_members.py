"""Members come, go, and share: the same on the broker in memory and on Kafka 4.4."""

from __future__ import annotations

import pytest

from managedconsumer.wire.protocol import schemas
from tests.testing.clients import Client
from tests.testing.sameworld import ASSIGNORS, Stranger, World, numbers, same, same_by_assignor

pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),  # kafka-python's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def shared(world: World, *members: Client) -> bool:
    """Each has as much as the others, and all of it is somebody's."""
    has = [each.assigned() for each in members]
    return (
        sum(map(len, has)) == len(world.tps()) == len(set.union(*has)) and max(map(len, has)) - min(map(len, has)) < 2
    )


@same_by_assignor(*ASSIGNORS)
def test_one_reads_commits_and_its_successor_goes_on(world: World, assignor: str) -> None:
    world.write(numbers(8))
    first = world.member(assignors=[assignor])
    assert world.read(8) == numbers(8)
    first.commit()
    described = world.tools.group(world.group)
    assert (described.type, described.state, described.assignor) == ("classic", "Stable", assignor)
    assert set(described.members[0].partitions) == world.tps()
    assert world.tools.lag(world.group).lag == 0
    world.close(first)
    world.until(lambda: world.state == "Empty")
    world.write(numbers(4, 8))
    assert world.tools.lag(world.group).lag == 4
    world.member(assignors=[assignor])
    assert world.read(12) == numbers(12)


@same_by_assignor(*ASSIGNORS)
def test_it_shares_with_ours_and_each_takes_over(world: World, assignor: str) -> None:
    pair = [world.member(assignors=[assignor]), world.member("ours", assignors=[assignor])]
    for leaver, name in ((0, world.client), (1, "ours")):
        world.until(lambda: shared(world, *pair))
        assert len(world.tools.group(world.group).members) == 2
        before = len({got.value for got in world.got})
        world.write(numbers(8, before))
        world.until(lambda n=before: len({got.value for got in world.got}) == n + 8)  # type: ignore[misc]
        for each in pair:
            world.commit_of(each)
        stays = pair[1 - leaver]
        world.close(pair[leaver])
        world.until(lambda m=stays: m.assigned() == world.tps())  # type: ignore[misc]
        pair[leaver] = world.member(name, assignors=[assignor])
    world.until(lambda: shared(world, *pair))
    assert {got.value for got in world.got} == set(numbers(16))


@same_by_assignor("range", "roundrobin")
def test_three_members_and_two_topics(world: World, assignor: str) -> None:
    topics = [world.topic, world.create()]
    members = [world.member(name, topics=topics, assignors=[assignor]) for name in (world.client, "ours", world.client)]

    def settled() -> bool:
        has = [each.assigned() for each in members]
        return all(has) and sum(map(len, has)) == 8 and set.union(*has) == world.tps(*topics)

    world.until(settled)
    sizes = sorted(len(each.assigned()) for each in members)
    assert sizes == ([2, 2, 4] if assignor == "range" else [2, 3, 3])


@same()
def test_members_with_different_topics(world: World) -> None:
    other = world.create()
    mine, both = world.member(), world.member("ours", topics=[world.topic, other])
    world.until(lambda: len(mine.assigned()) == 2 and len(both.assigned()) == 6)
    assert both.assigned() >= world.tps(other)


@same()
def test_topics_by_a_pattern_also_later_ones(world: World) -> None:
    member = world.joined(pattern=world.topic + ".*")
    later = world.create(f"{world.topic}-later")
    world.write(numbers(4), later)
    assert world.read(4) == numbers(4)
    assert member.assigned() == world.tps(world.topic, later)


@same()
def test_new_partitions_are_given_out(world: World) -> None:
    member = world.joined()
    world.broker.create_partitions(world.topic, 6)
    world.until(lambda: len(member.assigned()) == 6)
    world.write(numbers(1), partition=5)
    assert world.read(1) == numbers(1)


@same()
def test_a_stranger_joins_and_leaves(world: World) -> None:
    member = world.joined()
    stranger = Stranger(world).settle()
    world.until(lambda: len(member.assigned()) == 2)
    assert stranger.share == world.tps() - member.assigned()
    stranger.leave()
    world.until(lambda: member.assigned() == world.tps())


@same()
def test_a_member_that_falls_silent_is_expelled(world: World) -> None:
    member = world.joined()
    stranger = Stranger(world, session_ms=600).settle()
    world.until(lambda: len(world.described()["members"]) == 1)
    world.until(lambda: member.assigned() == world.tps())
    assert stranger.heartbeat() == 25
    assert stranger.commit() == 25


@same()
def test_a_member_that_does_not_join_again_in_time_is_dropped(world: World) -> None:
    late = Stranger(world, rebalance_ms=400).settle()
    other = Stranger(world, rebalance_ms=400)
    answer = other.join()
    assert (answer["leader"], len(answer["members"])) == (other.id, 1)
    assert late.heartbeat() == 25
    other.leave()
    world.joined()


@same()
def test_a_leader_that_never_assigns_is_dropped(world: World) -> None:
    stranger = Stranger(world, rebalance_ms=400)
    assert stranger.join()["leader"] == stranger.id
    world.until(lambda: world.state == "Empty")
    assert stranger.sync()["error_code"] == 25
    world.joined()


@same()
def test_a_member_that_is_expelled_comes_back(world: World) -> None:
    member = world.joined()
    (before,) = world.described()["members"]
    assert world.leave((before["member_id"], None)) == [0]
    world.until(lambda: world.state == "Stable" and world.described()["members"][0]["member_id"] != before["member_id"])
    world.until(lambda: member.assigned() == world.tps())
    world.write(numbers(4))
    assert world.read(4) == numbers(4)


@same()
def test_when_the_leader_leaves_the_client_leads(world: World) -> None:
    stranger = Stranger(world).settle()
    assert stranger.leads
    member = world.member_beside(stranger)
    world.until(lambda: len(member.assigned()) == 2)
    stranger.leave()
    world.until(lambda: member.assigned() == world.tps())
    assert world.state == "Stable"


@same("roundrobin")
def test_two_assignors_on_offer_the_common_one_is_taken(world: World) -> None:
    member = world.joined(assignors=["roundrobin", "range"])
    assert world.described()["protocol_data"] == "roundrobin"
    Stranger(world, "range").settle()
    world.until(lambda: len(member.assigned()) == 2)
    assert world.described()["protocol_data"] == "range"


@same("static")
def test_a_static_member_is_back_without_a_rebalance(world: World) -> None:
    first = world.joined(instance="i-1")
    other = Stranger(world, instance="i-2").settle()
    world.until(lambda: len(first.assigned()) == 2)
    had, generation = first.assigned(), other.generation
    world.close(first)
    assert len(world.described()["members"]) == 2
    second = world.member(instance="i-1")
    world.until(lambda: second.assigned() == had)
    assert other.heartbeat() == 0
    assert other.generation == generation


@same("static")
def test_a_second_one_with_the_same_instance_fences_the_first(world: World) -> None:
    world.abandon(world.joined(instance="i-1"))
    (before,) = world.described()["members"]
    assert (before["group_instance_id"], before["member_id"][:4]) == ("i-1", "i-1-")
    stranger = Stranger(world, instance="i-1")
    assert stranger.join()["error_code"] == 0
    who = {"group_id": world.group, "member_id": before["member_id"], "group_instance_id": "i-1"}
    assert world.code_of(schemas.HEARTBEAT, {**who, "generation_id": stranger.generation}) == 82
    fenced = world.commit({world.tp(0): 1}, generation=1, member=before["member_id"], instance="i-1")
    assert list(fenced.values()) == [82]


@same("static")
def test_an_administrator_removes_a_static_member_by_its_instance(world: World) -> None:
    member = world.joined(instance="i-1")
    (before,) = world.described()["members"]
    assert world.leave(("", "nobody"), ("", "i-1")) == [25, 0]
    world.until(lambda: world.state == "Stable" and world.described()["members"][0]["member_id"] != before["member_id"])
    world.until(lambda: member.assigned() == world.tps())


@same("static")
def test_a_member_that_waits_is_fenced(world: World) -> None:
    slow, first, second = Stranger(world).settle(), Stranger(world, instance="i-1"), Stranger(world, instance="i-1")
    waiting = first.begin()
    world.until(lambda: slow.heartbeat() == 27)
    taking_over = second.begin()
    assert world.wait(waiting)["error_code"] == 82
    assert slow.join()["error_code"] == 0
    answer = world.wait(taking_over)
    assert (answer["error_code"], answer["generation_id"]) == (0, slow.generation)
    second.id, second.generation = answer["member_id"], answer["generation_id"]
    slow.leave()
    second.leave()
    world.joined()
