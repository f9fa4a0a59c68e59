"""Whatever interrupts a call, at whatever line: no message is lost, and none is finished before it was handed out.

A signal handler that raises (Ctrl-C, a time-out), ``gevent.Timeout``, too little memory. Each test consumes a log once
for every line that this takes, with an exception raised there, and goes on as a program does that survived it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import managedconsumer
from managedconsumer.errors import CorruptRecordError
from managedconsumer.runtime.rdkafka.chunk import RdkafkaChunk
from managedconsumer.runtime.waiting.thread_ids import here
from managedconsumer.wire import records
from managedconsumer.wire.records.encode import Record, encode_batch, encode_marker
from tests.cells import table
from tests.fetch.kit import Kit, batch, damaged, tp
from tests.runtime.test_rdkafka_chunk import Theirs

ROOT = Path(managedconsumer.__file__).parent
FILES = (
    *("fetch/collect.py", "fetch/buffer.py", "fetch/pushed.py", "partition_state.py", "runtime/rdkafka/chunk.py"),
    *(
        "wire/records/_lane_py.py",
        "wire/records/_records_py.py",
        "wire/records/arrow.py",
        "wire/records/compression.py",
    ),
)
#: The lines of each file where a signal may be handled: not at a "try", nor between the end of a block and the release
#: of its lock, though Python names the line of its "with" again.
LINES = {
    str(ROOT / name): {
        number
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if not line.lstrip().startswith(("try:", "with "))
    }
    for name in FILES
}
ME, OTHER = 1, 2
Place = tuple[str, int]
Found = list[tuple[int, int]]
Logs = tuple[tuple[bytes, ...], ...]


class InterruptedHereError(BaseException):
    """What the signal handler raises."""


class OutOfMemoryHereError(MemoryError):
    """There was no memory just there; a call that has got something returns it in place of that."""


def kinds() -> list[str]:
    """The twins that this process may use, and librdkafka's messages."""
    forced = os.environ.get(records.ENVIRONMENT_VARIABLE)
    return [*([forced] if forced else sorted({records.__impl__, "python"})), "rdkafka"]


def read(data: bytes) -> Any:
    return records.RecordChunk(records.PartitionContext("t", 0), data, 0, aborted=[(9, 4)], read_committed=True)


@cache
def sound(data: bytes) -> tuple[int, ...]:
    """The offsets that a consumer has to get."""
    chunk, found = read(data), []
    while True:
        try:
            for message in chunk:
                found.append(message.offset)  # noqa: PERF401 (what comes before the damage counts)
            return tuple(found)
        except CorruptRecordError:
            chunk.skip_corrupt()


@cache
def end_of(data: bytes) -> int:
    return int(read(data).next_fetch_offset)


@cache
def wanted(logs: Logs) -> frozenset[tuple[int, int]]:
    return frozenset((part, offset) for part, log in enumerate(logs) for data in log for offset in sound(data))


class Program:
    """A consumer of partitions on a broker, whose fetches are answered as often as it asks."""

    def __init__(self, kind: str, logs: Logs) -> None:
        self.module: Any = None if kind == "rdkafka" else records.load(kind)
        self.kit, self.logs, self.want = Kit(len(logs)), logs, wanted(logs)
        make = self.module.Lane if self.module else records.Lane
        self.kit.collector.lane = make(None, here)
        self.got: Found = []
        self.refused = False
        self.acting: list[Greenlet] = []
        for part in self.kit.states:
            self.answer(part)

    def _chunk(self, part: int, data: bytes, start: int) -> Any:
        if self.module is not None:
            context = self.module.PartitionContext("orders", part)
            return self.module.RecordChunk(context, data, start, aborted=[(9, 4)], read_committed=True)
        found = [Theirs(Record(b"v"), offset) for offset in sound(data) if offset >= start]
        return RdkafkaChunk(records.PartitionContext("orders", part), found, start, end_of(data))

    def answer(self, part: int) -> bool:
        """What the fetch workers do, in threads that get no signals: everything from the next offset on."""
        sys.settrace(None)
        queue = self.kit.queue(part)
        before = queue.fetch_offset
        for data in self.logs[part]:
            if end_of(data) > queue.fetch_offset >= 0:
                chunk = self._chunk(part, data, queue.fetch_offset)
                assert self.kit.buffer.accept(queue, queue.version, chunk)
        return queue.fetch_offset != before

    def call(self, step: Callable[[Program], Found]) -> bool:
        """One call of the user's; False when there is nothing more."""
        try:
            found = step(self)
        except CorruptRecordError as error:
            self.kit.collector.skip_corrupt(tp(error.partition), error.offset)
            return True
        self.got += found
        answered = [self.answer(part) for part in self.kit.states]
        return bool(found) or any(answered)

    def check(self) -> None:
        """What is finished, and may be committed, was handed out."""
        missing = self.want.difference(self.got)
        for part in self.kit.states:
            finished = self.kit.finished(part)
            waiting = [offset for each, offset in missing if each == part]
            assert finished is not None
            assert finished <= min(waiting, default=finished), (part, finished, waiting)

    def all_finished(self) -> bool:
        for who in self.kit.collector.owners():
            self.kit.collector.finish(who)
        return [self.kit.finished(part) for part in self.kit.states] == [end_of(log[-1]) for log in self.logs]


