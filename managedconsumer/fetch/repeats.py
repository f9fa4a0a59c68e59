"""Repeats the last request where only positions have moved, which is nearly always the case. Pure.

A whole plan visits every partition of the consumer, and a session compares all of them with the broker's state.
Between two responses of a quiet topic one position moves, or none.
"""

from __future__ import annotations

from typing import Any, Hashable, Mapping, Sequence

from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.plan import FetchPlan
from managedconsumer.fetch.sessions import Key
from managedconsumer.structs import ClusterSnapshot

Moved = list[tuple[Key, Mapping[str, Any]]]
#: A partition: its queue and version, topic id, number, leader epoch, fetch offset, last epoch, most bytes.
Line = tuple[PartitionQueue, int, bytes, int, int, int, int, int]


class _Line:
    """One partition of the request, with the values last sent."""

    __slots__ = ("key", "last_epoch", "list", "offset", "place", "queue", "version")

    def __init__(self, queue: PartitionQueue, key: Key, entries: list[dict[str, Any]], place: int) -> None:
        self.queue, self.key, self.list, self.place = queue, key, entries, place
        self.version = queue.version
        self.offset, self.last_epoch = queue.fetch_offset, queue.last_epoch


class Repeat:
    """A worker's last request. ``engine.lock`` is held around every call."""

    def __init__(self) -> None:
        self._plan: FetchPlan | None = None
        self._lines: list[_Line] = []
        self._snapshot: ClusterSnapshot | None = None
        self._members = self._moves = -1
        self._granted = 0

    def keep(self, plan: FetchPlan, buffer: FetchBuffer, snapshot: ClusterSnapshot) -> None:
        """Keep ``plan``: it has all partitions of the worker, and each is fetched from its leader.

        A request with less memory than it could use is not kept: there may be more the next time.
        """
        if not plan.whole:
            self.forget()
            return
        self._granted = plan.granted
        self._plan, self._snapshot, self._members, self._moves = plan, snapshot, buffer.members, buffer.moves
        lines = self._lines = []
        for topic in plan.body["topics"]:
            name, entries = topic["topic"], topic["partitions"]
            for place, entry in enumerate(entries):
                key = (name, topic["topic_id"], entry["partition"])
                lines.append(_Line(plan.tickets[name, key[2]][0], key, entries, place))

    def forget(self) -> None:
        """Drop the kept request: the next one differs."""
        self._plan = None
        self._lines = []

    def holds(self, buffer: FetchBuffer) -> bool:
        """False when another request than the last is needed: after a user's call, a rebalance or a reset, or because
        other workers wait for its memory."""
        if buffer.budget.waiting or buffer.members != self._members or buffer.moves != self._moves:
            return False
        return all(line.queue.version == line.version for line in self._lines)

    def again(
        self, buffer: FetchBuffer, snapshot: ClusterSnapshot, now: float, who: Hashable = None
    ) -> tuple[FetchPlan, Moved] | None:
        """Return the last request with the present positions, and those that moved; mark its partitions in flight.

        None: another request is needed now, or there is no memory. ``who``: the worker that sends it.
        """
        plan = self._plan
        moved = self._look(buffer, snapshot, now, False)
        if plan is None or moved is None:
            return None
        granted = self._granted
        if not buffer.budget.ask(who, granted, granted, buffer.nbytes):
            return None
        plan.granted = granted
        for line in self._lines:
            line.queue.in_flight = True
        return plan, [_move(plan, line, line.queue.fetch_offset, line.queue.last_epoch) for line in moved]

    def may_go_on(self, buffer: FetchBuffer, snapshot: ClusterSnapshot, now: float) -> bool:
        """True if the request in flight may be repeated after its response, with the same reserved memory."""
        moved = self._look(buffer, snapshot, now, True)
        return self._plan is not None and moved is not None and buffer.budget.holds(buffer)

    def lines(self, plan: FetchPlan) -> list[Line]:
        """The partitions of ``plan``, the last request, as it named them."""
        rows: list[Line] = []
        for line in self._lines:
            entry = line.list[line.place]
            place = (entry["current_leader_epoch"], line.offset, line.last_epoch, entry["partition_max_bytes"])
            rows.append((line.queue, line.version, line.key[1], line.key[2], *place))
        return rows if plan is self._plan else []

    def moved_to(self, plan: FetchPlan, places: Sequence[tuple[int, int]]) -> Moved:
        """Note the values of the last requests: for each of :meth:`lines` its offset and last epoch."""
        return [
            _move(plan, line, *place)
            for line, place in zip(self._lines, places, strict=True)
            if place != (line.offset, line.last_epoch)
        ]

    def _look(self, buffer: FetchBuffer, snapshot: ClusterSnapshot, now: float, in_flight: bool) -> list[_Line] | None:
        """Return the lines whose position has moved; None: another request is needed."""
        if snapshot is not self._snapshot or buffer.members != self._members or buffer.moves != self._moves:
            return None
        if buffer.budget.waiting:
            return None
        most = buffer.max_messages
        moved: list[_Line] = []
        for line in self._lines:  # the same check as ``plan.wanted``, without a call for each
            queue = line.queue
            state = queue.state
            offset = queue.fetch_offset
            if (
                queue.version != line.version
                or queue.in_flight is not in_flight
                or offset < 0
                or now < queue.retry_at
                or queue.alone
                or queue.records >= most
                or state.paused
                or state.held
                or state.full
                or not state.active
                or state.reset_strategy is not None  # with no reset pending the position is still the planned one
            ):
                return None
            if offset != line.offset or queue.last_epoch != line.last_epoch:
                moved.append(line)
        return moved


def _move(plan: FetchPlan, line: _Line, offset: int, last_epoch: int) -> tuple[Key, Mapping[str, Any]]:
    line.offset, line.last_epoch = offset, last_epoch
    # A new dict: the session keeps the last one.
    entry = {**line.list[line.place], "fetch_offset": line.offset, "last_fetched_epoch": line.last_epoch}
    line.list[line.place] = entry
    name, topic_id, number = line.key
    plan.tickets[name, number] = ticket = (line.queue, line.version, line.offset)
    if plan.by_id:
        plan.tickets[topic_id, number] = ticket
    return line.key, entry
