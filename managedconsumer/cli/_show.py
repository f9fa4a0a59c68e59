"""Print answers: tables that fit a terminal, the same without colours or cuts in a pipe, and JSON.

All commands print by this module, so that no control character of a name, or of a broker's text, reaches a terminal.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from managedconsumer import shown
from managedconsumer.admin.timestamps import iso

#: The width of a pipe: nothing is cut.
_ENDLESS = 100_000

partitions_option = click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[int] = ()) -> None:
    """Print ``rows`` under ``headers``, with ``-`` for None; the columns ``numbers`` are right-aligned."""
    right = set(numbers)
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for place, header in enumerate(headers):
        made.add_column(header, justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*("-" if value is None else shown.line(str(value)) for value in row))
    live = sys.stdout.isatty()
    console = Console(
        file=sys.stdout, width=None if live else _ENDLESS, highlight=False, markup=False, emoji=False, soft_wrap=False
    )
    with console.capture() as capture:
        console.print(made)
    for line in capture.get().splitlines():
        print(line.rstrip())


def print_json(value: object) -> None:
    """Print ``value`` as JSON; named tuples become objects."""
    print(shown.json(json.dumps(plain(value), indent=1)))


def say(text: str = "") -> None:
    print(shown.line(text), flush=True)


def diff(name: str, old: bytes, new: bytes) -> None:
    """Print a unified diff of two versions of a file."""
    before, after = (data.decode("utf-8", "replace").splitlines() for data in (old, new))
    for each in difflib.unified_diff(before, after, f"{name} (now)", f"{name} (fixed)", lineterm=""):
        print(shown.lines(each), flush=True)


def tell(text: str) -> None:
    """Print a text of one or more lines on stderr."""
    print(shown.lines(text), file=sys.stderr, flush=True)


def plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(field) for name, field in value._asdict().items()}
    if isinstance(value, dict):
        return {str(key): plain(field) for key, field in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def seconds(value: float | None) -> str | None:
    """A duration as people read it: ``0 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if value is None:
        return None
    left = int(value)
    for size, name, smaller, smaller_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            rest = left % size // smaller
            return f"{left // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{left} s"


def moment(milliseconds: int | None) -> str | None:
    """A timestamp as people read it."""
    return None if milliseconds is None else iso(milliseconds)
