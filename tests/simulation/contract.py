"""The contract of the rebalance callbacks (``docs/explanation/guarantees.rst``), checked for one simulated listener."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Collection

from managedconsumer.structs import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.watch import Watched


class Contract:
    """The callbacks of one listener, as a user may rely on them."""

    def __init__(self, program: Watched, report: Callable[[str], None]) -> None:
        self._program = program
        self._report = report
        self.owned: set[TopicPartition] = set()
        self._assigned_in: Any = None

    def _wrong(self, text: str) -> None:
        self._report(f"{self._program.name}: {text} (owned before: {_short(self.owned)})")

    def revoked(self, tps: Collection[TopicPartition]) -> None:
        given = set(tps)
        if self._program.knows_loss:
            self._wrong(f"revoked({_short(given)}) though the membership is lost")
        if self._program.cooperative and not given:
            self._wrong("revoked with nothing under a cooperative assignor")
        if not given <= self.owned or (given != self.owned and not self._program.cooperative):
            self._wrong(f"revoked({_short(given)})")
        self.owned -= given
        self._assigned_in = None  # a follower that joins once more may be given the same generation

    def lost(self, tps: Collection[TopicPartition]) -> None:
        given = set(tps)
        if not self._program.loses:
            self._wrong(f"lost({_short(given)}) though nothing was lost")
        if not given or given != self.owned:
            self._wrong(f"lost({_short(given)})")
        self.owned -= given

    def assigned(self, tps: Collection[TopicPartition]) -> None:
        given, generation = set(tps), self._program.generation()
        # A coordinator that takes the group over knows the last generation, and lets a follower join it once more.
        moment = (generation, self._program.world.brokers.moves)
        if self.owned and not self._program.cooperative:
            self._wrong(f"assigned({_short(given)}) before everything was revoked")
        if given & self.owned:
            self._wrong(f"assigned({_short(given)}) again")
        # In a KIP-848 group an epoch brings what others give up bit by bit.
        if generation.joined and moment == self._assigned_in and not self._program.bit_by_bit:
            self._wrong(f"assigned twice in generation {generation.id}")
        if generation.joined:
            self._assigned_in = moment
        self.owned |= given

    def fenced(self) -> None:
        """The membership is lost; the coordinator may take the member back into the same generation."""
        self._assigned_in = None

    def stopped(self) -> None:
        if self.owned:
            self._wrong("stopped without revoked or lost")
        self.owned.clear()


def _short(tps: Collection[TopicPartition]) -> str:
    return "{" + ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps)) + "}"
