"""``minOffsetsPerTrigger``, ``maxTriggerDelay`` and ``maxRecordsPerPartition``. Pure."""

from __future__ import annotations

import re
from itertools import pairwise
from math import ceil

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.tasks import Slice

_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+)\s*([a-z]*)\Z")
#: Spark's default for ``maxTriggerDelay`` (seconds).
LONGEST_DELAY = 900.0


def seconds(name: str, text: str) -> float:
    """Parse a time as Spark writes it: ``15m``, ``30s``, ``500ms``. Raises ConfigurationError."""
    found = _TIME.match(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigurationError(f"{name} must be a time such as 15m, 30s or 500ms, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


class Pace:
    """Holds a batch back until it has ``least`` offsets, for at most ``longest`` seconds after the one before."""

    def __init__(self, least: int | None, longest: float) -> None:
        self._least = least
        self._longest = longest
        self._last = float("-inf")

    def wants(self, offsets: int, now: float) -> bool:
        """True if a batch of ``offsets`` offsets may start now. The first one always may."""
        if self._least is None:
            return True
        if offsets < self._least and now - self._last < self._longest:
            return False
        self._last = now
        return True


def at_most(slices: list[Slice], records: int) -> list[Slice]:
    """Slices of at most ``records`` offsets each, of about the same size."""
    cut = []
    for part in slices:
        pieces = ceil(part.size / records)
        bounds = [part.start + part.size * n // pieces for n in range(pieces + 1)]
        cut += [part._replace(start=a, stop=b) for a, b in pairwise(bounds)]
    return cut
