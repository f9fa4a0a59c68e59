"""Random schedules of what ``run()`` decides; many more by ``python -m tests.processing.simulation 1 200000``."""

from __future__ import annotations

import pytest

from tests.processing.simulation import run


@pytest.mark.parametrize("block", range(4))
def test_schedules(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        run(seed)


@pytest.mark.parametrize("seed", [311, 2425])
def test_a_schedule_that_a_planted_mistake_breaks(seed: int) -> None:
    """See tests/mutants: few schedules come to the place of these mistakes."""
    run(seed)


@pytest.mark.simulation
def test_many_schedules() -> None:
    for seed in range(1000, 4000):
        run(seed)
