"""A leader dies, and its partitions have a new one seconds later: how soon a consumer finds it, in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from managedconsumer.structs import TopicPartition
from managedconsumer.wire.protocol.schemas import METADATA
from tests.cells import table
from tests.simulation.kernel import START
from tests.simulation.plan import Plan
from tests.simulation.simulate import World

TP = TopicPartition("t", 0)
DIES_AT = START + 3.0


class Election:
    """One member reads a partition whose leader dies; ``seconds`` later another broker leads."""

    def __init__(self, seconds: float, *, named: bool) -> None:
        """``named``: until then the metadata goes on naming the dead one; otherwise nobody."""
        plan = Plan(seed=1, members=1, topics={"t": 1}, nodes=3, fault_rate=0.0, duration=seconds + 9.0, session=30.0)
        plan.batches = [(0.02 * n, "t", 0, 1) for n in range(int(50 * (seconds + 8.0)))]
        self.world = world = World(plan, record=False)
        self.elected_at = DIES_AT + seconds
        self.first_at: float | None = None
        self.asked: Counter[str] = Counter()
        log = world.brokers.logs[TP]
        dead = log.leader

        def die() -> None:
            coordinator = world.brokers.coordinator
            world.network.node_down(dead)
            if coordinator != dead:
                world.brokers.coordinator = coordinator
            log.leader = dead if named else -1

        def elect() -> None:
            log.leader = next(n for n in world.brokers.nodes if n != dead)

        world.kernel.at(DIES_AT, die)
        world.kernel.at(self.elected_at, elect)
        self._watch()
        self.trace = world.run()

    def _watch(self) -> None:
        world, witness = self.world, self.world.witness
        handing_out, handle = witness.handing_out, world.brokers.handle

        def seen(program: Any, tp: TopicPartition, offset: int, state: Any) -> None:
            if self.first_at is None and world.kernel.now > self.elected_at:
                self.first_at = world.kernel.now
            handing_out(program, tp, offset, state)

        def asked(node: int, api: Any, body: Any, reply: Any) -> None:
            if DIES_AT + 1.0 < world.kernel.now < self.elected_at:
                self.asked[api.name] += 1
            handle(node, api, body, reply)

        witness.handing_out = seen  # type: ignore[method-assign]
        world.brokers.handle = asked  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("named", "seconds"),
    table((True, False), (3.0, 5.1, 7.3, 9.7), fast=lambda *cell: cell in ((True, 5.1), (False, 9.7))),
)
def test_a_new_leader_is_found_within_half_a_second(seconds: float, named: bool) -> None:
    election = Election(seconds, named=named)
    assert election.trace.ok, str(election.trace)
    assert election.first_at is not None
    assert election.first_at - election.elected_at < 0.55  # with the round trips of the new connection
    # And nobody is hammered meanwhile: about three look-ups a second.
    assert election.asked["Metadata"] < 4 * (seconds - 1.0)


def test_a_leader_that_is_named_is_asked_at_once() -> None:
    """KIP-951: the old leader's answer names the new one, and nobody waits for metadata, which do not come here."""
    plan = Plan(seed=1, members=1, topics={"t": 1}, nodes=3, fault_rate=0.0, duration=9.0, names_leaders=True)
    plan.batches, plan.metadata_max_age_ms = [(0.02 * n, "t", 0, 1) for n in range(400)], 60_000
    world = World(plan, record=False)
    log, moved_at, first = world.brokers.logs[TP], START + 3.0, [0.0]
    handing_out, handle = world.witness.handing_out, world.brokers.handle

    def seen(program: Any, tp: TopicPartition, offset: int, state: Any) -> None:
        if not first[0] and offset >= log.epochs[-1][1] and log.epoch:
            first[0] = world.kernel.now
        handing_out(program, tp, offset, state)

    def answer(node: int, api: Any, body: Any, reply: Any) -> None:
        if api is not METADATA or world.kernel.now < moved_at or first[0]:
            handle(node, api, body, reply)

    world.witness.handing_out = seen  # type: ignore[method-assign]
    world.brokers.handle = answer  # type: ignore[method-assign]
    world.kernel.at(moved_at, lambda: setattr(log, "leader", next(n for n in world.brokers.nodes if n != log.leader)))
    trace = world.run()
    assert trace.ok, str(trace)
    assert moved_at < first[0] < moved_at + 0.05
