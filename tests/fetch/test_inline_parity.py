"""A consuming thread that receives by itself does what LeaderFetch does: the same requests, positions and messages.

Random answers go through the compiled class and through LeaderFetch with the buffer and the collector. Answers that are
not plain have to come back from the compiled class as if it had not seen them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer.clock import Backoff
from managedconsumer.errors import CorruptRecordError
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.leader import LeaderFetch
from managedconsumer.runtime.net.connection import Lent
from managedconsumer.wire import records
from managedconsumer.wire.protocol import framing
from managedconsumer.wire.protocol.schemas import FETCH
from tests.fetch.kit import Kit, batch, damaged
from tests.fetch.test_plan import TOPIC_ID, cluster

_inline = pytest.importorskip("managedconsumer.runtime.engine._inline") if records.__impl__ == "cython" else None
pytestmark = pytest.mark.skipif(_inline is None, reason="the twin in Python has no second way: LeaderFetch decides")

LIMITS = fp.FetchLimits(partition_max_bytes=5000, max_wait_ms=70)
PARTITIONS, VERSION, CLIENT, SESSION = 3, 17, "parity", 77
ME = 1


class WakeupFd:
    read_fd = write_fd = -1


class Cluster:
    def __init__(self) -> None:
        self.snapshot = cluster(dict.fromkeys(range(PARTITIONS), 1))


class Side:
    """One consumer: what it asks, and what its user gets."""

    def __init__(self) -> None:
        self.kit = Kit(PARTITIONS)
        # Far ahead of the real clock, by which the compiled class finds out that an answer is overdue.
        self.cluster, self.now, self.correlation = Cluster(), 1e9, 0
        self.mind = LeaderFetch((1, 0), self.kit.buffer, LIMITS, Backoff(0.1, 1.0, lambda: 0.5))
        self.got: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.plan: fp.FetchPlan | None = None
        self.events: list[Any] = []

    def ask(self) -> bytes | None:
        """The next request as it goes over the wire; None: there is none now."""
        self.plan, events = self.mind.next_request(self.cluster.snapshot, self.now)
        self.events += events
        if self.plan is None:
            return None
        self.correlation += 1
        body = FETCH.encode(VERSION, self.mind.body(self.plan, VERSION))
        return framing.encode_frame(FETCH, VERSION, self.correlation, CLIENT, body)

    def answer(self, data: bytes) -> None:
        """What a fetch worker does with an answer."""
        assert self.plan is not None
        answer = FETCH.decode(VERSION, data)
        assert self.mind.accept(answer)
        results = fp.read_answer(self.plan, answer, LIMITS)
        self.events += self.mind.receive(
            self.plan, results, self.cluster.snapshot, self.now, leaders_again=self.now + 30
        )

    def take(self, most: int = 1000) -> None:
        for _ in range(most):
            try:
                message = next(self.messages(), None)
            except CorruptRecordError:
                return
            if message is None:
                return
            self.got[message.partition_id].append(message.offset)

    def take_and_look(self) -> None:
        self.take(3)
        self.kit.collector.settle_lane()
        self.take(2)

    def messages(self) -> Any:
        return self.kit.collector.lane.iterate(lambda: self.kit.collector.take(ME))

    def state(self) -> list[Any]:
        self.kit.collector.settle_lane()
        known = []
        for queue in sorted(self.kit.buffer, key=lambda queue: queue.tp):
            state = queue.state
            known.append((queue.tp.partition, queue.fetch_offset, queue.last_epoch, queue.batch_bytes, queue.records))
            known.append((state.position, state.finished, state.highwater, state.last_stable, state.log_start))
            known.append((state.leader_epoch, queue.nbytes))
        return known


class Inline(Side):
    """The same, whose requests are lent to the consuming thread where they may be."""

    def __init__(self) -> None:
        super().__init__()
        self.all = _inline.InlineFetch(WakeupFd())
        self.kit.collector.draw_from(self.all, 0.001)
        self.wire: Any = None

    def lend(self) -> None:
        """The request in flight is lent."""
        assert self.plan is not None
        lent = Lent(
            descriptor=-1,
            inbox=memoryview(bytearray(1 << 16)),
            held=0,
            head=framing.rest_of_header(CLIENT, flexible=True),
            sent_at=self.now,
            overdue_at=1e12,
            heard_at=self.now,
            slowest=0.0,
        )
        self.wire = self.all.add(
            *(None, self.cluster, lent, self.mind.lend(self.plan), LIMITS),
            version=VERSION,
            correlation_id=self.correlation,
            max_bytes=self.plan.granted,
            max_messages=1000,
            soon_s=6.0,
            quiet_since=self.mind.quiet_since,
        )

    def feed(self, data: bytes) -> bytes | None:
        """The answer comes: the next request, None: it is the worker's."""
        before = self.all.report()
        frame = self.correlation.to_bytes(4, "big") + b"\0" + data
        request: bytes | None = self.wire.feed(self.all, frame, self.now)
        if request is None:
            assert self.all.report() == before, "nothing of it was taken"
            self.give_back()
        else:
            self.correlation = self.wire.correlation_id
        return request

    def give_back(self) -> None:
        wire, self.wire = self.wire, None
        wire.recall()
        self.kit.collector.settle_lane()
        self.all.remove(wire)
        assert self.plan is not None
        self.mind.returned(
            *(self.plan, wire.places()), epoch=wire.session_epoch, patient=wire.patient, quiet_since=wire.quiet_since
        )


