"""Lag in seconds against the truth in simulated time, and alarms: the short version of ``benchmarks/lag_scenes.py``."""

from __future__ import annotations

import re

import pytest

from benchmarks import lag_scenes
from tests.pages import text_of

TEXT = text_of("observability.rst")
TABLE = text_of("lag_scenes.txt")


@pytest.mark.parametrize("name", [name for name in lag_scenes.SCENES if name != "spare member"])
def test_seconds_of_lag_are_true(name: str) -> None:
    found = lag_scenes.run(name)
    assert found.asked > 100
    assert found.beyond["ours"] == 0, f"off by {found.errors['ours']} s"


def test_a_spare_member_has_no_partition_to_tell_of() -> None:
    assert lag_scenes.run("spare member").asked == 0


def test_exporters_guess_wrong_in_most_scenes() -> None:
    beyond = [lag_scenes.run(name).beyond for name in lag_scenes.SCENES]
    assert sum(bool(each["interpolated"]) for each in beyond) >= 6


def test_the_documented_table_is_what_the_script_prints() -> None:
    assert lag_scenes.table() in re.sub(r"[ ]+$", "", TABLE, flags=re.MULTILINE)


def test_a_stuck_partition_is_named_within_twice_its_threshold_and_no_other() -> None:
    found = lag_scenes.alarms(groups=30, hours=3)
    assert found.false == 0
    assert found.due == found.named == found.logged >= 1
    assert found.latest <= 600


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_day_of_a_thousand_groups() -> None:
    """The figures of docs/howto/observability.rst."""
    found = lag_scenes.alarms(groups=1000, hours=24)
    assert (found.false, found.due, found.named, found.logged) == (0, 67, 67, 67)
    assert found.latest == 360
    assert "67 of 67 partitions that got stuck were named, 360 s at the latest" in " ".join(TEXT.split())
