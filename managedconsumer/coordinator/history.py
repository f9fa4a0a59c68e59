"""The events of one membership as values, for the log, the recorder and its pictures."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Iterable

from managedconsumer.shown import line
from managedconsumer.structs import Generation, TopicPartition
from managedconsumer.values import NamedTuple

#: Events that are kept of one consumer.
LIMIT = 1000


class GroupEvent(NamedTuple):
    """One event.

    ``kind``: "state": the membership's state changed from ``old`` to ``new``. "suspended": their delivery stopped.
    "revoked": they are given up. "assigned": they were taken over, and the callback has run. "handed out": their
    delivery starts. "lost": the membership was lost, and they with it. "retry": an attempt failed and is repeated.
    "coordinator": it has to be looked up again.

    ``time``: seconds since 1970 by this machine's clock; ``moment``: seconds of the monotonic clock, for durations.
    """

    time: float
    moment: float
    kind: str
    group: str
    member: str
    generation: int
    old: str = ""
    new: str = ""
    reason: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        who = f"group {self.group}: member {self.member or '(new)'} generation {self.generation}"
        if self.kind == "state":
            return line(f"{who}: {self.old} -> {self.new} ({self.reason})")
        what = ", ".join(f"{tp.topic}-{tp.partition}" for tp in self.partitions) or "nothing"
        parts = "" if self.kind in ("retry", "coordinator") else f": {what}"
        return line(f"{who}: {self.kind}{parts}{f' ({self.reason})' if self.reason else ''}")

    def as_dict(self) -> dict[str, Any]:
        """Return the event for JSON, with partitions as ``"topic-0"``."""
        return {**self._asdict(), "partitions": [f"{tp.topic}-{tp.partition}" for tp in self.partitions]}


class History:
    """The last events of one consumer, under all its member ids. Adding and reading are safe from any thread."""

    def __init__(self, group: str, now: Callable[[], float], wall: Callable[[], float], limit: int = LIMIT) -> None:
        self._group, self._now, self._wall = group, now, wall
        self._events: deque[GroupEvent] = deque(maxlen=limit)
        self._watchers: tuple[Callable[[GroupEvent], None], ...] = ()

    def add(
        self,
        kind: str,
        generation: Generation,
        partitions: Iterable[TopicPartition] = (),
        *,
        old: str = "",
        new: str = "",
        reason: str = "",
    ) -> GroupEvent:
        """Note an event, and call the watchers in this thread."""
        member, number = generation.member_id, generation.id
        what = (old, new, reason, tuple(sorted(partitions)))
        event = GroupEvent(self._wall(), self._now(), kind, self._group, member, number, *what)
        self._events.append(event)
        for watcher in self._watchers:
            watcher(event)
        return event

    def events(self) -> list[GroupEvent]:
        """Return the recorded events, oldest first."""
        return list(self._events)  # atomic

    def watch(self, watcher: Callable[[GroupEvent], None]) -> Callable[[], None]:
        """Call ``watcher`` with every event from here on; it must not block or raise. Return the function to end it."""
        self._watchers = (*self._watchers, watcher)

        def end() -> None:
            self._watchers = tuple(each for each in self._watchers if each is not watcher)

        return end
