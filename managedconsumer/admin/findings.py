"""The doctor's report about one thing that it checked. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "wrong"]


class Finding(NamedTuple):
    """``level``: all is well, worth knowing, or wrong; ``remedy``: what helps, empty where nothing is needed."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding("ok", subject, text)


def note(subject: str, text: str, remedy: str = "") -> Finding:
    """Not wrong, but worth knowing."""
    return Finding("note", subject, text, remedy)


def wrong(subject: str, text: str, remedy: str = "") -> Finding:
    """Something that does not work, or loses messages."""
    return Finding("wrong", subject, text, remedy)
