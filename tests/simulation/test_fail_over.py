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


@pytest.mark.parametrize(
    ("how", "answers"), [("it moves", 1), ("its broker dies", 0), ("it loads, and says so late", 2)]
)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_session_does_not_count_from_when_the_member_learnt_of_a_fail_over(
    protocol: str, how: str, answers: int
) -> None:
    """The next coordinator began it before. A member that cannot reach that one must not go on for longer."""
    world, beats = _world(protocol, "range"), {schemas.HEARTBEAT.key, schemas.CONSUMER_GROUP_HEARTBEAT.key}
    old, moves_at = world.brokers.coordinator, AWAY_AT + 0.3
    sent: list[float] = []

    def move() -> None:
        if how == "its broker dies":
            world.network.node_down(old)
        else:
            world.brokers.move_coordinator(0.5 if "loads" in how else 0.0)

    def choose(process: Process, api: schemas.Api) -> Fault:
        if not moves_at < world.kernel.now < moves_at + AWAY or not process.name.startswith("p1"):
            return NO_FAULT
        if api is schemas.OFFSET_COMMIT:  # it would make the session longer
            return Fault("lost request")
        if api.key in beats:
            sent.append(world.kernel.now)
            late = Fault("late", seconds=1.0) if "late" in how and len(sent) == answers else NO_FAULT
            return late if len(sent) <= answers else Fault("lost request")
        return NO_FAULT

    world.network.choose = choose
    world.kernel.at(moves_at, move)
    trace = world.run()
    assert trace.ok, str(trace)
    assert moves_at + 0.1 < sent[0] < moves_at + 0.4  # it learns of it late, and while the next one still loads
    assert [line for line in trace.lines if " lost " in line], str(trace)