def one(program: Program) -> Found:
    """``consume()``: the short way if there is one, else the long way."""
    message = program.kit.collector.lane.take() or program.kit.collector.take(ME)
    return [] if message is None else [(message.partition_id, message.offset)]


def in_turns(program: Program) -> Found:
    """Two threads: everything goes the long way."""
    message = program.kit.collector.take(ME if len(program.got) % 2 else OTHER)
    return [] if message is None else [(message.partition_id, message.offset)]


class Greenlet:
    """What tells two that consume apart."""


def in_slots(program: Program) -> Found:
    """Two with a slot in the lane each, in turns."""
    if not program.acting:
        program.acting = [Greenlet(), Greenlet()]
        make = program.module.Lane if program.module else records.Lane
        program.kit.collector.lane = make(lambda: program.acting[0])
    program.acting.reverse()
    message = program.kit.collector.lane.take() or program.kit.collector.take(id(program.acting[0]))
    return [] if message is None else [(message.partition_id, message.offset)]


def many(program: Program) -> Found:
    return [(message.partition_id, message.offset) for message in program.kit.collector.take_many(ME, 5)]


def columns(program: Program) -> Found:
    found = program.kit.collector.take_columns(ME, ("partition", "offset"))
    return [] if found is None else list(zip(*(found[0].column(n).to_pylist() for n in range(2)), strict=True))


def refused(take: Callable[[Program], Found]) -> Callable[[Program], Found]:
    """A deserializer refuses the first two messages once."""

    def step(program: Program) -> Found:
        if not program.refused:
            messages = program.kit.collector.take_many(ME, 2)
            program.refused = True
            program.kit.collector.push_back(ME, messages)
        return take(program)

    return step


def transaction(first: int, count: int) -> bytes:
    return encode_batch([Record(b"t")] * count, base_offset=first, transactional=True, producer_id=9)


ABORTED = transaction(4, 2) + encode_marker(commit=False, offset=6, producer_id=9) + transaction(7, 1)
SOUND: Logs = (
    (batch(0, 2, codec="gzip") + batch(2, 1, last_offset_delta=1), ABORTED + batch(8, 1)),
    (batch(0, 2), batch(2, 1) + batch(3, 1, codec="snappy")),
)
DAMAGED: Logs = ((batch(0, 2) + damaged(2, 1) + batch(3, 1), batch(4, 2)), (damaged(0, 1), batch(1, 2)))


class Tracer:
    """Counts the lines that are run, and raises at one of them."""

    def __init__(self, at: int = -1, error: type[BaseException] = InterruptedHereError) -> None:
        self.at, self.error = at, error
        self.places: list[Place] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        lines = LINES.get(frame.f_code.co_filename)
        if lines is None:
            return None
        if event == "line" and frame.f_lineno in lines:
            self.places.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.places) - 1 == self.at:
                raise self.error(self.places[-1])
        return self

    def run(self, program: Program, step: Callable[[Program], Found]) -> None:
        """Everything up to the end, under the tracer until it has raised."""
        going, before = True, sys.gettrace()
        while going:
            sys.settrace(self if len(self.places) - 1 < self.at or self.at < 0 else before)
            try:
                going = program.call(step)
            except (InterruptedHereError, OutOfMemoryHereError):
                pass
            finally:
                sys.settrace(before)
            program.check()


LOOKED_AT = [str(ROOT / name) for name in ("fetch/collect.py", "fetch/in_flight.py", "wire/records/_lane_py.py")]


