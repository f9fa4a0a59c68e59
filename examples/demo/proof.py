"""The demo's proof: the counts in Parquet, those of the plain consumer and those of the generator are the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from managedconsumer.cli._demo.screen import Screen
from managedconsumer.spark.events import Tally

_TOP = 10


def read_counts(path: Path) -> Tally:
    """The Parquet table as ``{(user, start of the window in ms): views}``, read without Spark."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    table: Any = ds.dataset(str(path), format="parquet").to_table(columns=["user", "start", "views"])
    users = table["user"].cast(pa.binary()).to_pylist()
    starts = table["start"].cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()
    return Counter(dict(zip(zip(users, starts, strict=True), table["views"].to_pylist(), strict=True)))


def show_proof(screen: Screen, counted: Tally, others: dict[str, Tally]) -> bool:
    """Compare ``counted`` with each of ``others``, cell by cell; True if all are equal."""
    screen.say("\nProof: views per user and five-minute window, cell by cell")
    screen.say(f"  {'Parquet (Spark)':<18}{counted.total():>13,} views in {len(counted):,} cells")
    good = True
    for name, tally in others.items():
        wrong = [cell for cell in counted.keys() | tally.keys() if counted[cell] != tally[cell]]
        verdict = "equal" if not wrong else f"NOT EQUAL: {len(wrong):,} cells differ, such as {_cell(wrong[0])}"
        screen.say(f"  {name:<18}{tally.total():>13,} views in {len(tally):,} cells: {verdict}")
        good &= not wrong
    return good


def show_top(screen: Screen, counted: Tally) -> None:
    """The users with the most views."""
    users: Counter[Any] = Counter()
    for (user, _), views in counted.items():
        users[user] += views
    if users:
        screen.say("\nTop users")
        screen.bars([(_name(user), views) for user, views in users.most_common(_TOP)])


def _name(user: bytes | None) -> str:
    return "(no key)" if user is None else user.decode("utf-8", "replace")[:40]


def _cell(cell: tuple[bytes, int]) -> str:
    return f"{_name(cell[0])} at {cell[1]}"
