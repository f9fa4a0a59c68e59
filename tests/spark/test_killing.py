"""Two real queries, killed and frozen: a short run into each kind of claim log (for many: tests/spark/killing.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.spark.killing import KINDS, run


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_counts_once(kind: str, kafka43: DevBroker, unique: Callable[[str], str], tmp_path: Path) -> None:
    harms = ["kill", "kill and lose the checkpoint"]
    assert sum(run(kind, tmp_path, kafka43, unique(kind), 8000, harms, 1).done.values()) == 2
