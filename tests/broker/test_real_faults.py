"""Harsh things that happen to real clusters: silent connections, stalls, killed leaders, storms, clocks, forks."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.groupkit import (
    MARGIN_S,
    SESSION_S,
    Fleet,
    Load,
    ProcessMember,
    all_seen,
    in_other_thread,
    node_of,
)
from tests.broker.proxy import Proxy

Make = Callable[..., Fleet]
threads = pytest.mark.parametrize("mode", ["threads"], indirect=True)
PARTITIONS = 4
JOIN_GROUP, SYNC_GROUP = 11, 14
#: What the documentation promises for a connection that dies without a word (seconds).
BACK_S = 40.0
STALL_S = 20.0
COMMITS: dict[str, Any] = {"auto_commit_enable": True, "auto_commit_interval_ms": 200}


def check_between_assignments(group: Fleet) -> None:
    """Nobody raised, and between two assignments every partition's offsets rise one by one.

    A member that was out of the group goes on where the others are then, which ``Fleet.check`` takes for a gap.
    """
    assert group.errors() == []
    for member in group.everybody:
        last: dict[int, int] = {}
        for event in list(member.events):
            if event[0] == "assigned":
                last.clear()
            else:
                partition, offset = event[1], event[2]
                assert offset == last.get(partition, offset - 1) + 1, (
                    f"{member.name}: {partition}:{offset} after {last}"
                )
                last[partition] = offset


# -- connections that say nothing any more ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[DevBroker, Proxy]]:
    """A broker with a second listener that is announced at a proxy's address."""
    proxy = Proxy()
    try:
        with DevBroker("4.4.0", listeners={"PROXIED": "PLAINTEXT"}, advertised={"PROXIED": proxy.address}) as broker:
            proxy.target = broker.port_of(1, "PROXIED")
            yield broker, proxy
    finally:
        proxy.close()


@pytest.fixture
def through(proxied: tuple[DevBroker, Proxy]) -> Iterator[Proxy]:
    yield proxied[1]
    proxied[1].release()


@threads
@pytest.mark.parametrize("moment", ["stable", "JoinGroup", "SyncGroup"])
def test_silent_connections(proxied: tuple[DevBroker, Proxy], through: Proxy, fleet: Make, moment: str) -> None:
    """Nothing is closed, nothing is answered: the member is back, with everything, within 40 s."""
    broker, _ = proxied
    group = fleet(broker, PARTITIONS)
    with Load(broker, group.topic, PARTITIONS) as load:
        # Pykafka's default: what a JoinGroup may take must not be what a dead connection costs.
        far = group.join(cluster=through.address, rebalance_timeout_ms=300_000, **COMMITS)
        group.until(lambda: len(far.got) > 20, 15, "the member behind the proxy consumes")
        before = through.swallowed
        if moment == "stable":
            through.silence()
        else:
            through.silence_at(JOIN_GROUP if moment == "JoinGroup" else SYNC_GROUP)
            group.join(rebalance_timeout_ms=300_000, **COMMITS)
        group.until(lambda: through.swallowed > before, 15, f"a connection has fallen silent ({moment})")
        silent, seen = time.monotonic(), len(far.got)
        group.until(lambda: len(far.got) > seen + 20 and far.stable, BACK_S, f"the member is back ({moment})")
        took = time.monotonic() - silent
        group.wait_balanced(PARTITIONS, BACK_S)
        acked = load.stop()
    all_seen(group, acked)
    check_between_assignments(group)
    print(f"silent at {moment}: back after {took:.1f} s, {group.duplicates()} duplicates")


@threads
def test_answers_are_held_for_twenty_seconds(proxied: tuple[DevBroker, Proxy], through: Proxy, fleet: Make) -> None:
    """Far longer than the session: the member knows that it is out, and comes back with the first answers."""
    broker, _ = proxied
    group = fleet(broker, PARTITIONS)
    with Load(broker, group.topic, PARTITIONS) as load:
        far = group.join(cluster=through.address, **COMMITS)
        group.until(lambda: len(far.got) > 20, 15, "the member behind the proxy consumes")
        through.hold()
        held = time.monotonic()
        group.until(lambda: not far.stable, SESSION_S + 2 * MARGIN_S, "the member says that something is wrong")
        group.until(lambda: time.monotonic() - held > STALL_S, STALL_S + 1, "the stall to end")
        assert far.consumer.health()["running"]
        through.release()
        seen = len(far.got)
        group.until(lambda: len(far.got) > seen + 20 and far.stable, BACK_S, "the member is back")
        acked = load.stop()
    all_seen(group, acked)
    check_between_assignments(group)


# -- nodes of three ---------------------------------------------------------------------------------------------


