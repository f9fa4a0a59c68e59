"""The rebalance recorder: the events of one or many members in the order of time, as values, JSON lines, and spans.

    recorder = Recorder()
    recorder.watch(consumer)            # before or after start(); as many consumers as you like
    ...
    print(recorder.to_json_lines())

Their number is bounded. A member in another process writes JSON lines, which :meth:`Recorder.read` adds.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Callable, Iterable, Protocol

from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.observe.timeline import Span, Timeline, gaps_of, spans_of, timeline_of
from managedconsumer.shown import short
from managedconsumer.structs import TopicPartition

_LIMIT = 100_000
_TEXTS = ("kind", "group", "member", "old", "new", "reason")
#: The ranges of a calendar (seconds from 1970 to the year 9999), of a monotonic clock, and of a generation.
_NUMBERS = (("time", 0, 253_402_300_799), ("moment", -1e15, 1e15), ("generation", -(1 << 31), (1 << 31) - 1))


class Eventful(Protocol):
    """The events of a consumer of a group."""

    def events(self) -> list[Any]:
        """Return the recorded events."""

    def watch_events(self, told: Callable[[GroupEvent], None], /) -> Callable[[], None]:
        """Call ``told`` with each new event; the returned function ends that."""


class Recorder:
    """Collects group events. Thread-safe."""

    def __init__(self, limit: int = _LIMIT) -> None:
        """``limit``: how many of the newest events are kept."""
        self._events: deque[GroupEvent] = deque(maxlen=limit)
        self._ends: list[Callable[[], None]] = []

    def watch(self, consumer: Eventful) -> None:
        """Record the events that ``consumer`` has kept, and all new ones."""
        self._ends.append(consumer.watch_events(self._events.append))
        seen = {id(event) for event in list(self._events)}
        self._events.extend(event for event in consumer.events() if id(event) not in seen)

    def close(self) -> None:
        """Stop watching; the recorded events stay."""
        while self._ends:
            self._ends.pop()()

    def events(self, kind: str | None = None) -> list[GroupEvent]:
        """Return the recorded events in the order of time; of one kind if named."""
        # A copy is one step of the interpreter: no watched consumer adds in between.
        found = [event for event in list(self._events) if kind in (None, event.kind)]
        return sorted(found, key=lambda event: event.time)

    def to_json_lines(self) -> str:
        """One event a line."""
        return "".join(json.dumps(event.as_dict()) + "\n" for event in self.events())

    def read(self, lines: Iterable[str]) -> None:
        """Add the events of JSON lines, as :meth:`to_json_lines` writes them. Raises ValueError for anything else."""
        for line in filter(str.strip, lines):
            try:
                values = json.loads(line)
            except RecursionError:
                raise ValueError(f"not an event of a recorder: {short(line, 100)}") from None
            self._events.append(_from_dict(values))

    def spans(self) -> list[Span]:
        """Which member delivered which partition, and when."""
        return spans_of(self.events())

    def gaps(self) -> dict[TopicPartition, float]:
        """The longest time (seconds) in which no member delivered a partition, by partition."""
        spans = self.spans()
        longest = dict.fromkeys((span.partition for span in spans), 0.0)
        for gap in gaps_of(spans):
            longest[gap.partition] = max(longest[gap.partition], gap.seconds)
        return longest

    def timeline(self, group: str | None = None) -> Timeline:
        """The timeline of ``group`` (None: the only one). Raises ValueError unless that is one group."""
        return timeline_of(self.events(), group)


def _from_dict(values: Any) -> GroupEvent:
    """Check and convert an event of a file, which anyone may have written."""
    try:
        names = [text.rpartition("-") for text in values["partitions"]]
        found = GroupEvent(**{**values, "partitions": tuple(TopicPartition(t, int(n)) for t, _, n in names)})
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"not an event of a recorder: {short(repr(values))} ({short(str(error))})") from None
    for field in _TEXTS:
        if not isinstance(getattr(found, field), str):
            raise ValueError(f"not an event of a recorder: {field} is {short(repr(getattr(found, field)))}, not a text")
    for field, least, most in _NUMBERS:
        value = getattr(found, field)
        if type(value) not in (int, float) or not least <= value <= most or (field == "generation" and value % 1):
            raise ValueError(f"not an event of a recorder: {field} is {short(repr(value))}, which cannot be")
    return found
