"""A simulation is worth what it finds: every planted bug is found, and reported so that it can be replayed."""

from __future__ import annotations

from typing import Callable

import pytest

from managedconsumer.testing.simulate import simulate
from tests.simulation.planted import PLANTED

#: How many schedules it may take. Each of the bugs shows in one of 400 or more often, so that a change elsewhere, which
#: makes other schedules of the same seeds, does not make this fail by chance.
SEEDS = range(1, 5001)


@pytest.mark.simulation
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next((trace for trace in map(simulate, SEEDS) if not trace.ok), None)
    assert found is not None, f"{plant.__doc__} Nothing was wrong in {len(SEEDS)} schedules"
    again = simulate(found.seed, record=True)
    assert again.violations == found.violations
    monkeypatch.undo()
    assert simulate(found.seed).ok  # it is the bug that was found, not the schedule
