"""The goals of the measurements: ratios to other clients and to limits in the same run, and few absolute bars."""

from __future__ import annotations

from dataclasses import dataclass

from results import OURS, Row, Tables, heading, simple_table
from workload import cell_of

BATCH, POLL = "confluent batch tuned", "confluent poll tuned"
CONSUME, LISTS, ARROW = "managedconsumer consume()", "managedconsumer consume_batch", "managedconsumer consume_arrow"
GEVENT, PURE = "managedconsumer for-loop, gevent", "managedconsumer for-loop, pure Python"
FETCH_ONLY, LIMIT = "managedconsumer fetch and CRC only", "limit"
OLD, PYKAFKA = "managedconsumer for-loop (Kafka 3.9)", "pykafka (Kafka 3.9)"


@dataclass(frozen=True)
class Goal:
    """``row``'s ``metric`` in ``table`` against ``peer``'s, or, without a peer, against a bar in ``unit``.

    ``kind``: ``most`` (lower is better), ``times`` (peer / ours at least), ``within`` (ours / peer at most), ``faster``
    (ours / peer at least). Times and speeds have a peer, as their figures change with the machine.
    """

    table: str
    row: str
    kind: str
    must: float
    stretch: float | None = None
    metric: str = "ns"
    peer: str = ""
    unit: str = ""

    def measured(self, tables: Tables) -> float | None:
        """The figure to judge; None if a row is missing or failed."""
        ours = _find(tables, self.table, self.row, self.metric)
        if ours is None or self.kind == "most":
            return ours
        theirs = _find(tables, self.table, self.peer, self.metric)
        if theirs is None or not ours or not theirs:
            return None
        return theirs / ours if self.kind == "times" else ours / theirs

    def met(self, value: float, bar: float) -> bool:
        """Whether ``value`` reaches ``bar``."""
        return value >= bar if self.kind in ("faster", "times") else value <= bar

    def bar(self, bar: float) -> str:
        """The bar in words."""
        if self.kind == "times":
            return f"{self.peer} / ours >= {bar:g}"
        if self.kind == "most":
            return f"at most {bar:g} {self.unit}"
        return f"ours / {self.peer} {'>=' if self.kind == 'faster' else '<='} {bar:g}"


def _find(tables: Tables, table: str, name: str, metric: str) -> float | None:
    for row in tables.get(table, []):
        if row.peer == name and row.runs:
            return _median(row, metric)
    return None


def _median(row: Row, metric: str) -> float | None:
    try:
        return row.median(metric)
    except KeyError:
        return None


_PLAIN, _LZ4, _KB, _KB_LZ4 = "100-none-8", "100-lz4-8", "1000-none-8", "1000-lz4-8"

