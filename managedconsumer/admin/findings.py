"""The doctor's report about one thing that it checked. Pure."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

Level = Literal["ok", "note", "wrong"]


class Finding(NamedTuple):
    """``level``: all is well, worth knowing, or wrong; ``remedy``: how to mend it, empty if nothing is needed."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


ok = partial(Finding, "ok")
#: Not wrong, but worth knowing.
note = partial(Finding, "note")
#: Something that does not work, or loses messages.
wrong = partial(Finding, "wrong")
