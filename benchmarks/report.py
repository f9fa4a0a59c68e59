"""The report of ``consume.py``: tables, goals and plot, as files and into the documentation."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plots
import results
from goals import goal_summary, goal_table
from results import Row, Tables
from workload import cell_of

#: Columns of what is not throughput: heading -> (metric, digits).
_COLUMNS: dict[str, tuple[str, dict[str, tuple[str, int]]]] = {
    "start": (
        "Start to first message of a lone member",
        {"seconds": ("start_s", 3), "above the broker's answers": ("over_broker_s", 3), "CPU ms": ("cpu_ms", 0)},
    ),
    "import": ("Import of each client's consumer", {"CPU ms": ("cpu_ms", 0)}),
    "latency": (
        "Latency at 500 messages a second, 8 partitions",
        {"p50 ms": ("p50_ms", 2), "p99 ms": ("p99_ms", 2), "% of a core": ("core_percent", 1)},
    ),
    "rates": (
        "Steady rates, 8 partitions, 100 B",
        {
            "% of a core": ("core_percent", 2),
            "us of CPU a message": ("us", 1),
            "p50 ms": ("p50_ms", 2),
            "p99 ms": ("p99_ms", 2),
        },
    ),
    "idle": (
        "Idle: 8 partitions, no messages",
        {"% of a core": ("core_percent", 2), "RSS MB": ("max_rss_mb", 0)},
    ),
    "memory": (
        "Memory: a slow reader of 10 kB messages",
        {"grown MB": ("grown_mb", 0), "of the bound": ("of_bound", 2), "RSS MB": ("max_rss_mb", 0)},
    ),
    "members": (
        "Groups of many members, in one process",
        {
            "settled after s": ("settle_s", 2),
            "one more after s": ("join_s", 2),
            "% of a core each": ("percent_each", 2),
            "MB each": ("mb_each", 1),
        },
    ),
    "quiet": (
        "Many consumers with nothing to read, in one process, above one; one broker, 8 partitions",
        {
            "% of a core": ("core_percent", 1),
            "MB": ("mb", 0),
            "connections, all told": ("connections", 0),
            "threads, all told": ("threads", 0),
        },
    ),
}
_PICTURE = ".. image:: {}\n   :alt: CPU nanoseconds per message"
#: Workloads by their keys; the rest of a run's tables are of the other sections.
_GROWTH = [1, 8, 64, 1000]


def growth_table(tables: Tables) -> str:
    """CPU per message by number of partitions; only rows that are in all of them."""
    found = {n: {row.peer: row for row in tables.get(f"100-none-{n}", []) if row.runs} for n in _GROWTH}
    shown = {n: rows for n, rows in found.items() if rows}
    if len(shown) < 2:
        return ""
    names = [name for name in next(iter(shown.values())) if all(name in rows for rows in shown.values())]
    lines = []
    for name in names:
        first = next(iter(shown.values()))[name].ns
        line = [name]
        for rows in shown.values():
            line += [f"{rows[name].ns:,.0f}", f"{rows[name].median('max_rss_mb'):.0f}"]
        last = list(shown.values())[-1][name].ns
        lines.append([*line, f"{last / first:.2f}"])
    header = ["CPU ns/msg, RSS MB"]
    for n in shown:
        header += [f"{n:,}", "MB"]
    table = results.simple_table([*header, "last / first"], lines)
    return f"{results.heading('Growth with partitions: 100 B, plain')}\n\n{table}"


def introduction(facts: Mapping[str, Any]) -> str:
    """When, where and with which versions the figures were measured."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    machine = f"{facts['cpus']} CPUs ({facts['system']}), Python {facts['python']}"
    load = f"load average {facts['load'][0]} to {facts['load'][1]}"
    runs = f"median of {facts['runs']} interleaved runs, decoder: {facts['decoder']}"
    return f"{facts['when']}: {machine}, {load}, {runs}.\n\n{versions}."


def shown(facts: Mapping[str, Any], tables: Tables) -> str:
    """The part of the report that the page shows below the plot: the goals in a line, the first workload's table."""
    workloads = [results.throughput_table(cell_of(k).title, rows) for k, rows in tables.items() if k not in _COLUMNS]
    return "\n\n".join([introduction(facts), goal_summary(tables), *workloads[:1]])


def report(facts: Mapping[str, Any], tables: Tables, picture: str = "") -> str:
    """The whole report as reStructuredText."""
    text = [introduction(facts), goal_table(tables)]
    if picture:
        text.append(_PICTURE.format(picture))
    others = {name: rows for name, rows in tables.items() if name in _COLUMNS}
    text += [results.throughput_table(cell_of(k).title, rows) for k, rows in tables.items() if k not in others]
    growth = growth_table(tables)
    if growth:
        text.append(growth)
    text += [results.metric_table(*_COLUMNS[name], rows) for name, rows in others.items()]
    return "\n\n".join(text)


def panels(tables: Tables) -> list[tuple[str, list[Row]]]:
    """What is drawn: the workloads with the most rows."""
    cells = [(cell_of(name).title, rows) for name, rows in tables.items() if name not in _COLUMNS]
    return sorted(cells, key=lambda panel: -len(panel[1]))[:3]


def save(options: argparse.Namespace, facts: Mapping[str, Any], tables: Tables) -> None:
    """The figures so far: ``consume.json``."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    named = {name: [vars(row) for row in rows] for name, rows in tables.items()}
    results.save_json(out / "consume.json", {**facts, "tables": named})


def write(options: argparse.Namespace, facts: Mapping[str, Any], tables: Tables) -> None:
    """Everything so far: ``consume.json``, ``.svg``, ``.rst``, and the documentation's section."""
    save(options, facts, tables)
    out: Path = options.out
    drawn = plots.bars(out / "consume.svg", panels(tables))
    (out / "consume.rst").write_text(report(facts, tables, "consume.svg" if drawn else "") + "\n", encoding="utf-8")
    if options.docs is not None:
        plots.bars(options.docs.with_name("performance.svg"), panels(tables))
        results.publish(options.docs, "consume", shown(facts, tables), report(facts, tables))
