"""Groups that change their protocol: KIP-848 is switched off and on, or members of both are in the group at a time."""

from __future__ import annotations

import pytest

from tests.simulation.plan import KINDS, Plan
from tests.simulation.simulate import simulate

OTHERS = set(KINDS) - {"protocols"}


@pytest.mark.parametrize(
    "seed",
    [
        1404,  # a heartbeat worker missed its wake-up, and was still there after stop()
        625,  # both protocols were refused to a member that waited for its listener: that passes, and ended it
    ],
)
def test_found(seed: int) -> None:
    trace = simulate(seed, without=OTHERS)
    assert trace.plan.protocol == "auto"
    assert trace.ok, trace.violations


def test_members_change_to_the_other_protocol_and_back() -> None:
    told = "\n".join(line for seed in (1404, 625, 518) for line in simulate(seed, record=True, without=OTHERS).lines)
    assert "group_protocol='consumer' is refused, using 'classic'" in told
    assert "group_protocol='classic' is refused, using 'consumer'" in told
    assert "the group is a classic one now" in told


def test_a_living_group_is_migrated_and_back_member_by_member() -> None:
    """Each member is stopped, and another one takes its place, which chooses its protocol anew."""
    plan = Plan(
        seed=7, members=3, topics={"t": 6}, protocol="auto", protocols=("classic", "consumer"), migrates=True,
        assignors=("cooperative-sticky",), fault_rate=0.0, duration=24.0, session=6.0,
    )  # fmt: skip
    plan.batches = [(0.1 * n, "t", n % 6, 2) for n in range(230)]
    plan.incidents = [(2.0 + 2.0 * n, "migrate", n) for n in range(10)]
    trace = simulate(7, plan=plan, record=True)
    assert trace.ok, trace.violations
    assert trace.migrations >= 2
    told = "\n".join(trace.lines)
    assert "joins as a classic member" in told
    assert "the last KIP-848 member is gone" in told
    assert trace.handed_out - trace.repeated == 460


@pytest.mark.parametrize("assignors", [("range",), ("cooperative-sticky",)])
def test_a_coordinator_that_changes_its_mind_under_members_of_both_protocols(assignors: tuple[str, ...]) -> None:
    plan = Plan(
        seed=3, members=3, topics={"t": 4}, protocol="auto", migrates=True, assignors=assignors, fault_rate=0.0,
        duration=20.0,
    )  # fmt: skip
    plan.batches = [(0.1 * n, "t", n % 4, 2) for n in range(190)]
    plan.incidents = [(4.0, "protocol", 0), (5.0, "restart", 0), (9.0, "protocol", 0), (10.0, "restart", 1)]
    trace = simulate(3, plan=plan, record=True)
    assert trace.ok, trace.violations
    told = "\n".join(trace.lines)
    assert "group_protocol='consumer' is refused, using 'classic'" in told
