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

    def add(self, seconds: float) -> None:
        """Note one that took ``seconds``."""
        self.count += 1
        self.seconds += seconds
        self._longest = max(self._longest, seconds)

    def take(self) -> tuple[float, float] | None:
        """Return the mean and the longest time (seconds) since the last call; None: nothing happened."""
        (count, seconds), longest = self._taken, self._longest
        self._taken, self._longest = (self.count, self.seconds), 0.0
        new = self._taken[0] - count
        return ((self._taken[1] - seconds) / new, longest) if new else None


class RequestTimes:
    """The requests of one consumer. Not those that a consuming thread repeats in compiled code, without a worker."""

    def __init__(self) -> None:
        self.connections = 0
        self.fetches = Tally()
        self.nodes: dict[int, Tally] = {}

    def answered(self, node_id: int | None, api: Any, seconds: float) -> None:
        """Note a response of a broker; None: its id is not known yet."""
        if api is schemas.FETCH:
            self.fetches.add(seconds)
        if node_id is not None:
            tally = self.nodes.get(node_id)
            if tally is None:
                tally = self.nodes.setdefault(node_id, Tally())
            tally.add(seconds)
