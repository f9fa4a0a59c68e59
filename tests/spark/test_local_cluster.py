"""Executors that are processes of their own are lost in the middle of batches, and each row is there once.

What happens, and to whom: ``tests/spark/faults.py``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from tests.spark.conftest import committed
from tests.spark.faults import FILLER, PARTITIONS, QUERIES, ROWS
from tests.spark.trees import kill_family

pytestmark = pytest.mark.spark

_SCRIPT = """
import json, sys
from pathlib import Path
from tests.spark.faults import drive
bootstrap, topic, home, faults, conf = sys.argv[1:]
drive(bootstrap, topic, Path(home), json.loads(faults), json.loads(conf))
"""
_FAULTS = ("killed", "failed", "copied", "decommissioned", "dropped")

_DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    # It also drops executors that keep something which the batch needs still.
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.decommission.enabled": "false",
}
# Idle executors hand on what they keep before they go.
_MOVING = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "false",
}


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("faults", "conf"),
    [
        pytest.param(_FAULTS, {}, id="fixed"),
        pytest.param(("dropped", "killed", "dropped"), _DYNAMIC, id="dynamic", marks=pytest.mark.soak),
        pytest.param(("dropped", "dropped"), _DYNAMIC | _MOVING, id="dynamic-moving", marks=pytest.mark.soak),
    ],
)
def test_no_row_is_missing_or_twice(
    faults: tuple[str, ...], conf: dict[str, str], kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(kafka44, PARTITIONS)
    run(kafka44.bootstrap, name, tmp_path, faults, conf)
    result = json.loads((tmp_path / "result.json").read_text())
    print(f"{' '.join(faults)}: done after {result['seconds']} s, with {len(result['rows'])} rows in the files")
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        stored = connection.execute("SELECT part, at, size FROM rows").fetchall()
    connection.close()
    for query, rows in zip(QUERIES, (result["rows"], stored), strict=True):
        assert Counter(map(tuple, rows)) == everything(faults), query
        assert committed(kafka44, name, f"{name}-{query}") == dict.fromkeys(range(PARTITIONS), ROWS * len(faults))
        for number, fault in enumerate(faults):
            assert (tmp_path / f"{number}-{fault}-{query}{'' if fault in ('failed', 'copied') else '-waits'}").exists()
    log = (tmp_path / "spark.log").read_text()
    signs = {
        "killed": "Lost executor",
        "failed": "RuntimeError: this attempt fails",
        "copied": "as speculatable",
        "decommissioned": "Decommission executors",
        "dropped": "removed due to idle timeout" if conf else "Requesting to kill executor(s)",
    }
    assert [fault for fault in faults if signs.get(fault, "") not in log] == [], "Spark has seen them"


def everything(faults: tuple[str, ...]) -> Counter[tuple[int, int, int]]:
    """Partition, offset and size of all messages; those of the faults have their name."""
    wanted = {(part, at): len(FILLER) for part in range(PARTITIONS) for at in range(ROWS * len(faults))}
    wanted |= {(0, ROWS * n + ROWS // 2): len(f"{n}-{fault}") for n, fault in enumerate(faults)}
    return Counter((*place, size) for place, size in wanted.items())


def run(bootstrap: str, topic: str, home: Path, faults: tuple[str, ...], conf: dict[str, str]) -> None:
    """The program, to its end."""
    out = home / "out.log"
    with out.open("wb") as file:
        program = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, bootstrap, topic, str(home), json.dumps(faults), json.dumps(conf)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=home,
            stdout=file,
            stderr=file,
        )
    try:
        assert program.wait(450) == 0, out.read_text()[-3000:]
    finally:
        kill_family(program.pid)
        program.wait()
