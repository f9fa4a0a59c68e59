"""A group's history from its members' events: the owners of its partitions, the rebalances, and the gaps. Pure.

The events may come from several processes, whose clocks must agree.
"""

from __future__ import annotations

from collections import deque
from typing import Iterable, Iterator, NamedTuple

from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.coordinator.states import MemberState
from managedconsumer.shown import short
from managedconsumer.structs import TopicPartition

_UNJOINED, _STABLE = MemberState.UNJOINED.value, MemberState.STABLE.value
_LEAVING, _LOSING = MemberState.LEAVING.value, MemberState.LOSING.value
#: States of a member that has its new generation, but has not finished the rebalance.
_IN_ROUND = frozenset({MemberState.COMPLETING_REBALANCE.value, MemberState.ASSIGNING.value})
#: The reason of a member that follows a rebalance of another one.
_TOLD = "the group rebalances"
_STARTS, _ENDS = frozenset({"handed out"}), frozenset({"suspended", "revoked", "lost"})
#: A gap shorter than this (seconds) is no gap: a hand-over within one member takes microseconds.
_SHORTEST_GAP = 0.001


class Span(NamedTuple):
    """``member`` handed ``partition`` out from ``start`` to ``end`` (None: it still does); seconds since 1970."""

    partition: TopicPartition
    member: str
    start: float
    end: float | None


class Gap(NamedTuple):
    """No member delivered ``partition`` from ``start`` to ``end``."""

    partition: TopicPartition
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Round(NamedTuple):
    """One rebalance, from its first member's start to its last one's end (None: unfinished), and its reasons."""

    generation: int
    start: float
    end: float | None
    causes: tuple[str, ...]


class Timeline(NamedTuple):
    """A group's history, as a picture shows it. ``start`` and ``end``: seconds since 1970."""

    group: str
    start: float
    end: float
    members: tuple[str, ...]
    spans: tuple[Span, ...]
    gaps: tuple[Gap, ...]
    rounds: tuple[Round, ...]

    def unread(self) -> dict[TopicPartition, list[float]]:
        """The lengths (seconds) of each partition's gaps; an empty list for a partition without one."""
        found: dict[TopicPartition, list[float]] = {tp: [] for tp in sorted({span.partition for span in self.spans})}
        for gap in self.gaps:
            found[gap.partition].append(gap.seconds)
        return found


def spans_of(events: Iterable[GroupEvent]) -> list[Span]:
    """Which member delivered which partition, and when. ``events`` in the order of time."""
    spans: list[Span] = []
    running: dict[tuple[TopicPartition, str], float] = {}
    for event in events:
        for tp in event.partitions:
            key = (tp, event.member)
            if event.kind in _STARTS:
                running.setdefault(key, event.time)
            elif event.kind in _ENDS and key in running:
                spans.append(Span(tp, event.member, running.pop(key), event.time))
    spans += [Span(tp, member, start, None) for (tp, member), start in running.items()]
    return sorted(spans, key=lambda span: (span.partition, span.start))


def gaps_of(spans: Iterable[Span]) -> list[Gap]:
    """The times between two owners of a partition."""
    found = []
    until: dict[TopicPartition, float | None] = {}
    for span in spans:
        before = until.get(span.partition, span.start)
        if before is not None and span.start - before >= _SHORTEST_GAP:
            found.append(Gap(span.partition, before, span.start))
        until[span.partition] = span.end if before is None or span.end is None else max(before, span.end)
    return found


class _Part(NamedTuple):
    """One rebalance of one member; ``end`` is None if its events stop before the end."""

    start: float
    end: float | None
    cause: str


def rounds_of(events: Iterable[GroupEvent]) -> list[Round]:
    """The rebalances. ``events`` in the order of time.

    A member's part begins when it leaves STABLE or joins, and ends when it is stable in a generation. The parts of one
    generation are one round. Members that leave or are expelled are causes of the next round. The part of a process
    that was killed may have no end.
    """
    began: dict[str, tuple[float, str]] = {}
    joining: deque[tuple[float, str]] = deque()
    parts: dict[int, list[_Part]] = {}
    departures: deque[tuple[float, str]] = deque()
    reached: dict[str, int] = {}
    for event in events:
        if event.kind != "state":
            continue
        if event.new in (_LEAVING, _LOSING):
            verb = "left" if event.new == _LEAVING else "was lost"
            departures.append((event.time, f"{event.member} {verb} ({event.reason})"))
            began.pop(event.member, None)
            reached.pop(event.member, None)
        elif event.old == _UNJOINED:
            joining.append((event.time, event.reason))
        elif event.old == _STABLE:
            cause = "" if event.reason == _TOLD else f"{event.member}: {event.reason}"
            began[event.member] = (event.time, cause)
        elif (event.new == _STABLE or event.new in _IN_ROUND) and event.member not in began:
            # It had no member id when it began.
            start, reason = joining.popleft() if joining else (event.time, "")
            began[event.member] = (start, f"{event.member} joined ({reason})")
        if event.new == _STABLE or event.new in _IN_ROUND:
            began.setdefault(event.member, (event.time, ""))  # a file may have transitions that no member makes
        if event.new in _IN_ROUND:
            reached[event.member] = event.generation
        elif event.new == _STABLE:
            start, cause = began.pop(event.member)
            reached.pop(event.member, None)
            parts.setdefault(event.generation, []).append(_Part(start, event.time, cause))
    for member, generation in reached.items():
        start, cause = began[member]
        parts.setdefault(generation, []).append(_Part(start, None, cause))
    return list(_rounds(parts, departures))


def _rounds(parts: dict[int, list[_Part]], departures: deque[tuple[float, str]]) -> Iterator[Round]:
    for generation, each in sorted(parts.items(), key=lambda item: min(part.start for part in item[1])):
        end = max((part.end for part in each if part.end is not None), default=None)
        gone = []
        while departures and (end is None or departures[0][0] <= end):
            gone.append(departures.popleft()[1])
        each.sort(key=lambda part: part.start)
        causes = dict.fromkeys([*gone, *(part.cause for part in each if part.cause)])
        yield Round(generation, each[0].start, end, tuple(causes))


def _listed(groups: list[str]) -> str:
    return short(", ".join(groups))


def timeline_of(events: Iterable[GroupEvent], group: str | None = None) -> Timeline:
    """The timeline of ``group`` (None: the only one); raises ValueError for no events, or events of several groups."""
    every = list(events)
    groups = sorted({event.group for event in every})
    if not every:
        raise ValueError("there are no events to draw")
    if group is None and len(groups) > 1:
        raise ValueError(f"the events are of several groups: choose one of {_listed(groups)}")
    name = groups[0] if group is None else group
    mine = sorted((event for event in every if event.group == name), key=lambda event: event.time)
    if not mine:
        raise ValueError(f"there are no events of group {name!r}; there are some of {_listed(groups)}")
    spans = spans_of(mine)
    members = tuple(dict.fromkeys(span.member for span in sorted(spans, key=lambda span: span.start)))
    return Timeline(
        name, mine[0].time, mine[-1].time, members, tuple(spans), tuple(gaps_of(spans)), tuple(rounds_of(mine))
    )
