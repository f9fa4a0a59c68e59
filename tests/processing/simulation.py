"""A small world in which ``run()``'s decisions are made in random schedules: workers, retries, rebalances, crashes.

``python -m tests.processing.simulation FIRST LAST`` runs these schedules; a violation is an AssertionError with its
seed. The world is the consumer, the workers and the group around :class:`managedconsumer.processing.work.Work`. It
checks after each step what ``run()`` promises:

* a message starts only when all earlier ones of its key (its partition) have finished, and never twice in one life;
* what a commit or its map says to be finished is, and is not started again by whoever reads it;
* what a handler has returned for before a commit is finished in it, wherever its worker is in its block: after a death,
  a stop or a rebalance nobody works on that again (as far as maps have room);
* a commit happens, whatever length of metadata brokers take; maps stay within that, and what is in flight within its
  own bound;
* whatever a handler raises for a message, its worker goes on, or the run ends;
* when a worker finds nothing to do, no partition waits of which little is in flight;
* nothing of a partition that is held or paused starts, no result of a lost one counts;
* retention, a log that was cut and a topic that was made anew take nothing that is in flight and still in the log's
  past: it is worked on, and no commit passes it before;
* after a seek, and where a partition comes back, no key (no partition) is worked on twice at a time in one process;
* what a paused partition has in flight leaves room to the others;
* a failed message is not tried again before its time, nor more often than allowed;
* no message starts before its own time (``not_before``), nor more than the rate allows of a key, a partition or all;
* with the order "time" no message passes one that waits for a retry or its time;
* in the end everything has been finished.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from asyncio import CancelledError
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator

from managedconsumer.processing import offset_map
from managedconsumer.processing.key_queues import KeyQueue, PartitionWork, State
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.processing.values import ALL, KEY, NONE, PARTITION, TIME, Plan, Retry
from managedconsumer.processing.work import Work
from managedconsumer.processing.worker_slots import WorkerSlot
from managedconsumer.runtime.running.calls import Calls
from managedconsumer.structs import TopicPartition

_STEPS = 220
#: What stands beside the map in a commit's metadata.
_PLAIN = '{"consumer_id": "c", "hostname": "h"}'

#: A record: its partition, its offset, and which log it is of (a log that was cut or made anew is another one).
Place = tuple[TopicPartition, int, int]


@dataclass(frozen=True, eq=False)
class Note:
    """A message. Whoever reads a record again gets another one."""

    tp: TopicPartition
    offset: int
    partition_key: bytes | None
    log: int = 0
    not_before: float = 0.0
    timestamp: int = 0

    @property
    def place(self) -> Place:
        return self.tp, self.offset, self.log


@dataclass
class Gate:
    suspended: bool = False
    paused: bool = False


@dataclass
class Hand:
    """A worker: its slot, whether the handler is at something, and whether it has died."""

    slot: WorkerSlot = field(default_factory=WorkerSlot)
    begun: bool = False
    dead: bool = False

    @property
    def idle(self) -> bool:
        return self.slot.current is None and not self.slot.todo and not self.slot.through


class Member:
    """One life of a consumer that runs: what it owns, where it reads, what it knows to be finished."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.limit = world.limit
        self.work = Work(world.plan, offset_map.room_for_map(_PLAIN, self.limit), self.sources)
        self.calls = Calls(lambda _note: None, None, None, None, world.retry, lambda _place: {})
        self.gates: dict[TopicPartition, Gate] = {}
        self.position: dict[TopicPartition, int] = {}
        self.skipped: dict[TopicPartition, tuple[int, OffsetMap | None]] = {}
        self.taken: set[Place] = set()
        self.finished: set[Place] = set()
        self.failed: dict[Place, tuple[int, float]] = {}
        self.hands = [Hand() for _ in range(world.workers)]
        self.draining: set[TopicPartition] = set()
        # When messages started, for each key, each partition or all.
        self.starts: dict[Any, list[float]] = {}

    # -- partitions -----------------------------------------------------------------------------------

    def assign(self, tp: TopicPartition) -> None:
        base, text = self.world.committed[tp]
        known = offset_map.decode(text, base) if text else None
        assert (known is None) is (not text), f"a map that nobody can read: {text!r}"
        self.gates[tp], self.position[tp], self.skipped[tp] = Gate(), base, (base, known)

    def sources(self) -> Iterator[tuple[TopicPartition, bool]]:
        return ((tp, not self.left(tp)) for tp, gate in self.gates.items() if not (gate.suspended or gate.paused))

    def suspend(self, tps: set[TopicPartition]) -> None:
        for tp in tps:
            self.gates[tp].suspended = True
        self.draining |= tps
        self.work.interrupt()

    def release(self) -> None:
        for tp in self.draining:
            self.gates[tp].suspended = False
        self.draining = set()

    def collect(self) -> None:
        self.work.collect([hand.slot for hand in self.hands], self.world.now, self.world.chance.random)

    def lose(self, tps: set[TopicPartition]) -> None:
        self.forget(tps)
        for tp in tps:
            del self.gates[tp], self.position[tp], self.skipped[tp]
        self.draining -= tps

    def forget(self, tps: set[TopicPartition]) -> None:
        """Nothing of these that is in flight counts any more."""
        self.collect()
        self.work.forget(tps)
        self._forget(lambda place: place[0] in tps)

    def _forget(self, gone: Callable[[Place], bool]) -> None:
        self.taken = {place for place in self.taken if not gone(place)}
        self.finished = {place for place in self.finished if not gone(place)}
        self.failed = {place: failure for place, failure in self.failed.items() if not gone(place)}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.forget({tp})
        self.position[tp], self.skipped[tp] = offset, (0, None)

    def cut(self, tp: TopicPartition, offset: int) -> None:
        """The log has another record at ``offset`` than the one that was read, or none before it."""
        self.collect()
        self.work.forget({tp}, offset)
        self._forget(lambda place: place[0] == tp and place[1] >= offset)
        if tp not in self.work.parts:  # as the engine does: what was not looked at yet is not believed
            self.skipped[tp] = 0, None
        self.position[tp] = offset

    def believe(self, tp: TopicPartition, newer: int) -> None:
        """From ``newer`` on are records of a later leader epoch."""
        base, known = self.skipped[tp]
        self.skipped[tp] = min(base, newer), known and known.below(newer)
        if tp in self.work.parts:
            self.work.parts[tp].believe(newer)

    def pause(self, tp: TopicPartition) -> None:
        self.gates[tp].paused = not self.gates[tp].paused
        self.work.interrupt()

    def busy(self, tps: set[TopicPartition]) -> bool:
        slots = [hand.slot for hand in self.hands if hand.begun]
        return any(slot.current is not None and slot.current.touches(tps) for slot in slots)

    # -- messages -------------------------------------------------------------------------------------

    def fetch(self, chance: random.Random) -> None:
        work = self.work
        for tp, start in self.world.start.items():
            if tp in self.gates and self.position[tp] < start:  # OFFSET_OUT_OF_RANGE
                self.cut(tp, start)
        free = [tp for tp, gate in self.gates.items() if not (gate.suspended or gate.paused or self.is_full(tp))]
        there = [tp for tp in free if self.left(tp)]
        room = work.capacity()
        if not there or room <= 0:
            return
        tp = chance.choice(sorted(there))
        notes = [replace(note) for note in self.left(tp)[: chance.randint(1, min(room, 12))]]
        self.taken |= {note.place for note in notes}
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
        slot = hand.slot
        if hand.dead:
            return
        if slot.current is None and not slot.todo:
            self.next_block(slot, chance)
        elif slot.current is None:
            slot.current = slot.todo.popleft()
        elif hand.begun:
            self.finish(hand, slot.current, chance)
        elif slot.era != self.work.era or chance.random() < 0.05:  # it has to give back what it has not begun
            self.hand_in(slot, slot.current)
        elif (due := max(note.not_before for note in self.at(slot.current))) > self.world.now:
            slot.current.until, slot.current.failed = due, True
            self.hand_in(slot, slot.current)
        else:
            hand.begun = True
            for note in self.at(slot.current):
                self.world.check_start(self, slot.current, note)

    def next_block(self, slot: WorkerSlot, chance: random.Random) -> None:
        work, now = self.work, self.world.now
        work.collect([slot], now, chance.random)
        if work.ending:
            return
        slot.todo.extend(work.take(chance.randint(1, 6), now))
        slot.era = work.era
        for key_queue in slot.todo:
            self.world.check_key_queue(self, key_queue)
        if not slot.todo:
            self.world.check_capacity(self)
        for part in work.parts.values() if not slot.todo else ():
            few = 2 * work.capacity() if self.world.plan.order != TIME else work.capacity() // 4
            little = len(part.pending) < few and part.map_fits(work.map_room)
            assert not (part.full and little), f"{part.tp} waits, though little of it is in flight"

    def at(self, key_queue: KeyQueue) -> list[Note]:
        """What the handler is called for."""
        return key_queue.running if work_in_lists(self.world.plan) else [key_queue.running[key_queue.place]]

    def hand_in(self, slot: WorkerSlot, key_queue: KeyQueue) -> None:
        slot.through.append(key_queue)
        slot.current = None

    def finish(self, hand: Hand, key_queue: KeyQueue, chance: random.Random) -> None:
        """The handler of what was begun returns, or raises."""
        world, work, notes, dead = self.world, self.work, self.at(key_queue), 0
        hand.begun = False
        if chance.random() < world.fails:
            error = chance.choice(world.errors)
            if not self.calls.of_message(error):
                hand.dead = True
                return
            if work.again(key_queue, key_queue.place, error):
                for note in (note for note in notes if world.part_of(key_queue, note).has(note)):
                    times, _ = self.failed.get(note.place, (0, 0.0))
                    self.failed[note.place] = times + 1, world.now + world.retry.first_ms / 1000.0
                key_queue.failed = True
                self.hand_in(hand.slot, key_queue)
                return
            dead = len(notes)
        world.has_finished(self, key_queue, notes)
        key_queue.place += len(notes)
        if dead:
            work.note(key_queue, dead)
        if key_queue.place == len(key_queue.running):
            self.hand_in(hand.slot, key_queue)


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
        pace = self.pace = random.Random(f"pace {seed}")
        by = [ALL, *([KEY] if order == KEY else []), *([PARTITION] if batch is None or order == PARTITION else [])]
        rate = None if pace.random() < 0.6 else (pace.choice((1.0, 10.0, 200.0)), pace.choice(by))
        self.merged = random.Random(f"time {seed}")
        if self.merged.random() < 0.2:
            order, self.workers, rate = TIME, 1, rate and (rate[0], ALL)
        self.plan = Plan(order, most, batch, self.retry, rate, self.merged.choice((0.0, 0.3)))
        # Up to how much later than it is read a message may start.
        self.latest = pace.choice((0.0, 0.0, 0.3, 5.0))
        # The shortest map has 11 characters (a version, a kind, and a head of 7 bytes).
        self.limit = len(offset_map.with_map(_PLAIN, "?")) - 1 + chance.choice((11, 13, 16, 400))
        # How many characters of metadata the brokers take.
        self.takes = self.limit if chance.random() < 0.7 else chance.randint(0, self.limit)
        self.fails = chance.choice((0.0, 0.1, 0.4))
        self.errors = [ValueError("no luck")] * 9 + [KeyError("never again"), CancelledError()]
        self.keys: list[bytes | None] = [b"%d" % n for n in range(chance.choice((1, 3, 30)))]
        self.keys += [None] * chance.choice((0, 3))
        # How often something befalls a log or a partition, beside rebalances and crashes.
        self.trouble = chance.choice((0.0, 0.0, 0.02, 0.06))
        self.logs = 0
        self.start: dict[TopicPartition, int] = {}
        self.log: dict[TopicPartition, list[Note]] = {}
        self.true: set[Place] = set()
        # What nobody has to work on, as a seek went past it.
        self.excused: set[Place] = set()
        self.before: dict[Place, Place] = {}
        for number in range(chance.randint(1, 3)):
            tp = TopicPartition("t", number)
            self.start[tp], self.log[tp] = 0, []
            self.write(tp, chance.randint(0, 3), chance.randint(5, 40))
        self.committed: dict[TopicPartition, tuple[int, str]] = dict.fromkeys(self.log, (0, ""))
        self.members = [Member(self) for _ in range(chance.randint(1, 2))]
        for tp in self.log:
            chance.choice(self.members).assign(tp)

    def write(self, tp: TopicPartition, offset: int, count: int) -> None:
        """``count`` more messages, from ``offset`` on."""
        for _ in range(count):
            time_ = self.now + self.latest if self.latest and self.pace.random() < 0.2 else 0.0
            stamp = offset * 10 + self.merged.randint(-15, 15)
            note = Note(tp, offset, self.chance.choice(self.keys), self.logs, time_, stamp)
            line = self.line(note)
            earlier = [other for other in self.log[tp] if line is not None and self.line(other) == line]
            if earlier:
                self.before[note.place] = earlier[-1].place
            self.log[tp].append(note)
            offset += self.chance.choice((1, 1, 1, 1, 2, 5))

    def line(self, note: Note) -> Any:
        """What the messages have in common that are worked on one after the other; None: it has no such line."""
        if self.plan.order == KEY:
            return None if note.partition_key is None else (note.tp, note.partition_key)
        return note.tp if self.plan.order in (PARTITION, TIME) else None

    # -- what happens ---------------------------------------------------------------------------------

    def befall(self, tp: TopicPartition) -> None:
        """Something happens to a log, or the user does something to its partition."""
        chance = self.chance
        way, notes = chance.random(), self.log[tp]
        owner = next(member for member in self.members if tp in member.gates)
        place = chance.randint(self.start[tp], notes[-1].offset + 1)
        if way < 0.25:  # retention; the owner learns it when it fetches
            self.start[tp] = place
        elif way < 0.5:  # a new leader has other records
            self.logs += 1
            self.log[tp] = [note for note in notes if note.offset < place]
            self.write(tp, place, chance.randint(1, 10))
            base, text = self.committed[tp]
            known = offset_map.decode(text, base) if text else None
            self.committed[tp] = min(base, place), offset_map.encode(known.below(place), base) if known else ""
            if owner.position[tp] > place:
                owner.cut(tp, place)
            owner.believe(tp, place)
        elif way < 0.6:  # the topic is made anew
            self.logs += 1
            self.start[tp], self.log[tp], self.committed[tp] = 0, [], (0, "")
            self.write(tp, chance.randint(0, 3), chance.randint(1, 20))
            owner.seek(tp, 0)
        elif way < 0.75:
            self.excused |= {note.place for note in notes if note.offset < place}
            owner.seek(tp, place)
            self.committed[tp] = 0, ""  # it may be behind, now
        else:
            owner.pause(tp)

    def commit(self, member: Member) -> None:
        """As the committer does it: what the brokers refuse as too long is tried again with less."""
        for _ in range(12):
            member.collect()
            refused = 0
            plain = _PLAIN if len(_PLAIN) <= member.limit else ""
            room = member.work.map_room = offset_map.room_for_map(plain, member.limit)
            for tp, part in member.work.parts.items():
                low = part.lowest()
                base = member.position[tp] if low is None else low
                text = part.text(base, room)
                metadata = offset_map.with_map(plain, text)
                assert len(metadata) <= member.limit, f"metadata of {len(metadata)} characters"
                if len(metadata) > self.takes:
                    refused = max(refused, len(metadata))
                else:
                    self.check_commit(member, tp, base, text)
                    self.committed[tp] = base, text
            if not refused:
                return
            member.limit = offset_map.smaller_limit(refused, len(plain))
        raise AssertionError("the brokers take no commit")

    def rebalance(self, member: Member) -> None:
        """One step of a rebalance: it begins, or drains, or is over."""
        if not member.draining:
            some = {tp for tp in member.gates if self.chance.random() < 0.6}
            if some:
                member.suspend(some)
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

    def stop(self, member: Member) -> None:
        """It ends, while handlers are still at it."""
        member.work.end()
        for slot in [hand.slot for hand in member.hands]:
            while slot.todo:
                member.work.take_back([slot.todo.pop()], self.now)
        for _ in range(self.chance.randint(0, 10)):
            member.step(self.chance.choice(member.hands), self.chance)
        self.commit(member)
        member.work.abandon()
        assert member.work.in_flight == 0
        self.crash(member)

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
            elif way < 0.997:
                self.stop(member)
            if chance.random() < self.trouble:
                self.befall(chance.choice(sorted(self.log)))
            if member in self.members:
                self.check_counts(member)
        self.finish()

    def finish(self) -> None:
        """No more faults: everything gets finished."""
        self.fails = 0.0
        for member in self.members:
            member.release()
            for tp in [tp for tp, gate in member.gates.items() if gate.paused]:
                member.pause(tp)
        for _ in range(12000):
            for member in self.members:
                member.fetch(self.chance)
                for hand in member.hands:
                    member.step(hand, self.chance)
            self.now += 0.05
            busy = any(not hand.idle for member in self.members for hand in member.hands)
            left = busy or any(member.work.in_flight or any(map(member.left, member.gates)) for member in self.members)
            if not left and not self.missing():
                break
        missing = self.missing()
        assert not missing, f"never finished: {missing[:5]}"
        for member in self.members:
            self.commit(member)
            assert member.work.in_flight == member.work.parked == 0
            assert not any(part.key_queues for part in member.work.parts.values())
        for tp, (base, text) in self.committed.items():
            last = self.log[tp][-1]
            told = (base > last.offset and not text) or last.offset < self.start[tp] or last.place in self.excused
            assert told, f"{tp}: committed {base} {text!r} at the end"

    # -- what has to be true ----------------------------------------------------------------------------

    def missing(self) -> list[tuple[TopicPartition, int]]:
        """What is in a log and was never finished."""
        return [n.place[:2] for notes in self.log.values() for n in notes if not self.is_done(n.place)]

    def is_done(self, place: Place, member: Member | None = None) -> bool:
        """True if it is finished, or need not be. ``member`` finishes what it has taken, also if it was deleted."""
        deleted = place[1] < self.start[place[0]] and (member is None or place not in member.taken)
        return place in self.true or place in self.excused or deleted

    def has_finished(self, member: Member, key_queue: KeyQueue, notes: list[Note]) -> None:
        for note in notes:
            self.true.add(note.place)
            if self.part_of(key_queue, note).has(note):
                member.finished.add(note.place)

    def part_of(self, key_queue: KeyQueue, note: Note) -> PartitionWork:
        parts = key_queue.parts
        return key_queue.part if parts is None else parts[key_queue.running.index(note) - key_queue.seen]

    def check_key_queue(self, member: Member, key_queue: KeyQueue) -> None:
        notes: list[Note] = key_queue.running
        assert notes, "a key queue without messages"
        for note in notes:
            assert note.tp in member.gates, f"{note} of a partition that is gone"
            assert not member.gates[note.tp].suspended, f"{note} starts during the rebalance"
            assert not member.gates[note.tp].paused, f"{note} starts while its partition is paused"
        if self.plan.batch is not None:
            assert len(notes) <= self.plan.batch[0], "a batch that is too large"
        if self.plan.order == PARTITION:
            assert len({note.tp for note in notes}) == 1, "a batch of several partitions"
        if self.plan.order == KEY and len(notes) > 1:
            assert len({(note.tp, note.partition_key) for note in notes if note.partition_key is not None}) <= 1

    def check_start(self, member: Member, key_queue: KeyQueue, note: Note) -> None:
        together = [other.place for other in key_queue.running] if work_in_lists(self.plan) else []
        assert note.place in member.taken, f"{note} starts, though it was cut off"
        earlier = self.before.get(note.place)
        if earlier is not None and earlier not in together:
            mine = earlier in member.finished or self.was_skipped(member, earlier)
            fine = mine if earlier in member.taken else self.is_done(earlier, member)
            assert fine, f"{note} starts before {earlier} is finished"
        if note.place in member.finished:
            raise AssertionError(f"{note} starts again, though this member has finished it")
        base, known = member.skipped[note.tp]
        done = note.offset < base or (known is not None and known.finished(note.offset))
        assert not done, f"{note} starts again, though it was committed as finished"
        assert self.now >= note.not_before, f"{note} starts too early"
        if self.plan.rate is not None:
            self.check_rate(member, note, *self.plan.rate)
        times, due = member.failed.get(note.place, (0, 0.0))
        assert times < self.retry.attempts, f"{note} is tried too often"
        assert not times or self.now >= due - 1e-9, f"{note} is tried again too early"
        for hand in member.hands:
            other = hand.slot.current
            if not hand.begun or other is None or other is key_queue:
                continue
            for old in member.at(other):
                # What runs in vain, as its partition went and came back, is told so by message.fenced.
                assert old is not note, f"{note} runs twice at a time"
                line = self.line(note)
                assert line is None or line != self.line(old), f"{note} runs beside {old} of the same key"

    def check_rate(self, member: Member, note: Note, rate: float, by: str) -> None:
        if by == KEY and note.partition_key is None:
            return
        starts = member.starts.setdefault(by if by == ALL else self.line(note) if by == KEY else note.tp, [])
        starts.append(self.now)
        # A list is paid for afterwards; what a worker has is paid for, also if it begins late.
        extra = 2 + 0.05 * rate + (self.plan.batch[0] if self.plan.batch else 0) + 6 * self.workers
        for count, since in enumerate(reversed(starts), 1):
            assert count <= extra + rate * (self.now - since), f"{note}: {count} starts of {by} since {since}"

    def check_commit(self, member: Member, tp: TopicPartition, base: int, text: str) -> None:
        known = offset_map.decode(text, base) if text else None
        assert not text or known is not None, "a map that nobody can read"
        for note in self.log[tp]:
            said = note.offset < base or (known is not None and known.finished(note.offset))
            assert not said or self.is_done(note.place, member), f"{note} is committed and not finished"
            if self.all_fits and note.place in member.taken and note.offset >= base:
                mine = note.place in member.finished or self.was_skipped(member, note.place)
                assert said == mine, f"the map says {said} of {note}"
        before, _ = self.committed[tp]
        assert base >= before, f"{tp}: a commit of {base} after one of {before}"

    @property
    def all_fits(self) -> bool:
        """True if each map has all the room that it needs."""
        return self.takes - len(_PLAIN) >= 400

    def was_skipped(self, member: Member, place: Place) -> bool:
        _, known = member.skipped[place[0]]
        return known is not None and known.finished(place[1])

    def check_capacity(self, member: Member) -> None:
        """A worker found nothing: others may be fetched where all that is in flight waits for the end of a pause."""
        work = member.work
        waits = [part for part in work.parts.values() if part.pending and not part.gate.paused]
        idle = not waits and not work.parked and not any(not hand.idle for hand in member.hands)
        filling = any(
            key_queue.state is State.FILLING for part in work.parts.values() for key_queue in part.key_queues.values()
        )
        assert not idle or filling or work.capacity() > 0, "what is paused leaves no room"

    def check_counts(self, member: Member) -> None:
        work = member.work
        held = sum(len(part.pending) for part in work.parts.values())
        assert work.in_flight == held, f"{work.in_flight} in flight, {held} known"
        # A paused partition may keep what it has besides.
        most = self.plan.max_in_flight + (len(work.parts) if self.plan.order == TIME else 0)
        assert self.trouble or held <= most, f"{held} in flight"
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
