"""What must hold in every simulation, checked at every step.

* nothing lost: a commit never covers a record that nobody has finished; at the end every record was finished;
* order: within one ownership offsets follow one another; an ownership starts at what is committed;
* nothing is handed out by a member that knows of its loss, before the assigned-callback or after the revoked-callback;
* at most one owner whose commits would be accepted;
* nobody counts as lost what the coordinator keeps;
* the callbacks' contract (``SPEC`` 2);
* a commit that was reported as done was done, and none is made outside of a generation;
* the group settles when the faults stop; stopping leaves no worker behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Collection, Mapping

from managedconsumer.structs import TopicPartition

if TYPE_CHECKING:
    from managedconsumer.testing.simulate_broker import Brokers
    from managedconsumer.testing.simulate_member import Program


class Witness:
    """Sees everything that happens and remembers what was wrong."""

    def __init__(self, brokers: Brokers, report: Callable[[str], None]) -> None:
        self.brokers = brokers
        self.report = report
        self.programs: list[Program] = []
        #: Everything below this offset was finished by somebody.
        self.prefix: dict[TopicPartition, int] = {}
        self._beyond: dict[TopicPartition, set[int]] = {}
        #: The highest offset whose commit was ever accepted.
        self.highest: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, tuple[str, int]] = {}
        self._promised: dict[TopicPartition, int] = {}
        self.handed_out = self.repeated = self.commits = self.zombie_handouts = 0
        brokers.on_commit = self.commit_arrived

    # -- messages -------------------------------------------------------------------------------------

    def handing_out(self, program: Program, tp: TopicPartition, offset: int, state: Any) -> None:
        """A message leaves the consumer for the user's thread (its lock is held)."""
        self.handed_out += 1
        if program.knows_loss:
            self.report(f"{program.name} hands out {tp}@{offset} although it knows that its membership is lost")
        if program.contract is not None and tp not in program.contract.owned:
            self.report(f"{program.name} hands out {tp}@{offset}, which is not between its assigned and its revoked")
        self._check_order(program, tp, offset, state)
        if not program.unfenced():
            self.zombie_handouts += 1
            return
        committed = self.brokers.group.committed.get(tp, (0, ""))[0]
        if offset < committed:
            self.report(f"{program.name} owns {tp} and hands out {offset}, but {committed} is committed")
        for other in self.programs:
            if other is not program and other.may_hand_out(tp) and other.unfenced():
                self.report(f"{program.name} and {other.name} both own {tp}, and neither is fenced")

    def _check_order(self, program: Program, tp: TopicPartition, offset: int, state: Any) -> None:
        before = program.expected.get(tp)
        if before is not None and before[0] is state:
            if offset != before[1]:
                self.report(f"{program.name} hands out {tp}@{offset} after {before[1] - 1}")
        elif offset > self.prefix.get(tp, 0):
            self.report(
                f"{program.name} starts {tp} at {offset}, but nobody has finished {self.prefix.get(tp, 0)}: lost"
            )
        program.expected[tp] = (state, offset + 1)

    def finished(self, tp: TopicPartition, offset: int) -> None:
        """The user's code is done with a message."""
        prefix = self.prefix.get(tp, 0)
        if offset < prefix:
            self.repeated += 1
            return
        beyond = self._beyond.setdefault(tp, set())
        if offset in beyond:
            self.repeated += 1
        beyond.add(offset)
        while prefix in beyond:
            beyond.discard(prefix)
            prefix += 1
        self.prefix[tp] = prefix

    # -- commits --------------------------------------------------------------------------------------

    def commit_arrived(self, body: Mapping[str, Any], code: int) -> None:
        """The coordinator has decided about a commit."""
        if code:
            return
        self.commits += 1
        who = body["member_id"]
        if body["generation_id_or_member_epoch"] < 0:
            self.report(f"a commit outside of any generation (member {who!r}) was accepted: nothing fenced it")
        for topic in body["topics"]:
            for part in topic["partitions"]:
                tp = TopicPartition(topic["name"], part["partition_index"])
                offset = part["committed_offset"]
                self._check_not_back(who, tp, offset)
                self.highest[tp] = max(self.highest.get(tp, 0), offset)
                if offset > self.prefix.get(tp, 0):
                    self.report(f"{who} commits {tp}@{offset}, but nobody has finished {self.prefix.get(tp, 0)}")

    def _check_not_back(self, who: str, tp: TopicPartition, offset: int) -> None:
        """Nobody here seeks, so a commit never undoes one that somebody relies on.

        A member may go behind a commit of its own whose answer it has not got: it will be tried again.
        """
        by, before = self._last.get(tp, (who, 0))
        if offset < before and (by != who or offset < self._promised.get(tp, 0)):
            self.report(f"{who} commits {tp}@{offset}, back from {before} by {by}")
        self._last[tp] = (who, offset)

    def commit_returned(self, program: Program, offsets: Mapping[TopicPartition, int]) -> None:
        """``commit_offsets()`` came back without an exception."""
        for tp, offset in offsets.items():
            self._promised[tp] = max(offset, self._promised.get(tp, 0))
            if self.highest.get(tp, 0) < offset:
                self.report(f"{program.name}: commit_offsets() returned, but {tp}@{offset} was never committed")

    # -- the end --------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What is not yet as it should be when no more faults happen; empty: the group has settled."""
        live = [program for program in self.programs if program.running]
        for program in live:
            if not program.stable():
                return f"{program.name} is {program.describe()}"
        assigned = sorted(tp for program in live for tp in program.assigned())
        if assigned != sorted(self.brokers.logs):
            return f"assigned are {[f'{tp.topic}-{tp.partition}' for tp in assigned]}"
        for tp, log in self.brokers.logs.items():
            if self.prefix.get(tp, 0) < log.end:
                return f"{tp.topic}-{tp.partition}: {self.prefix.get(tp, 0)} of {log.end} finished"
            if self.brokers.group.committed.get(tp, (0, ""))[0] < log.end:
                return f"{tp.topic}-{tp.partition}: {self.brokers.group.committed.get(tp)} of {log.end} committed"
        return ""


