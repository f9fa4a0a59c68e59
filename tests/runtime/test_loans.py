"""A consuming thread that waits receives small answers itself; whatever else happens, nothing is lost or late."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.runtime.engine import loans as lending
from managedconsumer.runtime.net.transport import PeerClosedError, make_transport
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.runtime.waiting.lookout import LookoutCondition
from managedconsumer.testing import MemoryBroker
from tests.waiting import until

TOPIC = "orders"


class Reader:
    """A thread that consumes until it gets None or an error."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.seen: list[Any] = []
        self.error: BaseException | None = None
        #: True: it keeps the message that it has got.
        self.busy = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while (message := self.consumer.consume()) is not None:
                self.seen.append(message.value)
                until(lambda: not self.busy)
        except Exception as error:  # noqa: BLE001 (looked at by the test)
            self.error = error


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: 2}) as broker:
        yield broker


@pytest.fixture
def make(broker: MemoryBroker) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def new(kind: type[Any] = SimpleConsumer, *group: Any, **options: Any) -> Any:
        given = {"consumer_timeout_ms": 20_000, **options}
        made.append(kind(TOPIC, broker.bootstrap, *group, **given))
        return made[-1]

    yield new
    for consumer in made:
        consumer.stop()


def state(consumer: Any) -> Any:
    return consumer._session.engine


def loans(consumer: Any) -> Any:
    return state(consumer).fetchers.lending.loans


def watching(consumer: Any) -> bool:
    """A thread waits for the answer."""
    engine = state(consumer)
    return bool(engine.lookout is not None and engine.lookout._watching)


