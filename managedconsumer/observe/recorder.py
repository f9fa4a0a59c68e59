"""The rebalance recorder: the events of one or many members in the order of time, as values, JSON lines, and spans.

    recorder = Recorder()
    recorder.watch(consumer)            # before or after start(); as many consumers as you like
    ...
    print(recorder.to_json_lines())

What it holds is bounded. A member in another process writes JSON lines; :meth:`Recorder.read` takes them in.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Iterable

from managedconsumer.balancedconsumer import BalancedConsumer
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.structs import TopicPartition

_LIMIT = 100_000
_STARTS, _ENDS = frozenset({"handed out"}), frozenset({"held", "revoked", "lost"})


@dataclass(frozen=True)
class Span:
    """``member`` handed ``partition`` out from ``start`` to ``end`` (None: it still does); seconds since 1970."""

    partition: TopicPartition
    member: str
    start: float
    end: float | None


class Recorder:
    """Collects group events. Thread-safe."""

    def __init__(self, limit: int = _LIMIT) -> None:
        """``limit``: how many events are kept, the newest."""
        self._events: deque[GroupEvent] = deque(maxlen=limit)
        self._ends: list[Callable[[], None]] = []

    def watch(self, consumer: BalancedConsumer) -> None:
        """Record what ``consumer`` has kept of its past and all that comes."""
        self._ends.append(consumer.watch_events(self._events.append))
        seen = {id(event) for event in list(self._events)}
        self._events.extend(event for event in consumer.events() if id(event) not in seen)

    def close(self) -> None:
        """Stop watching; what was recorded stays."""
        while self._ends:
            self._ends.pop()()

    def events(self, kind: str | None = None) -> list[GroupEvent]:
        """What was recorded, in the order of time; of one kind if named."""
        # A copy is one step of the interpreter: no watched consumer adds in between.
        found = [event for event in list(self._events) if kind in (None, event.kind)]
        return sorted(found, key=lambda event: event.time)

    def to_json_lines(self) -> str:
        """One event a line."""
        return "".join(json.dumps(event.as_dict()) + "\n" for event in self.events())

    def read(self, lines: Iterable[str]) -> None:
        """Add the events of JSON lines, as :meth:`to_json_lines` writes them. Raises ValueError for anything else."""
        for line in filter(str.strip, lines):
            self._events.append(_from_dict(json.loads(line)))

    def spans(self) -> list[Span]:
        """Which member delivered which partition, from when to when: what a timeline draws."""
        spans: list[Span] = []
        running: dict[tuple[TopicPartition, str], float] = {}
        for event in self.events():
            for tp in event.partitions:
                key = (tp, event.member)
                if event.kind in _STARTS:
                    running.setdefault(key, event.time)
                elif event.kind in _ENDS and key in running:
                    spans.append(Span(tp, event.member, running.pop(key), event.time))
        spans += [Span(tp, member, start, None) for (tp, member), start in running.items()]
        return sorted(spans, key=lambda span: (span.partition, span.start))

    def gaps(self) -> dict[TopicPartition, float]:
        """The longest time (seconds) in which no member delivered a partition, by partition."""
        longest: dict[TopicPartition, float] = {}
        until: dict[TopicPartition, float | None] = {}
        for span in self.spans():
            before = until.get(span.partition, span.start)
            if before is not None:
                longest[span.partition] = max(longest.get(span.partition, 0.0), span.start - before)
            until[span.partition] = span.end if before is None or span.end is None else max(before, span.end)
        return longest


def _from_dict(values: Any) -> GroupEvent:
    try:
        names = [text.rpartition("-") for text in values["partitions"]]
        return GroupEvent(**{**values, "partitions": tuple(TopicPartition(t, int(n)) for t, _, n in names)})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not an event of a recorder: {values!r} ({error})") from None
