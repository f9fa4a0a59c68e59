"""From measurements to tables: medians, ratios, reStructuredText, JSON. Nothing here measures anything."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The row that ratios are taken to.
OURS = "managedconsumer for-loop"


@dataclass
class Row:
    """All runs of one peer in one table; ``problem`` if it could not do it, or not always."""

    peer: str
    runs: list[dict[str, float]] = field(default_factory=list)
    problem: str = ""
    failures: int = 0

    def fail(self, problem: str) -> None:
        """A run came to nothing."""
        self.failures += 1
        self.problem = problem

    @property
    def over(self) -> bool:
        """True: it is not asked again (it failed twice, or cannot do this at all)."""
        return self.failures > 1

    def each(self, metric: str) -> list[float]:
        """What every run measured: a key of the runs, ``ns`` (CPU per message) or ``rate`` (messages a second)."""
        if metric == "ns":
            return [run["cpu_s"] / run["messages"] * 1e9 for run in self.runs]
        if metric == "rate":
            return [run["messages"] / run["wall_s"] for run in self.runs]
        if metric == "process_ns":
            return [run["process_cpu_s"] / run["messages"] * 1e9 for run in self.runs]
        return [run[metric] for run in self.runs]

    def median(self, metric: str) -> float:
        """The median over the runs."""
        return statistics.median(self.each(metric))

    @property
    def ns(self) -> float:
        """CPU nanoseconds per message after the assignment."""
        return self.median("ns")

    def spread(self, metric: str, digits: int = 0) -> str:
        """Lowest and highest."""
        each = self.each(metric)
        return f"{min(each):,.{digits}f}-{max(each):,.{digits}f}"


#: Name of a table (a workload, ``latency``, ``idle`` ...) -> its rows.
Tables = dict[str, list[Row]]


def simple_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A reStructuredText table; the first column is text, the others are numbers."""
    lines = [list(header), *[[cell or " " for cell in row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    rule = "  ".join("=" * width for width in widths)
    shown = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([rule, shown[0], rule, *shown[1:], rule])


def heading(title: str) -> str:
    """A heading inside a section of the documentation."""
    return f"{title}\n{'~' * len(title)}"


def notes(rows: Iterable[Row]) -> str:
    """What failed, and how."""
    lines = []
    for row in rows:
        if row.problem:
            how = "" if not row.runs else f"{row.failures} of {row.failures + len(row.runs)} runs failed: "
            lines.append(f"* {row.peer}: {how}``{row.problem.replace('`', chr(39)).strip()}``")
    return "\n".join(lines)


def throughput_table(title: str, rows: Sequence[Row]) -> str:
    """One workload's peers."""
    ours = next((row.ns for row in rows if row.peer == OURS and row.runs), None)
    lines = []
    for row in rows:
        if not row.runs:
            lines.append([row.peer, "failed", "", "", "", "", "", "", ""])
            continue
        lines.append(
            [
                row.peer,
                f"{row.ns:,.0f}",
                row.spread("ns"),
                "" if ours is None else f"{row.ns / ours:.2f}",
                f"{row.median('rate') / 1e6:.3f}",
                f"{row.median('messages'):,.0f}",
                f"{row.median('process_cpu_s'):.2f}",
                f"{row.median('process_wall_s'):.2f}",
                f"{row.median('max_rss_mb'):.0f}",
            ]
        )
    header = ["peer", "CPU ns/msg", "low-high", "ratio", "M msg/s", "messages", "cpu s", "wall s", "RSS MB"]
    return _with_notes(title, simple_table(header, lines), rows)


def metric_table(title: str, columns: Mapping[str, tuple[str, int]], rows: Sequence[Row]) -> str:
    """Medians and spreads of other measurements; ``columns``: heading -> (metric, digits)."""
    header = ["peer"]
    for name in columns:
        header += [name, "low-high"]
    lines = []
    for row in rows:
        line = [row.peer]
        for metric, digits in columns.values():
            known = row.runs and all(metric in run for run in row.runs)
            line += [f"{row.median(metric):,.{digits}f}", row.spread(metric, digits)] if known else ["", ""]
        if not row.runs:
            line[1] = "failed"
        lines.append(line)
    return _with_notes(title, simple_table(header, lines), rows)


def _with_notes(title: str, table: str, rows: Sequence[Row]) -> str:
    said = notes(rows)
    return f"{heading(title)}\n\n{table}" + (f"\n\n{said}" if said else "")


def save_json(path: Path, facts: dict[str, Any]) -> None:
    """Everything that was measured."""
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def load_tables(path: Path) -> Tables:
    """The tables of a ``consume.json``: reports can be made again without measuring."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    return {name: [Row(**row) for row in rows] for name, rows in facts["tables"].items()}


def publish(page: Path, name: str, shown: str, report: str) -> None:
    """Write what a documentation page includes into ``figures`` beside it.

    ``NAME_shown.txt`` is for the page itself, ``NAME.txt`` is the whole report.
    """
    figures = page.with_name("figures")
    if f"figures/{name}_shown.txt" not in page.read_text(encoding="utf-8"):
        raise ValueError(f"{page} does not include figures/{name}_shown.txt")
    figures.mkdir(exist_ok=True)
    (figures / f"{name}_shown.txt").write_text(shown + "\n", encoding="utf-8")
    (figures / f"{name}.txt").write_text(report + "\n", encoding="utf-8")
