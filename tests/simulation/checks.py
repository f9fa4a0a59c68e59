"""The rules that must hold in every simulation, checked at every step.

* nothing lost: a commit never covers a record that nobody has finished; at the end every record was finished;
* order: within one ownership offsets follow one another; an ownership starts at what is committed; what a call did not
  give to the user because it was interrupted comes again;
* ``LATEST``: what is produced after ``start()`` or the assigned-callback is delivered, as long as the partition stays
  where it is, and with automatic commits after a hand-over that went well, too; both know positions, unless leaders
  could not be asked in time;
* nothing is handed out by a member that knows of its loss, before the assigned-callback or after the revoked-callback,
  or while the partition is paused; nor what was aborted (with ``read_committed``) or cannot be read;
* at most one owner whose commits would be accepted, but for a migration in the middle of a cooperative rebalance: Kafka
  takes what a classic member was assigned for what it has, and gives to others what the member has yet to give up;
* nobody counts as lost what the coordinator keeps;
* the callbacks' contract (``SPEC`` 2);
* a commit that was reported as done was done, and none is made outside of a generation;
* a reader that waits is woken, and does not find its message only because its nap was over; the same for fetchers;
* the group settles when the faults stop; stopping leaves no worker and no lock behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from managedconsumer.structs import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.brokers import Brokers
    from tests.simulation.plan import Plan
    from tests.simulation.program import Program
    from tests.simulation.watch import Watched


class Promise:
    """Somebody has been told that a partition is read from now on, when its log ended at ``floor``."""

    def __init__(self, program: Watched, state: Any, floor: int) -> None:
        """``state``: the ownership that it was told of."""
        self.program = program
        self.floor = floor
        self._state = state
        #: False: where this ownership starts is committed by nobody when it ends.
        self.committed = program.world.plan.auto_commit is not None

    def binds(self, state: Any) -> bool:
        """True if the ownership ``state`` must not start behind it.

        Another ownership may if the first one did not end well: by a process that died, an eviction (which its member
        perhaps does not know of yet), a commit that failed, or without automatic commits.
        """
        if state is self._state:
            return True
        return self.committed and not self._state.active and not self.program.process.dead


class Witness:
    """Sees everything that happens and remembers what was wrong."""

    def __init__(self, brokers: Brokers, report: Callable[[str], None], plan: Plan) -> None:
        self.brokers = brokers
        self.report = report
        self.programs: list[Program] = []
        self._committed_only = plan.isolation == "read_committed"
        self._modern = plan.protocol != "classic"
        self._latest = plan.reset == "latest"
        self._skips_damage = plan.on_error == "skip"
        #: Everything below this offset was finished by somebody, or is for nobody.
        self.prefix: dict[TopicPartition, int] = {}
        self._beyond: dict[TopicPartition, set[int]] = {}
        #: The offsets that the users have given up because they cannot be read.
        self._given_up: dict[TopicPartition, set[int]] = {}
        #: Under LATEST: what somebody was told last who reads a partition from now on.
        self._floor: dict[TopicPartition, Promise] = {}
        #: Under LATEST: the ends that the brokers have told.
        self._told: dict[TopicPartition, set[int]] = {}
        #: Under LATEST: the partitions of which a coordinator has told last that nothing is committed, and that nobody
        #: has started since. A commit that was on its way meanwhile may arrive afterwards.
        self._told_nothing: set[TopicPartition] = set()
        #: The highest offset whose commit was ever accepted.
        self.highest: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, tuple[str, int]] = {}
        self._promised: dict[TopicPartition, int] = {}
        #: What a classic member had yet to give up when its group became a KIP-848 one.
        self._torn: set[TopicPartition] = set()
        self.handed_out = self.repeated = self.commits = self.zombie_handouts = 0
        brokers.on_commit = self.commit_arrived
        brokers.on_end_told = self.end_told
        brokers.on_committed_told = self.committed_told
        brokers.on_upgrade = self.upgraded

    # -- messages -------------------------------------------------------------------------------------

    def visible(self, tp: TopicPartition, offset: int) -> int:
        """The first offset at or after ``offset`` that a reader has to get: not a marker, not aborted, not given up."""
        log, given_up = self.brokers.logs[tp], self._given_up.get(tp, ())
        skipped = log.damaged if self._skips_damage else given_up
        if log.markers or skipped or log.reverted:
            while offset in skipped or log.never_seen(offset, self._committed_only):
                offset += 1
        return offset

    def reach(self, tp: TopicPartition) -> int:
        """Everything below was finished, or is for nobody."""
        prefix = self.prefix.get(tp, 0)
        if self._by_latest(tp) and tp in self._floor:
            prefix = max(prefix, self._floor[tp].floor)
        return self.visible(tp, prefix)

    def handing_out(self, program: Watched, tp: TopicPartition, offset: int, state: Any) -> None:
        """A message leaves the consumer for the user's thread (its lock is held)."""
        self.handed_out += 1
        if program.knows_loss:
            self.report(f"{program.name} hands out {tp}@{offset} although it knows that its membership is lost")
        if program.session_over():
            self.report(f"{program.name} hands out {tp}@{offset} after its session, by its own clock")
        if program.session_ended():
            self.report(f"{program.name} hands out {tp}@{offset} after the coordinator ended its session")
        if program.contract is not None and tp not in program.contract.owned:
            self.report(f"{program.name} hands out {tp}@{offset}, which is not between its assigned and its revoked")
        if program.paused.get(tp) is state is not None:
            self.report(f"{program.name} hands out {tp}@{offset}, which is paused")
        if self.visible(tp, offset) != offset or offset in self.brokers.logs[tp].damaged:
            self.report(f"{program.name} hands out {tp}@{offset}, which is aborted, a marker or damaged")
        self._check_order(program, tp, offset, state)
        if not program.unfenced():
            self.zombie_handouts += 1
            return
        if tp in self._torn:
            return
        committed = self.brokers.group.committed.get(tp, (0, ""))[0]
        if offset < committed:
            self.report(f"{program.name} owns {tp} and hands out {offset}, but {committed} is committed")
        for other in self.programs:
            if other is not program and other.may_hand_out(tp) and other.unfenced():
                self.report(f"{program.name} and {other.name} both own {tp}, and neither is fenced")

    def upgraded(self, assigned: Mapping[str, frozenset[TopicPartition]]) -> None:
        """A classic group becomes a KIP-848 one; ``assigned``: by member."""
        for program in self.programs:
            has = assigned.get(program.generation().member_id)
            if has is not None:
                self._torn.update(set(program.assigned()) - has)

    def _check_order(self, program: Watched, tp: TopicPartition, offset: int, state: Any) -> None:
        before = program.expected.get(tp)
        if before is None or before[0] is not state:
            program.undelivered.pop(tp, None)
            program.repeats.pop(tp, None)
            self._check_start(program, tp, offset, state)
        else:
            back = program.undelivered.get(tp)
            expected = self.visible(tp, before[1])
            if back and offset > min(back):
                self.report(f"{program.name} hands out {tp}@{offset}, but {min(back)} never came to the user: lost")
            elif back:
                back.discard(offset)
                program.expected[tp] = (state, before[1])
                return
            elif program.repeats.get(tp, expected) <= offset < expected:
                return  # fetched once more, with others that had come to the user
            elif offset != expected:
                self.report(f"{program.name} hands out {tp}@{offset}, not {expected}")
        program.expected[tp] = (state, offset + 1)

    def _check_start(self, program: Watched, tp: TopicPartition, offset: int, state: Any) -> None:
        if self._by_latest(tp):
            self._told_nothing.discard(tp)
            self._check_promise(program, tp, offset, state)
            self._floor.pop(tp, None)
            self.prefix[tp] = max(offset, self.prefix.get(tp, 0))
        elif offset > self.reach(tp):
            self.report(f"{program.name} starts {tp} at {offset}, but nobody has finished {self.reach(tp)}: lost")

    def undelivered(self, program: Program, tp: TopicPartition, offset: int) -> None:
        """A call that had this message ended by an exception: it has to come again."""
        program.undelivered.setdefault(tp, set()).add(offset)
        program.repeats[tp] = min(offset, program.repeats.get(tp, offset))

    def moved(self, program: Program, tp: TopicPartition, to: int, state: Any) -> None:
        """The user goes on at ``to``: what is damaged before it is given up."""
        damaged = self.brokers.logs[tp].damaged
        self._given_up.setdefault(tp, set()).update(offset for offset in damaged if offset < to)
        before = program.expected.get(tp)
        if before is None or before[0] is not state:  # nothing was handed out before the damage: it starts behind it
            self._check_start(program, tp, to, state)
        program.expected[tp] = (state, to)
        program.undelivered.pop(tp, None)

    def finished(self, tp: TopicPartition, offset: int) -> None:
        """The user's code is done with a message."""
        # Not reach(): a member that keeps its position reads on before the end that LATEST would start at.
        prefix = self.visible(tp, self.prefix.get(tp, 0))
        if offset < prefix:
            self.repeated += 1
            return
        beyond = self._beyond.setdefault(tp, set())
        if offset in beyond:
            self.repeated += 1
        beyond.add(offset)
        while prefix in beyond:
            beyond.discard(prefix)
            prefix = self.visible(tp, prefix + 1)
        self.prefix[tp] = prefix

    # -- LATEST ---------------------------------------------------------------------------------------

    def _by_latest(self, tp: TopicPartition) -> bool:
        """True while a reader of ``tp`` starts at the end of its log."""
        return self._latest and (tp not in self.highest or tp in self._told_nothing)

    def committed_told(self, tp: TopicPartition, offset: int) -> None:
        """The coordinator tells what is committed, -1: nothing."""
        if offset < 0:
            self._told_nothing.add(tp)
        else:
            self._told_nothing.discard(tp)

    def end_told(self, tp: TopicPartition, offset: int) -> None:
        if self._latest:
            self._told.setdefault(tp, set()).add(offset)

    def promise(self, program: Watched, tp: TopicPartition, state: Any) -> None:
        """``program`` has been told that it reads ``tp`` from now on; ``state`` is its ownership, with a position."""
        if self._by_latest(tp):
            before = program.expected.get(tp)
            if before is None or before[0] is not state:  # it starts; one that was kept has read on
                self._check_promise(program, tp, state.position, state)
            self._floor[tp] = Promise(program, state, self.brokers.logs[tp].stable(self._committed_only))

    def _check_promise(self, program: Watched, tp: TopicPartition, offset: int, state: Any) -> None:
        """``program`` starts at ``offset``: what was promised before, to whomever, still counts if nothing was lost."""
        promise = self._floor.get(tp)
        if promise is not None and promise.binds(state) and offset > self.visible(tp, promise.floor):
            self.report(f"{program.name} starts {tp} at {offset}, though it was read from {promise.floor} on: lost")

    def commit_failed(self, program: Watched) -> None:
        """An automatic commit of ``program`` did not happen, or its membership is lost: so are its starts by LATEST."""
        for promise in self._floor.values():
            if promise.program is program:
                promise.committed = False

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
                # Markers and aborted messages behind the end that was told may have been passed already.
                ends = self._told.get(tp, ()) if self._by_latest(tp) else ()
                if any(end <= offset <= self.visible(tp, end) for end in ends):
                    self._told_nothing.discard(tp)
                    self.prefix[tp] = max(offset, self.prefix.get(tp, 0))
                elif offset > self.reach(tp):
                    self.report(f"{who} commits {tp}@{offset}, but nobody has finished {self.reach(tp)}")
                else:
                    self.prefix[tp] = max(offset, self.prefix.get(tp, 0))
                self.highest[tp] = max(self.highest.get(tp, 0), offset)

    def _check_not_back(self, who: str, tp: TopicPartition, offset: int) -> None:
        """Nobody here seeks back, so a commit never undoes one that somebody relies on.

        A member may go behind a commit of its own whose answer it has not got: it will be tried again. KIP-848 fences
        commits by the member's epoch, which stays the same while the member gives up one partition after the other:
        what was on its way then may arrive after a commit of the next owner.
        """
        by, before = self._last.get(tp, (who, 0))
        if self._modern and by != who:
            before = 0
        if offset < before and (by != who or offset < self._promised.get(tp, 0)):
            self.report(f"{who} commits {tp}@{offset}, back from {before} by {by}")
        self._last[tp] = (who, offset)

    def commit_returned(self, program: Program, offsets: Mapping[TopicPartition, int], what: str) -> None:
        """``commit_offsets()`` came back without an exception."""
        for tp, offset in offsets.items():
            if self.visible(tp, self.highest.get(tp, 0)) < offset:
                self.report(f"{program.name}: commit_offsets() returned, but {what} {tp}@{offset} was never committed")
            else:
                self._promised[tp] = max(offset, self._promised.get(tp, 0))

    # -- the end --------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """Describe why the group has not settled although no more faults happen; empty: it has."""
        live = [program for program in self.programs if program.running]
        for program in live:
            if not program.stable():
                return f"{program.name} is {program.describe()}"
        assigned = sorted(tp for program in live for tp in program.assigned())
        if assigned != sorted(self.brokers.logs):
            return f"assigned are {[f'{tp.topic}-{tp.partition}' for tp in assigned]}"
        for tp, log in self.brokers.logs.items():
            if self._latest and tp not in self.highest and tp not in self.prefix and tp not in self._floor:
                continue  # nobody was told anything about it
            reach, committed = self.reach(tp), self.brokers.group.committed.get(tp, (0, ""))[0]
            if reach < self.visible(tp, log.end):
                return f"{tp.topic}-{tp.partition}: {reach} of {log.end} finished"
            if self._latest and tp not in self.highest and tp not in self.prefix:
                continue  # nothing has come since
            if tp in self._torn:  # its former owner's last commit may come behind the next owner's
                committed = max(committed, self.highest.get(tp, 0))
            if self.visible(tp, committed) < log.end:
                return f"{tp.topic}-{tp.partition}: {committed} of {log.end} committed"
        return ""
