"""What the benchmark makes of its measurements: medians, ratios, goals, and a report that leaves nothing out."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from managedconsumer.testing.kafka.devbroker import DevBroker

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Modules of the benchmark, which find each other by being in one directory."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in [path.stem for path in BENCHMARKS.rglob("*.py")]:
        sys.modules.pop(name, None)


def run(ns: float, rate: float = 1e6, messages: int = 1000) -> dict[str, float]:
    """One run at so many nanoseconds of CPU a message."""
    return {
        "messages": messages,
        "wall_s": messages / rate,
        "cpu_s": messages * ns / 1e9,
        "process_wall_s": 1.0,
        "process_cpu_s": 0.5,
        "max_rss_mb": 40.0,
    }


def row(load: Load, peer: str, *each: float) -> Any:
    return load("results").Row(peer, [run(ns) for ns in each])


def test_a_row_gives_medians_and_spreads(load: Load) -> None:
    found = row(load, "a", 300, 100, 200)
    assert found.ns == pytest.approx(200)
    assert found.spread("ns") == "100-300"
    assert found.median("rate") == pytest.approx(1e6)
    assert found.median("max_rss_mb") == 40


def test_the_table_has_ratios_to_our_for_loop_and_keeps_what_failed(load: Load) -> None:
    results = load("results")
    broken = results.Row("broken")
    broken.fail("it hung")
    shaky = row(load, "shaky", 500)
    shaky.fail("once")
    table = results.throughput_table("100 B", [row(load, results.OURS, 100, 200, 150), shaky, broken])
    lines = {line.split("  ")[0]: line.split() for line in table.splitlines()}
    assert lines[results.OURS][2:5] == ["150", "100-200", "1.00"]
    assert lines["shaky"][1:4] == ["500", "500-500", "3.33"]
    assert lines["broken"] == ["broken", "failed"]
    assert "* broken: ``it hung``" in table
    assert "* shaky: 1 of 2 runs failed: ``once``" in table


def test_a_row_that_failed_twice_is_over(load: Load) -> None:
    found = load("results").Row("a")
    found.fail("once")
    assert not found.over
    found.fail("twice")
    assert found.over


def test_goals_of_each_kind(load: Load) -> None:
    goals, results = load("goals"), load("results")
    tables = {"t": [row(load, "ours", 100), row(load, "peer", 400), results.Row("failed")]}
    judge = [
        (goals.Goal("t", "ours", "most", 110), 100, True),
        (goals.Goal("t", "ours", "most", 90), 100, False),
        (goals.Goal("t", "ours", "faster", 2, metric="rate", peer="peer"), 1, False),
        (goals.Goal("t", "ours", "faster", 1, metric="rate", peer="peer"), 1, True),
        (goals.Goal("t", "ours", "times", 4, peer="peer"), 4, True),
        (goals.Goal("t", "ours", "times", 4.1, peer="peer"), 4, False),
        (goals.Goal("t", "peer", "within", 4, peer="ours"), 4, True),
        (goals.Goal("t", "peer", "within", 3.9, peer="ours"), 4, False),
    ]
    for goal, measured, met in judge:
        value = goal.measured(tables)
        assert value == pytest.approx(measured)
        assert goal.met(round(value, 6), goal.must) is met
    for goal in (
        goals.Goal("t", "failed", "most", 1),
        goals.Goal("t", "ours", "times", 1, peer="failed"),
        goals.Goal("t", "ours", "most", 1, metric="p50_ms"),
        goals.Goal("other", "ours", "most", 1),
    ):
        assert goal.measured(tables) is None


def test_every_goal_is_listed_whether_it_was_measured_or_not(load: Load) -> None:
    goals, results = load("goals"), load("results")
    lines = goals.goal_lines({"100-none-8": [row(load, results.OURS, 120), row(load, goals.POLL, 600)]})
    assert len(lines) == len(goals.GOALS)
    name = "100 B, plain: managedconsumer for-loop"
    assert lines[0] == [name, "confluent poll tuned / ours >= 6", "5", "NOT MET", "8", "not met"]
    assert lines[1][2] == "not measured"
    assert "0 of 1 goals met" in goals.goal_table(
        {"100-none-8": [row(load, results.OURS, 120), row(load, goals.POLL, 600)]}
    )


def test_no_goal_is_a_time_or_a_speed_of_this_machine(load: Load) -> None:
    """Such a goal is missed by a slower machine."""
    alone = {goal.unit for goal in load("goals").GOALS if not goal.peer}
    assert alone == {
        "% of a core",
        "MB above one consumer",
        "connections to the broker",
        "x queued_max_bytes",
    }


def test_goals_name_rows_and_workloads_that_the_full_run_has(load: Load) -> None:
    catalogue, goals, sections = load("catalogue"), load("goals"), load("sections")
    known = {(cell.key, peer.name) for cell, level in catalogue.FULL for peer in catalogue.peers_for(level, None)}
    known |= {(table, probe.name) for table in ("start", "latency", "idle") for probe in sections.LONE}
    paced = load("paced")
    known |= {("rates", f"{probe.name}, {rate:,}/s") for probe in paced.RATED for rate in paced.RATES}
    known |= {("memory", probe.name) for probe in sections.MEMORY} | {("import", name) for name, _ in sections.IMPORTS}
    known |= {("quiet", name) for name, _, _ in sections.QUIET}
    for goal in goals.GOALS:
        assert (goal.table, goal.row) in known
        assert not goal.peer or (goal.table, goal.peer) in known


def test_a_workload_is_found_by_its_key(load: Load) -> None:
    workload = load("workload")
    for cell in (
        workload.Cell(100, "none", 8),
        workload.Cell(100, "lz4", 1, by=10),
        workload.Cell(1000, "zstd", 64, tls=True),
    ):
        assert workload.cell_of(cell.key) == cell
    assert workload.Cell(100, "none", 1000, 1, True).title == "100 B, plain, 1,000 partitions, 1 record a batch, TLS"


def test_the_report_goes_into_the_documentation_and_can_be_made_again(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load("plots"), "_pyplot", lambda: None)  # as without matplotlib, which takes seconds to import
    report, results = load("report"), load("results")
    docs = tmp_path / "performance.rst"
    docs.write_text(".. include:: figures/consume_shown.txt\n")
    tables = {
        "100-none-8": [row(load, results.OURS, 100), results.Row("gone", problem="not installed", failures=2)],
        "100-none-64": [row(load, results.OURS, 130)],
        "idle": [results.Row("managedconsumer", [{"core_percent": 0.2, "max_rss_mb": 40.0}])],
    }
    facts = {
        "when": "today",
        "cpus": 2,
        "system": "x",
        "python": "3",
        "load": [0.1, 0.2],
        "runs": 1,
        "decoder": "cython",
        "versions": {"managedconsumer": "0"},
    }
    options = type("Options", (), {"out": tmp_path / "out", "docs": docs})
    report.write(options, facts, tables)
    page = (tmp_path / "figures" / "consume_shown.txt").read_text()
    text = (tmp_path / "figures" / "consume.txt").read_text()
    for part in ("not installed", "Growth with partitions", "1.30", "Idle", "met"):
        assert part in text
    assert "goals met" in page and "not installed" in page
    assert "Idle" not in page, "the page shows the first table, the file has all of them"
    assert results.load_tables(tmp_path / "out" / "consume.json") == tables


def test_the_time_left_follows_the_speed(load: Load) -> None:
    progress = load("children").Progress(130.0)
    began = progress._began
    assert progress.left(began) == pytest.approx(130)
    progress.done(30.0)
    assert progress.left(began + 30.0) == pytest.approx(100)
    assert progress.left(began + 90.0) == pytest.approx(200)  # everything takes twice as long


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import time; time.sleep(60)", "not ready after 0 s"),
        ("raise ValueError('no such topic')", "ValueError: no such topic"),
        ("pass", "ended with 0"),
    ],
)
def test_a_peer_that_hangs_or_breaks_ends_its_own_row_only(load: Load, code: str, problem: str) -> None:
    with pytest.raises(RuntimeError, match=problem):
        load("children").run(["-c", code], {}, 0.3 if "sleep" in code else 30.0)


def test_a_change_to_a_script_does_not_reach_a_run_that_has_begun(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = load("children")
    checkout = tmp_path / "checkout"
    (checkout / "managedconsumer").mkdir(parents=True)
    (checkout / "benchmarks" / "peers").mkdir(parents=True)
    script = checkout / "benchmarks" / "peers" / "peer.py"
    script.write_text("print('{\"cpu_s\": 1}')")
    monkeypatch.setattr(children, "HERE", checkout / "benchmarks")
    monkeypatch.setattr(children, "_code", checkout)
    children.freeze(tmp_path / "copy")
    script.write_text("raise SystemExit('half written')")
    assert children.run([str(script), "--mode", "loop"], {}, 30.0) == {"cpu_s": 1}


def test_a_workload_that_cannot_be_written_is_shown_and_the_others_go_on(load: Load) -> None:
    consume, sections, children = load("consume"), load("sections"), load("children")
    bench = sections.Bench({}, 5, False, 1.0, children.Progress(0.0), {})
    rows = bench.rows("100-none-8", ["a"])
    with consume.surviving(bench, "100-none-8"):
        raise OSError("no space left")
    assert rows["a"].problem == "broken off: OSError: no space left"


def test_the_limit_reads_what_the_pacer_writes_one_by_one(
    load: Load, monkeypatch: pytest.MonkeyPatch, kafka44: DevBroker, unique: Callable[[str], str]
) -> None:
    """Both are processes of the benchmark: what one writes at a steady pace, the other finds in the answers."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    paced, clients, bench = load("paced"), load("clients"), load("bench")
    found: list[bytes] = []

    def handle(value: bytes) -> float:
        found.append(value)
        if len(found) == paced.PARTITIONS + 40:
            raise clients.Enough
        return 0.0

    run = bench.Bench({bench.NEW_KAFKA: kafka44}, 1, True, 1.0, load("children").Progress(0.0), {})
    with bench.small_topics(run, unique("topic"), [paced.LIMIT]) as name:
        pacer = paced.Pacer(kafka44, name, pace=200, count=40)
        try:
            with pytest.raises(clients.Enough):
                clients.CLIENTS["limit"]()(clients.Spec(kafka44.bootstrap, name, ""), handle)
        finally:
            pacer.stop()
    values = [value.split() for value in found[paced.PARTITIONS :]]
    assert sorted(int(number) for _, number, _ in values) == list(range(40))


