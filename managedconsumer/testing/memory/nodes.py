"""The nodes of the in-memory broker: which are up, and which of them coordinates a group. Pure."""

from __future__ import annotations

import zlib


class Nodes:
    """Nodes 1 to ``count``, all up."""

    def __init__(self, count: int) -> None:
        self.numbers = list(range(1, count + 1))
        self._down: set[int] = set()
        self._coordinators: dict[str, int] = {}

    def is_up(self, node: int) -> bool:
        """Whether it listens."""
        return node not in self._down

    @property
    def up(self) -> list[int]:
        """The nodes that listen, by number."""
        return [node for node in self.numbers if node not in self._down]

    def of_number(self, number: int) -> int:
        """The nodes in turn: one for each partition."""
        alive = self.up or self.numbers
        return alive[number % len(alive)]

    def coordinator(self, group: str) -> int:
        """The node that coordinates a group; it stays until it goes down, or is made to move."""
        node = self._coordinators.get(group)
        if node is None or not self.is_up(node):
            node = self._coordinators[group] = self.of_number(zlib.crc32(group.encode()))
        return node

    def move_coordinator(self, group: str, node: int) -> None:
        """Another node coordinates the group."""
        self._coordinators[group] = node

    def other(self, node: int) -> int | None:
        """The next node that is up, behind ``node``; None if no other one is."""
        alive = [each for each in self.up if each != node]
        return next((each for each in alive if each > node), alive[0] if alive else None)

    def take_down(self, node: int) -> None:
        """It listens no more."""
        self._down.add(node)

    def bring_up(self, node: int) -> None:
        """It listens again."""
        self._down.discard(node)
