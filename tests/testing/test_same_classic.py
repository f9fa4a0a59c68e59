"""What a coordinator of classic groups answers, by number: the same on the broker in memory and on Kafka 4.4.

Every group has a client's member in it, and goes on afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer.wire.protocol import schemas
from tests.testing.sameworld import Stranger, World, numbers, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),  # kafka-python's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def goes_on(world: World) -> None:
    """The client's member reads."""
    values = {b"after %d" % number for number in range(4)}
    world.write(sorted(values))
    world.until(lambda: values <= {got.value for got in world.got})


@same()
def test_a_new_member_is_given_an_id_first(world: World) -> None:
    world.joined()
    answer = world.wait(Stranger(world).send_join())
    assert (answer["error_code"], answer["generation_id"], answer["leader"]) == (79, -1, "")
    assert answer["member_id"].startswith("probe-")
    assert world.leave((answer["member_id"], None)) == [0]  # or the next round waits for it
    goes_on(world)


@same()
def test_a_member_before_kip_394_is_let_in_at_once(world: World) -> None:
    world.joined()
    stranger = Stranger(world)
    body = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "group_instance_id": None}
    asked = {"group_id": world.group, "member_id": "", "protocol_type": "consumer", **body}
    asked["protocols"] = stranger._body["protocols"]
    answer = world.ask(schemas.JOIN_GROUP, asked, version=3)
    assert (answer["error_code"], answer["protocol_name"]) == (0, "range")
    assert answer["member_id"].startswith("probe-")
    assert world.leave((answer["member_id"], None)) == [0]
    goes_on(world)


@same()
def test_a_stranger_with_another_assignor_is_refused(world: World) -> None:
    world.joined()
    answer = world.wait(Stranger(world, "nobodys").send_join())
    assert (answer["error_code"], answer["protocol_name"], answer["protocol_type"]) == (23, None, None)
    assert world.wait(Stranger(world, kind="connect").send_join())["error_code"] == 23
    assert world.wait(Stranger(world).send_join(protocols=[]))["error_code"] == 23
    goes_on(world)


@same()
def test_a_member_cannot_change_its_assignor_alone(world: World) -> None:
    stranger = Stranger(world).settle()
    blob = stranger._body["protocols"][0]["metadata"]
    assert world.wait(stranger.send_join(protocols=[{"name": "other", "metadata": blob}]))["error_code"] == 23
    stranger.leave()
    world.joined()


@same()
def test_a_member_that_nobody_knows(world: World) -> None:
    world.joined()
    stranger = Stranger(world)
    stranger.id, stranger.generation, stranger.chosen = "nobody", 1, "range"
    assert world.wait(stranger.send_join())["error_code"] == 25
    assert stranger.sync()["error_code"] == 25
    assert stranger.heartbeat() == 25
    assert stranger.commit() == 25
    assert world.leave(("nobody", None)) == [25]
    goes_on(world)


@same()
def test_a_group_that_nobody_knows(world: World) -> None:
    world.joined()
    stranger = Stranger(world)
    stranger._body["group_id"] = world.group = f"{world.group}-other"
    stranger.id, stranger.generation, stranger.chosen = "nobody", 1, "range"
    assert world.wait(stranger.send_join())["error_code"] == 25
    assert stranger.sync()["error_code"] == 25
    assert stranger.heartbeat() == 25
    assert world.leave(("nobody", None)) == [25]
    assert stranger.commit() == 69
    assert world.commit({world.tp(0): 3}, generation=1, member="nobody", version=8)[world.tp(0)] == 22
    assert (world.described()["error_code"], world.state) == (69, "Dead")


@same()
def test_a_generation_that_is_over(world: World) -> None:
    stranger = Stranger(world).settle()
    old = stranger.generation
    member = world.member_beside(stranger)
    assert stranger.generation > old
    assert stranger.heartbeat(generation_id=old) == 22
    assert stranger.sync(generation_id=old)["error_code"] == 22
    assert stranger.commit(generation=old) == 22
    assert stranger.commit(generation=-1) == 22
    assert stranger.commit() == 0
    stranger.leave()
    world.until(lambda: member.assigned() == world.tps())
    goes_on(world)


@same()
def test_while_the_group_rebalances(world: World) -> None:
    first, second = Stranger(world).settle(), Stranger(world)
    join = second.begin()
    world.until(lambda: first.heartbeat() == 27)
    assert world.state == "PreparingRebalance"
    described = world.described()
    assert described["protocol_data"] == ""
    assert {each["member_metadata"] for each in described["members"]} == {b""}
    assert {bool(each["member_assignment"]) for each in described["members"]} == {True, False}
    assert first.sync()["error_code"] == 27
    assert first.commit() == 0  # what it has still counts
    assert first.join()["error_code"] == 0
    assert world.wait(join)["generation_id"] == first.generation
    assert world.state == "CompletingRebalance"
    assert first.heartbeat() == 0
    assert first.commit() == 27
    assert first.sync({first.id: [world.tp(0)], second.id: [world.tp(1)]})["error_code"] == 0
    assert first.commit() == 0
    first.leave()
    second.leave()
    world.joined()


