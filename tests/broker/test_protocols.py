"""KIP-848 beside the classic protocol: server assignors, kills and zombies, fall-back, live migration both ways; and
the live way from an eager to the cooperative assignor (KIP-429)."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import Fleet, Load, ProcessMember, until, write
from tests.broker.listenerkit import MARGIN_S, SESSION_S, ListenerGroup, ListenerMember, listener_view

PARTITIONS = 6
Make = Callable[..., ListenerGroup]
CONSUMER = {"group_protocol": "consumer"}
#: With the defaults of what the broker decides under KIP-848: it would choose the classic protocol.
AUTO: dict[str, Any] = {"group_protocol": "auto", "session_timeout_ms": 45000, "heartbeat_interval_ms": 3000}
BOTH = {"membership_protocol": ["cooperative-sticky", "range"]}
COOPERATIVE = {"membership_protocol": "cooperative-sticky"}
EAGER = {"membership_protocol": "range"}


@pytest.mark.since("4.0")
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_server_assignors(kafka44: DevBroker, groups: Make, assignor: str) -> None:
    group = groups(kafka44, "consumer")
    for _ in range(3):
        group.join(membership_protocol=assignor)
    group.wait_balanced(PARTITIONS)
    if assignor == "range":
        assert sorted(sorted(member.owned) for member in group.members) == [[0, 1], [2, 3], [4, 5]]
    described = kafka44.run_tool("kafka-consumer-groups", "--describe", "--group", group.name, "--state")
    assert assignor in described and "Stable" in described
    assert listener_view(group.calls) == {member.name: member.owned for member in group.members}


@pytest.mark.parametrize("options", [CONSUMER, AUTO], ids=["consumer", "auto"])
def test_falls_back_to_classic_where_the_broker_refuses(
    kafka39: DevBroker, groups: Make, options: dict[str, Any]
) -> None:
    """Kafka 3.9 advertises ConsumerGroupHeartbeat and answers that it does not know it."""
    group = groups(kafka39, "consumer")
    first = group.join(**options)
    second = group.join(**options)
    group.wait_balanced(PARTITIONS)
    write(kafka39, group.topic, PARTITIONS, 5)
    group.until(lambda: len(first.got) + len(second.got) == 5 * PARTITIONS, "all messages")
    assert listener_view(group.calls) == {member.name: member.owned for member in group.members}


def test_start_returns_after_the_fall_back_without_a_listener(
    kafka39: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    name = topic(kafka39, PARTITIONS)
    write(kafka39, name, PARTITIONS, 1)
    with ManagedBalancedConsumer(
        name, kafka39.bootstrap, unique("group"), auto_offset_reset="earliest", consumer_timeout_ms=10000, **CONSUMER
    ) as consumer:
        assert consumer.health()["state"] == "stable"
        assert sorted(consumer.consume().partition_id for _ in range(PARTITIONS)) == list(range(PARTITIONS))


def both_way(group: ListenerGroup, acked: Load, steps: list[dict[str, Any]]) -> list[ListenerMember]:
    """Replaces three members one by one by such with the next step's options; everybody who ever was there."""
    everybody = [group.join(auto_commit_enable=True, **steps[0]) for _ in range(3)]
    group.wait_balanced(PARTITIONS)
    for options in steps[1:]:
        for old in list(group.members):
            group.leave(old)
            everybody.append(group.join(auto_commit_enable=True, **options))
            group.wait_balanced(PARTITIONS, SESSION_S + 10)
            # Kafka converts the group at its newest epoch. A member that has the same partitions in an older one, and
            # has not heard of the newest yet, would be put out then, and what it has not committed would come again.
            group.until(lambda: len({m.consumer.generation_id for m in group.members}) == 1, "one epoch")
            speaks = everybody[-1].consumer.health()["group_protocol"]
            assert (speaks == "consumer") == (options in (CONSUMER, AUTO))
            seen = len(acked.acked)
            group.until(lambda seen=seen: len(acked.acked) > seen + 30, "load goes on")  # type: ignore[misc]
    return everybody