@threads
def test_a_coordinator_is_stalled_for_twenty_seconds(kafka44x3: DevBroker, fleet: Make) -> None:
    """SIGSTOP: its connections stay open and say nothing; another node takes the group over."""
    group = fleet(kafka44x3, PARTITIONS)
    stalled = 0
    with Load(kafka44x3, group.topic, PARTITIONS) as load:
        for _ in range(2):
            group.join(rebalance_timeout_ms=300_000, **COMMITS)
        group.wait_balanced(PARTITIONS)
        group.until(lambda: all(len(member.got) > 20 for member in group.members), 15, "both consume")
        stalled = node_of(kafka44x3, group.members[0].consumer.health()["coordinator"])
        kafka44x3.pause(stalled)
        began = time.monotonic()
        try:
            seen = [len(member.got) for member in group.members]
            group.until(
                lambda: all(len(m.got) > n + 20 for m, n in zip(group.members, seen, strict=True)),
                BACK_S,
                "both consume while the old coordinator is stalled",
            )
            back = time.monotonic() - began
            group.until(lambda: time.monotonic() - began > STALL_S, STALL_S + 1, "the stall to end")
        finally:
            kafka44x3.resume(stalled)
            in_other_thread(group.handler, kafka44x3.wait_in_sync)
        group.wait_balanced(PARTITIONS, BACK_S)
        acked = load.stop()
    all_seen(group, acked)
    check_between_assignments(group)
    print(f"coordinator stalled: both consume again after {back:.1f} s, {group.duplicates()} duplicates")


#: A new leader is found within half a second of being there; the rest is for the probe's way and this machine.
FOUND_S = 0.5 + 0.5


@threads
@pytest.mark.busy
def test_the_first_message_of_each_partition_of_a_killed_leader(kafka44x3: DevBroker, fleet: Make) -> None:
    partitions = 9
    group = fleet(kafka44x3, partitions, replication=3)
    arrived: dict[bytes, float] = {}
    group.join(work=lambda message: arrived.setdefault(message.value, time.monotonic()), **COMMITS)
    group.wait_balanced(partitions)
    write_each(kafka44x3, group.topic, range(partitions), "before")
    group.until(lambda: len(arrived) == partitions, 15, "the messages before the kill")
    victim = leaders(kafka44x3, group.topic)[0]
    orphans = [number for number, leader in leaders(kafka44x3, group.topic).items() if leader == victim]
    kafka44x3.kill(victim)
    killed = time.monotonic()
    try:

        def moved() -> bool:
            now = leaders(kafka44x3, group.topic)
            return len(now) == partitions and all(leader not in (-1, victim) for leader in now.values())

        group.until(moved, 15, "new leaders")
        there = time.monotonic()
        acked = write_each(kafka44x3, group.topic, orphans, "after")
        group.until(lambda: all(b"after-%d" % number in arrived for number in orphans), 15, "a message of each orphan")
    finally:
        in_other_thread(group.handler, lambda: kafka44x3.start_node(victim))
        in_other_thread(group.handler, kafka44x3.wait_in_sync)
    late = {number: round(arrived[b"after-%d" % number] - acked[number], 2) for number in orphans}
    print(
        f"new leaders {there - killed:.2f} s after the kill, written to {max(acked.values()) - there:.2f} s later; "
        f"first messages so long after they were written: {late}"
    )
    group.check()
    assert max(late.values()) < FOUND_S, f"not within {FOUND_S} s of being written: {late}"


def leaders(broker: DevBroker, topic: str) -> dict[int, int]:
    """The leader of each partition, as a node that lives says now."""
    living = [broker.port_of(node) for node in broker.node_ids if broker.pid(node) is not None]
    cluster = Cluster(parse_bootstrap(f"127.0.0.1:{living[0]}"), ThreadingHandler())
    try:
        info = cluster.refresh([topic]).topics[topic]
        return {number: part.leader for number, part in info.partitions.items()}
    finally:
        cluster.close()


def write_each(broker: DevBroker, topic: str, numbers: Iterable[int], word: str) -> dict[int, float]:
    """One message to each of the partitions; when each was acknowledged."""
    acked: dict[int, float] = {}
    living = [f"127.0.0.1:{broker.port_of(node)}" for node in broker.node_ids if broker.pid(node) is not None]
    with Producer(",".join(living)) as producer:
        for number in numbers:
            producer.produce(topic, [Record(f"{word}-{number}".encode())], partition=number)
            acked[number] = time.monotonic()
    return acked


# -- storms -----------------------------------------------------------------------------------------------------


