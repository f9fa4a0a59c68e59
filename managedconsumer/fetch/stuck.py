"""Decides when to log that a partition stands still: after a while, then again with growing pauses. Pure."""

from __future__ import annotations

#: How long (seconds) a partition with lag may stand still before the consumer logs it and is not ready any more;
#: and before the consumer is not live any more.
STUCK_AFTER_S, DEAD_AFTER_S = 300.0, 900.0
# The longest pause (seconds) between two log lines.
_LONGEST_PAUSE = 3600.0

STANDS, MOVES = "stands", "moves"


class Alarm:
    """The alarm of one partition. Not thread-safe."""

    def __init__(self) -> None:
        self._due = STUCK_AFTER_S
        self._seen = 0.0
        self._said = False

    def look(self, stuck_for: float) -> str:
        """Return which alarm to log for a partition that has stood still for ``stuck_for`` seconds.

        ``STANDS``: it stands still; returned first after :data:`STUCK_AFTER_S`, then each time the time has doubled, at
        last every hour. ``MOVES``: it moves again after an alarm. Otherwise an empty text.
        """
        moved, self._seen = stuck_for < self._seen, stuck_for
        if moved:
            said, self._said, self._due = self._said, False, STUCK_AFTER_S
            if said:
                return MOVES
        if stuck_for < self._due:
            return ""
        self._said, self._due = True, stuck_for + min(stuck_for, _LONGEST_PAUSE)
        return STANDS
