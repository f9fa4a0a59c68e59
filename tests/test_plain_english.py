"""Docstrings that a newcomer has to read twice: they begin with a question word, or have a phrase without a subject."""

from __future__ import annotations

import re

from tests.imports import CYTHON, PYTHON

_RIDDLES = re.compile(r'"""(?:What|Who)\b|\b[Ww]hoever\b|\bis looked (?:whether|which)\b')


def test_docstrings_and_comments_say_who_does_what() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in (*PYTHON, *CYTHON)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _RIDDLES.search(line)
    ]
    assert not found, "\n".join(found)
