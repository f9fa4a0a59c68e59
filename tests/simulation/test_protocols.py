"""KIP-848 is switched off and on while members with ``group_protocol="auto"`` consume (the kind ``protocols``)."""

from __future__ import annotations

import pytest

from tests.simulation.plan import KINDS
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
