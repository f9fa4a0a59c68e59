"""Whole groups of real consumers in virtual time: everything holds, and a seed always tells the same story."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time

import pytest

from tests.simulation.plan import INCIDENTS, MORE_INCIDENTS, Plan, make_plan
from tests.simulation.simulate import World, run_parallel, simulate, simulate_many

#: Schedules of the fast tests, those that the statistics are taken of, and all. What fails is a seed, and ``python -m
#: tests.simulation SEED`` tells its story on any machine.
FEW, SOME, ALL = 16, 1000, 12000


def _check(seeds: range) -> dict[str, int]:
    count, bad, sums = run_parallel(seeds)
    assert count == len(seeds)
    story = str(simulate(bad[0].seed, record=True)) if bad else ""
    assert not bad, f"seeds {[trace.seed for trace in bad]} violated something; the first of them:\n{story}"
    return sums


@pytest.mark.slow
def test_everything_holds_in_a_few_schedules() -> None:
    """What the fast half of the tests looks at; the others follow in the ordinary run."""
    _check(range(1, FEW + 1))


@pytest.mark.simulation
def test_everything_holds_in_many_schedules() -> None:
    sums = _check(range(1, SOME + 1))
    # The schedules are worth something: messages, commits, faults and second readings happen all the time.
    assert sums["handed_out"] > 10 * SOME
    assert sums["commits"] > 5 * SOME
    assert sums["faults"] > SOME
    assert 0 < sums["repeated"] < sums["handed_out"] / 10
    assert sums["disturbances"] > SOME / 10


@pytest.mark.simulation
@pytest.mark.timeout(1800)  # 2.5 min on two idle cores; how long it takes decides nothing
def test_everything_holds_in_all_schedules() -> None:
    _check(range(SOME + 1, ALL + 1))


_IN_A_PROCESS = """
from tests.simulation.simulate import simulate
for seed in range(1, 9):
    print(simulate(seed, record=True))
for seed in range(9, 80):
    print({**vars(simulate(seed)), "lines": None})
"""


@pytest.mark.slow
def test_a_seed_tells_the_same_story_in_every_process() -> None:
    def stories(hash_seed: str) -> str:
        command = [sys.executable, "-c", _IN_A_PROCESS]
        done = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        return done.stdout

    first = stories("1")
    assert first == stories("2")
    assert "finished" in first


def test_a_seed_tells_the_same_story_whatever_ran_before() -> None:
    before = str(simulate(11, record=True))
    simulate_many(range(200, 204))
    random.seed(1)
    assert str(simulate(11, record=True)) == before


@pytest.mark.slow
def test_nothing_of_a_finished_simulation_stays() -> None:
    simulate_many(range(1, 21))
    gc.collect()
    worlds = sum(isinstance(each, World) for each in gc.get_objects())
    simulate_many(range(21, 61))
    gc.collect()
    assert sum(isinstance(each, World) for each in gc.get_objects()) <= worlds


def test_recording_changes_nothing() -> None:
    for seed in range(1, 5):
        plain, recorded = simulate(seed), simulate(seed, record=True)
        assert (plain.events, plain.handed_out) == (recorded.events, recorded.handed_out)
        assert recorded.lines
        assert not plain.lines


def test_time_is_virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sleeps, and what it costs is computing (measured as such: a busy machine changes nothing)."""

    def sleep(seconds: float) -> None:
        raise AssertionError(f"something sleeps for {seconds} s")

    monkeypatch.setattr(time, "sleep", sleep)
    simulate(1)
    began = time.process_time()
    virtual = sum(simulate(seed).virtual_seconds for seed in range(1, 7))
    assert virtual > 5 * (time.process_time() - began)


def test_the_plans_cover_everything() -> None:
    plans = [make_plan(seed) for seed in range(1, 700)]
    assert {kind for plan in plans for _, kind, _ in plan.incidents} == {*INCIDENTS, *MORE_INCIDENTS}
    assert {plan.assignors for plan in plans} >= {("range",), ("roundrobin",), ("sticky",), ("cooperative-sticky",)}
    assert {plan.static for plan in plans} == {True, False}
    assert {plan.auto_commit is None for plan in plans} == {True, False}
    assert {way for plan in plans for way in plan.reading} == {"consume", "iterate", "batch", "arrow"}
    assert {(plan.readers, plan.tasks) for plan in plans} == {(n, tasks) for n in (1, 2, 3) for tasks in (True, False)}
    for kind in ("migrates", "protocols", "names_leaders"):
        assert {bool(getattr(plan, kind)) for plan in plans} == {True, False}
    for kind in ("dying", "damage", "transactions", "interruptions", "signals", "fetch_codes", "twin"):
        assert {bool(getattr(plan, kind)) for plan in plans} == {True, False}
    assert {plan.reset for plan in plans} == {"earliest", "latest"}
    assert {plan.on_error for plan in plans} == {"raise", "skip"}


def test_a_kind_that_is_switched_off_leaves_the_rest_of_a_plan_as_it_is() -> None:
    for seed in range(1, 300):
        whole, without = make_plan(seed), make_plan(seed, ("damage",))
        assert (without.damage, without.on_error) == (0.0, "raise")
        whole.damage, whole.on_error = 0.0, "raise"
        assert whole == without


def test_a_plan_of_ones_own() -> None:
    plan = Plan(
        seed=7, members=2, topics={"orders": 4}, fault_rate=0.0, batches=[(0.5, "orders", n, 5) for n in range(4)]
    )
    plan.incidents = [(5.0, "kill", 0)]
    trace = simulate(7, plan=plan, record=True)
    assert trace.ok
    assert trace.handed_out - trace.repeated == 20
    assert any("kill p1" in line for line in trace.lines)


def test_a_quiet_group_reads_every_message_once() -> None:
    plan = Plan(seed=1, members=3, topics={"t": 6}, fault_rate=0.0, duration=6.0)
    plan.batches = [(1.0 + n / 2, "t", n, 4) for n in range(6)]
    trace = simulate(1, plan=plan)
    assert trace.ok
    assert (trace.handed_out, trace.repeated) == (24, 0)
