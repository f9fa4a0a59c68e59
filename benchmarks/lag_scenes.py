"""Lag in seconds against the truth, in twelve scenes of simulated time: ours, and how exporters guess it.

    python -m benchmarks.lag_scenes            # docs/explanation/figures/lag_scenes.txt
    python -m benchmarks.lag_scenes --alarms   # 24 hours of 1,000 groups: no false alarm, and each stuck one is named

The truth is the age of the oldest message that is not finished. *Interpolation* (Kafka Lag Exporter, Burrow's
successors): the time at which the log's end was where the group has committed, between polls every 30 s, extended
where it is outside of them. *Last committed*: the age of the message that was committed last, while there is lag.
The group commits every 5 s.
"""

from __future__ import annotations

import argparse
import random
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

from managedconsumer.fetch.progress import Oldest, PartitionProgress, PartitionSample, Track, oldest_of
from managedconsumer.fetch.stuck import STANDS

STEP, POLL, COMMIT, SAMPLE = 0.1, 30.0, 5.0, 5.0
EPOCH = 1_700_000_000.0  # the wall clock when a scene begins


class Record:
    """One message as a chunk gives it."""

    def __init__(self, offset: int, timestamp: int) -> None:
        self.offset, self.timestamp = offset, timestamp


class Log:
    """One partition: the offsets that readers see, their timestamps (s), where it begins and ends."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.times: list[float] = []
        self.start = self.end = 0

    def write(self, count: int, time: float, gap: int = 0) -> None:
        """``count`` messages, each followed by ``gap`` offsets that no reader sees."""
        for _ in range(count):
            self.offsets.append(self.end)
            self.times.append(time)
            self.end += 1 + gap

    def hide(self, count: int) -> None:
        """Offsets of an aborted transaction, or of markers."""
        self.end += count

    def cut(self, end: int) -> None:
        """The log is truncated: another leader has it only up to ``end``."""
        keep = bisect_left(self.offsets, end)
        del self.offsets[keep:], self.times[keep:]
        self.end = end

    def first(self, offset: int) -> int | None:
        """The place of the first visible message from ``offset`` on."""
        place = bisect_left(self.offsets, max(offset, self.start))
        return place if place < len(self.offsets) else None

    def age(self, offset: int, now: float) -> float:
        """The truth."""
        place = self.first(offset)
        return 0.0 if place is None else max(0.0, now - self.times[place])


class Chunk:
    """What one fetch brought, with as much of the interface of a RecordChunk as is looked at."""

    def __init__(self, log: Log, offset: int, limit: int) -> None:
        place = log.first(offset)
        self.records: list[Record] = []
        self.fetch_offset = self.position = offset
        self.next_fetch_offset = log.end
        if place is not None:
            pairs = zip(log.offsets[place : place + limit], log.times[place : place + limit], strict=True)
            self.records = [Record(o, round(time * 1000)) for o, time in pairs]
            if place + limit < len(log.offsets):
                self.next_fetch_offset = self.records[-1].offset + 1
        self.left = list(reversed(self.records))

    def __iter__(self) -> Chunk:
        return self

    def __next__(self) -> Record:
        if not self.left:
            self.position = self.next_fetch_offset
            raise StopIteration
        return self.left.pop()

    def again(self, offset: int) -> Chunk:
        """The same from ``offset`` on."""
        fresh = Chunk.__new__(Chunk)
        fresh.fetch_offset = fresh.position = offset
        fresh.next_fetch_offset = self.next_fetch_offset
        fresh.left = [record for record in reversed(self.records) if record.offset >= offset]
        return fresh


class Reader:
    """A consumer of one partition as far as progress is concerned: what is fetched, in flight and finished."""

    def __init__(self, log: Log, offset: int, now: float, rate: float) -> None:
        self.log, self.rate = log, rate
        self.track = Track(now)
        self.due_since: float | None = None
        self.paused = self.stuck = False
        self.version = 0
        self._budget = 0.0
        self.known_end: int | None = None
        self.place(offset)

    def place(self, offset: int) -> None:
        """The position is set: start, seek, reset."""
        self.finished = self.fetch_offset = offset
        self.hand: Record | None = None
        self.chunks: list[Chunk] = []
        self.version += 1

    def pause(self, now: float) -> None:
        """As ``pause()``: looked at right before what was fetched is dropped."""
        found = self._oldest()
        self.chunks, self.fetch_offset = [], self._position()
        self.paused, self.version = True, self.version + 1
        self.track.look(self._sight(), found, now, EPOCH + now)

    def step(self) -> None:
        """One step of fetching and of working."""
        if not self.paused:
            self._fetch()
        if self.stuck:
            return
        self._budget = min(self._budget + self.rate * STEP, max(1.0, self.rate * STEP))
        while self._budget >= 1.0 and self._next():
            self._budget -= 1.0

    def _fetch(self) -> None:
        if self.fetch_offset < self.log.start:
            self.place(self.log.start)
        self.known_end = self.log.end
        if len(self.chunks) < 4 and self.fetch_offset < self.log.end:
            self.chunks.append(Chunk(self.log, self.fetch_offset, 200))
            self.fetch_offset = self.chunks[-1].next_fetch_offset

    def _next(self) -> bool:
        """The user comes back for the next message."""
        if self.hand is not None:
            self.finished, self.hand = self.hand.offset + 1, None
        while self.chunks and not self.paused:
            record = next(self.chunks[0], None)
            if record is not None:
                self.hand = record
                self.finished = record.offset
                return True
            self.finished = self.chunks.pop(0).next_fetch_offset
        return False

    def _position(self) -> int:
        return self.finished if self.hand is None else self.hand.offset + 1

    def age(self, now: float) -> float:
        """The truth: what was fetched before retention deleted it is still to be finished."""
        held = [self.hand] if self.hand is not None else [r for chunk in self.chunks for r in reversed(chunk.left)]
        return max(0.0, now - held[0].timestamp / 1000.0) if held else self.log.age(self.finished, now)

    def _sight(self) -> PartitionSample:
        start = self.log.start if self.fetch_offset == self._position() == self.finished else -1
        return PartitionSample(self._position(), self.finished, None, self.known_end, start, self.paused, self.version)

    def _oldest(self) -> Oldest | None:
        sight = self._sight()
        if sight.start is None or self.track.known(sight) is not None:
            return None
        stamps = {} if self.hand is None else {self.hand.offset: self.hand.timestamp}
        chunks = [each for each in self.chunks if each.next_fetch_offset > sight.start]
        return oldest_of([each.again(max(sight.start, each.fetch_offset)) for each in chunks], sight.start, stamps)

    def sample(self, now: float) -> None:
        """What the position worker does every few seconds."""
        sight = self._sight()
        self.track.look(sight, self._oldest() if self.track.needs_look(sight) else None, now, EPOCH + now)

    def progress(self, now: float) -> PartitionProgress:
        """What the user asks."""
        sight = self._sight()
        self.track.look(sight, self._oldest() if sight.behind else None, now, EPOCH + now)
        return self.track.progress(sight, now, EPOCH + now)


class Guesses:
    """What exporters see: the log's end at each poll, and the committed offset."""

    def __init__(self, log: Log) -> None:
        self.log, self.polls, self.committed = log, list[tuple[float, int]](), 0

    def interpolated(self, now: float) -> float | None:
        """Where on the line of (time, end) the committed offset was the end."""
        points = [p for i, p in enumerate(self.polls) if not i or p[1] != self.polls[i - 1][1]]
        if not self.polls:
            return None
        if self.committed >= self.polls[-1][1]:
            return 0.0
        if len(points) < 2:
            return None
        place = min(max(bisect_left([end for _, end in points], self.committed), 1), len(points) - 1)
        (t0, e0), (t1, e1) = points[place - 1], points[place]
        return max(0.0, now - (t0 + (self.committed - e0) * (t1 - t0) / (e1 - e0 or 1)))

    def last_committed(self, now: float) -> float:
        """The age of the message before the committed offset."""
        if self.committed >= self.log.end:
            return 0.0
        place = bisect_left(self.log.offsets, self.committed) - 1
        return max(0.0, EPOCH + now - self.log.times[place]) if place >= 0 else 0.0