class Looker:
    """Runs what a signal's handler may run in the middle of a call: it looks what is in flight, at one of the lines."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.places = at, list[Place]()
        self.program: Any = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in LOOKED_AT:
            return None
        if event == "line":
            self.places.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.places) - 1 == self.at:
                sys.settrace(None)
                self.program.kit.collector.settle_lane()
        return self

    def run(self, program: Program, step: Callable[[Program], Found]) -> None:
        """Everything up to the end; what was handed out is known then."""
        self.program, going, before = program, True, sys.gettrace()
        while going:
            sys.settrace(self if len(self.places) - 1 < self.at or self.at < 0 else before)
            try:
                going = program.call(step)
            finally:
                sys.settrace(before)
            # What went past the lock is counted later, but once.
            assert program.kit.collector.handed_out <= len(program.got), self.places[self.at]
        program.kit.collector.settle_lane()
        assert program.kit.collector.handed_out == len(program.got), self.places[self.at]


def interrupt_everywhere(kind: str, logs: Logs, step: Callable[[Program], Found], last: bool, *error: Any) -> None:
    """At every line that is run: the first time, or the last.

    In a thread of its own: an exception that a tracer raises at the first line of an ``except`` stays the thread's
    current one in CPython, and would be the context of whatever is raised after it.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_interrupt_everywhere, kind, logs, step, last, *error).result()


def _interrupt_everywhere(
    kind: str,
    logs: Logs,
    step: Callable[[Program], Found],
    last: bool,
    error: type[BaseException] = InterruptedHereError,
) -> None:
    tracer = Tracer()
    tracer.run(Program(kind, logs), step)
    numbers = {place: number for number, place in list(enumerate(tracer.places))[:: 1 if last else -1]}
    assert len(numbers) > 50
    for at in numbers.values():
        tracer, program = Tracer(at, error), Program(kind, logs)
        tracer.run(program, step)
        assert set(program.got) == program.want, tracer.places[at]
        # What counts as queued for ever keeps a partition from being fetched.
        assert (program.kit.buffer.records, program.kit.buffer.nbytes) == (0, 0), tracer.places[at]
        assert program.all_finished(), tracer.places[at]


STEPS = [one, in_turns, in_slots, many, columns]
first_and_last = pytest.mark.parametrize("last", [False, pytest.param(True, marks=pytest.mark.slow)])


@first_and_last
@pytest.mark.parametrize(
    ("step", "kind"), table(STEPS, kinds(), fast=lambda step, kind: kind != "python" or step in (one, in_slots))
)
def test_nothing_is_lost_whatever_line_is_interrupted(kind: str, step: Any, last: bool) -> None:
    interrupt_everywhere(kind, SOUND, step, last)


@pytest.mark.parametrize(
    ("step", "kind"), table([one, in_slots], kinds(), fast=lambda step, kind: kind != "python" or step is one)
)
def test_what_was_handed_out_is_counted_once_wherever_a_handler_looks(kind: str, step: Any) -> None:
    """The first and the last time that each line runs."""
    looker = Looker()
    looker.run(Program(kind, SOUND), step)
    places = list(enumerate(looker.places))
    numbers = {*{place: number for number, place in places}.values(), *{p: n for n, p in reversed(places)}.values()}
    assert len(numbers) > 50
    for at in sorted(numbers):
        looker, program = Looker(at), Program(kind, SOUND)
        looker.run(program, step)
        assert set(program.got) == program.want, looker.places[at]
        assert program.all_finished(), looker.places[at]


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("step", [many, pytest.param(columns, marks=pytest.mark.slow)])
def test_nothing_is_lost_wherever_memory_runs_out(kind: str, step: Any) -> None:
    """The last time that each line runs: a call then has messages already."""
    interrupt_everywhere(kind, SOUND, step, True, OutOfMemoryHereError)


@pytest.mark.slow
@first_and_last
@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("take", [in_turns, in_slots, many, columns])
def test_nothing_is_lost_after_a_deserializer_refused_messages(kind: str, take: Any, last: bool) -> None:
    interrupt_everywhere(kind, SOUND, refused(take), last)


@pytest.mark.slow
@first_and_last
@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "rdkafka"])
@pytest.mark.parametrize("step", [one, in_slots, many, columns])
def test_nothing_is_lost_beside_damage(kind: str, step: Any, last: bool) -> None:
    interrupt_everywhere(kind, DAMAGED, step, last)
