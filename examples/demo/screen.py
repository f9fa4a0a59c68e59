"""The demo's display: a progress bar and a table that are redrawn in a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Mapping, Sequence, TextIO

from managedconsumer import shown

_BAR = 28
_LINE_EVERY = 2.0
_RATE_SECONDS = 3.0


@dataclass
class Gauge:
    """One row of the table: how far somebody is, and how fast."""

    name: str
    rows: int = 0
    lag: int | None = None
    note: str = ""
    _seen: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    def update(self, rows: int, lag: int | None, now: float) -> None:
        """``rows`` so far; the rate is that of the last few seconds."""
        self.rows, self.lag, self.note = rows, lag, ""
        self._seen.append((now, rows))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_SECONDS:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """Rows per second."""
        if len(self._seen) < 2:
            return 0.0
        (t0, r0), (t1, r1) = self._seen[0], self._seen[-1]
        return (r1 - r0) / (t1 - t0) if t1 > t0 else 0.0


class Screen:
    """Writes to ``out``; in a terminal :meth:`show` redraws in place, otherwise it prints a line now and then."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        dumb = os.environ.get("TERM", "dumb") == "dumb" and os.name != "nt"
        self.live = self._out.isatty() and not dumb
        encoding = (getattr(self._out, "encoding", None) or "ascii").lower()
        utf8 = encoding.replace("-", "").startswith("utf") and not _is_c_locale(os.environ)
        fancy = utf8 and (self.live or not self._out.isatty())
        self._full, self._empty = ("█", "░") if fancy and self.live else ("#", "-")
        self._bar_char = "█" if fancy else "#"
        self._drawn = 0
        self._last_line = float("-inf")
        self._last_text = ""

    def say(self, text: str = "") -> None:
        """A line that stays."""
        self.wipe()
        self._out.write(shown.lines(text) + "\n")
        self._out.flush()

    def wipe(self) -> None:
        """Take away what :meth:`show` has drawn."""
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}F\x1b[J")
            self._out.flush()
            self._drawn = 0

    def show(self, done: float, gauges: Sequence[Gauge], now: float | None = None) -> None:
        """The state of things: ``done`` from 0 to 1 for the bar, and the table."""
        if self.live:
            self._draw(self._table(done, gauges))
            return
        now = time.monotonic() if now is None else now
        text = f"{done:4.0%}  " + "  ".join(_brief(gauge) for gauge in gauges)
        if now - self._last_line >= _LINE_EVERY and text != self._last_text:
            self._last_line, self._last_text = now, text
            self.say(text)

    def _table(self, done: float, gauges: Sequence[Gauge]) -> list[str]:
        filled = int(min(1.0, max(0.0, done)) * _BAR)
        lines = [f"  {self._full * filled}{self._empty * (_BAR - filled)} {done:4.0%}"]
        width = max((len(gauge.name) for gauge in gauges), default=0) + 1
        lines.append(f"  {'':<{width}}{'rows':>13}{'lag':>13}{'rows/s':>12}")
        for gauge in gauges:
            lag = "" if gauge.lag is None else f"{gauge.lag:,}"
            state = gauge.note or f"{gauge.rows:>13,}{lag:>13}{gauge.rate:>12,.0f}"
            lines.append(f"  {gauge.name:<{width}}{state}")
        return lines

    def _draw(self, lines: list[str]) -> None:
        width = shutil.get_terminal_size().columns
        move = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._out.write(move + "".join(f"\x1b[2K{line[: width - 1]}\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)

    def bars(self, rows: Sequence[tuple[str, int]]) -> None:
        """A small bar chart."""
        most = max((count for _, count in rows), default=1)
        width = max((len(name) for name, _ in rows), default=0)
        for name, count in rows:
            self.say(f"  {name:<{width}}  {self._bar_char * max(1, round(count / most * _BAR)):<{_BAR}}  {count:,}")


def _is_c_locale(environment: Mapping[str, str]) -> bool:
    """Whether the user's locale is C (or none): the terminal then shows ASCII, although Python itself says UTF-8."""
    # Python sets LC_CTYPE itself to one of these when it finds the C locale (PEP 538).
    coerced = environment.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8")
    names = ["LC_ALL", *([] if coerced else ["LC_CTYPE"]), "LANG"]
    return next((environment[name] for name in names if environment.get(name)), "C") in ("C", "POSIX")


def _brief(gauge: Gauge) -> str:
    if gauge.note:
        return f"{gauge.name}: {gauge.note}"
    lag = "" if gauge.lag is None else f", lag {gauge.lag:,}"
    return f"{gauge.name}: {gauge.rows:,}{lag}, {gauge.rate:,.0f}/s"