@threads
def test_the_cluster_restarts_in_the_middle_of_a_rebalance(dev_broker: Callable[..., DevBroker], fleet: Make) -> None:
    broker = dev_broker("4.4.0")
    group = fleet(broker, PARTITIONS)
    with Load(broker, group.topic, PARTITIONS) as load:
        slow = threading.Event()

        def callback(_consumer: Any, _old: Any, _new: Any) -> None:
            slow.wait(0.5)  # a rebalance takes long enough to be hit

        for _ in range(3):
            group.join(post_rebalance_callback=callback, **COMMITS)
        group.wait_balanced(PARTITIONS, 20)
        group.until(lambda: all(len(member.got) > 20 for member in group.members), 15, "all consume")
        group.leave(group.members[-1])
        group.until(lambda: not all(member.stable for member in group.members), 15, "a rebalance")
        broker.kill()
        slow.set()
        in_other_thread(group.handler, broker.start_node)
        came, before = time.monotonic(), len(load.acked)
        group.wait_balanced(PARTITIONS, BACK_S)
        took = time.monotonic() - came
        group.until(lambda: len(load.acked) > before + 100, 60, "writing goes on")
        acked = load.stop()
    all_seen(group, acked)
    group.check()
    print(f"two members balanced {took:.1f} s after the restart, {group.duplicates()} duplicates")


@threads
def test_twenty_members_come_and_go(kafka44: DevBroker, fleet: Make) -> None:
    count, rng = 20, random.Random(20)
    group = fleet(kafka44, count)
    with Load(kafka44, group.topic, count, pause=0.02) as load:
        for _ in range(count):
            group.join(**COMMITS)
        group.wait_balanced(count, 60)
        for _ in range(15):
            for member in rng.sample(group.members, rng.randint(1, 3)):
                group.leave(member)
            while len(group.members) < count:
                group.join(**COMMITS)
            seen = sum(len(member.got) for member in group.everybody)
            group.until(
                lambda seen=seen: sum(len(member.got) for member in group.everybody) > seen + 20, 30, "messages go on"
            )
        group.wait_balanced(count, 60)
        acked = load.stop()
    all_seen(group, acked)
    group.check()
    print(f"{len(group.gone)} members left, {group.duplicates()} duplicates of {len(acked)}")


# -- clocks and forks -------------------------------------------------------------------------------------------


@threads
def test_the_wall_clock_jumps(kafka44: DevBroker, fleet: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sets the clock: no session ends, no commit waits, nothing pauses."""
    group = fleet(kafka44, PARTITIONS)
    shift = 0.0
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(shift * 1e9))
    pauses: dict[float, float] = {}
    with Load(kafka44, group.topic, PARTITIONS) as load:
        for _ in range(2):
            group.join(**COMMITS)
        group.wait_balanced(PARTITIONS)
        group.until(lambda: all(len(member.got) > 20 for member in group.members), 15, "both consume")
        calls = [len(member.assignments) for member in group.members]
        for shift in (3600.0, -3600.0, 10 * 365 * 86400.0, -20 * 365 * 86400.0, 0.0):
            began, seen = time.monotonic(), [len(member.got) for member in group.members]
            group.until(
                lambda seen=seen: all(len(m.got) > n + 50 for m, n in zip(group.members, seen, strict=True)),
                SESSION_S,
                f"both consume after a jump by {shift:.0f} s",
            )
            pauses[shift] = round(time.monotonic() - began, 2)
        assert [len(member.assignments) for member in group.members] == calls, "a jump began a rebalance"
        acked = load.stop()
    all_seen(group, acked)
    group.check()
    assert group.duplicates() == 0
    print(f"fifty messages each after a jump of the clock: {pauses}")


@threads
def test_forks_under_load(kafka44: DevBroker, fleet: Make) -> None:
    """Children that stop, consume, commit or just end take nothing away from their parent."""
    group = fleet(kafka44, PARTITIONS)
    parent = None
    try:
        with Load(kafka44, group.topic, PARTITIONS) as load:
            parent = ProcessMember(group, module="tests.broker.forking", options=COMMITS)
            member = parent
            group.until(lambda: len(member.of("forked")) >= 12 or member.of("error"), 60, "twelve children")
            acked = load.stop()
        group.until(lambda: not set(acked) - set(member.values), 30, f"all of {len(acked)} messages")
        # Not later: a member that has stopped, perhaps right behind a fork, has no id any more.
        ids = {event[1] for event in member.of("started") + member.of("member")}
        parent.signal(signal.SIGTERM)
        group.until(lambda: member.of("stopped"), 15, "the parent stops")
        assert parent.process.wait(15) == 0
    finally:
        if parent is not None:
            parent.end()
    assert member.of("error") == []
    assert {tuple(event[1:]) for event in member.of("forked")} == {
        (w, 0) for w in ("stop", "consume", "commit", "exit")
    }
    assert len(ids) == 1, f"the parent lost its place in the group: {ids}"
    got = [(event[1], event[2]) for event in member.of("got")]
    assert len(got) == len(set(got)), "a message came twice"
    offsets = {TopicPartition(group.topic, p): [o for q, o in got if q == p] for p in range(PARTITIONS)}
    assert all(found == sorted(found) for found in offsets.values())