GOALS = [
    Goal(_PLAIN, OURS, "times", 6, 8, peer=POLL),
    Goal(_PLAIN, OURS, "times", 6, 7, peer=BATCH),
    Goal(_PLAIN, OURS, "within", 3.5, 2.5, peer=FETCH_ONLY),
    Goal(_PLAIN, OLD, "times", 150, peer=PYKAFKA),
    Goal(_LZ4, OURS, "times", 5, peer=POLL),
    Goal(_LZ4, OURS, "times", 3.8, 5, peer=BATCH),
    Goal(_PLAIN, CONSUME, "times", 5, peer=POLL),
    Goal(_PLAIN, CONSUME, "within", 1.3, 1.2, peer=OURS),
    Goal(_PLAIN, LISTS, "times", 2.8, 4, peer=BATCH),
    Goal(_PLAIN, LISTS, "within", 1.3, 1.1, peer=OURS),
    Goal(_PLAIN, ARROW, "times", 5, peer=BATCH),
    Goal(_PLAIN, ARROW, "within", 3, peer=FETCH_ONLY),
    Goal(_LZ4, ARROW, "times", 3.5, peer=BATCH),
    Goal(_LZ4, ARROW, "within", 0.75, 0.6, peer=OURS),
    Goal(_KB, OURS, "times", 2.9, 3.5, peer=BATCH),
    Goal(_KB, ARROW, "times", 1.6, 2.2, peer=BATCH),
    Goal(_KB_LZ4, OURS, "times", 1.3, 1.6, peer=BATCH),
    Goal("100-none-8-by10", OURS, "times", 3, 4, peer=BATCH),
    Goal("100-none-8-by1", OURS, "times", 2, 3, peer=BATCH),
    Goal(_PLAIN, FETCH_ONLY, "within", 1.6, 1.3, peer=LIMIT),
    Goal(_PLAIN, OURS, "faster", 3, 4, metric="rate", peer=BATCH),
    Goal(_PLAIN, ARROW, "faster", 5, 7, metric="rate", peer=BATCH),
    Goal(_PLAIN, GEVENT, "within", 1.2, 1.1, peer=OURS),
    Goal(_PLAIN, PURE, "within", 1.05, peer=POLL),
    Goal("import", "managedconsumer", "within", 1.1, 0.8, metric="cpu_ms", peer="confluent"),
    Goal("start", "managedconsumer", "within", 1, 0.5, metric="start_s", peer="confluent"),
    *(
        Goal(
            "rates", f"managedconsumer, {rate}/s", "within", 1, 0.8, metric="core_percent", peer=f"confluent, {rate}/s"
        )
        for rate in ("10", "100", "500", "5,000", "50,000")
    ),
    Goal("idle", "managedconsumer", "most", 0.1, 0.07, metric="core_percent", unit="% of a core"),
    Goal("quiet", "managedconsumer, 200", "most", 5, 3, metric="core_percent", unit="% of a core"),
    Goal("quiet", "managedconsumer, 200", "most", 60, 40, metric="mb", unit="MB above one consumer"),
    Goal("quiet", "managedconsumer, 200", "most", 3, 2, metric="connections", unit="connections to the broker"),
    Goal("memory", "managedconsumer, 16 MB", "most", 1.1, 1.05, metric="of_bound", unit="x queued_max_bytes"),
    Goal("memory", "managedconsumer, default (64 MB)", "most", 1.1, 1.05, metric="of_bound", unit="x queued_max_bytes"),
    Goal("latency", "managedconsumer", "within", 1, 0.9, metric="p50_ms", peer="confluent"),
    Goal("latency", "managedconsumer", "within", 1, metric="p99_ms", peer="confluent"),
]

_TITLES = {"rate": "messages a second", "p50_ms": "p50", "p99_ms": "p99"}


def _title(table: str) -> str:
    """A workload in words; 8 partitions go without saying."""
    return cell_of(table).title.replace(", 8 partitions", "") if "-" in table else table


def goal_lines(tables: Tables) -> list[list[str]]:
    """A line for each goal: what, bar, measured, met, stretch, met."""
    lines = []
    for goal in GOALS:
        name = f"{_title(goal.table)}: {goal.row}"
        if goal.metric in _TITLES:
            name += f", {_TITLES[goal.metric]}"
        value = goal.measured(tables)
        if value is None:
            lines.append([name, goal.bar(goal.must), "not measured", "", "", ""])
            continue
        stretch = ["", ""]
        if goal.stretch is not None:
            stretch = [f"{goal.stretch:g}", "met" if goal.met(value, goal.stretch) else "not met"]
        verdict = "met" if goal.met(value, goal.must) else "NOT MET"
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        lines.append([name, goal.bar(goal.must), shown, verdict, *stretch])
    return lines


def goal_summary(tables: Tables) -> str:
    """How many of the goals the medians meet."""
    lines = goal_lines(tables)
    met, missed = (sum(line[3] == word for line in lines) for word in ("met", "NOT MET"))
    rest = f", {len(lines) - met - missed} not measured" if met + missed < len(lines) else ""
    return f"{met} of {met + missed} goals met{rest}."


def goal_table(tables: Tables) -> str:
    """Which goals the medians meet."""
    table = simple_table(["workload and row", "goal", "measured", "must", "stretch", "met"], goal_lines(tables))
    return f"{heading('Goals')}\n\n{goal_summary(tables)}\n\n{table}"