class Log:
    """The records that a broker has of each partition, and answers that tell of them."""

    def __init__(self, chance: random.Random) -> None:
        self.kept: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
        #: 0: the broker has no room for another session.
        self.session = chance.choice((SESSION, SESSION, 0))
        self.chance, self.ends = chance, dict.fromkeys(range(PARTITIONS), 0)

    def part(self, number: int) -> dict[str, Any]:
        """New records of a partition, nearly always plain ones."""
        chance, first = self.chance, self.ends[number]
        count = chance.randint(1, 4)
        kind = chance.random()
        epoch = 5 if kind < 0.9 else 6
        data = b"".join(batch(first + n, 1, leader_epoch=epoch) for n in range(count))
        if kind < 0.2:
            data = batch(first, count, leader_epoch=epoch)
        high = first + count + chance.randint(0, 2)
        self.ends[number] = first + count
        self.kept[number].append((first, data))
        part = {"partition_index": number, "error_code": 0, "records": data, "high_watermark": high}
        return {**part, "last_stable_offset": high, "log_start_offset": chance.randint(0, 2)}

    def again(self, number: int, offset: int) -> dict[str, Any]:
        """What is kept of a partition from ``offset`` on."""
        later = [*(first for first, _ in self.kept[number][1:]), self.ends[number]]
        data = b"".join(data for (_, data), end in zip(self.kept[number], later, strict=True) if end > offset)
        ends = {"high_watermark": self.ends[number], "last_stable_offset": self.ends[number], "log_start_offset": 0}
        return {"partition_index": number, "error_code": 0, "records": data, **ends}

    def odd(self, number: int) -> dict[str, Any]:
        """A part that only LeaderFetch understands."""
        part, first = {"partition_index": number, "error_code": 0, "high_watermark": 0}, self.ends[number]
        kind = self.chance.randrange(5)
        if kind == 0:
            return {**part, "records": b"", "diverging_epoch": {"epoch": 4, "end_offset": 1}}
        if kind == 1:
            return {**part, "error_code": self.chance.choice((1, 3, 6, 74)), "records": b""}
        if kind == 2:
            return {**part, "records": batch(first, 2), "high_watermark": first + 1}
        if kind == 3:
            return {**part, "records": damaged(first, 2), "high_watermark": first + 9}
        return {**part, "records": batch(first, 2)[:30], "high_watermark": first + 9}

    def answer(self, *parts: dict[str, Any]) -> bytes:
        responses = [{"topic_id": TOPIC_ID, "partitions": list(parts)}] if parts else []
        return FETCH.encode_response(VERSION, {"session_id": self.session, "responses": responses})


def begin(log: Log) -> tuple[Side, Inline]:
    """Both have asked twice: the session stands, and the same is asked for again."""
    sides = Side(), Inline()
    for side in sides:
        assert side.ask() is not None
        side.answer(log.answer())
        assert side.ask() is not None
    sides[1].lend()
    return sides


@pytest.mark.parametrize("seed", range(60))
def test_it_asks_and_gives_what_the_specification_does(seed: int) -> None:
    chance = random.Random(seed)
    log = Log(chance)
    spec, inline = begin(log)
    rounds = 0
    for _ in range(25):
        later = chance.choice((0.0, 0.01, 0.6, 1.2))
        spec.now, inline.now = spec.now + later, inline.now + later
        numbers = chance.sample(range(PARTITIONS), chance.choice((0, 1, 1, 1, 2, 3)))
        data = log.answer(*map(log.part, numbers))
        spec.answer(data)
        assert inline.wire is not None
        request = inline.feed(data)
        assert request is not None
        rounds += 1
        most = chance.choice((0, 1, 2, 1000))
        spec.take(most)
        inline.take(most)
        if chance.random() < 0.2:
            inline.kit.collector.settle_lane()
        if chance.random() < 0.3:  # all that waits is taken: both know the same
            spec.take()
            inline.take()
            assert inline.state() == spec.state()
            assert inline.got == spec.got
        assert request == spec.ask()
        if chance.random() < 0.1:  # the worker goes on with the request in flight, and lends it again later
            inline.give_back()
            data = log.answer(log.part(0))
            spec.answer(data)
            inline.answer(data)
            assert inline.ask() == spec.ask()
            inline.lend()
    inline.take()
    spec.take()
    assert inline.state() == spec.state()
    assert inline.got == spec.got == {n: list(range(end)) for n, end in log.ends.items()}
    assert rounds == 25
    assert not spec.events
    assert not inline.events


