"""A small world in which ``run()``'s decisions are made in random schedules: workers, retries, rebalances, crashes.

``python -m tests.processing.simulation FIRST LAST`` runs these schedules; a violation is an AssertionError with its
seed. The world is the consumer, the workers and the group around :class:`managedconsumer.processing.work.Work`. It
checks after each step what ``run()`` promises:

* a message starts only when all earlier ones of its key (its partition) have finished, and never twice in one life;
* what a commit or its map says to be finished is, and is not started again by whoever reads it;
* maps stay within their bound, and what is in hand within its own;
* when a worker finds nothing to do, no partition waits of which little is in hand;
* nothing of a partition that is held starts, no result of a lost one counts;
* a failed message is not tried again before its time, nor more often than allowed;
* in the end everything has been finished.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from managedconsumer.processing import offset_map
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.processing.strands import Part, Strand
from managedconsumer.processing.values import KEY, NONE, PARTITION, Plan, Retry
from managedconsumer.processing.work import Work
from managedconsumer.structs import TopicPartition

_STEPS = 220


@dataclass(frozen=True, eq=False)
class Note:
    """A message."""

    tp: TopicPartition
    offset: int
    partition_key: bytes | None


@dataclass
class Gate:
    held: bool = False


@dataclass
class Hand:
    """A worker: the strands it has been given, how far it is with the first of them, and those it is through with."""

    strands: list[Strand] = field(default_factory=list)
    through: list[Strand] = field(default_factory=list)
    era: int = 0
    place: int = 0
    begun: bool = False


class Member:
    """One life of a consumer that runs: what it owns, where it reads, what it knows to be finished."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.work = Work(world.plan, world.map_room)
        self.gates: dict[TopicPartition, Gate] = {}
        self.position: dict[TopicPartition, int] = {}
        self.skipped: dict[TopicPartition, tuple[int, OffsetMap | None]] = {}
        self.finished: set[tuple[TopicPartition, int]] = set()
        self.reported: set[tuple[TopicPartition, int]] = set()
        self.failed: dict[Note, tuple[int, float]] = {}
        self.hands = [Hand() for _ in range(world.workers)]
        self.draining: set[TopicPartition] = set()

    # -- partitions -----------------------------------------------------------------------------------

    def assign(self, tp: TopicPartition) -> None:
        base, text = self.world.committed[tp]
        known = offset_map.decode(text, base) if text else None
        assert (known is None) is (not text), f"a map that nobody can read: {text!r}"
        self.gates[tp], self.position[tp], self.skipped[tp] = Gate(), base, (base, known)

    def hold(self, tps: set[TopicPartition]) -> None:
        for tp in tps:
            self.gates[tp].held = True
        self.draining |= tps
        self.work.interrupt()

    def release(self) -> None:
        for tp in self.draining:
            self.gates[tp].held = False
        self.draining = set()

    def lose(self, tps: set[TopicPartition]) -> None:
        self.work.forget(tps)
        for tp in tps:
            del self.gates[tp], self.position[tp], self.skipped[tp]
        self.finished = {done for done in self.finished if done[0] not in tps}
        self.reported &= self.finished
        self.failed = {note: failure for note, failure in self.failed.items() if note.tp not in tps}
        self.draining -= tps

    def busy(self, tps: set[TopicPartition]) -> bool:
        return any(hand.begun and hand.strands[0].touches(tps) for hand in self.hands)

    # -- messages -------------------------------------------------------------------------------------

    def fetch(self, chance: random.Random) -> None:
        work = self.work
        there = [tp for tp, gate in self.gates.items() if not gate.held and not self.is_full(tp) and self.left(tp)]
        room = work.room()
        if not there or room <= 0:
            return
        tp = chance.choice(sorted(there))
        notes = self.left(tp)[: chance.randint(1, min(room, 12))]
        part = work.parts.get(tp)
        if part is None:
            part = work.open(tp, self.gates[tp], self.skipped[tp][1])
        work.offer(part, notes, self.world.now)
        self.position[tp] = notes[-1].offset + 1

    def is_full(self, tp: TopicPartition) -> bool:
        part = self.work.parts.get(tp)
        return part is not None and part.full

    def left(self, tp: TopicPartition) -> list[Note]:
        return [note for note in self.world.log[tp] if note.offset >= self.position[tp]]

    # -- workers --------------------------------------------------------------------------------------

    def step(self, hand: Hand, chance: random.Random) -> None:
        work, now = self.work, self.world.now
        if not hand.strands:
            self.report_through(hand)
            hand.strands, hand.era, hand.place = work.take(chance.randint(1, 6), now), work.era, 0
            for strand in hand.strands:
                self.world.check_strand(self, strand)
            for part in work.parts.values() if not hand.strands else ():
                little = len(part.pending) < 2 * work.room() and part.map_fits(self.world.map_room)
                assert not (part.full and little), f"{part.tp} waits, though little of it is in hand"
        elif hand.begun:
            self.finish(hand, chance)
        elif hand.era != work.era or chance.random() < 0.05:  # it has to give back what it has not begun
            self.report(hand)
        else:
            hand.begun = True
            strand = hand.strands[0]
            for note in strand.running if work_in_lists(self.world.plan) else [strand.running[hand.place]]:
                self.world.check_start(self, strand, note)

    def finish(self, hand: Hand, chance: random.Random) -> None:
        """The handler of what was begun returns, or raises."""
        world, work, strand = self.world, self.work, hand.strands[0]
        hand.begun = False
        lists = work_in_lists(world.plan)
        notes = strand.running[hand.place :] if lists else [strand.running[hand.place]]
        if chance.random() < world.fails:
            error = ValueError("no luck") if chance.random() < 0.9 else KeyError("never again")
            if work.again(strand, hand.place, error):
                for note in (note for note in notes if world.part_of(strand, note).alive):
                    times, _ = self.failed.get(note, (0, 0.0))
                    self.failed[note] = times + 1, world.now + world.retry.first_ms / 1000.0
                self.report(hand, failed=True, chance=chance.random())
                return
        world.has_finished(self, strand, notes)
        hand.place += len(notes)
        if hand.place == len(strand.running):
            if chance.random() < 0.7:  # it says so with all others of its block
                hand.through.append(hand.strands.pop(0))
                hand.place = 0
            else:
                self.report(hand)

    def report_through(self, hand: Hand) -> None:
        """All messages of some strands are finished."""
        notes = [note for strand in hand.through for note in strand.running]
        for strand in hand.through:
            ours = [note for note in strand.running if self.world.part_of(strand, note).alive]
            self.reported |= {(note.tp, note.offset) for note in ours}
        assert self.work.finish(hand.through) == len(notes)
        hand.through = []

    def report(self, hand: Hand, **how: Any) -> None:
        strand, place = hand.strands.pop(0), hand.place
        hand.place = 0
        ours = [note for note in strand.running[:place] if self.world.part_of(strand, note).alive]
        self.reported |= {(note.tp, note.offset) for note in ours}
        self.work.report(strand, place, self.world.now, **how)


