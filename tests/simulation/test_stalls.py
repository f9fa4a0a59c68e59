"""How long messages wait when connections fall silent and when a KIP-848 group is restarted, in virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from managedconsumer.runtime.net.overdue import SOON_S
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.protocol import schemas
from tests.cells import table
from tests.simulation.kernel import START, Process
from tests.simulation.network import NO_FAULT, Fault
from tests.simulation.plan import Plan
from tests.simulation.simulate import World

#: When everything is in place, and something may happen.
READY = 6.0
#: How often a KIP-848 member calls by Kafka's default (seconds), and its session.
INTERVAL, SESSION = 5.0, 45.0
#: What a rebalance takes besides: look-ups, fetches, the worst latency that these schedules have.
MARGIN = 1.5


class Waits:
    """Runs a plan in which each partition gets ten messages a second, and notes how long each waits for its reader."""

    def __init__(self, plan: Plan) -> None:
        seconds = plan.duration - 4.0
        plan.batches = [(0.1 * n, name, p, 1) for n in range(int(10 * seconds)) for name, c in _parts(plan) for p in c]
        self.world = world = World(plan, record=False)
        self._made: dict[tuple[TopicPartition, int], float] = {}
        self._done: dict[tuple[TopicPartition, int], float] = {}
        append, finished = world.brokers.append, world.witness.finished

        def appended(tp: TopicPartition, count: int) -> None:
            self._made[tp, world.brokers.logs[tp].end] = world.kernel.now
            append(tp, count)

        def done(tp: TopicPartition, offset: int) -> None:
            self._done.setdefault((tp, offset), world.kernel.now)
            finished(tp, offset)

        world.brokers.append = appended  # type: ignore[method-assign]
        world.witness.finished = done  # type: ignore[method-assign]

    def longest(self) -> float:
        """The longest wait (seconds) of a message that was written after the group had come together."""
        trace = self.world.run()
        assert trace.ok, str(trace)
        waits = [self._done[place] - at for place, at in self._made.items() if at >= START + READY - 1.0]
        assert len(waits) > 50
        return max(waits)


def _parts(plan: Plan) -> list[tuple[str, range]]:
    return [(name, range(count)) for name, count in plan.topics.items()]


def _plan(seed: int, **more: Any) -> Plan:
    # An odd number of queued messages stands for a short wait at the broker.
    return Plan(
        **{"seed": seed, "queued_messages": 1001, "session": SESSION, "rebalance": 60.0, "fault_rate": 0.0, **more}
    )


PROTOCOLS = ("classic", "consumer")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("seed", "nodes"), table(range(4), (1, 3, 5), fast=lambda *cell: cell in ((0, 3), (1, 1), (3, 5)))
)
def test_connections_to_any_number_of_brokers_fall_silent(protocol: str, nodes: int, seed: int) -> None:
    """The member keeps its place, and no partition waits for a request's time-out of 30 s."""
    commits = 0.2 if seed % 2 else 0.0  # commit_offsets() after messages, which stops the thread that consumes
    plan = _plan(seed, members=1, topics={"t": 5}, nodes=nodes, protocol=protocol, duration=24.0)
    plan.explicit_commit, plan.incidents = commits, [(READY, "silence", 0)]
    plan.shared = seed == 3
    waits = Waits(plan)
    assert waits.longest() < SOON_S + 0.5 + MARGIN
    assert [program.name for program in waits.world.witness.programs] == ["p1"]


# -- KIP-848 groups that are restarted one process at a time -----------------------------------------------------


def _bounce(seed: int, protocol: str, **more: Any) -> Plan:
    """Each member in turn stops and comes back."""
    random = Random(seed)
    members = random.choice((2, 3, 4, 5))
    plan = _plan(seed, members=members, topics={"t": random.choice((1, 3, 8))}, nodes=3, protocol=protocol, **more)
    plan.static, plan.latency = random.random() < 0.3, random.choice((0.001, 0.005, 0.03))
    plan.interrupt_every, plan.drain = random.choice((0, 10, 40)), random.choice((0.0, 0.2, 1.0))
    plan.listener, plan.processing = random.random() < 0.7, 0.0
    pause = random.choice((0.5, 2.0, 4.0))
    plan.incidents = [(READY + pause * number, "restart", number) for number in range(members)]
    plan.duration = READY + pause * members + 8.0
    return plan


#: Short ones in which a leave has no time, too.
SEEDS = table(range(12), fast=lambda seed: seed in (3, 6, 8))


def _run(plan: Plan) -> Waits:
    waits = Waits(plan)
    if plan.protocol == "consumer":
        waits.world.brokers.group._interval_ms = int(1000 * INTERVAL)  # type: ignore[union-attr]
    return waits


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rolling_bounce_costs_one_heartbeat_interval(seed: int) -> None:
    """The others hear of what a member has left with their next heartbeat."""
    assert _run(_bounce(seed, "consumer")).longest() < INTERVAL + MARGIN


@pytest.mark.parametrize(
    ("protocol", "seed"), table(PROTOCOLS, range(12), fast=lambda *cell: cell in (("classic", 3), ("consumer", 8)))
)
def test_a_commit_without_an_answer_does_not_keep_a_member_from_leaving(protocol: str, seed: int) -> None:
    """On a busy machine the commit of a stop ran out of time, and its end closed the connection of the leave.

    The group then waited for the session of a member that was not there any more.
    """
    waits = _run(_bounce(seed, protocol, auto_commit=0.3))
    world, random = waits.world, Random(seed)

    def choose(process: Process, api: schemas.Api) -> Fault:
        late = api is schemas.OFFSET_COMMIT and world.kernel.now - START > READY and not world.calm
        return Fault("late", seconds=random.uniform(1.0, 4.0)) if late and random.random() < 0.5 else NO_FAULT

    world.network.choose = choose
    # A stop waits for 2 s for its commit; before it, and before the next start, commits that are late hold others up.
    # That is far from the session of 45 s that a group waits for a member that has not left.
    assert waits.longest() < 20.0
