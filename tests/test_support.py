"""docs/reference/support.rst says what pyproject.toml declares and the tests run on."""

from __future__ import annotations

import re
from pathlib import Path

from tests import pythons
from tests.pages import rows_of, text_of

ROOT = Path(__file__).parent.parent
TEXT = text_of("support.rst")


def versions_of(what: str) -> list[str]:
    (versions,) = [row[1] for row in rows_of(TEXT) if row[0] == what]
    return re.findall(r"\d\.\d+", versions)


def test_pythons() -> None:
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert versions_of("Python") == declared == list(pythons.SUPPORTED)


def test_kafkas() -> None:
    """The same range as on the front page."""
    readme = (ROOT / "README.rst").read_text(encoding="utf-8")
    assert re.findall(r"(2\.\d+) to (4\.\d+)", readme) == [tuple(versions_of("Kafka"))]
