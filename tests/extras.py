"""The extras that the package declares, in ``pyproject.toml`` or in ``setup.py``."""

from __future__ import annotations

import re

from tests.pages import ROOT


def declared() -> list[str]:
    """Their names."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = re.search(r"^\[project\.optional-dependencies\]\n(.*?)(?=^\[|\Z)", project, re.MULTILINE | re.DOTALL)
    if table is not None:
        return re.findall(r"^(\w+) = \[", table[1], re.MULTILINE)
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    block = re.search(r"extras_require=\{(.*?)\n    \}", setup, re.DOTALL)
    assert block is not None
    return re.findall(r'^        "(\w+)":', block[1], re.MULTILINE)
