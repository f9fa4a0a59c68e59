"""A consuming thread that waits receives small answers itself; whatever else happens, nothing is lost or late."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer.errors import KafkaException
from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.runtime.engine import delivery
from managedconsumer.runtime.engine.delivery import Delivery
from managedconsumer.runtime.engine.fetching import inline
from managedconsumer.runtime.waiting.conditions import WakeupFd
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire import records
from tests.conftest import Ended
from tests.memory import memory_broker
from tests.waiting import until

TOPIC = "orders"
pytestmark = pytest.mark.skipif(records.__impl__ != "cython", reason="threads receive for themselves in compiled code")


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


broker = memory_broker({TOPIC: 2})


@pytest.fixture
def make(broker: MemoryBroker, ended: Ended) -> Callable[..., Any]:
    def new(kind: type[Any] = SimpleConsumer, *group: Any, **options: Any) -> Any:
        given = {"consumer_timeout_ms": 20_000, **options}
        return ended(kind(TOPIC, broker.bootstrap, *group, **given))

    return new


def state(consumer: Any) -> Any:
    return consumer._session.engine


def wires(consumer: Any) -> Any:
    return state(consumer).inline.wires


def receives(consumer: Any) -> bool:
    """A thread waits for the answer."""
    return any(wire.inside for wire in wires(consumer))


def waits(consumer: Any) -> bool:
    """A thread waits for messages; it or the worker receives them."""
    return bool(state(consumer).assignment.sitting) or receives(consumer)


def one_after_the_other(broker: MemoryBroker, reader: Reader, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        until(lambda: receives(reader.consumer))
        broker.produce(TOPIC, [b"%d" % number], partition=number % 2)
        until(lambda number=number: b"%d" % number in reader.seen)  # type: ignore[misc]


@pytest.fixture
def reader(broker: MemoryBroker, make: Callable[..., Any]) -> Reader:
    """A thread that has read "first" and waits for the answer itself."""
    reader = Reader(make())
    until(lambda: waits(reader.consumer))
    broker.produce(TOPIC, [b"first"])
    until(lambda: receives(reader.consumer))
    return reader


def test_messages_come_in_their_order(broker: MemoryBroker, reader: Reader) -> None:
    one_after_the_other(broker, reader, 20)
    assert reader.seen == [b"first", *(b"%d" % n for n in range(20))]
    assert wires(reader.consumer)[0].rounds >= 20, "the thread itself has received them"


def test_a_stop_ends_the_wait_at_once(reader: Reader) -> None:
    started = time.monotonic()
    reader.consumer.stop()
    reader.thread.join(10)
    assert not reader.thread.is_alive()
    assert time.monotonic() - started < 4, "it did not wait for the broker's answer"


def test_a_large_answer_comes_and_is_received_by_the_worker(broker: MemoryBroker, reader: Reader) -> None:
    """The thread that waits for messages never waits for the rest of one that has begun to come."""
    (wire,) = until(lambda: wires(reader.consumer))
    rounds = wire.rounds
    broker.produce(TOPIC, [b"x" * 100_000])
    until(lambda: len(reader.seen) == 2)
    assert wire.recalled, "the worker has its connection back"
    assert wire.rounds == rounds, "the thread has taken nothing of it"
    broker.produce(TOPIC, [b"after it"])
    until(lambda: reader.seen[-1] == b"after it")


def test_a_seek_counts_at_once(broker: MemoryBroker, reader: Reader) -> None:
    one_after_the_other(broker, reader, 4)
    until(lambda: receives(reader.consumer))
    reader.consumer.seek(TopicPartition(TOPIC, 0), 0)
    until(lambda: reader.seen.count(b"0") == 2, 4.0)
    assert reader.seen[-1] == b"2"


def test_a_broken_connection_is_replaced(broker: MemoryBroker, reader: Reader) -> None:
    one_after_the_other(broker, reader, 2)
    wires(reader.consumer)[0].owner.connection.close()
    broker.produce(TOPIC, [b"after it"])
    until(lambda: reader.seen[-1] == b"after it")
    assert reader.seen == [b"first", b"0", b"1", b"after it"]


def test_the_worker_goes_on_when_the_thread_stays_away(
    broker: MemoryBroker, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "_MISSED", 0.05)
    consumer = make()
    sender = threading.Thread(target=lambda: (until(lambda: waits(consumer)), broker.produce(TOPIC, [b"0"])))
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
    """Nobody receives, and the worker sleeps, or has its connection back already."""
    monkeypatch.setattr(inline, "_MISSED", 0.02 if far else 600.0)
    consumer = make()
    reader = Reader(consumer)
    until(lambda: waits(consumer))
    for number in range(4):
        broker.produce(TOPIC, [b"%d" % number], partition=0)
        until(lambda number=number: len(reader.seen) == number + 1)  # type: ignore[misc]
        until(lambda: receives(consumer))
    reader.busy = True
    broker.produce(TOPIC, [b"4"], partition=0)
    until(lambda: len(reader.seen) == 5)
    if far:
        until(lambda: not wires(consumer))
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


class Callback:
    """For the consuming thread."""

    def __init__(self) -> None:
        self.ran = 0

    def run(self) -> None:
        self.ran += 1

    async def run_async(self) -> None:
        self.run()


class Interrupted(Exception):
    """What a signal's handler raises."""