def test_sparks_goals_are_ratios_to_the_connector(load: Load) -> None:
    spark, results = load("spark"), load("results")

    def source(name: str, seconds: float, cpu: float) -> Any:
        return results.Row(name, [{"seconds": seconds, "cpu": cpu}])

    rows = [source(spark.OURS, 2, 3), source(spark.DEFAULT, 4, 3), source(spark.TUNED, 2, 2)]
    lines = [line.rsplit(maxsplit=2) for line in spark.verdicts({"batch": rows}).splitlines()]
    assert [line[-2:] for line in lines if "batch: managedkafka  " in line[0]] == [
        ["0.50", "met"],
        ["1.00", "met"],
        ["NOT", "MET"],
    ]


@pytest.mark.slow  # each is a process that imports all clients
@pytest.mark.parametrize("program", ["consume", "spark", "rebalance", "run", "stores"])
def test_a_benchmark_refuses_to_measure_the_twin(program: str) -> None:
    """The checkout comes first on the path: where it is not built, figures of Python were printed as ours."""
    if program == "spark":
        pytest.importorskip("pyspark")
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{program}.py")],
        env={**os.environ, "MANAGEDCONSUMER_IMPL": "python", "PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "would be the Python twin" in ended.stderr
    assert "python setup.py build_ext --inplace" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_paced_row_that_fails_says_whose_fault_it_may_be(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    paced, bench, children = load("paced"), load("bench"), load("children")
    monkeypatch.setattr(paced, "small_topics", lambda *_: contextlib.nullcontext("topic"))
    monkeypatch.setattr(paced, "probe_arguments", lambda *_, **__: ["-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(paced.Pacer, "__init__", broken_pacer)
    setting = bench.Bench({}, 1, True, 2.0, children.Progress(0.0), {})
    broker = type("Broker", (), {"bootstrap": "127.0.0.1:1"})
    probe = bench.Probe("ours", "ours")
    with pytest.raises(RuntimeError, match=r"not ready after 1 s; not even its first message .*RuntimeError: no disk"):
        paced._one_paced(setting, probe, broker, "latency", 500, 10, 0.0, {})


def broken_pacer(self: Any, *_: object) -> None:
    import children

    self._child = children.Child(["-c", "raise RuntimeError('no disk')"])
