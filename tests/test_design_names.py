"""Names in DESIGN.md are names in the source: the map is true."""

from __future__ import annotations

import re

from tests.imports import CYTHON, PACKAGE, PYTHON

_ROOT = PACKAGE.parent
#: A name in backticks, perhaps with dots, a path in front or a call behind: ``fetch.leader.LeaderFetch``, ``settle()``.
_NAME = re.compile(r"`([\w./]+)(?:\(\w*\))?`")


def test_names_in_the_map_exist() -> None:
    text = (_ROOT / "DESIGN.md").read_text(encoding="utf-8")
    files = [*PYTHON, *CYTHON, *(_ROOT / "tests").rglob("*.py")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    words |= {part for path in files for part in path.relative_to(_ROOT).with_suffix("").parts}
    asked = {part for name in _NAME.findall(text) for part in re.split(r"[./]", name) if part}
    assert not sorted(asked - words - {"md", "txt"})