@pytest.mark.parametrize("seed", range(40))
def test_what_is_not_plain_is_left_to_the_specification(seed: int) -> None:
    chance = random.Random(seed)
    log = Log(chance)
    spec, inline = begin(log)
    for _ in range(3):
        data = log.answer(*map(log.part, chance.sample(range(PARTITIONS), 2)))
        spec.answer(data)
        assert inline.feed(data) == spec.ask()
        for side in (spec, inline):
            side.take()
    odd, *others = chance.sample(range(PARTITIONS), 2)
    data = log.answer(*map(log.part, others), log.odd(odd))
    assert inline.feed(data) is None
    spec.answer(data)
    inline.answer(data)
    assert [told(event) for event in inline.events] == [told(event) for event in spec.events]
    for side in (spec, inline):
        side.take()
    assert inline.got == spec.got
    assert inline.state() == spec.state()
    assert inline.ask() == spec.ask()


def told(event: Any) -> tuple[Any, ...]:
    """An event, without the objects of one side."""
    if not isinstance(event, tuple):
        return (event,)
    return type(event).__name__, *(str(getattr(each, "tp", each)) for each in event)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:6] + b"\0\0\1\1" + data[10:],  # another session
        lambda data: data[:4] + b"\0\7" + data[6:],  # an error of the whole answer
        lambda data: b"\0\0\0\5" + data[4:],  # throttled
        lambda data: data[:11] + bytes(16) + data[27:],  # another topic
    ],
)
def test_a_damaged_or_strange_answer_changes_nothing(damage: Any) -> None:
    log = Log(random.Random(1))
    _, inline = begin(log)
    before = inline.state()
    assert inline.feed(damage(log.answer(log.part(0)))) is None
    assert inline.state() == before


def test_any_byte_may_be_another() -> None:
    """It takes an answer whole, or not at all, and never reads beyond it."""
    chance = random.Random(5)
    for _ in range(2000):
        log = Log(chance)
        _, inline = begin(log)
        data = bytearray(log.answer(log.part(0), log.part(2)))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cut = bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
        inline.feed(cut)
        inline.take()
        for number, offsets in inline.got.items():
            assert offsets == sorted(set(offsets)), number


def test_new_metadata_ends_it() -> None:
    log = Log(random.Random(1))
    _, inline = begin(log)
    inline.cluster.snapshot = cluster(dict.fromkeys(range(PARTITIONS), 1))
    assert inline.feed(log.answer(log.part(0))) is None


def test_what_came_for_a_partition_that_has_moved_is_dropped() -> None:
    log = Log(random.Random(1))
    _, inline = begin(log)
    assert inline.feed(log.answer(log.part(0), log.part(1))) is not None
    inline.kit.queue(0).state.seek(0)
    inline.kit.collector.forget({inline.kit.queue(0).tp})
    inline.kit.buffer.restart(inline.kit.queue(0).tp)
    inline.take()
    assert not inline.got[0]
    assert inline.got[1]
    assert inline.kit.queue(0).fetch_offset == 0


def test_a_position_that_moved_before_its_messages_were_noted_stays() -> None:
    log = Log(random.Random(1))
    _, inline = begin(log)
    assert inline.feed(log.answer(log.part(0), log.part(1))) is not None
    inline.kit.buffer.restart(inline.kit.queue(0).tp)
    inline.kit.collector.settle_lane()
    assert inline.kit.queue(0).fetch_offset == 0, "its messages are fetched again"
    inline.take()
    assert (inline.got[0], bool(inline.got[1])) == ([], True)


class SignalError(BaseException):
    """A signal's handler raises it."""


TRACED = ("fetch/collect.py", "fetch/buffer.py", "fetch/in_flight.py", "partition_state.py")


def interrupt_at(count: int, call: Callable[[], object]) -> bool:
    """Call, and raise after so many lines of the objects that messages go into; False: the call has fewer."""
    left = count

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        if event == "line":
            left -= 1
            if not left:
                raise SignalError
        return trace

    sys.settrace(trace)
    try:
        call()
    except SignalError:
        return True
    finally:
        sys.settrace(None)
    return False


def test_nothing_is_lost_whatever_line_is_interrupted() -> None:
    """Neither a message, nor a position that is beyond what was handed out."""
    count = 0
    while True:
        count += 1
        log = Log(random.Random(3))
        _, inline = begin(log)
        for numbers in ((0,), (1, 2), (0, 2)):
            assert inline.feed(log.answer(*map(log.part, numbers))) is not None
            if numbers == (0,):
                inline.take()
        if not interrupt_at(count, inline.take_and_look):
            break
        for number in range(PARTITIONS):
            state = inline.kit.states[number]
            assert (state.finished or 0) <= len(set(inline.got[number])), (count, number)
        inline.take()
        if inline.wire is not None:
            inline.give_back()
        assert inline.plan is not None
        inline.answer(log.answer())
        while inline.ask() is not None:
            parts = [
                log.again(queue.tp.partition, queue.fetch_offset)
                for queue in inline.kit.buffer
                if queue.fetch_offset < log.ends[queue.tp.partition]
            ]
            inline.answer(log.answer(*parts))
            inline.take()
            if not parts:
                break
        for number, offsets in inline.got.items():
            assert sorted(set(offsets)) == list(range(log.ends[number])), (count, number, offsets)
    assert count > 100
