"""Queries that are killed and frozen: a short run into each kind of claim log, and one in Spark with all its processes.

For many runs: tests/spark/killing.py, tests/spark/killing_spark.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.spark import killing_spark
from tests.spark.killing import KINDS, run


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_counts_once(kind: str, kafka44: DevBroker, unique: Callable[[str], str], tmp_path: Path) -> None:
    harms = ["kill", "kill and lose the checkpoint"]
    assert sum(run(kind, tmp_path, kafka44, unique(kind), 8000, harms, 1).done.values()) == 2


@pytest.mark.spark
@pytest.mark.soak  # two minutes
@pytest.mark.timeout(900)
def test_each_kind_of_sparks_processes_is_killed(
    kafka44: DevBroker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    victims = list(killing_spark.VICTIMS)
    done = killing_spark.run("group", tmp_path, kafka44, unique("spark"), victims, 1)
    assert [done[victim] for victim in victims] == [1] * len(victims)
