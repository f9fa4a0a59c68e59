"""What groups commit, fetch and delete: the same on the broker in memory and on Kafka 4.4."""

from __future__ import annotations

import pytest

from managedconsumer import TopicPartition
from managedconsumer.wire.protocol import schemas
from tests.testing.sameworld import Stranger, World, numbers, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),  # kafka-python's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def deleted(world: World, *tps: TopicPartition) -> list[int]:
    """The codes of an OffsetDelete."""
    topics = [{"name": tp.topic, "partitions": [{"partition_index": tp.partition}]} for tp in tps]
    answer = world.ask(schemas.OFFSET_DELETE, {"group_id": world.group, "topics": topics})
    assert answer["error_code"] == 0
    found = {each["name"]: each["partitions"][0]["error_code"] for each in answer["topics"]}
    return [found[tp.topic] for tp in tps]


@same()
def test_a_text_goes_with_an_offset(world: World) -> None:
    world.write(numbers(4))
    member = world.joined()
    member.commit({world.tp(0): 1, world.tp(3): 0}, "what was done")
    tps = [world.tp(number) for number in range(4)]
    text = "what was done\0" if world.client == "confluent" else "what was done"  # confluent-kafka sends C's zero, too
    assert world.committed(tps) == {
        world.tp(0): (1, text),
        world.tp(1): (-1, ""),
        world.tp(2): (-1, ""),
        world.tp(3): (0, text),
    }
    assert [member.committed(tp) for tp in tps] == [1, None, None, 0]
    assert world.committed() == {world.tp(0): (1, text), world.tp(3): (0, text)}


@same()
def test_a_leader_epoch_goes_with_an_offset(world: World) -> None:
    member = world.joined()
    part = {"partition_index": 1, "committed_offset": 7, "committed_leader_epoch": 5, "committed_metadata": None}
    body = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    world.close(member)
    world.until(lambda: world.state == "Empty")
    topics = [{"name": world.topic, "partitions": [part]}]
    answer = world.ask(schemas.OFFSET_COMMIT, {"group_id": world.group, "topics": topics, **body})
    assert answer["topics"][0]["partitions"] == [{"partition_index": 1, "error_code": 0}]
    (found,) = world.fetch_offsets([{"group_id": world.group, "topics": None}])
    (entry,) = found["topics"][0]["partitions"]
    assert (entry["committed_offset"], entry["committed_leader_epoch"], entry["metadata"]) == (7, 5, "")


@same()
def test_only_members_commit_for_a_group_that_has_some(world: World) -> None:
    member = world.joined()
    assert world.commit({world.tp(0): 1})[world.tp(0)] == 25
    (entry,) = world.described()["members"]
    assert world.commit({world.tp(0): 1}, generation=99, member=entry["member_id"])[world.tp(0)] == 22
    assert world.committed() == {}
    world.close(member)
    world.until(lambda: world.state == "Empty")
    assert world.commit({world.tp(0): 1})[world.tp(0)] == 0
    assert world.commit({world.tp(0): 1}, generation=1, member="nobody")[world.tp(0)] == 25
    assert world.committed() == {world.tp(0): (1, "")}


@same()
def test_a_partition_that_does_not_exist(world: World) -> None:
    member = world.joined()
    world.close(member)
    world.until(lambda: world.state == "Empty")
    unknown = TopicPartition("nobodys-topic", 0)
    codes = world.commit({world.tp(0): 1, world.tp(99): 1, unknown: 1})
    assert codes == {world.tp(0): 0, world.tp(99): 3, unknown: 3}
    assert world.committed() == {world.tp(0): (1, "")}
    assert world.committed([world.tp(99), unknown]) == {world.tp(99): (-1, ""), unknown: (-1, "")}


@same()
def test_a_text_that_is_too_long(world: World) -> None:
    stranger = Stranger(world).settle()
    long = world.commit({world.tp(1): 1}, generation=stranger.generation, member=stranger.id, text="x" * 4097)
    assert long[world.tp(1)] == 12
    fits = world.commit({world.tp(2): 1}, generation=stranger.generation, member=stranger.id, text="y" * 4096)
    assert fits[world.tp(2)] == 0
    assert world.committed() == {world.tp(2): (1, "y" * 4096)}
    stranger.leave()
    world.joined()


@same()
def test_a_group_that_only_keeps_offsets(world: World) -> None:
    world.write(numbers(8))
    assert world.committed([world.tp(0)]) == {world.tp(0): (-1, "")}
    assert world.committed() == {}
    assert world.commit({world.tp(number): 1 for number in range(4)}) == {world.tp(number): 0 for number in range(4)}
    described = world.described()
    assert (described["group_state"], described["protocol_type"], described["members"]) == ("Empty", "", [])
    world.joined()
    assert world.read(4) == numbers(4, 4)


