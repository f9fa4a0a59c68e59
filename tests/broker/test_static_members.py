"""Static members (KIP-345, KIP-814): restarts without a rebalance, and never two that consume under one name."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import SESSION_S, Fleet, Load, ProcessMember, running, until, write
from tests.broker.listenerkit import ListenerGroup, ListenerMember, listener_view

pytestmark = pytest.mark.since("2.3")
PARTITIONS = 4
PROTOCOLS = ["eager", "cooperative", "consumer"]


@pytest.fixture(params=PROTOCOLS)
def group(request: pytest.FixtureRequest, kafka44: DevBroker, groups: Callable[..., ListenerGroup]) -> ListenerGroup:
    return groups(kafka44, request.param)


def values(group: ListenerGroup, members: list[ListenerMember]) -> list[tuple[int, int]]:
    return [(p, o) for member in members for p, o, _ in member.got]


def test_a_restart_within_the_session_is_no_rebalance(group: ListenerGroup) -> None:
    """Stopped and started again under its name it gets the same partitions; the other member notices nothing."""
    one = group.join(group_instance_id="one", auto_commit_enable=True)
    other = group.join(group_instance_id="other", auto_commit_enable=True)
    group.wait_balanced(PARTITIONS)
    write(group.broker, group.topic, PARTITIONS, 10)
    group.until(lambda: len(values(group, [one, other])) == 10 * PARTITIONS, "all messages")
    before, generation, mine = len(group.calls), other.consumer.generation_id, one.owned
    group.leave(one)
    write(group.broker, group.topic, PARTITIONS, 10, start=10)
    again = group.join(group_instance_id="one", auto_commit_enable=True)
    group.wait_balanced(PARTITIONS)
    group.until(lambda: len(values(group, [one, other, again])) == 20 * PARTITIONS, "all messages, none twice")
    assert again.owned == mine
    assert not other.calls(since=before), "the other member was disturbed"
    if group.protocol != "consumer":
        assert other.consumer.generation_id == generation
    assert len(set(values(group, [one, other, again]))) == 20 * PARTITIONS


@pytest.mark.since("3.2")
def test_a_leader_that_restarts_keeps_the_group_going(group: ListenerGroup) -> None:
    """KIP-814: it is told to skip the assignment; partitions that are added later are noticed all the same."""
    one = group.join(group_instance_id="one", auto_commit_enable=True)
    group.wait_balanced(PARTITIONS)
    group.leave(one)
    again = group.join(group_instance_id="one", auto_commit_enable=True)
    group.wait_balanced(PARTITIONS)
    again.consumer._session.engine.cluster.metadata_max_age = 0.5
    again.consumer._session.engine.positions.wake()
    group.broker.create_partitions(group.topic, PARTITIONS + 2)
    group.wait_balanced(PARTITIONS + 2)


@pytest.mark.since("3.2")
def test_partitions_added_while_the_leader_was_away(group: ListenerGroup) -> None:
    """Nobody else watches the topics, and the leader is told to go on with the assignment that there is (KIP-814)."""
    one = group.join(group_instance_id="one", auto_commit_enable=True)
    group.wait_balanced(PARTITIONS)  # so that it leads
    other = group.join(group_instance_id="other", auto_commit_enable=True)
    group.wait_balanced(PARTITIONS)
    group.leave(one)
    group.broker.create_partitions(group.topic, PARTITIONS + 2)
    group.join(group_instance_id="one", auto_commit_enable=True)
    group.wait_balanced(PARTITIONS + 2)
    assert other.ended is None


def test_gone_for_longer_than_the_session(group: ListenerGroup) -> None:
    one = group.join(group_instance_id="one")
    other = group.join(group_instance_id="other")
    group.wait_balanced(PARTITIONS)
    started = time.monotonic()
    group.leave(one)
    group.wait_balanced(PARTITIONS, SESSION_S + 6)
    assert time.monotonic() - started > SESSION_S - 2.0, "it left the group, as a static member must not"
    assert other.owned == {0, 1, 2, 3}


def test_replaced_before_it_has_given_up_what_others_are_to_have(
    kafka44: DevBroker, topic: Callable[..., str], groups: Callable[..., ListenerGroup]
) -> None:
    """Its successor does not know that there is a second round to come; the leader, who does, begins it."""
    group = groups(kafka44, "cooperative")
    gives_up, over = threading.Event(), threading.Event()

    def hang(_member: ListenerMember, revoked: list[object]) -> None:
        if revoked:
            gives_up.set()
            over.wait(60)

    try:
        leader = group.join(topic=topic(kafka44, 1), group_instance_id="leader")
        group.until(lambda: leader.owned == {0}, "the leader consumes")
        one = group.join({"revoked": hang}, group_instance_id="one")
        group.until(lambda: one.owned == set(range(PARTITIONS)), "one has all of the topic")
        other = group.join(group_instance_id="other")
        group.until(gives_up.is_set, "one is to give partitions up")
        again = group.join(group_instance_id="one")
        group.until(
            lambda: len(again.owned) == len(other.owned) == PARTITIONS // 2, "all partitions belong to somebody"
        )
        assert not again.owned & other.owned
        over.set()
        group.until(lambda: isinstance(one.ended, err.FencedInstanceId), "the first of the name ends")
    finally:
        over.set()


def test_two_members_of_one_name(group: ListenerGroup) -> None:
    """One of the two ends with an error that names the cause; they never consume side by side."""
    with Load(group.broker, group.topic, PARTITIONS):
        first = group.join(group_instance_id="twin")
        group.until(lambda: len(first.got) > 50, "the first consumes")
        second = group.join(group_instance_id="twin")
        group.until(lambda: first.ended is not None or second.ended is not None, "one of the two ends")
        loser, winner = (first, second) if first.ended is not None else (second, first)
        assert isinstance(loser.ended, (err.FencedInstanceId, err.UnreleasedInstanceId)), loser.ended
        assert "instance" in str(loser.ended)
        seen = len(winner.got)
        group.until(lambda: len(winner.got) > seen + 50, "the other goes on")
    assert (loser is second) == (group.protocol == "consumer")
    if loser is first:
        (lost,) = loser.calls("lost")
        assert lost.partitions == {0, 1, 2, 3} and not loser.calls("revoked")
        # From the moment at which a heartbeat tells it (half a second at most) nothing comes from the loser.
        overlap = [n for *_, n in loser.got if n > lost.number]
        assert not overlap
    else:
        assert not loser.got
    with pytest.raises((err.FencedInstanceId, err.UnreleasedInstanceId)):
        loser.consumer.consume()
    assert listener_view(winner.calls())[winner.name] == {0, 1, 2, 3}


#: The session is far longer than any wait here: who waited for its end would come too late.
LONG: dict[str, Any] = {"session_timeout_ms": 45_000, "heartbeat_interval_ms": 3000, "auto_commit_interval_ms": 100}


@pytest.mark.parametrize(
    ("kafka", "protocol"), [("4.4.0", "auto"), ("3.9.2", "auto"), ("3.9.2", "classic")], indirect=["kafka"]
)
def test_one_that_was_killed_has_its_place_at_once(
    kafka: DevBroker, topic: Callable[..., str], unique: Callable[[str], str], protocol: str
) -> None:
    """KIP-848 keeps the place for a session, so with "auto" it is taken by the classic protocol; and back, next time.

    The other member keeps what it has, and nothing is lost.
    """
    options = {**LONG, "group_protocol": protocol, "auto_commit_enable": True}
    fleet = Fleet(kafka, topic(kafka, PARTITIONS), unique("group"), ThreadingHandler())
    spoken, values, moves = [], set[bytes](), 0

    def all_here() -> bool:
        return len(values | set(victim.values) | set(fleet.values())) == 5 * (turn + 1) * PARTITIONS

    with running(fleet):
        other = fleet.join(group_instance_id="other", **options)
        for turn in range(3):
            victim = ProcessMember(fleet, options={**options, "group_instance_id": "one"})
            try:
                until(fleet.handler, lambda of=victim.of: of("started"), 20, "it has started")  # type: ignore[misc]
                fleet.until(lambda: [len(new) for _, new in other.assignments[-1:]] == [PARTITIONS // 2], 20, "shared")
                assert turn == 0 or len(other.assignments) == moves
                moves = len(other.assignments)
                write(kafka, fleet.topic, PARTITIONS, 5, start=5 * turn)
                # What it had not committed came again: so many messages are not enough.
                fleet.until(all_here, 20, "all so far")
                spoken.append(victim.of("started")[0][2])
                victim.signal(signal.SIGKILL)
            finally:
                victim.end()
            values |= set(victim.values)
        fleet.until(lambda: len(values | set(fleet.values())) == 3 * 5 * PARTITIONS, 20, "nothing is lost")
    modern = protocol == "auto" and kafka.kafka_version >= "4"
    assert spoken == (["consumer", "classic", "consumer"] if modern else ["classic"] * 3)


def test_one_whose_session_has_ended_by_its_own_clock_only(
    kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    """A frozen process wakes up while the broker still has its place: it leaves that, and joins again."""
    options = {"group_protocol": "consumer", "session_timeout_ms": 3000, "group_instance_id": "one"}
    fleet = Fleet(kafka44, topic(kafka44, PARTITIONS), unique("group"), ThreadingHandler())
    victim = ProcessMember(fleet, options=options)
    try:
        until(fleet.handler, lambda: victim.of("started") and victim.of("assigned"), 20, "it has started")
        victim.signal(signal.SIGSTOP)
        time.sleep(3.5)  # longer than the session by its own clock, far shorter than the broker's
        victim.signal(signal.SIGCONT)
        until(fleet.handler, lambda: len(victim.of("assigned")) == 2, 20, lambda: f"it is back: {victim.events}")
        assert [kind for kind, *_ in victim.events] == ["started", "assigned", "lost", "assigned"]
    finally:
        victim.end()


def test_one_that_was_frozen_and_replaced_ends(
    kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    """The place is its successor's, by the classic protocol; the group has become a classic one meanwhile."""
    options = {**LONG, "group_protocol": "auto", "group_instance_id": "one"}
    fleet = Fleet(kafka44, topic(kafka44, PARTITIONS), unique("group"), ThreadingHandler())
    victim = ProcessMember(fleet, options=options)
    try:
        until(fleet.handler, lambda: victim.of("started"), 20, "it has started")
        victim.signal(signal.SIGSTOP)
        with running(fleet):
            heir = fleet.join(**options)
            fleet.until(lambda: len(heir.owned) == PARTITIONS, 20, "it has the place")
            assert heir.consumer.health()["group_protocol"] == "classic"
            victim.signal(signal.SIGCONT)
            until(fleet.handler, lambda: victim.of("error"), 20, lambda: f"the zombie ends: {victim.events}")
            write(kafka44, fleet.topic, PARTITIONS, 5)
            fleet.until(lambda: len(heir.got) == 5 * PARTITIONS, 20, "the heir goes on")
        assert "FencedInstanceId" in victim.of("error")[0][1] and not victim.of("got")
    finally:
        victim.end()
