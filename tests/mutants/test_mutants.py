"""Mistakes that are planted in the package are found: here a few of them, all by ``python -m tests.mutants``."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import ROOT, hunt, planted
from tests.mutants.kinds import Mutant
from tests.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_kept_up_to_date(mutant: Mutant) -> None:
    planted(mutant, (ROOT / mutant.file).read_text())
    assert mutant.tests or mutant.seeds
    for test in mutant.tests:
        assert (ROOT / test.split("::")[0]).exists()


def test_the_names_are_different() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_some_mutants_are_found() -> None:
    missed = [mutant.name for mutant, found, _ in hunt([mutant for mutant in MUTANTS if mutant.ci]) if not found]
    assert not missed
