"""The pages of docs/ by name: a test names a page, not the folder that it is in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> Path:
    """The file of a page such as ``options.rst``. Page names are unique; ``../README.rst`` is relative to docs/."""
    beside = DOCS / name
    if beside.exists():
        return beside
    (found,) = DOCS.rglob(name)
    return found


def text_of(name: str) -> str:
    """The source of a page."""
    return page(name).read_text(encoding="utf-8")


def rows_of(text: str) -> list[list[str]]:
    """The cells of all simple tables (``=== ===``) of a page, row by row, without the headers; one line is one row."""
    found: list[list[str]] = []
    starts: list[int] = []
    rules = 0
    for line in text.splitlines():
        if line.startswith("==") and set(line) == {"=", " "}:
            rules += 1
            if rules % 3 == 1:
                starts = [n for n, c in enumerate(line) if c == "=" and (n == 0 or line[n - 1] == " ")]
        elif rules % 3 == 2:
            ends = [*starts[1:], None]
            found.append([line[start:end].strip() for start, end in zip(starts, ends, strict=True)])
    return found
