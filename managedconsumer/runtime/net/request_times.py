"""How long the requests of one consumer take, and how many connections it makes, for telemetry to the broker."""

from __future__ import annotations

from typing import Any

from managedconsumer.wire.protocol import schemas


class Tally:
    """How often something happened and how long it took. Threads may lose a number to each other, which is harmless."""

    __slots__ = ("_longest", "_taken", "count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds, self._longest = 0, 0.0, 0.0
        self._taken = (0, 0.0)

    def add(self, seconds: float, count: int = 1, longest: float = 0.0) -> None:
        """Note ``count`` that took ``seconds`` in all, the ``longest`` of several so long."""
        self.count += count
        self.seconds += seconds
        self._longest = max(self._longest, seconds if count == 1 else longest)

    def take(self) -> tuple[float, float] | None:
        """Return the mean and the longest time (seconds) since the last call; None: nothing happened."""
        (count, seconds), longest = self._taken, self._longest
        self._taken, self._longest = (self.count, self.seconds), 0.0
        new = self._taken[0] - count
        return ((self._taken[1] - seconds) / new, longest) if new else None


class RequestTimes:
    """The requests of one consumer."""

    def __init__(self) -> None:
        self.connections = 0
        self.fetches = Tally()
        self.nodes: dict[int, Tally] = {}

    def answered(self, node_id: int | None, api: Any, *took: Any) -> None:
        """Note a response of a broker; None: its id is not known yet. ``took``: what :meth:`Tally.add` gets.

        Only fetches count, as in Java's consumer: a mean of these and of commits would tell of neither.
        """
        if api is not schemas.FETCH:
            return
        self.fetches.add(*took)
        if node_id is not None:
            tally = self.nodes.get(node_id)
            if tally is None:
                tally = self.nodes.setdefault(node_id, Tally())
            tally.add(*took)
