"""Chance and clocks have one source, the handler: a simulation gives its own, and one seed gives one run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from tests.imports import statements, tree_of

PACKAGE = Path(__file__).parent.parent / "managedconsumer"
SOURCES = {"random", "uuid", "time", "secrets"}
NAMED = re.compile(rf"\b(?:import|from)\b.*\b(?:{'|'.join(SOURCES)})\b")
ALLOWED = {
    "runtime/waiting/handlers.py": {"random", "uuid", "time"},
    "runtime/net/sasl.py": {"secrets"},  # nonces: what must not be guessed is no part of any schedule
    "tokens.py": {"time", "uuid"},  # a token's times are Unix times, which the provider's clock tells
    "runtime/net/https.py": {"time"},  # used from Spark's tasks and for tokens, which have no handler
    "clock.py": {"time"},  # names the real clock as a default for objects that are made without a handler
    "spark/events.py": {"random"},  # example data from a seed
    # Names and ages of files, as the file system's clock tells them; the same for rows of a database.
    "stores/objects.py": {"time", "uuid"},
    "spark/claims/sql.py": {"time"},
    "spark/pageviews.py": {"time", "uuid"},
    # Pauses between attempts, also in a Spark task; how long a schema that is not there is remembered.
    "runtime/net/schema_registry.py": {"time"},
}
ROOMS = ("testing", "cli")  # with their own clocks, and data of their own


def sources(path: Path) -> set[str]:
    found: set[str] = set()
    if not NAMED.search(path.read_text(encoding="utf-8")):
        return found
    for node in statements(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found & SOURCES


def test_only_the_handler_knows_a_clock_and_chance() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.split("/")[0] not in ROOMS and (used := sources(path)):
            found[name] = used
    assert found == ALLOWED


@pytest.mark.parametrize("draw", ["random", "new_id"])
def test_no_two_draws_are_the_same(draw: str) -> None:
    handler = ThreadingHandler()
    assert len({getattr(handler, draw)() for _ in range(100)}) == 100
