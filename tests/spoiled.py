"""The broker in memory with answers that a test changes, delays or keeps back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from managedconsumer.testing import MemoryBroker
from managedconsumer.testing.memory.member import Request

Body = dict[str, Any]


def partitions_of(answer: Body) -> Iterator[Body]:
    """The parts of a Fetch, ListOffsets or OffsetForLeaderEpoch answer."""
    for topic in answer.get("responses") or answer["topics"]:
        yield from topic["partitions"]


class SpoiledBroker(MemoryBroker):
    """``spoil["Fetch"] = change``: ``change(answer)`` is called for each answer and changes it in place.

    ``delay["Fetch"]``: for how many seconds each answer is kept back. ``asked`` counts the requests by name.
    """

    def __init__(self, topics: dict[str, int]) -> None:
        super().__init__(topics)
        self.spoil: dict[str, Callable[[Body], None]] = {}
        self.delay: dict[str, float] = {}
        self.asked: dict[str, int] = {}

    def _handle(self, request: Request, answer: Callable[[Any], None]) -> None:
        name = request.api.name
        self.asked[name] = self.asked.get(name, 0) + 1

        def changed(response: Body | None) -> None:
            if response is not None and name in self.spoil:
                self.spoil[name](response)
            if name in self.delay and self._server is not None:
                self._server.after(self.delay[name], lambda: answer(response))
            else:
                answer(response)

        super()._handle(request, changed)

    def refuse(self, name: str, code: int, times: int = 1_000_000) -> None:
        """Answer the next ``times`` requests ``name`` with ``code`` for every partition."""
        left = [times]

        def change(answer: Body) -> None:
            if left[0] > 0:
                left[0] -= 1
                for part in partitions_of(answer):
                    part["error_code"] = code
                    if name == "Fetch":
                        part["records"] = b""

        self.spoil[name] = change