class World:
    """One scene's log, reader and guesses, and the clock (s)."""

    def __init__(self, rate: float) -> None:
        self.log, self.now = Log(), 0.0
        self.reader: Reader | None = None
        self.rate = rate

    @property
    def wall(self) -> float:
        """Seconds since 1970."""
        return EPOCH + self.now

    def start(self, offset: int) -> None:
        """The consumer starts."""
        self.reader = Reader(self.log, offset, self.now, self.rate)

    def at(self, moment: float) -> bool:
        """True in the one step that begins at ``moment``."""
        return abs(self.now - moment) < STEP / 2

    def every(self, seconds: float) -> bool:
        """True once in so many seconds."""
        return round(self.now / STEP) % round(seconds / STEP) == 0


Scene = tuple[float, float, Callable[[World], None]]  # seconds, messages a second that the user works on, what happens


def _begin(world: World, offset: int = 0) -> None:
    if world.at(0):
        world.start(offset)


def _burst(world: World) -> None:
    _begin(world)
    if world.at(60):
        world.log.write(20_000, world.wall)


def _idle(world: World) -> None:
    _begin(world)
    if world.now < 100 and world.every(1):
        world.log.write(1, world.wall)
    if world.at(1500):
        world.log.write(300, world.wall)


def _replay(world: World) -> None:
    if world.at(0):
        for minute in range(7 * 24 * 60):
            world.log.write(10, world.wall - 7 * 86400 + minute * 60)
        world.start(0)
    if world.every(1):
        world.log.write(1, world.wall)