class Contract:
    """The callbacks of one listener, as a user may rely on them."""

    def __init__(self, program: Program, report: Callable[[str], None]) -> None:
        self._program = program
        self._report = report
        self.owned: set[TopicPartition] = set()
        self._assigned_in: Any = None

    def _wrong(self, text: str) -> None:
        self._report(f"{self._program.name}: {text} (owned before: {_short(self.owned)})")

    def revoked(self, tps: Collection[TopicPartition]) -> None:
        """``on_partitions_revoked`` begins."""
        given = set(tps)
        if self._program.knows_loss:
            self._wrong(f"revoked({_short(given)}) though the membership is lost")
        if self._program.cooperative and not given:
            self._wrong("revoked with nothing under a cooperative assignor")
        if not given <= self.owned or (given != self.owned and not self._program.cooperative):
            self._wrong(f"revoked({_short(given)})")
        self.owned -= given

    def lost(self, tps: Collection[TopicPartition]) -> None:
        """``on_partitions_lost`` begins."""
        given = set(tps)
        if not self._program.loses:
            self._wrong(f"lost({_short(given)}) though nothing was lost")
        if not given or given != self.owned:
            self._wrong(f"lost({_short(given)})")
        self.owned -= given

    def assigned(self, tps: Collection[TopicPartition]) -> None:
        """``on_partitions_assigned`` begins."""
        given, generation = set(tps), self._program.generation()
        if self.owned and not self._program.cooperative:
            self._wrong(f"assigned({_short(given)}) before everything was revoked")
        if given & self.owned:
            self._wrong(f"assigned({_short(given)}) again")
        # Under KIP-848 an epoch brings what others give up bit by bit.
        if generation.joined and generation == self._assigned_in and not self._program.modern:
            self._wrong(f"assigned twice in generation {generation.id}")
        if generation.joined:
            self._assigned_in = generation
        self.owned |= given

    def fenced(self) -> None:
        """The membership is lost; the coordinator may take the member back into the same generation."""
        self._assigned_in = None

    def stopped(self) -> None:
        """``stop()`` has returned."""
        if self.owned:
            self._wrong("stopped without revoked or lost")
        self.owned.clear()


def _short(tps: Collection[TopicPartition]) -> str:
    return "{" + ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps)) + "}"
