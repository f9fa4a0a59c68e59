"""News fragments in changes.d have names that towncrier understands, and CHANGELOG.rst is what a user has time for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAGMENTS = ROOT / "changes.d"
TYPES = re.findall(r'^    \{ directory = "(\w+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
MAX_LINES = 400


def problem(name: str, text: str) -> str | None:
    """What is wrong with a fragment; None: nothing."""
    if not re.fullmatch(rf"(?:\d+|\+[a-z0-9-]+)\.(?:{'|'.join(TYPES)})(?:\.\d+)?\.rst", name):
        return f"{name}: the name is an issue's number or +words, then one of {', '.join(TYPES)}, then rst"
    if not text.strip() or text.startswith(("*", "-")):
        return f"{name}: a paragraph without a bullet, please"
    return None


def test_the_types_are_those_of_keep_a_changelog() -> None:
    assert TYPES == ["added", "changed", "deprecated", "removed", "fixed", "security"]


def test_fragments_are_named_rightly() -> None:
    files = [path for path in sorted(FRAGMENTS.iterdir()) if path.name != "README.rst"]
    found = [wrong for path in files if (wrong := problem(path.name, path.read_text(encoding="utf-8")))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["22.fixed.rst", "22.fixed.1.rst", "+slow-clients.security.rst"])
def test_good_names(name: str) -> None:
    assert problem(name, "News.\n") is None


@pytest.mark.parametrize(
    "name", ["22.rst", "22.bugfix.rst", "fixed.rst", "slow.fixed.rst", "22.fixed.md", "+Slow.fixed.rst"]
)
def test_bad_names(name: str) -> None:
    assert problem(name, "News.\n") is not None


def test_a_fragment_has_a_text_without_a_bullet() -> None:
    assert problem("22.fixed.rst", "\n") is not None
    assert problem("22.fixed.rst", "* News.\n") is not None


def test_the_change_log_is_short_and_towncrier_knows_where_to_write() -> None:
    text = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    assert text.count("\n.. towncrier release notes start\n") == 1
    newest = text.partition(".. towncrier release notes start\n")[2]
    versions = re.split(r"\n(?=\S+(?: \(\d{4}-\d\d-\d\d\))?\n-+\n)", newest)
    long = [part.splitlines()[0] for part in versions if part.count("\n") > MAX_LINES]
    assert not long, "only what a user of the last release must know"
