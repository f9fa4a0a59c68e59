"""When messages may start: ``run(rate=...)`` spreads them, ``run(not_before=...)`` gives each a time. Pure."""

from __future__ import annotations

import sys
from typing import Any

from managedconsumer.config import wrong_kind
from managedconsumer.processing.key_queues import KeyQueue
from managedconsumer.processing.values import ALL, PARTITION
from managedconsumer.results import UnusedResultError

# What was not started in time may be made up for, up to so many seconds' worth.
_SLACK_S = 0.05
# High rates start several messages at a time, so often (seconds) at most.
_MERGE_S = 0.005
# Forget the keys that may start again when there are so many.
_MANY = 1024


class NotYet(Exception):
    """A message must not start before ``due`` (monotonic seconds)."""

    def __init__(self, due: float) -> None:
        super().__init__(due)
        self.due = due


def seconds_of(value: Any) -> float:
    """Return what ``not_before`` has returned in seconds since 1970; naive datetimes are UTC. Raises TypeError."""
    if value is None:
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    from datetime import datetime, timezone  # here, as it takes two milliseconds

    if not isinstance(value, datetime):
        raise UnusedResultError(str(wrong_kind("the result of not_before", value, "seconds, a datetime or None")))
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()


class Throttle:
    """How many messages of a key, a partition or all may start at a moment.

    They start evenly: one each ``1 / rate`` seconds.
    """

    def __init__(self, per_second: float, by: str) -> None:
        self.by = by
        self._every = 1.0 / per_second
        # When the next message of each key (partition) may start.
        self._free: dict[Any, float] = {}
        self._many = _MANY

    def room(self, key_queue: KeyQueue, now: float) -> int:
        """How many messages of it may start."""
        at = self._place(key_queue)
        return sys.maxsize if at is None else self.room_at(at, now)

    def room_at(self, at: Any, now: float) -> int:
        """How many messages may start at a place: ALL, a partition, or a partition and a key."""
        free = max(self._free.get(at, now), now - _SLACK_S)
        return 0 if now < free else 1 + int((now - free) / self._every)

    def spend(self, key_queue: KeyQueue, count: int, now: float) -> None:
        """So many messages of it start; less than 0: so many have not started after all."""
        at = self._place(key_queue)
        if at is None:
            return
        self._free[at] = max(self._free.get(at, now), now - _SLACK_S) + count * self._every
        if len(self._free) > self._many:
            self._free = {place: free for place, free in self._free.items() if free > now}
            self._many = max(_MANY, 2 * len(self._free))

    def due(self, at: Any) -> float:
        """When a place that had no room has some (seconds)."""
        return self._free.get(at, 0.0) + max(0.0, _MERGE_S - self._every)

    def due_of(self, key_queue: KeyQueue) -> float:
        """When a key queue that had no room has some (seconds)."""
        return self.due(self._place(key_queue))

    def _place(self, key_queue: KeyQueue) -> Any:
        if self.by == ALL:
            return ALL
        if self.by == PARTITION:
            return key_queue.part.tp
        return None if key_queue.key is None else (key_queue.part.tp, key_queue.key)