@pytest.mark.parametrize("where", ["report", "accept", "settled"])
def test_nothing_is_lost_when_the_thread_is_interrupted(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It has received messages, of which the consumer's objects do not know yet, or half."""
    one_after_the_other(broker, reader, 2, start=100)
    reader.seen.clear()
    note = FetchCollector._note_received

    class Source:
        """The real one, at a step of which the signal comes."""

        def __init__(self, source: Any) -> None:
            self._source = source

        def __getattr__(self, name: str) -> Any:
            if name == {"report": "report", "accept": "pop", "settled": "settled"}[where]:
                monkeypatch.setattr(FetchCollector, "_note_received", note)
                if name == "pop":
                    self._source.pop()
                raise Interrupted
            return getattr(self._source, name)

    def interrupted(collector: FetchCollector, source: Any) -> None:
        note(collector, Source(source) if threading.current_thread() is reader.thread else source)

    monkeypatch.setattr(FetchCollector, "_note_received", interrupted)
    broker.produce(TOPIC, [b"0"])
    state(reader.consumer).delivery.run_in_user_thread(Callback())  # it comes to the lock
    reader.thread.join(10)
    assert isinstance(reader.error, Interrupted)
    again = Reader(reader.consumer)
    broker.produce(TOPIC, [b"1"])
    until(lambda: {b"0", b"1"} <= set(reader.seen + again.seen))


@pytest.mark.parametrize("what", ["a message", "a callback"])
def test_nothing_is_lost_when_the_thread_is_interrupted_as_it_leaves(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It has got a message, or a callback to run, already."""
    engine, callback = state(reader.consumer), Callback()

    def interrupted(self: Any, who: int, take: Any, timeout: Any) -> Any:
        taken = wait(self, who, take, timeout)
        monkeypatch.setattr(Delivery, "_wait_as", wait)
        self._give_back(who, taken, None)
        raise Interrupted

    until(lambda: receives(reader.consumer))
    wait = Delivery._wait_as
    monkeypatch.setattr(Delivery, "_wait_as", interrupted)
    if what == "a callback":
        engine.delivery.run_in_user_thread(callback)
    broker.produce(TOPIC, [b"0"])
    reader.busy = False
    broker.produce(TOPIC, [b"x" * 100_000])  # the slow path is needed
    reader.thread.join(10)
    assert isinstance(reader.error, Interrupted)
    again = Reader(reader.consumer)
    until(lambda: len(reader.seen + again.seen) >= 3)
    assert {b"0", b"x" * 100_000} <= set(reader.seen + again.seen)
    assert callback.ran == (what == "a callback")


def test_a_signals_handler_interrupts_the_wait(broker: MemoryBroker, make: Callable[..., Any]) -> None:
    consumer = make(ManagedBalancedConsumer, "group")

    def raises(*_: Any) -> None:
        raise Interrupted

    def send() -> None:
        until(lambda: waits(consumer))
        broker.produce(TOPIC, [b"0"])
        until(lambda: receives(consumer))
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


@pytest.mark.parametrize("what", ["consume", "seek", "positions"])
def test_a_signals_handler_uses_the_consumer_that_waits(
    broker: MemoryBroker, make: Callable[..., Any], what: str
) -> None:
    """The handler runs between two empty responses, while its own thread receives."""
    consumer = make(ManagedBalancedConsumer, "group", fetch_wait_max_ms=5)
    first = TopicPartition(TOPIC, 0)
    found: list[bytes] = []
    inner: list[bytes] = []

    def handle(*_: Any) -> None:
        if what == "consume":
            broker.produce(TOPIC, [b"1"], partition=0)
            inner.append(consumer.consume().value)
        elif what == "seek":
            consumer.seek(first, 0)
        else:
            consumer.position(first)
        broker.produce(TOPIC, [b"2"], partition=0)

    def send() -> None:
        until(lambda: waits(consumer))
        broker.produce(TOPIC, [b"0"], partition=0)
        until(lambda: receives(consumer))
        until(lambda: any(wire.inside and wire.rounds for wire in wires(consumer)))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        found += [consumer.consume().value for _ in range({"consume": 2, "seek": 3, "positions": 2}[what])]
    finally:
        signal.signal(signal.SIGUSR1, before)
        sender.join()
    assert found == {"consume": [b"0", b"2"], "seek": [b"0", b"0", b"2"], "positions": [b"0", b"2"]}[what]
    assert inner == ([b"1"] if what == "consume" else [])


def test_a_message_comes_while_another_thread_looks_at_the_positions(broker: MemoryBroker, reader: Reader) -> None:
    """Whatever takes the lock sees what was handed out, and the thread goes on."""
    for number in range(40):
        until(lambda: receives(reader.consumer))
        broker.produce(TOPIC, [b"%d" % number], partition=0)
        until(lambda number=number: b"%d" % number in reader.seen)  # type: ignore[misc]
        partition = TopicPartition(TOPIC, 0)
        assert reader.consumer.position(partition) == broker.end_offsets()[partition]
    assert reader.seen == [b"first", *(b"%d" % n for n in range(40))]


def test_what_is_finished_is_committed_and_nothing_else(broker: MemoryBroker, make: Callable[..., Any]) -> None:
    consumer = make(ManagedBalancedConsumer, "group", auto_commit_enable=True, auto_commit_interval_ms=100)
    reader = Reader(consumer)
    until(lambda: waits(consumer))
    for number in range(10):
        broker.produce(TOPIC, [b"%d" % number], partition=0)
        until(lambda number=number: len(reader.seen) == number + 1)  # type: ignore[misc]
        until(lambda: receives(consumer))
    until(lambda: broker.committed("group").get((TOPIC, 0)) == 10)
    reader.busy = True
    broker.produce(TOPIC, [b"10"], partition=0)
    until(lambda: len(reader.seen) == 11)
    consumer.commit_offsets(wait=False).result(5000)
    assert broker.committed("group")[TOPIC, 0] == 10, "the thread has not come back for the next one"
    reader.busy = False


def test_no_message_waits_behind_the_thread_that_receives(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer brings messages of two partitions: the second does not wait for another answer."""
    one_after_the_other(broker, reader, 4)
    reader.busy = True
    broker.produce(TOPIC, [b"a"], partition=0)
    until(lambda: b"a" in reader.seen)
    monkeypatch.setattr(delivery, "_LONGEST_NAP", 60.0)
    for partition in (0, 1):
        broker.produce(TOPIC, [b"b%d" % partition, b"c%d" % partition], partition=partition)
    reader.busy = False
    until(lambda: {b"b0", b"c0", b"b1", b"c1"} <= set(reader.seen), 10, "it did not wait for the longest nap")
    for partition in b"01":
        assert reader.seen.index(b"b%c" % partition) < reader.seen.index(b"c%c" % partition)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_does_not_receive(broker: MemoryBroker, reader: Reader) -> None:
    one_after_the_other(broker, reader, 3)
    child = os.fork()
    if not child:
        try:
            reader.consumer.consume()
        except KafkaException:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    one_after_the_other(broker, reader, 3, start=50)


# -- below it ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_a_bell_that_is_interrupted_while_it_is_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python says of a ``__del__`` that raises is an error in these tests."""

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "eventfd", interrupt)
    with pytest.raises(KeyboardInterrupt):
        WakeupFd()
    monkeypatch.undo()
    assert WakeupFd().read_fd >= 0


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
