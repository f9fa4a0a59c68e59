"""The nodes of the in-memory broker: which are up, and which node coordinates a group or a transactional id. Pure."""

from __future__ import annotations

import zlib


class Nodes:
    """Nodes 1 to ``count``, all up. ``down``: those that do not listen. ``coordinators``: the nodes of groups.

    ``stateless``: each node answers what another one should.
    """

    def __init__(self, count: int, *, stateless: bool = False) -> None:
        self.stateless = stateless
        self.numbers = list(range(1, count + 1))
        self.down: set[int] = set()
        self.coordinators: dict[str, int] = {}

    @property
    def up(self) -> list[int]:
        """The nodes that listen, by number."""
        return [node for node in self.numbers if node not in self.down]

    def of_number(self, number: int) -> int:
        """Return the nodes in turn, one for each partition."""
        alive = self.up or self.numbers
        return alive[number % len(alive)]

    def coordinator(self, key: str) -> int:
        """Return the node that coordinates a group; it stays until it goes down or the coordinator is moved."""
        node = self.coordinators.get(key)
        if node is None or node in self.down:
            node = self.coordinators[key] = self.of_number(zlib.crc32(key.encode()))
        return node

    def told(self, node: int, asked: int) -> int:
        """Return the node that ``asked`` names where it is ``node``'s turn."""
        return asked if self.stateless else node

    def other(self, node: int) -> int | None:
        """Return the next node behind ``node`` that is up; None if no other node is."""
        alive = [each for each in self.up if each != node]
        return next((each for each in alive if each > node), alive[0] if alive else None)
