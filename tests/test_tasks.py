"""docs/howto/tasks.rst: every answer and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docutils.nodes import make_id

from tests.pages import text_of

ROOT = Path(__file__).parent.parent
ROW = re.compile(
    r"   \* - (?P<task>.*\?)\n"
    r"     - `[^`<]+ <(?P<page>[a-z_]+\.rst)#(?P<anchor>[a-z0-9-]+)>`__\n"
    r"     - ``(?P<file>tests/[\w/]+\.py)(?:::(?P<test>\w+))?``\n"
)
TEXT = text_of("tasks.rst")
ROWS = [found.groupdict() for found in ROW.finditer(TEXT)]


def test_every_row_is_understood() -> None:
    assert len(ROWS) == TEXT.count("   * - ") - 1
    assert len({row["task"] for row in ROWS}) == len(ROWS) >= 24


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["task"])
def test_the_answer_and_the_test_exist(row: dict[str, str]) -> None:
    page = (ROOT / "docs" / row["page"]).read_text(encoding="utf-8")
    headings = {make_id(text) for text in re.findall(r"^(\S.*)\n[=~-]{4,}$", page, re.MULTILINE)}
    assert row["anchor"] in headings
    assert f"def {row['test'] or 'test_'}" in (ROOT / row["file"]).read_text(encoding="utf-8")