@same()
def test_offsets_of_several_groups_at_once(world: World) -> None:
    member = world.joined()
    member.commit({world.tp(0): 0})
    other = f"{world.group}-other"
    world.commit({world.tp(1): 5}, group=other)
    asked = [{"name": world.topic, "partition_indexes": [0, 1]}]
    answers = world.fetch_offsets([{"group_id": name, "topics": asked} for name in (world.group, other, "nobody")])
    found = {
        each["group_id"]: [part["committed_offset"] for part in each["topics"][0]["partitions"]] for each in answers
    }
    assert found == {world.group: [0, -1], other: [-1, 5], "nobody": [-1, -1]}


@same()
def test_an_older_offset_counts_too(world: World) -> None:
    world.write(numbers(8))
    first = world.joined()
    assert world.read(8) == numbers(8)
    first.commit()
    first.commit({world.tp(2): 1})
    world.close(first)
    world.until(lambda: world.state == "Empty")
    world.joined()
    assert world.read(9) == sorted([*numbers(8), b"006"])


@same()
def test_offsets_are_moved_for_an_idle_group_only(world: World) -> None:
    world.write(numbers(8))
    first = world.joined()
    world.read(8)
    first.commit()
    with pytest.raises(Exception, match="member"):
        world.tools.reset(world.group, world.topic, "earliest", execute=True)
    world.close(first)
    world.until(lambda: world.state == "Empty")
    world.tools.reset(world.group, world.topic, "earliest", execute=True)
    assert world.tools.lag(world.group).lag == 8
    world.joined()
    assert world.read(16) == sorted(numbers(8) * 2)


@same()
def test_offsets_are_deleted_where_nobody_reads(world: World) -> None:
    other = world.create()
    world.commit({world.tp(0): 1, world.tp(0, other): 1})
    member = world.joined()
    assert deleted(world, world.tp(0), world.tp(0, other), world.tp(0, "nobodys-topic")) == [86, 0, 3]
    assert world.committed() == {world.tp(0): (1, "")}
    world.close(member)
    world.until(lambda: world.state == "Empty")
    assert deleted(world, world.tp(0), world.tp(1)) == [0, 0]
    assert world.committed() == {}
    body = {"group_id": "nobody", "topics": [{"name": world.topic, "partitions": [{"partition_index": 0}]}]}
    assert world.code_of(schemas.OFFSET_DELETE, body) == 69


@same()
def test_a_group_of_another_kind_keeps_its_offsets(world: World) -> None:
    stranger = Stranger(world, kind="connect")
    stranger.join()
    assert stranger.sync({stranger.id: []})["error_code"] == 0
    body = {"group_id": world.group, "topics": [{"name": world.topic, "partitions": [{"partition_index": 0}]}]}
    assert world.code_of(schemas.OFFSET_DELETE, body) == 68
    assert world.described()["protocol_type"] == "connect"
    stranger.leave()
    world.joined()


@same()
def test_what_was_committed_for_a_topic_goes_with_it(world: World) -> None:
    other = world.create()
    world.joined()
    group = f"{world.group}-offsets"
    world.commit({world.tp(0): 1, world.tp(0, other): 1}, group=group)
    world.delete(other)
    world.until(lambda: world.committed(group=group) == {world.tp(0): (1, "")})


@same()
def test_an_offset_before_the_log_begins(world: World) -> None:
    world.write(numbers(8))
    first = world.joined()
    world.read(8)
    first.commit({world.tp(number): 1 - (number == 0) for number in range(4)})
    world.close(first)
    world.until(lambda: world.state == "Empty")
    world.got.clear()
    world.delete_before(0, 1)
    world.joined()
    assert world.read(4) == numbers(4, 4)


@same()
def test_an_offset_behind_the_end(world: World) -> None:
    world.write(numbers(4))
    world.commit({world.tp(0): 50, world.tp(1): 1, world.tp(2): 1, world.tp(3): 1})
    world.joined()
    assert world.read(1) == numbers(1)


@same()
def test_versions_of_old_clients(world: World) -> None:
    world.commit({world.tp(0): 4}, text="old", version=2)
    asked = {"group_id": world.group, "topics": [{"name": world.topic, "partition_indexes": [0, 1]}]}
    for version in (1, 2, 5, 7):
        answer = world.ask(schemas.OFFSET_FETCH, asked, version)
        parts = answer["topics"][0]["partitions"]
        assert [(p["committed_offset"], p["metadata"], p["error_code"]) for p in parts] == [(4, "old", 0), (-1, "", 0)]
    world.joined()