def _compaction(world: World) -> None:
    _begin(world)
    if world.every(1):
        world.log.write(20, world.wall, gap=0 if world.now < 300 else 49)


def _aborted(world: World) -> None:
    _begin(world)
    if world.now < 200 and world.every(1):
        world.log.write(10, world.wall)
    elif world.every(10):
        world.log.hide(5000)


def _retention(world: World) -> None:
    _begin(world)
    if world.every(1):
        world.log.write(50, world.wall)
        while world.log.start < world.log.end and world.log.age(world.log.start, world.wall) > 120:
            world.log.start += 50


def _skew(world: World) -> None:
    _begin(world)
    if world.every(1):  # a phone that was offline sends what is hours old
        world.log.write(20, world.wall - (7200 if world.every(10) else 0))


def _pause(world: World) -> None:
    _begin(world)
    if world.every(1):
        world.log.write(20, world.wall)
    if world.reader is not None and world.at(100):
        world.reader.pause(world.now)
    if world.reader is not None and world.at(700):
        world.reader.paused = False


def _spare(world: World) -> None:
    if world.every(1):
        world.log.write(20, world.wall)  # another member reads them


def _restart(world: World) -> None:
    _begin(world)
    if world.every(1):
        world.log.write(20, world.wall)
    if world.reader is not None and world.at(100):
        world.reader = None
    if world.at(700):
        world.start(world.log.offsets[1500])


def _truncated(world: World) -> None:
    _begin(world)
    if world.every(1):
        world.log.write(20, world.wall)
    if world.reader is not None and world.at(200):
        end = world.log.end - 100
        world.log.cut(end)
        world.reader.place(min(end, world.reader.finished))
        world.reader.known_end = end


def _appended(world: World) -> None:
    _begin(world)
    if world.every(0.5):
        world.log.write(25 if world.now < 400 else 5, world.wall)


SCENES: dict[str, Scene] = {
    "burst": (400, 100, _burst),
    "idle": (2000, 100, _idle),
    "replay": (300, 500, _replay),
    "compaction": (600, 15, _compaction),
    "aborted transactions": (600, 100, _aborted),
    "retention": (600, 20, _retention),
    "skewed CreateTime": (600, 100, _skew),
    "paused": (900, 18, _pause),
    "spare member": (300, 100, _spare),
    "restart": (1000, 60, _restart),
    "truncated log": (400, 19, _truncated),
    "LogAppendTime": (700, 40, _appended),
}


class Result:
    """The worst errors (s) of one scene, and those beyond max(1 s, 2 %); None: nothing was told."""

    def __init__(self) -> None:
        self.truth = 0.0
        self.errors: dict[str, float] = {}
        self.beyond: dict[str, int] = {}
        self.asked = self.exact = 0

    def note(self, who: str, said: float | None, truth: float) -> None:
        """What ``who`` said."""
        error = abs((said or 0.0) - truth)
        self.errors[who] = max(self.errors.get(who, 0.0), error)
        self.beyond[who] = self.beyond.get(who, 0) + (error > max(1.0, 0.02 * truth))


@cache
def run(name: str) -> Result:
    """Play one scene."""
    seconds, rate, happen = SCENES[name]
    world, result = World(rate), Result()
    guesses = Guesses(world.log)
    for step in range(round(seconds / STEP)):
        world.now = step * STEP
        happen(world)
        reader = world.reader
        if reader is not None:
            reader.step()
            if world.every(SAMPLE):
                reader.sample(world.now)
            if world.every(COMMIT):
                guesses.committed = reader.finished
        elif name == "spare member":
            guesses.committed = world.log.end
        if world.every(POLL):
            guesses.polls.append((world.now, world.log.end))
        if world.every(1) and world.now > 2:
            _measure(world, guesses, result)
    return result


def _measure(world: World, guesses: Guesses, result: Result) -> None:
    reader = world.reader
    truth = 0.0
    if reader is not None:
        said = reader.progress(world.now)
        truth = reader.age(world.wall)
        result.note("ours", said.lag_seconds, truth)
        result.asked, result.exact = result.asked + 1, result.exact + said.exact
    elif guesses.committed < world.log.end:  # nobody to ask: exporters go on
        truth = world.log.age(guesses.committed, world.wall)
    result.truth = max(result.truth, truth)
    result.note("interpolated", guesses.interpolated(world.now), truth)
    result.note("last committed", guesses.last_committed(world.now), truth)


