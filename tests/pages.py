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