ROADS = {
    "classic to consumer": [COOPERATIVE, CONSUMER],
    "eager to auto": [EAGER, AUTO],
    "auto to classic": [AUTO, COOPERATIVE],
    "consumer to eager": [CONSUMER, EAGER],
    "range to cooperative-sticky": [EAGER, BOTH, COOPERATIVE],
    "cooperative-sticky to range": [COOPERATIVE, BOTH, EAGER],
}


@pytest.mark.since("4.0")
@pytest.mark.parametrize("road", ROADS)
def test_a_living_group_changes_its_protocol(kafka44: DevBroker, groups: Make, road: str) -> None:
    """Member by member, under load: nothing is lost, nobody owns what another one has, and nothing comes twice."""
    group = groups(kafka44)
    with Load(kafka44, group.topic, PARTITIONS) as load:
        everybody = both_way(group, load, ROADS[road])
        load.stop()
    group.until(lambda: total(everybody) >= len(load.acked), f"{len(load.acked)} messages")
    got = Counter((p, o) for member in everybody for p, o, _ in member.got)
    assert len(got) == len(load.acked)
    assert max(got.values()) == 1, f"{sum(got.values()) - len(got)} duplicates"
    assert not [call for call in group.calls if call.kind == "lost"]
    view = listener_view(group.calls)
    assert {m.name: view[m.name] for m in group.members} == {m.name: m.owned for m in group.members}


def total(members: list[ListenerMember]) -> int:
    return len({(p, o) for member in members for p, o, _ in member.got})


@pytest.mark.parametrize("first", ["cooperative-sticky", "range"])
def test_lists_of_assignors_agree_on_what_all_offer(kafka44: DevBroker, groups: Make, first: str) -> None:
    group = groups(kafka44)
    group.join(membership_protocol=["cooperative-sticky", "range", "roundrobin"])
    group.join(membership_protocol=["roundrobin", "sticky"])
    group.join(membership_protocol=["sticky", "roundrobin", first])
    group.wait_balanced(PARTITIONS)
    assert {member.consumer._generation.protocol for member in group.members} == {"roundrobin"}


@pytest.mark.since("4.0")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "zombie"])
def test_a_kip848_member_that_falls_silent(
    kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str], number: signal.Signals
) -> None:
    """Its partitions go to the other within the session; a zombie hears of the loss, reads nothing more, comes back."""
    from managedconsumer.runtime.waiting.handlers import ThreadingHandler

    handler = ThreadingHandler()
    fleet = Fleet(kafka44, topic(kafka44, PARTITIONS), unique("group"), handler)
    options = {**CONSUMER, "auto_commit_enable": True, "auto_commit_interval_ms": 200}
    victim = ProcessMember(fleet, options=options)
    try:
        with Load(kafka44, fleet.topic, PARTITIONS) as load:
            until(handler, lambda: victim.of("got"), 20, "the victim consumes")
            other = fleet.join(**options)
            fleet.until(lambda: len(other.owned) == PARTITIONS // 2, 15, "shared")
            victim.signal(number)
            started = time.monotonic()
            fleet.until(lambda: len(other.owned) == PARTITIONS, SESSION_S + MARGIN_S, "taken over")
            assert time.monotonic() - started < SESSION_S + 3.0
            if number == signal.SIGSTOP:
                since = len(victim.events)
                victim.signal(signal.SIGCONT)
                until(handler, lambda: len(victim.of("assigned", since)) and other.stable, 20, "back again")
                fleet.until(lambda: len(other.owned) == PARTITIONS // 2, 20, "shared again")
                kinds = [event[0] for event in victim.events[since:]]
                assert kinds.index("lost") < kinds.index("assigned")
                assert "revoked" not in kinds[: kinds.index("assigned")]
            acked = load.stop()
        everything = lambda: {*fleet.values(), *victim.values}  # noqa: E731
        fleet.until(lambda: not set(acked) - everything(), 20, "all messages")
    finally:
        fleet.stop()
        victim.end()
