"""What the rebalance benchmark makes of deliveries: waits, repetitions, losses, and a verdict for each row."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Modules of the benchmark, which find each other by being in one directory."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in [path.stem for path in BENCHMARKS.glob("*.py")]:
        sys.modules.pop(name, None)


def steady(groups: ModuleType, member_of: Callable[[int, float], int | None]) -> list[Any]:
    """Deliveries of two seconds at the usual pace; ``member_of(partition, at)``: to whom, None: to nobody, ever."""
    found = []
    for number in range(int(2.0 / groups.PACE)):
        at = number * groups.PACE
        for partition in range(groups.PARTITIONS):
            member = member_of(partition, at)
            if member is not None:
                found.append(groups.Delivery(at, member, partition, number))
    return found


def test_nothing_happens(load: Load) -> None:
    groups = load("groups")
    outcome = groups.judge(steady(groups, lambda partition, at: partition % 2), 1.0, 1.96, 0.2, {0, 1})
    assert (outcome.twice, outcome.lost) == (0, 0)
    assert max(outcome.kept, outcome.any, outcome.quiet) == pytest.approx(0.0, abs=1e-6)


def test_a_partition_that_moves_counts_for_any_and_one_that_stays_for_kept(load: Load) -> None:
    groups = load("groups")

    def owner(partition: int, at: float) -> int | None:
        if partition == 0:  # moves, after 300 ms
            return 0 if at < 1.1 else 2
        return 1

    deliveries = [d for d in steady(groups, owner) if d.partition != 0 or not 1.1 < d.at < 1.4]
    deliveries = [d for d in deliveries if d.partition != 5 or not 1.2 < d.at < 1.3]
    deliveries.append(groups.Delivery(1.95, 1, 7, 3))  # again
    deliveries.sort(key=lambda delivery: delivery.at)
    outcome = groups.judge(deliveries, 1.0, 2.0, 0.2, {0, 1})
    assert 270 < outcome.any < 330
    assert 60 < outcome.kept < 130
    assert outcome.twice == 1
    assert outcome.lost > 0, "what nobody got is seen"


def test_partitions_of_the_member_that_went_are_not_kept(load: Load) -> None:
    groups = load("groups")
    deliveries = [d for d in steady(groups, lambda _partition, at: 0 if at < 1.0 else 1) if not 1.0 < d.at < 1.5]
    assert math.isnan(groups.judge(deliveries, 1.0, 2.0, 0.2, {1}).kept)


def test_events_come_at_the_phase_that_is_asked_for(load: Load, tmp_path: Path) -> None:
    group = load("groups").Group("any", [], tmp_path)
    group.settled_at = now = time.monotonic()
    for phase in (0.1, 0.5, 0.9):
        moment = group.next_moment(1.7, 1.0, phase, now)
        assert moment - now >= 1.7 - 1e-6
        assert moment - now < 2.75
        assert (moment - now) % 1.0 == pytest.approx(phase, abs=1e-6)
    assert group.next_moment(1.7, 1.0, 0.5, now + 5.0) >= now + 5.0


def test_each_row_has_a_verdict_and_no_row_is_left_out(load: Load) -> None:
    groups, report = load("groups"), load("rebalance_report")

    def seen(kept: float, every: float) -> list[Any]:
        return [groups.Outcome(kept, every, 5.0, 0, 0)] * 5

    found = {
        ("tuned", "range", "join", "managedconsumer"): seen(10.0, 3000.0),
        ("tuned", "range", "join", "confluent"): seen(12.0, 500.0),
        ("tuned", "range", "join", "kafka-python"): seen(8.0, 900.0),
        ("tuned", "consumer", "kill", "managedconsumer"): seen(math.nan, 80.0),
        ("tuned", "consumer", "kill", "confluent"): seen(math.nan, 90.0),
    }
    text = report.report(found, {("tuned", "range"): 1000.0, ("tuned", "consumer"): 1000.0})
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines() if ", tuned" in line}
    assert len(lines) == 5 + 3
    assert lines["join, kept: eager (range), tuned"][-2:] == ["within", "noise"]
    assert lines["join, any: eager (range), tuned"][-1] == "NO"
    assert lines["kill, any: KIP-848, tuned"][-1] == "yes"
