"""Members that die, freeze or are thrown out, and brokers that go away: everybody comes back by themselves."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer.testing import DevBroker
from tests.broker.groupkit import (
    MARGIN_S,
    PAIRS,
    SESSION_S,
    Fleet,
    Load,
    ProcessMember,
    all_seen,
    evict,
    in_other_thread,
    node_of,
    pairs,
)

PARTITIONS = 4
HEARTBEAT_S = 0.3
Make = Callable[..., Fleet]
Spawn = Callable[..., ProcessMember]
mortals = pytest.mark.parametrize(("mortal", "mode"), PAIRS, indirect=True)


# -- members ------------------------------------------------------------------------------------------


@pairs
def test_kill_of_a_member(kafka: DevBroker, fleet: Make, spawn: Spawn) -> None:
    """The survivor owns everything within the session timeout and a second; nothing is lost."""
    group = fleet(kafka, PARTITIONS)
    with Load(kafka, group.topic, PARTITIONS) as load:
        survivor = group.join(auto_commit_enable=True, auto_commit_interval_ms=200)
        victim = spawn(group, options={"auto_commit_enable": True, "auto_commit_interval_ms": 200})
        group.until(lambda: len(victim.of("got")) > 20 and len(survivor.owned) == 2, 15, "both consume")
        victim.signal(signal.SIGKILL)
        killed = time.monotonic()
        group.until(lambda: len(survivor.owned) == PARTITIONS, SESSION_S + 1.0 + MARGIN_S, "the survivor owns all")
        took = time.monotonic() - killed
        acked = load.stop()
    all_seen(group, acked, victim)
    group.check()
    assert took > SESSION_S - HEARTBEAT_S - 1.0, "the dead member's place was given away before its session ended"
    repeated = sum(group.values()[value] for value in victim.values)
    assert repeated < 0.1 * len(acked) + 100, f"{repeated} repeated: more than an interval of commits"


@pairs
def test_zombie(kafka: DevBroker, fleet: Make, spawn: Spawn) -> None:
    """Frozen beyond its session: told that it lost its partitions, refused to commit, and back by itself."""
    group = fleet(kafka, PARTITIONS)
    with Load(kafka, group.topic, PARTITIONS) as load:
        survivor = group.join(auto_commit_enable=True, auto_commit_interval_ms=200)
        zombie = spawn(group, commit_each=True)
        group.until(lambda: len(zombie.of("committed")) > 20 and len(survivor.owned) == 2, 15, "both consume")
        zombie.signal(signal.SIGSTOP)
        group.until(lambda: len(survivor.owned) == PARTITIONS, SESSION_S + 1.0 + MARGIN_S, "the survivor owns all")
        seen = len(zombie.events)
        zombie.signal(signal.SIGCONT)
        group.until(lambda: zombie.of("assigned", seen), SESSION_S + MARGIN_S, "the zombie is back in the group")
        back = len(zombie.events)
        group.until(lambda: zombie.of("committed", back), 10, "the zombie commits again")
        acked = load.stop()
    all_seen(group, acked, zombie)
    group.check()
    after = zombie.events[seen:]
    kinds = [event[0] for event in after]
    lost, assigned = kinds.index("lost"), kinds.index("assigned")
    assert kinds.count("lost") == 1 and "revoked" not in kinds[:lost] and lost < assigned
    assert "got" not in kinds[lost:assigned], "a message came after the zombie knew"
    # The answer to a commit from before the freeze may have waited in the socket.
    assert "committed" not in kinds[1:assigned], "a late commit was taken"
    assert kinds[:lost].count("got") <= 1, f"{kinds[:lost].count('got')} messages before the zombie knew"
    assert zombie.of("error") == []


@pairs
def test_leave_group_in_my_name(kafka: DevBroker, fleet: Make) -> None:
    """pykafka goes on consuming for ever, beside the new owner."""
    group = fleet(kafka, PARTITIONS)
    with Load(kafka, group.topic, PARTITIONS) as load:
        victim = group.join(auto_commit_enable=True, auto_commit_interval_ms=200)
        group.join(auto_commit_enable=True, auto_commit_interval_ms=200)
        group.wait_balanced(PARTITIONS)
        group.until(lambda: len(victim.got) > 20, 10, "messages")
        old, calls = victim.consumer.consumer_id, len(victim.assignments)
        evict(kafka, group.group, old.decode())
        group.until(lambda: len(victim.assignments) > calls, HEARTBEAT_S + 1.0 + MARGIN_S, "a new assignment")
        group.wait_balanced(PARTITIONS)
        assert victim.consumer.consumer_id not in (b"", old)
        acked = load.stop()
    all_seen(group, acked)
    group.check()


# -- brokers ------------------------------------------------------------------------------------------


class Watch:
    """Looks at a group all the time: the longest pause (s) of its consumption, and the troubles that it told of."""

    def __init__(self, group: Fleet) -> None:
        self._group, self._ended = group, False
        self.longest, self.troubles = 0.0, set[str]()
        self._worker = group.handler.spawn("test.watch", self._run)

    def _run(self) -> None:
        count, since = 0, time.monotonic()
        while not self._ended:
            now, seen = time.monotonic(), sum(len(member.events) for member in self._group.members)
            if seen != count:
                count, since = seen, now
            self.longest = max(self.longest, now - since)
            for member in self._group.members:
                health = member.consumer.health()
                assert health["running"], health
                if health["trouble"]:
                    self.troubles.add(health["trouble"])
            self._group.handler.sleep(0.02)

    def end(self) -> None:
        self._ended = True
        self._worker.join(5)
        assert self._worker.exception is None


def survive(group: Fleet, harm: Callable[[], None], **options: Any) -> Watch:
    """Consume under load through ``harm()``. Nothing is lost, no call raises, and all is well afterwards."""
    broker = group.broker
    with Load(broker, group.topic, PARTITIONS) as load:
        for _ in range(2):
            group.join(auto_commit_enable=True, auto_commit_interval_ms=200, **options)
        group.wait_balanced(PARTITIONS)
        group.until(lambda: all(len(member.got) > 20 for member in group.members), 15, "both consume")
        watch = Watch(group)
        harm()
        harmed, before = time.monotonic(), len(load.acked)
        group.until(lambda: load.last_ack > harmed and len(load.acked) > before + 200, 60, "writing goes on")
        acked = load.stop()
    all_seen(group, acked)
    watch.end()
    group.wait_balanced(PARTITIONS, 20)
    group.check()
    group.until(lambda: all(m.consumer.health()["trouble"] is None for m in group.members), 10, "no trouble any more")
    print(f"longest pause {watch.longest:.2f} s, {group.duplicates()} duplicates, {watch.troubles}")
    return watch


@pytest.fixture(scope="module")
def mortal(request: pytest.FixtureRequest) -> Iterator[DevBroker]:
    """A broker that may be killed."""
    with DevBroker(request.param) as broker:
        yield broker


@mortals
def test_the_only_broker_is_killed_and_comes_back(mortal: DevBroker, fleet: Make) -> None:
    """pykafka never recovers."""
    group = fleet(mortal, PARTITIONS)
    down = 0.0

    def harm() -> None:
        nonlocal down
        started = time.monotonic()
        mortal.kill()
        group.handler.sleep(1.0)
        in_other_thread(group.handler, mortal.start_node)
        down = time.monotonic() - started

    watch = survive(group, harm)
    assert watch.troubles, "health() told nothing of it"
    assert watch.longest < down + SESSION_S + MARGIN_S


@mortals
def test_all_brokers_are_away_for_longer_than_the_session(mortal: DevBroker, fleet: Make) -> None:
    group = fleet(mortal, PARTITIONS)

    def harm() -> None:
        mortal.kill()
        group.handler.sleep(3.0 + 1.0)
        assert all(member.consumer.health()["state"] == "stable" for member in group.members)
        in_other_thread(group.handler, mortal.start_node)

    watch = survive(group, harm, session_timeout_ms=3000)
    # Nobody was there to end a session, and who comes back gives every member a whole one.
    # The names of topic and group have the name of this test.
    troubles = [re.sub(r"(topic|group)-test_\S+", "", trouble) for trouble in watch.troubles]
    assert not any("session" in trouble for trouble in troubles), troubles
    assert any("refused" in trouble for trouble in watch.troubles), watch.troubles


@pytest.mark.parametrize(("mode", "victim"), [("threads", "leader"), ("gevent", "coordinator")], indirect=["mode"])
def test_a_node_of_three_is_killed(kafka44x3: DevBroker, fleet: Make, victim: str) -> None:
    group = fleet(kafka44x3, PARTITIONS)
    killed = 0

    def harm() -> None:
        nonlocal killed
        member = group.members[0].consumer
        if victim == "coordinator":
            killed = node_of(kafka44x3, member.health()["coordinator"])
        else:
            killed = next(iter(member.partitions.values())).leader.id
        kafka44x3.kill(killed)

    try:
        watch = survive(group, harm)
    finally:
        if killed:
            in_other_thread(group.handler, lambda: kafka44x3.start_node(killed))
            in_other_thread(group.handler, kafka44x3.wait_in_sync)
    assert watch.longest < 2.0 + SESSION_S + MARGIN_S  # a dead broker is noticed after 2 s


def test_the_coordinator_moves(kafka44x3: DevBroker, fleet: Make) -> None:
    """Its node is restarted, cleanly: nobody leaves the group for it."""
    group = fleet(kafka44x3, PARTITIONS)

    def harm() -> None:
        node = node_of(kafka44x3, group.members[0].consumer.health()["coordinator"])
        in_other_thread(group.handler, lambda: kafka44x3.restart(node))

    watch = survive(group, harm)
    assert watch.longest < SESSION_S + MARGIN_S
    assert group.duplicates() == 0
    assert "membership lost" not in " ".join(watch.troubles), watch.troubles
