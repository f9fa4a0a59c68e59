"""Mistakes that are planted in the package are found: here a few of them, all by ``python -m tests.mutants``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants.__main__ import ROOT, StaleMutant, hunt, planted
from tests.mutants.kinds import Mutant
from tests.mutants.table import MUTANTS
from tests.pages import text_of


def test_the_mutants_are_kept_up_to_date() -> None:
    assert [problem for mutant in MUTANTS for problem in stale(mutant)] == []


def stale(mutant: Mutant) -> Iterator[str]:
    """Why a mutant could not be planted, or not be found."""
    try:
        planted(mutant, (ROOT / mutant.file).read_text())
    except StaleMutant as error:
        yield str(error)
    if not (mutant.tests or mutant.seeds):
        yield f"{mutant.name!r}: nobody is expected to find it"
    for test in mutant.tests:
        if not (ROOT / test.split("::")[0]).exists():
            yield f"{mutant.name!r}: there is no {test}"


def test_the_names_are_different() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_docs_say_how_many_there_are() -> None:
    text = " ".join(text_of("reliability.rst").split())
    assert f"plants {len(MUTANTS)} mistakes one by one" in text
    assert f"CI runs {sum(mutant.ci for mutant in MUTANTS)} of them" in text


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_some_mutants_are_found() -> None:
    missed = [mutant.name for mutant, found, _ in hunt([mutant for mutant in MUTANTS if mutant.ci]) if not found]
    assert not missed
