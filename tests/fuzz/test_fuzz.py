"""Every case that ever failed is checked again; new ones are looked for, for a moment here and a minute in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.kit import corpus, from_json, fuzz, to_json
from tests.fuzz.targets import TARGETS

KEPT = [pytest.param(name, case, id=f"{name}-{key}") for name in TARGETS for key, case in corpus(TARGETS[name].make())]
SEED = 20261121


@pytest.mark.parametrize(("name", "case"), KEPT)
def test_a_case_that_failed_once(name: str, case: dict[str, object]) -> None:
    TARGETS[name].make().check(case)


@pytest.mark.parametrize("name", TARGETS)
def test_new_cases_for_a_moment(name: str, tmp_path: Path) -> None:
    run = fuzz(TARGETS[name].make(), 0.05, SEED, tmp_path)
    assert not run.found, "\n".join(f"{found.path.read_text()}\n{found.error!r}" for found in run.found)
    assert run.cases


@pytest.mark.fuzz
@pytest.mark.parametrize("name", TARGETS)
def test_new_cases_for_a_minute_in_all(name: str, tmp_path: Path) -> None:
    share = TARGETS[name].weight / sum(target.weight for target in TARGETS.values())
    run = fuzz(TARGETS[name].make(), 60 * share, SEED + 1, tmp_path)
    assert not run.found, "\n".join(f"{found.path.read_text()}\n{found.error!r}" for found in run.found)


def test_a_case_survives_being_kept() -> None:
    case = {"data": b"\0\xff", "actions": [["take", 1, None]], "first": 3}
    assert from_json(to_json(case)) == case
