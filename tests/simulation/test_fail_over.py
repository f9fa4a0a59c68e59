"""A fail-over that is longer than a session, and a coordinator that is merely silent, in virtual time."""

from __future__ import annotations

import pytest

from managedconsumer.wire.protocol import schemas
from tests.simulation.kernel import START, Process
from tests.simulation.network import NO_FAULT, Fault
from tests.simulation.plan import Plan
from tests.simulation.simulate import World

SESSION = 2.0
AWAY_AT, AWAY = START + 3.0, 3.5 * SESSION


def _world(protocol: str, assignor: str) -> World:
    plan = Plan(
        seed=1,
        members=2,
        topics={"t": 4},
        nodes=3,
        protocol=protocol,
        assignors=(assignor,),
        session=SESSION,
        fault_rate=0.0,
        duration=16.0,
    )
    plan.batches = [(0.1 * n, "t", n % 4, 1) for n in range(150)]
    return World(plan, record=True)


def _fail_over(world: World, *, dead: bool) -> None:
    """Another broker coordinates, and is not ready for a while; then everybody has a whole session."""
    brokers, group = world.brokers, world.brokers.group
    old = brokers.coordinator
    brokers.coordinator = next(node for node in brokers.nodes if node != old)
    if dead:  # and nobody knows it yet: the metadata goes on naming the dead one
        brokers.coordinator, duty = old, brokers.coordinator
        world.network.brokers.down.add(old)
        for connection in [c for c in world.network.connections if c.node == old]:
            connection.close()
        for log in brokers.logs.values():
            log.leader = duty
        world.kernel.after(AWAY, lambda: setattr(brokers, "coordinator", duty))
    else:
        brokers.loading_until = world.kernel.now + AWAY
    for member in group.members.values():
        member.deadline = world.kernel.now + AWAY + SESSION


@pytest.mark.parametrize("dead", [False, True], ids=["it loads", "the old one is dead"])
@pytest.mark.parametrize(
    ("protocol", "assignor"), [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "range")]
)
def test_a_long_fail_over_costs_no_membership(protocol: str, assignor: str, dead: bool) -> None:
    world = _world(protocol, assignor)
    world.kernel.at(AWAY_AT, lambda: _fail_over(world, dead=dead))
    trace = world.run()
    assert trace.ok, str(trace)
    assert not [line for line in trace.lines if " lost " in line], str(trace)
    assert (trace.repeated, trace.handed_out) == (0, 150)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_coordinator_that_is_silent_for_a_session_costs_the_membership(protocol: str) -> None:
    """We may be cut off from it, and others have our partitions by then: nothing more is handed out."""
    world = _world(protocol, "range")
    beats = {schemas.HEARTBEAT.key, schemas.CONSUMER_GROUP_HEARTBEAT.key}

    def choose(process: Process, api: schemas.Api) -> Fault:
        silent = AWAY_AT < world.kernel.now < AWAY_AT + AWAY and process.name.startswith("p1") and api.key in beats
        return Fault("lost request") if silent else NO_FAULT

    world.network.choose = choose
    trace = world.run()
    assert trace.ok, str(trace)
    assert [line for line in trace.lines if " lost " in line], str(trace)
    assert trace.zombie_handouts == 0