@same()
def test_who_joins_again_without_a_change_disturbs_nobody(world: World) -> None:
    member = world.joined()
    stranger = Stranger(world).settle()
    world.until(lambda: len(member.assigned()) == 2)
    before = stranger.generation
    assert not stranger.leads
    assert stranger.join()["generation_id"] == before
    answer = stranger.sync()
    assert (answer["error_code"], answer["protocol_type"], answer["protocol_name"]) == (0, "consumer", "range")
    stranger.leave()
    goes_on(world)


@same()
def test_a_leader_that_joins_again_begins_a_round(world: World) -> None:
    stranger = Stranger(world).settle()
    before = stranger.generation
    assert stranger.join()["generation_id"] == before + 1
    stranger.settle()
    stranger.leave()
    world.joined()


@same()
def test_an_assignment_is_for_the_chosen_assignor(world: World) -> None:
    stranger = Stranger(world)
    stranger.join()
    assert stranger.sync(protocol_name="roundrobin")["error_code"] == 23
    assert stranger.sync(protocol_type="connect")["error_code"] == 23
    assert stranger.sync(protocol_name=None)["error_code"] == 23
    assert stranger.sync({stranger.id: [world.tp(2)]})["error_code"] == 0
    stranger.leave()
    world.joined()


@same()
def test_names_and_sessions_that_no_group_takes(world: World) -> None:
    world.joined()
    stranger = Stranger(world)
    assert world.wait(stranger.send_join(group_id=""))["error_code"] == 24
    assert world.wait(stranger.send_join(session_timeout_ms=0))["error_code"] == 26
    assert world.wait(stranger.send_join(session_timeout_ms=1_800_001))["error_code"] == 26
    assert world.code_of(schemas.HEARTBEAT, {"group_id": "", "generation_id": 1, "member_id": "m"}) == 24
    goes_on(world)


@same("static")
def test_an_instance_that_nobody_has(world: World) -> None:
    world.joined()
    (member,) = world.described()["members"]
    who = {"group_id": world.group, "member_id": member["member_id"], "group_instance_id": "nobody"}
    assert world.code_of(schemas.HEARTBEAT, {**who, "generation_id": 1}) == 25
    goes_on(world)


@same()
def test_a_group_is_described(world: World) -> None:
    assert world.described()["group_state"] == "Dead"
    member = world.joined()
    described = world.described()
    assert (described["error_code"], described["group_state"], described["protocol_type"]) == (0, "Stable", "consumer")
    (entry,) = described["members"]
    assert entry["client_host"] == "/127.0.0.1"
    assert entry["member_id"].startswith(f"{entry['client_id']}-")
    assert entry["group_instance_id"] is None
    assert described["protocol_data"] == "range"
    assert world.described_modern()["error_code"] == 69
    assert world.described_modern()["error_message"] == f"Group {world.group} is not a consumer group."
    world.close(member)
    world.until(lambda: world.state == "Empty")
    described = world.described()
    assert (described["protocol_type"], described["protocol_data"], described["members"]) == ("consumer", "", [])


@same()
def test_groups_are_listed_by_state_and_kind(world: World) -> None:
    def listed(**filters: Any) -> dict[str, tuple[str, str, str]]:
        answer = world.ask(schemas.LIST_GROUPS, filters)
        assert answer["error_code"] == 0
        return {
            each["group_id"]: (each["protocol_type"], each["group_state"], each["group_type"])
            for each in answer["groups"]
        }

    member = world.joined()
    assert listed()[world.group] == ("consumer", "Stable", "classic")
    assert world.group in listed(states_filter=["stable"], types_filter=["CLASSIC"])
    assert world.group not in listed(states_filter=["Empty"])
    assert world.group not in listed(types_filter=["consumer"])
    world.close(member)
    world.until(lambda: world.group in listed(states_filter=["Empty"]))
    offsets_only = f"{world.group}-offsets"
    world.commit({world.tp(0): 1}, group=offsets_only)
    assert listed()[offsets_only] == ("", "Empty", "classic")


@same()
def test_a_group_is_deleted(world: World) -> None:
    def deleted() -> int:
        answer = world.ask(schemas.DELETE_GROUPS, {"groups_names": [world.group]})
        return int(answer["results"][0]["error_code"])

    assert deleted() == 69
    world.write(numbers(4))
    member = world.joined()
    world.read(4)
    member.commit()
    assert deleted() == 68
    world.close(member)
    world.until(lambda: deleted() == 0)
    assert world.described()["group_state"] == "Dead"
    assert world.committed() == {}
    world.joined()
    assert world.read(8)[::2] == numbers(4)  # from the beginning, once more