def one_after_the_other(broker: MemoryBroker, reader: Reader, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        until(lambda: watching(reader.consumer))
        broker.produce(TOPIC, [b"%d" % number], partition=number % 2)
        until(lambda number=number: b"%d" % number in reader.seen)  # type: ignore[misc]


@pytest.fixture
def reader(broker: MemoryBroker, make: Callable[..., Any]) -> Reader:
    """A thread that has read "first" and waits for the answer itself."""
    reader = Reader(make())
    until(lambda: state(reader.consumer).sitting)
    broker.produce(TOPIC, [b"first"])
    until(lambda: watching(reader.consumer))
    return reader


def test_messages_come_in_their_order(broker: MemoryBroker, reader: Reader) -> None:
    one_after_the_other(broker, reader, 20)
    assert reader.seen == [b"first", *(b"%d" % n for n in range(20))]
    assert loans(reader.consumer)[0].rounds >= 20, "the thread itself has received them"


def test_a_stop_ends_the_wait_at_once(reader: Reader) -> None:
    started = time.monotonic()
    reader.consumer.stop()
    reader.thread.join(10)
    assert not reader.thread.is_alive()
    assert time.monotonic() - started < 4, "it did not wait for the broker's answer"


def test_a_large_answer_comes_and_is_received_by_the_worker(broker: MemoryBroker, reader: Reader) -> None:
    """The thread that waits for messages never waits for the rest of one that has begun to come."""
    (loan,) = until(lambda: loans(reader.consumer))
    broker.produce(TOPIC, [b"x" * 100_000])
    until(lambda: len(reader.seen) == 2)
    assert loan.over, "it has its connection back"
    assert not loan.delivered, "the thread has taken nothing of it"
    broker.produce(TOPIC, [b"after it"])
    until(lambda: reader.seen[-1] == b"after it")


def test_a_seek_counts_at_once(broker: MemoryBroker, reader: Reader) -> None:
    one_after_the_other(broker, reader, 4)
    until(lambda: watching(reader.consumer))
    reader.consumer.seek(TopicPartition(TOPIC, 0), 0)
    until(lambda: reader.seen.count(b"0") == 2, 4.0)
    assert reader.seen[-1] == b"2"


def test_a_broken_connection_is_replaced(broker: MemoryBroker, reader: Reader) -> None:
    one_after_the_other(broker, reader, 2)
    loans(reader.consumer)[0].sent.connection.close()
    broker.produce(TOPIC, [b"after it"])
    until(lambda: reader.seen[-1] == b"after it")
    assert reader.seen == [b"first", b"0", b"1", b"after it"]


def test_the_worker_goes_on_when_the_thread_stays_away(
    broker: MemoryBroker, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "_MISSED", 0.05)
    consumer = make()
    sender = threading.Thread(target=lambda: (until(lambda: state(consumer).sitting), broker.produce(TOPIC, [b"0"])))
    sender.start()
    assert consumer.consume().value == b"0"
    sender.join()
    for number in range(1, 4):  # each is another answer
        broker.produce(TOPIC, [b"%d" % number])
        until(lambda number=number: state(consumer).buffer.records == number)  # type: ignore[misc]
    assert [consumer.consume().value for _ in range(3)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("far", [False, True], ids=["between two messages", "long after"])
def test_a_seek_while_the_thread_works_is_followed_at_once(
    broker: MemoryBroker, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    """The worker sleeps, and nobody looks after its connection."""
    for name in ("_MISSED", "_LONGEST_NAP"):
        monkeypatch.setattr(lending, name, 600.0 if name == "_LONGEST_NAP" or not far else 0.02)
    consumer = make()
    reader = Reader(consumer)
    until(lambda: state(consumer).sitting)
    for number in range(4):
        broker.produce(TOPIC, [b"%d" % number], partition=0)
        until(lambda number=number: len(reader.seen) == number + 1)  # type: ignore[misc]
        until(lambda: watching(consumer))
    lending_ = state(consumer).fetchers.lending
    until(lambda: lending_._asleep or not far)
    reader.busy = True
    broker.produce(TOPIC, [b"4"], partition=0)
    until(lambda: len(reader.seen) == 5)
    if far:  # the thread has said that it left, and the worker fetches itself
        broker.produce(TOPIC, [b"5"], partition=0)
        until(lambda: state(consumer).buffer.records == 1)
    consumer.seek(TopicPartition(TOPIC, 0), 2)
    until(lambda: state(consumer).buffer.records == (4 if far else 3))
    reader.busy = False
    until(lambda: len(reader.seen) == (9 if far else 8))
    assert reader.seen[5:8] == [b"2", b"3", b"4"]


def test_two_threads_share_what_comes(broker: MemoryBroker, reader: Reader) -> None:
    other = Reader(reader.consumer)
    for number in range(30):
        broker.produce(TOPIC, [b"%d" % number])
        until(lambda number=number: b"%d" % number in reader.seen + other.seen)  # type: ignore[misc]
    assert sorted(reader.seen + other.seen) == sorted([b"first", *(b"%d" % n for n in range(30))])


class Interrupted(Exception):
    """What a signal's handler raises."""


@pytest.mark.parametrize("where", ["before", "in the middle", "after"])
def test_nothing_is_lost_when_the_thread_is_interrupted(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    pool = state(reader.consumer).fetchers
    take_all, push = pool.take_all, PartitionQueue.push
    # The worker hears of it at once, and does not find out by its next look.
    monkeypatch.setattr(lending, "_MISSED", 60.0)
    one_after_the_other(broker, reader, 2, start=100)
    reader.seen.clear()

    def half(queue: PartitionQueue, chunk: Any) -> None:
        monkeypatch.setattr(PartitionQueue, "push", push)
        queue.fetch_offset = chunk.next_fetch_offset
        raise Interrupted

    def interrupted(*args: Any) -> bool:
        if threading.current_thread() is not reader.thread:
            return bool(take_all(*args))
        monkeypatch.setattr(pool, "take_all", take_all)
        if where == "in the middle":
            monkeypatch.setattr(PartitionQueue, "push", half)
        if where != "before":
            take_all(*args)
        raise Interrupted

    monkeypatch.setattr(pool, "take_all", interrupted)
    broker.produce(TOPIC, [b"0"])
    reader.thread.join(10)
    assert isinstance(reader.error, Interrupted)
    again = Reader(reader.consumer)
    until(lambda: again.seen)
    broker.produce(TOPIC, [b"1"])
    until(lambda: again.seen == [b"0", b"1"])


class Callback:
    """For the consuming thread."""

    def __init__(self) -> None:
        self.ran = 0

    def run(self) -> None:
        self.ran += 1

    async def run_async(self) -> None:
        self.run()


@pytest.mark.parametrize("what", ["a message", "a callback"])
def test_nothing_is_lost_when_the_thread_is_interrupted_as_it_leaves_the_loans(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It has got a message, or a callback to run, already."""
    engine, callback = state(reader.consumer), Callback()
    lending_, leave = engine.fetchers.lending, engine.fetchers.lending.nobody_serves

    def interrupted(who: int) -> None:
        monkeypatch.setattr(lending_, "nobody_serves", leave)
        leave(who)
        raise Interrupted

    until(lambda: watching(reader.consumer))
    monkeypatch.setattr(lending_, "nobody_serves", interrupted)
    if what == "a message":
        broker.produce(TOPIC, [b"0"])
    else:
        engine.run_in_user_thread(callback)
    reader.thread.join(10)
    assert isinstance(reader.error, Interrupted)
    again = Reader(reader.consumer)
    if what == "a message":
        until(lambda: again.seen == [b"0"])
    else:
        until(lambda: callback.ran)
    broker.produce(TOPIC, [b"1"])
    until(lambda: again.seen[-1:] == [b"1"])
    assert callback.ran == (what == "a callback")


def test_a_signals_handler_interrupts_the_wait(broker: MemoryBroker, make: Callable[..., Any]) -> None:
    consumer = make(ManagedBalancedConsumer, "group")

    def raises(*_: Any) -> None:
        raise Interrupted

    def send() -> None:
        until(lambda: state(consumer).sitting)
        broker.produce(TOPIC, [b"0"])
        until(lambda: watching(consumer))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raises)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert consumer.consume().value == b"0"
        with pytest.raises(Interrupted):
            consumer.consume()
    finally:
        signal.signal(signal.SIGUSR1, before)
        sender.join()
    broker.produce(TOPIC, [b"1"])
    assert consumer.consume().value == b"1"


# -- below it ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_a_lookout_that_is_interrupted_while_it_is_made_leaves_nothing(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python says of a ``__del__`` that raises is an error in these tests."""
    lookout = LookoutCondition(threading.RLock())

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "eventfd", interrupt)
    with lookout, pytest.raises(KeyboardInterrupt):
        lookout.watch([pair[0]], 0.0)
    monkeypatch.undo()
    with lookout:
        assert lookout.watch([pair[0]], 0.0) == []


def test_a_lookout_hears_notifications_and_connections(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    lookout = LookoutCondition(threading.RLock())
    with lookout:
        assert lookout.watch([here], 0.0) == []
        there.send(b"x")
        assert lookout.watch([here], 20.0) == [0]
        here.recv(1)
    for _ in range(3):

        def notify() -> None:
            with lookout:
                until(lambda: True)
                lookout.notify_all()

        with lookout:
            waker = threading.Thread(target=notify)
            waker.start()
            started = time.monotonic()
            assert lookout.watch([here], 20.0) == []
            assert time.monotonic() - started < 10
        waker.join()


def test_a_glance_waits_for_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    transport = make_transport(ThreadingHandler(), here)

    def size(header: bytes) -> int:
        return int.from_bytes(header, "big")

    assert transport.glance(size) is True
    there.send(b"\0\0")
    assert transport.glance(size) is True
    there.send(b"\0\5abc")
    assert transport.glance(size) is True
    there.send(b"de")
    frame = transport.glance(size)
    assert isinstance(frame, memoryview)
    assert bytes(frame) == b"abcde"
    long = b"y" * 20_000
    there.send(len(long).to_bytes(4, "big") + long[:100])
    assert transport.glance(size) is False
    there.send(long[100:])
    assert bytes(transport.receive_frame(size, time.monotonic() + 20)) == long
    there.close()
    with pytest.raises(PeerClosedError):
        transport.glance(size)


def test_what_has_no_room_at_once_is_sent_all_the_same(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    transport = make_transport(ThreadingHandler(), here)
    data = bytes(range(256)) * 8192
    got = bytearray()

    def read() -> None:
        while len(got) < len(data):
            got.extend(there.recv(65536))

    reader = threading.Thread(target=read)
    reader.start()
    transport.send_at_once(data, time.monotonic() + 60)
    reader.join(60)
    assert got == data


def test_every_waiting_thread_hears_a_notification_of_all() -> None:
    condition = ThreadingHandler().Condition()
    with condition:
        condition.notify_all()  # nobody is there: nobody hears it later
    waiting, heard = [], []

    def wait() -> None:
        with condition:
            waiting.append(1)
            heard.append(condition.wait(60))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(waiting) == 3)
    with condition:
        condition.notify_all()
    for thread in threads:
        thread.join(60)
    assert heard == [True] * 3