def work_in_lists(plan: Plan) -> bool:
    return plan.batch is not None


class World:
    """The logs, the group's commits, and what is true."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = self.chance = random.Random(seed)
        self.now = 0.0
        self.workers = chance.randint(1, 5)
        self.retry = Retry(chance.randint(1, 3), 50, 2.0, 200, 0.0, on=(ValueError,))
        order = chance.choice((KEY, KEY, PARTITION, NONE))
        batch = None if chance.random() < 0.6 else (chance.randint(1, 4), chance.choice((0.0, 0.2)))
        most = chance.choice((1, 5, 20, 60)) if batch is None else 20
        self.plan = Plan(order, most, batch, self.retry)
        # The shortest map has 15 characters (a version, a kind, and a head of 10 bytes).
        self.map_room = chance.choice((15, 17, 20, 400))
        self.fails = chance.choice((0.0, 0.1, 0.4))
        keys: list[bytes | None] = [b"%d" % n for n in range(chance.choice((1, 3, 30)))]
        keys += [None] * chance.choice((0, 3))
        self.log: dict[TopicPartition, list[Note]] = {}
        for number in range(chance.randint(1, 3)):
            tp, offset, notes = TopicPartition("t", number), chance.randint(0, 3), []
            for _ in range(chance.randint(5, 40)):
                notes.append(Note(tp, offset, chance.choice(keys)))
                offset += chance.choice((1, 1, 1, 1, 2, 5))
            self.log[tp] = notes
        self.committed: dict[TopicPartition, tuple[int, str]] = dict.fromkeys(self.log, (0, ""))
        self.true: set[tuple[TopicPartition, int]] = set()
        self.before: dict[Note, list[Note]] = {}
        for notes in self.log.values():
            last: dict[Any, Note] = {}
            for note in notes:
                kind = None if order == NONE else note.partition_key if order == KEY else 0
                if kind is not None and kind in last:
                    self.before[note] = [last[kind]]
                last[kind] = note
        self.members = [Member(self) for _ in range(chance.randint(1, 2))]
        for tp in self.log:
            chance.choice(self.members).assign(tp)

    # -- what happens ---------------------------------------------------------------------------------

    def commit(self, member: Member) -> None:
        for tp, part in member.work.parts.items():
            low = part.lowest()
            base = member.position[tp] if low is None else low
            text = part.text(base, self.map_room)
            self.check_commit(member, tp, base, text)
            self.committed[tp] = base, text

    def rebalance(self, member: Member) -> None:
        """One step of a rebalance: it begins, or drains, or is over."""
        if not member.draining:
            some = {tp for tp in member.gates if self.chance.random() < 0.6}
            if some:
                member.hold(some)
            return
        if member.busy(member.draining) and self.chance.random() < 0.7:
            return
        way = self.chance.random()
        if way < 0.3:
            member.release()  # it keeps them
            return
        if way < 0.9:
            self.commit(member)  # otherwise they are lost without a commit
        gone = set(member.draining)
        member.lose(gone)
        for tp in sorted(gone):
            self.chance.choice(self.members).assign(tp)

    def crash(self, member: Member) -> None:
        fresh = Member(self)
        self.members[self.members.index(member)] = fresh
        for tp in member.gates:
            self.chance.choice(self.members).assign(tp)

    def run(self) -> None:
        chance = self.chance
        for _ in range(_STEPS):
            member, way = chance.choice(self.members), chance.random()
            if way < 0.2:
                member.fetch(chance)
            elif way < 0.8:
                member.step(chance.choice(member.hands), chance)
            elif way < 0.88:
                self.now += chance.choice((0.01, 0.05, 0.3))
            elif way < 0.94:
                self.commit(member)
            elif way < 0.985:
                self.rebalance(member)
            elif way < 0.993:
                self.crash(member)
            self.check_counts(member)
        self.finish()

    def finish(self) -> None:
        """No more faults: everything gets finished."""
        self.fails = 0.0
        for member in self.members:
            member.release()
        wanted = sum(len(notes) for notes in self.log.values())
        for _ in range(4000):
            for member in self.members:
                member.fetch(self.chance)
                for hand in member.hands:
                    member.step(hand, self.chance)
            self.now += 0.05
            left = any(member.work.in_hand or any(map(member.left, member.gates)) for member in self.members)
            if len(self.true) == wanted and not left:
                break
        missing = [(n.tp.partition, n.offset) for notes in self.log.values() for n in notes if not self.is_true(n)]
        assert not missing, f"never finished: {missing[:5]}"
        for member in self.members:
            self.commit(member)
            assert member.work.in_hand == member.work.parked == 0
            assert not any(part.strands for part in member.work.parts.values())
        for tp, (base, text) in self.committed.items():
            assert base > self.log[tp][-1].offset and not text, f"{tp}: committed {base} {text!r} at the end"

    # -- what has to be true ----------------------------------------------------------------------------

    def is_true(self, note: Note) -> bool:
        return (note.tp, note.offset) in self.true

    def has_finished(self, member: Member, strand: Strand, notes: list[Note]) -> None:
        for note in notes:
            self.true.add((note.tp, note.offset))
            if self.part_of(strand, note).alive:
                member.finished.add((note.tp, note.offset))

    def part_of(self, strand: Strand, note: Note) -> Part:
        return strand.part if strand.parts is None else strand.parts[strand.running.index(note)]

    def check_strand(self, member: Member, strand: Strand) -> None:
        notes: list[Note] = strand.running
        assert notes, "a strand without messages"
        for note in notes:
            assert note.tp in member.gates, f"{note} of a partition that is gone"
            assert not member.gates[note.tp].held, f"{note} starts during the rebalance"
        if self.plan.batch is not None:
            assert len(notes) <= self.plan.batch[0], "a batch that is too large"
        if self.plan.order == PARTITION:
            assert len({note.tp for note in notes}) == 1, "a batch of several partitions"
        if self.plan.order == KEY and len(notes) > 1:
            assert len({(note.tp, note.partition_key) for note in notes if note.partition_key is not None}) <= 1

    def check_start(self, member: Member, strand: Strand, note: Note) -> None:
        together = strand.running if work_in_lists(self.plan) else []
        for earlier in self.before.get(note, []):
            fine = self.is_true(earlier) or any(earlier is other for other in together)
            assert fine, f"{note} starts before {earlier} is finished"
        if (note.tp, note.offset) in member.finished:
            raise AssertionError(f"{note} starts again, though this member has finished it")
        base, known = member.skipped[note.tp]
        done = note.offset < base or (known is not None and known.finished(note.offset))
        assert not done, f"{note} starts again, though it was committed as finished"
        times, due = member.failed.get(note, (0, 0.0))
        assert times < self.retry.attempts, f"{note} is tried too often"
        assert not times or self.now >= due - 1e-9, f"{note} is tried again too early"
        others = [hand.strands[0] for hand in member.hands if hand.begun and hand.strands[0] is not strand]
        for other in others:
            # What runs in vain, as its partition went and came back, is told so by message.fenced.
            twice = note in other.running and self.part_of(other, note).alive
            assert not twice, f"{note} runs twice at a time"

    def check_commit(self, member: Member, tp: TopicPartition, base: int, text: str) -> None:
        assert len(text) <= self.map_room, f"a map of {len(text)} characters"
        known = offset_map.decode(text, base) if text else None
        assert not text or known is not None, "a map that nobody can read"
        for note in self.log[tp]:
            said = note.offset < base or (known is not None and known.finished(note.offset))
            assert not said or self.is_true(note), f"{note} is committed and not finished"
            if self.map_room >= 400 and note.offset < member.position[tp] and note.offset >= base:
                mine = (note.tp, note.offset) in member.reported or self.was_skipped(member, note)
                assert said == mine, f"the map says {said} of {note}"
        before, _ = self.committed[tp]
        assert base >= before, f"{tp}: a commit of {base} after one of {before}"

    def was_skipped(self, member: Member, note: Note) -> bool:
        _, known = member.skipped[note.tp]
        return known is not None and known.finished(note.offset)

    def check_counts(self, member: Member) -> None:
        work = member.work
        held = sum(len(part.pending) for part in work.parts.values())
        assert work.in_hand == held <= self.plan.max_in_flight, f"{work.in_hand} in hand, {held} known"
        assert work.ready >= 0 and work.parked >= 0


def run(seed: int) -> None:
    """One schedule. Raises AssertionError with its seed for a violation."""
    try:
        World(seed).run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description="Random schedules of what run() decides.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    given = parser.parse_args()
    began, bad = time.monotonic(), 0
    for seed in range(given.first, given.last + 1):
        try:
            run(seed)
        except AssertionError as error:
            bad += 1
            print(error, flush=True)
    print(f"{given.last - given.first + 1} schedules, {bad} violations, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
