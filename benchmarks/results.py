"""From measurements to tables: medians, ratios, goals; reStructuredText, JSON, and a plot where matplotlib is there."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The row that ratios are taken to.
OURS = "managedconsumer for-loop"


@dataclass
class Row:
    """All runs of one peer in one cell; ``problem`` if it could not do it."""

    peer: str
    runs: list[dict[str, float]] = field(default_factory=list)
    problem: str = ""

    def median(self, key: str) -> float:
        """The median over the runs."""
        return statistics.median(run[key] for run in self.runs)

    @property
    def ns(self) -> float:
        """CPU nanoseconds per message after the assignment."""
        return statistics.median(run["cpu_s"] / run["messages"] for run in self.runs) * 1e9

    @property
    def rate(self) -> float:
        """Messages per second of wall time after the assignment."""
        return statistics.median(run["messages"] / run["wall_s"] for run in self.runs)

    @property
    def spread(self) -> str:
        """Lowest and highest CPU ns per message."""
        each = [run["cpu_s"] / run["messages"] * 1e9 for run in self.runs]
        return f"{min(each):,.0f}-{max(each):,.0f}"


def simple_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A reStructuredText table; the first column is text, the others are numbers."""
    lines = [list(header), *[list(row) for row in rows]]
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


def cell_table(title: str, rows: Sequence[Row]) -> str:
    """One cell's peers."""
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
                row.spread,
                "" if ours is None else f"{row.ns / ours:.2f}",
                f"{row.rate / 1e6:.3f}",
                f"{row.median('messages'):,.0f}",
                f"{row.median('process_cpu_s'):.2f}",
                f"{row.median('process_wall_s'):.2f}",
                f"{row.median('max_rss_mb'):.0f}",
            ]
        )
    header = ["peer", "CPU ns/msg", "low-high", "ratio", "M msg/s", "messages", "cpu s", "wall s", "RSS MB"]
    table = simple_table(header, lines)
    notes = [f"* {row.peer}: {row.problem}" for row in rows if row.problem]
    return "\n\n".join([f"{title}\n{'~' * len(title)}", table, *(["\n".join(notes)] if notes else [])])


#: What the project wants: cell (size, codec, partitions), our row, the most ns, and how much less than which peers.
GOALS: list[tuple[tuple[int, str, int], str, float | None, dict[str, float]]] = [
    (
        (100, "none", 8),
        OURS,
        145,
        {"confluent poll tuned": 6, "confluent batch tuned": 3, "pykafka (Kafka 3.9)": 150},
    ),
    ((100, "lz4", 8), OURS, 180, {"confluent poll tuned": 5, "confluent batch tuned": 2.5}),
    ((100, "none", 8), "managedconsumer consume()", 180, {"confluent poll tuned": 5}),
    ((100, "none", 8), "managedconsumer consume_batch", 155, {"confluent batch tuned": 2.8}),
    ((100, "none", 8), "managedconsumer consume_arrow", 85, {"confluent batch tuned": 5}),
    ((100, "lz4", 8), "managedconsumer consume_arrow", 135, {"confluent batch tuned": 3.5}),
    ((1000, "none", 8), OURS, None, {"confluent batch tuned": 2}),
    ((1000, "none", 8), "managedconsumer consume_arrow", None, {"confluent batch tuned": 1.6}),
    ((1000, "lz4", 8), OURS, None, {"confluent batch tuned": 1.3}),
    ((100, "none", 8), "managedconsumer for-loop, pure Python", 1500, {"confluent poll tuned": 1 / 1.5}),
    ((100, "none", 8), "managedconsumer for-loop, gevent", None, {OURS: 1 / 1.25}),
]


def goal_table(cells: dict[tuple[int, str, int], list[Row]]) -> str:
    """Which goals the medians meet."""
    lines = []
    for cell, mine, most, factors in GOALS:
        found = {row.peer: row for row in cells.get(cell, []) if row.runs}
        if mine not in found:
            continue
        ns = found[mine].ns
        what = f"{cell[0]} B {cell[1]}: {mine}"
        if most is not None:
            lines.append([what, f"at most {most:.0f} ns", f"{ns:.0f} ns", "yes" if ns <= most else "NO"])
        for peer, factor in factors.items():
            if peer in found:
                ratio = found[peer].ns / ns
                verdict = "yes" if ratio >= factor else "NO"
                lines.append([what, f"{peer} / ours >= {factor:.3g}", f"{ratio:.2f}", verdict])
    return simple_table(["path", "goal", "measured", "met"], lines) if lines else ""


def plot(path: Path, title: str, rows: Sequence[Row]) -> bool:
    """CPU per message as bars on a logarithmic scale; False where matplotlib is missing."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    shown = [row for row in rows if row.runs][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.36 * len(shown) + 1.2))
    colours = [
        "#c44" if r.peer.startswith("managedconsumer") else "#999" if r.peer == "limit" else "#47a" for r in shown
    ]
    bars = axes.barh([row.peer for row in shown], [row.ns for row in shown], color=colours)
    axes.bar_label(bars, labels=[f" {row.ns:,.0f}" for row in shown], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("CPU nanoseconds per message, all threads (logarithmic, less is better)")
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def save_json(path: Path, facts: dict[str, Any]) -> None:
    """Everything that was measured."""
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def replace_between(path: Path, name: str, text: str) -> None:
    """Put ``text`` between the comments ``.. begin NAME`` and ``.. end NAME`` of a document."""
    document = path.read_text(encoding="utf-8")
    begin, end = f".. begin {name}\n", f".. end {name}\n"
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ValueError(f"{path} must hold {begin.strip()!r} and {end.strip()!r} once each")
    head, rest = document.split(begin)
    tail = rest.split(end)[1]
    path.write_text(f"{head}{begin}\n{text}\n\n{end}{tail}", encoding="utf-8")