def table() -> str:
    """The twelve scenes, as a table in reStructuredText."""
    lines = ["=" * 21 + " " + " ".join(["=" * 14] * 5)]
    heads = ("largest lag", "exact", "ours", "interpolated", "last committed")
    lines += ["scene".ljust(21) + " " + " ".join(head.ljust(14) for head in heads), lines[0]]
    for name in SCENES:
        found = run(name)
        exact = f"{100 * found.exact / found.asked:.0f} %" if found.asked else "no partition"
        each = ("ours", "interpolated", "last committed")
        errors = [_cell(found.errors.get(who, 0.0), found.beyond.get(who, 0)) for who in each]
        cells = [f"{found.truth:.0f} s", exact, *errors]
        lines.append(name.ljust(21) + " " + " ".join(cell.ljust(14) for cell in cells).rstrip())
    return "\n".join([*lines, lines[0]])


def _cell(error: float, beyond: int) -> str:
    return f"{error:.1f} s" + (" (!)" if beyond else "")


class Alarms:
    """What came of many groups: alarms that were false, those that were due, and how late (s) the latest came.

    ``named``: in ``health()``; ``logged``: by the line in the log, of the same partitions.
    """

    def __init__(self) -> None:
        self.groups = self.false = self.due = self.named = self.logged = 0
        self.latest = 0.0


def alarms(groups: int, hours: float, seed: int = 1, threshold: float = 300.0) -> Alarms:
    """Groups with bursts, silences, pauses, slow work (up to a third of the threshold a message) and restarts.

    One in ten gets stuck for good at a random moment.
    """
    result, chance = Alarms(), random.Random(seed)
    for _ in range(groups):
        _one_group(result, random.Random(chance.random()), hours * 3600, threshold)
    return result


def _one_group(result: Alarms, chance: random.Random, seconds: float, threshold: float) -> None:
    result.groups += 1
    log, now = Log(), 0.0
    reader = Reader(log, 0, now, 1.0)
    stuck_at = chance.uniform(0.2, 0.8) * seconds if chance.random() < 0.1 else None
    probe = chance.choice([10.0, 30.0, 60.0])
    next_write = next_work = next_probe = now
    while now < seconds:
        now += 5.0
        if now >= next_write:
            log.write(chance.choice([1, 1, 5, 100]), EPOCH + now - chance.choice([0, 0, 3600, -3600]))
            log.hide(chance.choice([0, 0, 1, 50]))
            next_write = now + chance.choice([1.0, 20.0, 300.0, 4000.0])
        works = stuck_at is None or now < stuck_at
        if works and chance.random() < 0.0005:
            if reader.paused:
                reader.paused = False
            else:
                reader.pause(now)
        if works and chance.random() < 0.0003:
            reader = Reader(log, reader.finished, now, 1.0)
        reader.stuck = True
        reader.step()
        if now >= next_work and works:
            for _ in range(chance.choice([1, 3, 50])):
                reader._next()
            next_work = now + chance.choice([5.0, 5.0, 60.0, threshold / 3])
        reader.sample(now)
        if reader.track.alarm.look(reader.track.stuck_for(now)) == STANDS:
            result.logged += reader.due_since is not None
            result.false += reader.due_since is None
        if now >= next_probe:
            next_probe = now + probe
            if _probe(result, reader, log, now, stuck_at, threshold):
                return


def _probe(result: Alarms, reader: Reader, log: Log, now: float, stuck_at: float | None, threshold: float) -> bool:
    """Ask, and judge the answer; True when this group is done."""
    said = reader.progress(now).stuck_for > threshold
    if stuck_at is None or now < stuck_at:
        result.false += said
        return False
    if reader.paused or log.first(reader.finished) is None:
        result.false += said
        return False
    since = reader.due_since
    if since is None:
        reader.due_since = now
        result.due += 1
        return False
    if said:
        result.named += 1
        result.latest = max(result.latest, now - since)
    return said or now - since > 2 * threshold


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alarms", action="store_true")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    if not options.alarms:
        print(table())
        return
    found = alarms(options.groups, options.hours)
    print(
        f"{found.groups} groups, {options.hours:g} hours each: {found.false} false alarms; {found.named} of "
        f"{found.due} stuck partitions named, the latest {found.latest:.0f} s after it could be known (threshold 300 "
        f"s), {found.logged} of them in the log"
    )


if __name__ == "__main__":
    main()
