"""docs/reference/support.rst says what setup.py declares and the tests run on."""

from __future__ import annotations

import re
from pathlib import Path

from tests import pythons
from tests.pages import text_of

ROOT = Path(__file__).parent.parent
TEXT = text_of("support.rst")


def versions_of(what: str) -> list[str]:
    found = re.search(rf"   \* - {what}\n     - (.*)\n", TEXT)
    assert found is not None
    return re.findall(r"\d\.\d+", found[1])


def test_pythons() -> None:
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert versions_of("Python") == declared == list(pythons.SUPPORTED)


def test_kafkas() -> None:
    """The same range as on the front page."""
    readme = (ROOT / "README.rst").read_text(encoding="utf-8")
    assert re.findall(r"(2\.\d+) to (4\.\d+)", readme) == [tuple(versions_of("Kafka"))]


def test_the_tests_of_each_proposal_exist() -> None:
    text = text_of("kips.rst")
    named = re.findall(r"     - ``(tests/[\w/]+\.py)(?:::(\w+))?``\n", text)
    assert len(named) == text.count("   * - ") - 1
    for path, test in named:
        assert f"def {test or 'test_'}" in (ROOT / path).read_text(encoding="utf-8"), (path, test)
