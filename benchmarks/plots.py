"""Bars of CPU per message, as SVG or PNG; nothing where matplotlib is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import Row


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text: small, and it can be searched
    mpl.rcParams["svg.hashsalt"] = "managedconsumer"  # the same figures make the same file
    from matplotlib import pyplot as plt

    return plt


def _colour(name: str) -> str:
    if name.startswith("managedconsumer"):
        return "#c44"
    return "#999" if name == "limit" else "#47a"


def bars(path: Path, panels: Sequence[tuple[str, Sequence[Row]]]) -> bool:
    """One panel for each workload on a logarithmic scale, lines from lowest to highest; False without matplotlib."""
    plt = _pyplot()
    if plt is None:
        return False
    shown = [(title, [row for row in rows if row.runs][::-1]) for title, rows in panels]
    shown = [(title, rows) for title, rows in shown if rows]
    if not shown:
        return False
    heights = [len(rows) + 2 for _, rows in shown]
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(9, 0.27 * sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for (title, rows), [axis] in zip(shown, axes, strict=True):
        medians = [row.ns for row in rows]
        below = [row.ns - min(row.each("ns")) for row in rows]
        above = [max(row.each("ns")) - row.ns for row in rows]
        drawn = axis.barh([row.peer for row in rows], medians, color=[_colour(row.peer) for row in rows])
        axis.errorbar(medians, range(len(rows)), xerr=[below, above], fmt="none", ecolor="#333", elinewidth=0.8)
        axis.bar_label(drawn, labels=[f"   {value:,.0f}" for value in medians], fontsize=7)
        axis.set_xscale("log")
        axis.tick_params(labelsize=7)
        axis.set_xlim(min(medians) / 2, max(medians) * 2.5)
        axis.margins(y=0.01)
        axis.set_title(f"{title}: CPU ns per message, all threads (less is better)", fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return True
