"""docs/support.rst says what pyproject.toml declares and the tests run on."""

from __future__ import annotations

import re
from pathlib import Path

from tests import pythons

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "support.rst").read_text(encoding="utf-8")


def versions_of(what: str) -> list[str]:
    found = re.search(rf"   \* - {what}\n     - (.*)\n", TEXT)
    assert found is not None
    return re.findall(r"\d\.\d+", found[1])


def test_pythons() -> None:
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert versions_of("Python") == declared == list(pythons.SUPPORTED)


def test_kafkas() -> None:
    """The same range as on the front page."""
    readme = (ROOT / "README.rst").read_text(encoding="utf-8")
    assert re.findall(r"(2\.\d+) to (4\.\d+)", readme) == [tuple(versions_of("Kafka"))]


def test_the_tests_of_each_proposal_exist() -> None:
    text = (ROOT / "docs" / "kips.rst").read_text(encoding="utf-8")
    named = re.findall(r"     - ``(tests/[\w/]+\.py)(?:::(\w+))?``\n", text)
    assert len(named) == text.count("   * - ") - 1
    for path, test in named:
        assert f"def {test or 'test_'}" in (ROOT / path).read_text(encoding="utf-8"), (path, test)
