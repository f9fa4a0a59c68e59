"""The contract of the rebalance listeners on a real Kafka 4.4.

Every test runs for threads, greenlets and asyncio, and for the eager, the cooperative and the KIP-848 protocol: the two
that say most for each pair of them, the others for each way with two protocols, and each protocol with two ways.
Sources: Java's ConsumerRebalanceListener, KIP-429, kafka-python's AsyncConsumerRebalanceListener.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import TopicPartition
from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import committed, write
from tests.broker.listenerkit import (
    KINDS,
    PROTOCOLS,
    AsyncWithLost,
    Call,
    ListenerGroup,
    ListenerMember,
    WithLost,
    configure_group,
    evict_now,
    listener_view,
)

PARTITIONS = 4
Make = Callable[..., ListenerGroup]


every_pair = pytest.mark.parametrize("group", [f"{a}-{b}" for a in KINDS for b in PROTOCOLS], indirect=True)
TWICE_EACH = [
    *("threads-eager", "threads-cooperative", "greenlets-cooperative"),
    *("greenlets-consumer", "asyncio-consumer", "asyncio-eager"),
]


@pytest.fixture(params=TWICE_EACH)
def group(request: pytest.FixtureRequest, kafka44: DevBroker, groups: Make) -> ListenerGroup:
    kind, protocol = request.param.split("-")
    return groups(kafka44, protocol, kind=kind)


@every_pair
def test_callbacks_of_joins_and_leaves(group: ListenerGroup) -> None:
    """Who hears what, when, how often and where, as members come and go."""
    first = group.join()
    group.wait_balanced(PARTITIONS)
    assert [(call.kind, call.partitions) for call in told(group.calls)] == [("assigned", {0, 1, 2, 3})]

    before = len(group.calls)
    second = group.join()
    group.wait_balanced(PARTITIONS)
    check_round(group, first, before)
    (revoked,) = first.calls("revoked", before)
    given = [call for call in second.calls("assigned", before) if call.partitions]
    assert revoked.partitions == ({0, 1, 2, 3} if group.eager else given[0].partitions)
    assert all(revoked.ended <= call.began for call in given), "assigned before everybody had been revoked"
    assert all(call.where == first.where for call in first.calls())
    assert all(call.where == second.where for call in second.calls())

    before = len(group.calls)
    mine = second.owned
    group.leave(second)
    (last,) = second.calls(since=before)
    assert (last.kind, last.partitions) == ("revoked", mine), "stop() tells what is given up"
    here = group.handler.ident()
    assert last.where == (second.where if group.kind == "asyncio" else here), "in the thread that stops"
    group.wait_balanced(PARTITIONS)
    check_round(group, first, before)
    assert not [call for call in group.calls if call.kind == "lost"]


def told(calls: list[Call]) -> list[Call]:
    """Without the empty assignments: under KIP-848 a member may join first and get its share later."""
    return [call for call in calls if call.partitions or call.kind != "assigned"]


def check_round(group: ListenerGroup, member: ListenerMember, since: int) -> None:
    """What a member that stays hears of a rebalance."""
    calls = member.calls(since=since)
    owned_before = listener_view(group.calls[:since])[member.name]
    if group.eager:
        kinds = [call.kind for call in calls]
        assert kinds == ["revoked", "assigned"] * (len(kinds) // 2)
        assert calls[0].partitions == owned_before
        assert calls[-1].partitions == member.owned, "eager: the whole assignment"
    else:
        kept = member.owned & owned_before
        assert not [call for call in calls if call.partitions & kept], "what stays is not spoken of"
        assert all(call.partitions for call in calls if call.kind != "assigned"), "revoked only if there is something"
    assert listener_view(group.calls)[member.name] == member.owned


def test_assigned_is_called_even_when_there_is_nothing(group: ListenerGroup) -> None:
    """Five members of four partitions: one hears of an empty assignment, and everybody of every rebalance."""
    for _ in range(PARTITIONS):
        group.join()
    group.wait_balanced(PARTITIONS)
    before = len(group.calls)
    newest = group.join()
    group.until(lambda: newest.calls("assigned"), "the newest member hears of its assignment")
    group.wait_balanced(PARTITIONS)
    (spare,) = [member for member in group.members if not member.owned]
    group.until(lambda: not spare.calls("assigned", before)[-1].partitions, "the spare member hears of nothing")
    assert listener_view(group.calls) == {member.name: member.owned for member in group.members}
    for member in group.members:
        kinds = [call.kind for call in member.calls(since=before)]
        if member is newest:
            assert kinds[0] == "assigned"
        elif group.eager:
            assert kinds and kinds == ["revoked", "assigned"] * (len(kinds) // 2)
        else:
            assert set(kinds) <= {"assigned"} and not told(member.calls(since=before))
    if group.protocol == "cooperative":
        assert all(member.calls("assigned", before) for member in group.members), "every rebalance is heard of"


def use_everything(member: ListenerMember, tps: list[TopicPartition]) -> dict[int, int]:
    """What a listener may do with its consumer. The committed offsets."""
    consumer, seen = member.consumer, {}
    for tp in tps:
        position = consumer.position(tp.partition)
        consumer.commit_offsets({tp.partition: position})
        seen[tp.partition] = consumer.committed(tp.partition)
        assert seen[tp.partition] == position
        consumer.pause(tp.partition)
        consumer.resume(tp.partition)
        consumer.seek(tp.partition, position)
    consumer.commit_offsets()
    return seen


def test_the_consumer_may_be_used_inside_every_callback(group: ListenerGroup) -> None:
    write(group.broker, group.topic, PARTITIONS, 10)
    seen: list[dict[int, int]] = []

    def use(member: ListenerMember, tps: list[TopicPartition]) -> None:
        seen.append(use_everything(member, tps))

    def start_at_five(member: ListenerMember, tps: list[TopicPartition]) -> None:
        for tp in tps:
            assert member.consumer.position(tp.partition) == (member.consumer.committed(tp.partition) or 0)
            member.consumer.seek(tp.partition, 5)

    first = group.join({"assigned": start_at_five, "revoked": use})
    group.until(lambda: len(first.got) == 5 * PARTITIONS, "what is behind the seek")
    assert {offset for _, offset, _ in first.got} == {5, 6, 7, 8, 9}
    second = group.join({"assigned": use, "revoked": use})
    group.wait_balanced(PARTITIONS)
    group.until(lambda: sum(map(len, seen)) >= 2 * len(second.owned), "both have used their consumers")
    assert all(position == 10 for found in seen for position in found.values())
    group.leave(second)  # the commit inside the callback of stop() counts
    assert not second.got
    assert {committed(group.broker, group.name, group.topic, PARTITIONS)[p] for p in seen[-1]} == {10}


@every_pair
def test_lost_after_an_eviction(group: ListenerGroup) -> None:
    """Thrown out from outside: lost and not revoked, no commit in it, nothing handed out before; then all again."""
    refused: list[BaseException | None] = []

    def try_to_commit(member: ListenerMember, tps: list[TopicPartition]) -> None:
        try:
            member.consumer.commit_offsets({tp.partition: 3 for tp in tps})
            refused.append(None)
        except err.CommitFailedError as error:
            refused.append(error)

    write(group.broker, group.topic, PARTITIONS, 5)
    member = group.join({"lost": try_to_commit}, auto_commit_enable=True, auto_commit_interval_ms=100_000)
    group.until(lambda: len(member.got) == 5 * PARTITIONS, "all messages")
    before = len(group.calls)
    evict_now(member)
    group.until(lambda: told(member.calls("assigned", before)), "in the group again")
    assert [(call.kind, call.partitions) for call in told(member.calls(since=before))] == [
        ("lost", {0, 1, 2, 3}),
        ("assigned", {0, 1, 2, 3}),
    ]
    assert all(call.where == member.where for call in member.calls())
    assert len(refused) == 1 and isinstance(refused[0], err.CommitFailedError)
    group.until(lambda: len(member.got) == 10 * PARTITIONS, "nothing was committed: all messages again")
    number = member.calls("lost")[0].number
    assert [sum(n < number for *_, n in member.got), sum(n > number for *_, n in member.got)] == [20, 20]


def test_lost_is_revoked_unless_overridden(group: ListenerGroup) -> None:
    member = group.join(lost=False)
    group.wait_balanced(PARTITIONS)
    before = len(group.calls)
    evict_now(member)
    group.until(lambda: told(member.calls("assigned", before)), "in the group again")
    again = told(member.calls(since=before))
    assert [(call.kind, len(call.partitions)) for call in again] == [("revoked", 4), ("assigned", 4)]


@pytest.mark.parametrize("kind", ["assigned", "revoked", "lost"])
def test_an_exception_surfaces_once(group: ListenerGroup, kind: str) -> None:
    """As itself, from the next call that consumes, before any message of the partitions; all goes on after it."""
    problem = ZeroDivisionError("the user's own")
    times = []

    def fail_once(_member: ListenerMember, tps: list[TopicPartition]) -> None:
        if tps:
            times.append(1)
        if len(times) == 1:
            raise problem

    write(group.broker, group.topic, PARTITIONS, 5)
    member = group.join({kind: fail_once})
    if kind != "assigned":
        group.until(lambda: len(member.got) == 5 * PARTITIONS, "all messages")
    if kind == "lost":
        evict_now(member)
    if kind == "revoked":
        group.join()
    group.until(lambda: member.raised, "the exception")
    group.wait_balanced(PARTITIONS)
    assert [error for error, _ in member.raised] == [problem]
    if kind == "assigned":
        group.until(lambda: len(member.got) == 5 * PARTITIONS, "all messages")
        assert all(number > member.raised[0][1] for *_, number in member.got)
        assert len(told(member.calls("assigned"))) == 1, "not tried again"
    else:
        call = member.calls(kind)[0]
        assert not [n for p, _, n in member.got if p in call.partitions and call.number < n < member.raised[0][1]]
    listener_view(group.calls)


def test_heartbeats_go_on_during_a_long_callback(group: ListenerGroup) -> None:
    """A callback that takes longer than the session costs nobody his place."""
    session = 1.5
    long = session + 1.0
    if group.protocol == "consumer":
        configure_group(group.broker, group.name, session=int(session * 1000))

    def block(member: ListenerMember, tps: list[TopicPartition]) -> Any:
        if not tps:
            return None
        return asyncio.sleep(long) if group.kind == "asyncio" else member.handler.sleep(long)

    member = group.join({"assigned": block}, session_timeout_ms=int(session * 1000))
    group.until(lambda: told(group.calls), "the long callback", long + 10)
    group.wait_balanced(PARTITIONS)
    assert member.consumer.health()["heartbeat_age_s"] < session
    assert [call.kind for call in told(group.calls)] == ["assigned"]


def test_a_user_who_does_not_come_leaves_the_group(group: ListenerGroup) -> None:
    """Nobody calls consume() for rebalance_timeout_ms: the others go on without, and the callback becomes lost."""
    busy, gate = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        while not gate.is_set():
            group.handler.sleep(0.05)

    write(group.broker, group.topic, PARTITIONS, 5)
    slow = group.member(rebalance_timeout_ms=800, revoke_drain_ms=100)
    slow.gate = hold
    slow.start()
    try:
        group.until(busy.is_set, "the slow member has a message")
        other = group.join(rebalance_timeout_ms=800)
        group.until(lambda: other.owned == {0, 1, 2, 3} and other.stable, "the other member takes all")
        group.until(lambda: slow.consumer.health()["state"] == "losing", "the slow member's worker knows")
        assert not slow.calls("revoked") and len(slow.got) == 1
    finally:
        gate.set()
    slow.gate = None
    group.wait_balanced(PARTITIONS)
    assert [call.kind for call in told(slow.calls())][:2] == ["assigned", "lost"]
    lost = slow.calls("lost")[0]
    assert lost.partitions == {0, 1, 2, 3}
    between = [n for *_, n in slow.got[1:] if n < lost.number]
    assert not between, "a zombie's message"


def test_stop_inside_a_callback(group: ListenerGroup) -> None:
    """It takes effect when the callback has come back; what was just assigned is revoked."""
    member = group.member({"assigned": lambda me, tps: me.consumer.stop() if tps else None})
    member.start()
    group.until(lambda: member.ended is not None, "the end of consuming")
    assert isinstance(member.ended, err.ConsumerStoppedException), member.ended
    assert [(call.kind, len(call.partitions)) for call in told(group.calls)] == [("assigned", 4), ("revoked", 4)]
    assert not member.consumer.health()["running"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_kind_of_listener(kind: str, kafka44: DevBroker, groups: Make) -> None:
    """Coroutines for who consumes in a thread or a greenlet, plain functions for who consumes on a loop."""
    group = groups(kafka44, "cooperative", kind=kind)
    goes_on, stands_still = threading.Event(), list[bool]()

    def take_time(member: ListenerMember, tps: list[TopicPartition]) -> Any:
        positions = [member.consumer.position(tp.partition) for tp in tps]
        assert positions == [0] * len(tps)
        return None if kind == "asyncio" else rest()

    async def rest() -> None:
        goes_on.clear()
        await asyncio.sleep(0.2)
        stands_still.append(not goes_on.is_set())

    def tick() -> None:
        while not group.calls:
            goes_on.set()
            group.handler.sleep(0.01)

    ticker = group.handler.spawn("test.ticker", tick)
    try:
        listener = WithLost if kind == "asyncio" else AsyncWithLost
        first = group.join({"assigned": take_time}, listener=listener)
        group.until(lambda: first.calls("assigned"), "assigned")
        second = group.join(listener=listener)
        group.wait_balanced(PARTITIONS)
        group.leave(second)
        assert second.calls()[-1].kind == "revoked"
        assert {call.where for call in first.calls()} == {first.where}
        assert stands_still[:1] == ([] if kind == "asyncio" else [False])
    finally:
        group.stop()
        ticker.join(5)


def test_stop_on_the_loops_own_thread(kafka44: DevBroker, groups: Make) -> None:
    """It blocks the loop, so the listener's coroutine gets another one; nothing waits for itself."""
    group = groups(kafka44, "eager", kind="asyncio")
    write(kafka44, group.topic, PARTITIONS, 1)
    member = group.member()
    member.gate = member.consumer.stop  # in the body of the async for
    member.start()
    group.until(lambda: member.ended is not None, "the end of consuming")
    assert isinstance(member.ended, err.ConsumerStoppedException), member.ended
    assert [call.kind for call in group.calls] == ["assigned", "revoked"]


def test_stop_during_a_rebalance_tells_once(group: ListenerGroup) -> None:
    """The others have not come yet: what was revoked at its start is not revoked again by stop()."""
    gate = threading.Event()

    def hold(member: ListenerMember, _tps: list[TopicPartition]) -> Any:
        async def wait() -> None:
            while not gate.is_set():
                await asyncio.sleep(0.02)

        if group.kind == "asyncio":
            return wait()
        while not gate.is_set():
            member.handler.sleep(0.02)
        return None

    other = group.join({"revoked": hold})
    group.wait_balanced(PARTITIONS)
    first = group.join()
    try:
        group.until(lambda: first.stable or first.consumer.health()["state"] == "preparing rebalance", "join")
        before, started = len(group.calls), time.monotonic()
        group.leave(first)  # it waits for the other one inside start(), or has nothing yet
        assert time.monotonic() - started < 12.0, "it waited for the other member"
        gate.set()
        group.wait_balanced(PARTITIONS)
    finally:
        gate.set()
    assert len(first.calls("revoked", before)) <= 1
    view = listener_view(group.calls)
    assert not view.get(first.name) and view[other.name] == {0, 1, 2, 3}
