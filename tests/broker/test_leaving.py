"""Who leaves a group at ``stop()`` (KIP-1092), and rebalances by hand (KIP-568)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import KafkaClient
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import write
from tests.broker.listenerkit import ListenerGroup

PARTITIONS = 4


@pytest.fixture(params=["eager", "consumer"])
def group(request: pytest.FixtureRequest, kafka44: DevBroker, groups: Callable[..., ListenerGroup]) -> ListenerGroup:
    return groups(kafka44, request.param)


STATIC = pytest.param("till-1", id="static", marks=pytest.mark.since("2.4"))


@pytest.mark.parametrize("instance", [pytest.param(None, id="dynamic"), STATIC])
def test_who_keeps_its_place(group: ListenerGroup, instance: str | None) -> None:
    """Where it leaves, the others take its partitions over at once. A static one comes back to the place it kept."""
    other = group.join()
    stays: dict[bool | None, bool] = {None: instance is not None, True: False, False: True}
    with KafkaClient(group.broker.bootstrap) as client:
        for leave, keeps in stays.items():
            member = group.join(group_instance_id=instance)
            group.wait_balanced(PARTITIONS)
            name = member.consumer.consumer_id.decode()
            group.members.remove(member)
            member.consumer.stop(leave=leave)
            member.stop()
            assert (name in {each.member_id for each in client.group(group.name).members}) is keeps, leave
            if not keeps:
                group.until(lambda: len(other.owned) == PARTITIONS, "taken over")


def test_a_rebalance_is_enforced(group: ListenerGroup) -> None:
    """By a member that does not lead; nothing is lost or repeated."""
    members = [group.join(auto_commit_enable=True)]
    group.wait_balanced(PARTITIONS)
    members.append(group.join(auto_commit_enable=True))
    group.wait_balanced(PARTITIONS)
    write(group.broker, group.topic, PARTITIONS, 5)
    group.until(lambda: sum(len(member.got) for member in members) == 5 * PARTITIONS, "all messages")
    before, seen = [member.consumer.generation_id for member in members], len(group.calls)
    members[1].consumer.enforce_rebalance("by hand")
    if group.protocol == "consumer":
        group.wait_balanced(PARTITIONS)
        assert len(group.calls) == seen
    else:
        group.until(lambda: all(len(member.calls("assigned", seen)) == 1 for member in members), "both have been told")
        group.wait_balanced(PARTITIONS)
        assert [member.consumer.generation_id for member in members] == [generation + 1 for generation in before]
    write(group.broker, group.topic, PARTITIONS, 5, start=5)
    group.until(lambda: sum(len(member.got) for member in members) >= 10 * PARTITIONS, "all messages")
    got: list[Any] = [(p, o) for member in members for p, o, _ in member.got]
    assert len(got) == len(set(got)) == 10 * PARTITIONS
