"""Where one room meets another: whatever makes the engine forget or stop a partition, against whatever holds messages.

Each test lets a holder take the messages 0 to 9 of a partition and finish none of them, lets something happen to the
partition, lets the holder go on, and looks what was worked on and what is committed. ``reliability.rst`` in docs/ has
the table of :data:`CELLS`; ``tests/test_docs.py`` compares the two.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.stores import SQLStore
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.waiting import until

TOPIC, GROUP = "orders", "billing"
TP = TopicPartition(TOPIC, 0)
LONG = 60.0
#: What the partition has at first.
OLD = [f"old-{n}" for n in range(10)]


def write(broker: MemoryBroker, values: list[str]) -> None:
    records = [Record(value.encode(), f"key-{value[4:]}".encode(), 1, ()) for value in values]
    broker.produce(TOPIC, records, partition=0)


# -- holders --------------------------------------------------------------------------------------------------------


class Holder:
    """Reads in a thread of its own; ``done`` has the values of what it has worked on, in order."""

    #: How many messages it has in flight while it stands at the gate, and how many of these it has begun.
    holds = begun = 10
    options: ClassVar[dict[str, Any]] = {}
    dies = False

    def __init__(self, broker: MemoryBroker, **options: Any) -> None:
        given = {"auto_offset_reset": "earliest", "fetch_wait_max_ms": 20, "consumer_timeout_ms": 50}
        given |= {"auto_commit_enable": True, "auto_commit_interval_ms": 20, "revoke_drain_ms": 200}
        given |= {"heartbeat_interval_ms": 20, **self.options, **options}
        self.given = options
        self.consumer: Any = ManagedBalancedConsumer(TOPIC, broker.bootstrap, GROUP, auto_start=False, **given)
        self.gate = threading.Event()
        self.lock = threading.Lock()
        self.done: list[str] = []
        self.at_work: list[Any] = []
        self.error: BaseException | None = None
        self.threads: list[threading.Thread] = []

    def prepare(self) -> None:
        """Before the consumer starts."""

    def begin(self) -> None:
        self.prepare()
        self.consumer.start()
        self.go(self.read)

    def start(self) -> None:
        self.begin()
        until(lambda: len(self.at_work) == self.begun and self.taken() == self.holds, LONG)

    def go(self, what: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                what()
            except err.ConsumerStoppedException:
                pass
            except BaseException as error:  # noqa: BLE001
                self.error = error

        self.threads.append(threading.Thread(target=guarded, daemon=True))
        self.threads[-1].start()

    def taken(self) -> int:
        return len(self.at_work)

    def work(self, messages: list[Any]) -> None:
        with self.lock:
            self.at_work += messages
        self.gate.wait(LONG)
        if self.dies:
            raise err.ConsumerStoppedException("the thread ends")
        with self.lock:
            for message in messages:
                self.at_work.remove(message)
                self.done.append(message.value.decode())

    def read(self) -> None:
        while True:
            messages = self.take()
            if messages:
                self.work(messages)

    def take(self) -> list[Any]:
        raise NotImplementedError

    def stop(self) -> None:
        self.gate.set()
        self.consumer.stop()
        for thread in self.threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert self.error is None, self.error


class Batch(Holder):
    """``consume_batch()``: all of it is in one hand."""

    def take(self) -> list[Any]:
        return list(self.consumer.consume_batch(10, 50))


class Rows(Holder):
    """``consume_arrow()``."""

    options: ClassVar[dict[str, Any]] = {"fetch_min_bytes": 900, "fetch_wait_max_ms": 30}  # all ten in one answer

    def take(self) -> list[Any]:
        found = self.consumer.consume_arrow(50, ["value"])
        return [] if found is None else [Row(value) for value in found.column("value").to_pylist()]


class Row:
    def __init__(self, value: bytes) -> None:
        self.value = value


class Threads(Holder):
    """Two threads that call ``consume()``, past the lock where they can; the rest of the messages is buffered."""

    holds = begun = 2

    def read(self) -> None:
        self.go(self.one)
        self.one()

    def one(self) -> None:
        while True:
            message = self.consumer.consume()
            if message is not None:
                self.work([message])


class Iteration(Holder):
    """One thread that iterates."""

    holds = begun = 1

    def read(self) -> None:
        while True:
            for message in self.consumer:
                self.work([message])


class Running(Holder):
    """``run()`` in two threads: it has taken all ten, and begun two."""

    begun = 2
    run: ClassVar[dict[str, Any]] = {"workers": 2}

    def taken(self) -> int:
        told = self.consumer.health()["run"]
        return 0 if told is None else int(told["in_flight"])

    def read(self) -> None:
        grace_ms = 5000 if self.gate.is_set() else 0
        self.consumer.run(self.handle, signals=False, commit_ms=20, grace_ms=grace_ms, **self.run)

    def handle(self, message: Any) -> None:
        self.work([message])


class RunningLists(Running):
    """``run(batch=...)``: lists of two."""

    run: ClassVar[dict[str, Any]] = {"workers": 2, "batch": (2, 5), "order": "partition"}

    def handle(self, message: Any) -> None:
        self.work(message)


class RunningTasks(Running):
    """``run_async()``."""

    def read(self) -> None:
        async def handle(message: Any) -> None:
            self.at_work.append(message)
            while not self.gate.is_set():
                await asyncio.sleep(0.002)
            self.at_work.remove(message)
            self.done.append(message.value.decode())

        asyncio.run(self.consumer.run_async(handle, signals=False, commit_ms=20, grace_ms=0, **self.run))


class RunningRdkafka(Running):
    """``run()`` where librdkafka fetches."""

    options: ClassVar[dict[str, Any]] = {"use_rdkafka": True}


class RunningStore(Running):
    """``run()`` with a store attached: one message of the partition at a time, stored with its next offset."""

    begun = 1
    run: ClassVar[dict[str, Any]] = {"workers": 2, "order": "partition"}
    directory = Path()

    def prepare(self) -> None:
        file = self.directory / "store.db"
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("create table if not exists done (value text)")
        self.store = SQLStore(lambda: sqlite3.connect(file, timeout=LONG))
        self.store.attach(self.consumer)

    def handle(self, message: Any) -> None:
        self.at_work.append(message)
        self.gate.wait(LONG)
        self.at_work.remove(message)
        self.store.save([message], lambda database, some: [self.keep(database, each) for each in some])

    def keep(self, database: Any, message: Any) -> None:
        database.execute("insert into done values (?)", (message.value.decode(),))
        self.done.append(message.value.decode())

    def stop(self) -> None:
        super().stop()
        self.store.close()


HOLDERS: dict[str, type[Holder]] = {
    "run": Running,
    "run-lists": RunningLists,
    "run-tasks": RunningTasks,
    "run-rdkafka": RunningRdkafka,
    "run-store": RunningStore,
    "threads": Threads,
    "iteration": Iteration,
    "batch": Batch,
    "arrow": Rows,
}


# -- events ---------------------------------------------------------------------------------------------------------


class Scene:
    """One test: the broker, the holder that stands at the gate, and what has to come of it."""

    def __init__(self, broker: MemoryBroker, holder: Holder, directory: Path) -> None:
        self.broker, self.holder, self.directory = broker, holder, directory
        self.others: list[Holder] = []
        #: What has to be worked on at least once, and what at most once.
        self.wanted, self.once = list(OLD), list(OLD)
        #: The commit at the end, and the highest one while the gate is shut.
        self.end, self.bound = 10, 0

    def committed(self) -> int:
        return self.broker.committed(GROUP).get(TP, 0)

    def done(self) -> list[str]:
        return [value for each in (self.holder, *self.others) for value in each.done]

    @property
    def engine(self) -> Any:
        return self.holder.consumer._session.engine

    def position(self) -> int | None:
        state = self.engine.subscription.assignment.get(TP)
        return None if state is None else state.position

    def open_gate(self) -> None:
        self.holder.gate.set()

    def runs(self) -> bool:
        return isinstance(self.holder, Running)


def retention(scene: Scene) -> None:
    """The log begins behind all that was read: what is in flight is deleted there, and worked on all the same."""
    log, fresh = scene.broker._topics.log(TOPIC, 0), [f"new-{n}" for n in range(50, 55)]

    def jump() -> None:
        for _ in range(40):
            log.append(encode_batch([Record(b"never read", None, 1, ())]))
        log.delete_before(50)

    scene.broker._do(jump)
    write(scene.broker, fresh)
    until(lambda: not scene.runs() or (scene.position() or 0) >= 50, LONG)
    scene.wanted += fresh
    scene.once += fresh
    scene.end = 55


def truncation(scene: Scene) -> None:
    """A new leader's log has other records from offset 5 on: what is in flight below counts, the rest not."""
    log, fresh = scene.broker._topics.log(TOPIC, 0), [f"new-{n}" for n in range(5, 10)]

    def cut() -> None:
        log._batches = [entry for entry in log._batches if entry[1] <= 5]
        log.end = 5
        log.lead(log.leader)
        for value in fresh:
            log.append(encode_batch([Record(value.encode(), b"key-" + value[4:].encode(), 1, ())]))

    engine = scene.engine
    with engine.lock:
        scene.broker._do(cut)
        engine.assignment.log_truncated(engine.buffer.queues[TP], 5, 0)
    scene.wanted = OLD[:5] + fresh
    scene.once += fresh


def made_anew(scene: Scene) -> None:
    """The topic is deleted and created again: nothing of the old one that was not begun is worked on, or committed."""
    fresh = [f"new-{n}" for n in range(3)]
    topics, queue, begins = scene.broker._topics, scene.engine.buffer.queues[TP], scene.position() or 0
    old = queue.topic_id
    scene.broker._do(lambda: (scene.broker._delete(TOPIC), topics.create(TOPIC, 1)))
    write(scene.broker, fresh)
    # Otherwise it waits until the metadata is old, or a fetch names the topic's id.
    scene.engine.assignment.refresh_metadata()
    until(
        lambda: scene.position() is not None and (queue.topic_id != old or (scene.position() or 0) <= 3 < begins), LONG
    )
    # The broker in memory is asked by name: offset 10 is out of range first, and the id tells of the new topic later.
    scene.wanted, scene.once, scene.end, scene.bound = fresh, OLD, 3, 3


def seek(scene: Scene) -> None:
    """Nothing that is in flight counts; whoever works on it can see that."""
    scene.holder.consumer.seek(0, 3)
    assert all(message.fenced for message in scene.holder.at_work if hasattr(message, "fenced"))
    scene.wanted, scene.once, scene.bound = OLD[3:], [], 3


def reset_offsets(scene: Scene) -> None:
    scene.holder.consumer.reset_offsets({0: -2})
    scene.once = []


def fetch_offsets(scene: Scene) -> None:
    """It moves whoever reads by himself, as in pykafka, and takes nothing from ``run()``."""
    scene.holder.consumer.fetch_offsets()
    scene.once = list(OLD) if scene.runs() else []


def cooperative(scene: Scene) -> None:
    """Another member joins: the partition goes to it, or stays."""
    other = type(scene.holder)(scene.broker, **scene.holder.given)
    other.gate.set()
    scene.others.append(other)
    other.begin()
    scene.once = []


def loss(scene: Scene) -> None:
    """The member is evicted, joins again and has the partition back: nothing of before counts."""
    old = scene.engine.buffer.queues[TP]
    scene.broker.evict(GROUP)
    until(lambda: scene.engine.buffer.queues.get(TP, old) is not old, LONG)
    scene.once = []


def pause(scene: Scene) -> None:
    """What was begun ends; nothing else is, before ``resume()``."""
    holder, consumer = scene.holder, scene.holder.consumer
    consumer.pause(0)
    begun = sorted(message.value.decode() for message in holder.at_work)
    holder.gate.set()
    until(lambda: len(holder.done) >= len(begun), LONG)
    passed = scene.engine.delivery.visits
    until(lambda: scene.engine.delivery.visits > passed + 3 or scene.runs(), LONG)
    assert sorted(holder.done) == begun
    consumer.resume(0)


def stop(scene: Scene) -> None:
    """The member that comes next works on all that was not finished."""
    holder = scene.holder
    stopper = threading.Thread(target=lambda: holder.consumer.stop(timeout=1.0), daemon=True)
    stopper.start()
    stopper.join(LONG)
    assert scene.committed() == 0
    cooperative(scene)


def death(scene: Scene) -> None:
    """The threads that have them end without coming back: nothing passes that, and the next member reads it again."""
    holder = scene.holder
    holder.dies = True
    holder.gate.set()
    for thread in holder.threads:
        thread.join(LONG)
    stop(scene)


EVENTS: dict[str, Callable[[Scene], None]] = {
    "retention": retention,
    "truncation": truncation,
    "made-anew": made_anew,
    "seek": seek,
    "reset_offsets": reset_offsets,
    "fetch_offsets": fetch_offsets,
    "eager": cooperative,
    "cooperative": cooperative,
    "kip848": cooperative,
    "loss": loss,
    "pause": pause,
    "stop": stop,
    "death": death,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "cooperative": {"membership_protocol": "cooperative-sticky"},
    "kip848": {"group_protocol": "consumer"},
}
#: Why a cell is empty.
EMPTY = {
    ("death", holder): "a handler that fails is retried, dead or the end of the run"
    for holder in HOLDERS
    if "run" in holder
}
CELLS = [(event, holder) for event in EVENTS for holder in HOLDERS if (event, holder) not in EMPTY]
#: The fast half of the tests has three holders; CI and ``--long`` have all of them.
FAST = {(event, holder) for event, holder in CELLS if holder in ("run", "threads", "arrow")}
FAST |= {("pause", "run-tasks")}
FAST -= {("made-anew", "threads"), ("made-anew", "arrow")}  # they wait for a second until metadata may be asked again


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: 1}) as broker:
        write(broker, OLD)
        yield broker


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """``run()`` must not depend on the naps that make up for a missed wake-up."""
    monkeypatch.setattr("managedconsumer.runtime.running.run._LONGEST_WAIT", 60.0, raising=False)
    for driver in ("tasks", "threads"):
        monkeypatch.setattr(f"managedconsumer.runtime.running.{driver}._NAP", 600.0)


@pytest.mark.usefixtures("no_naps")
@pytest.mark.parametrize(
    ("event", "kind"),
    [pytest.param(*cell, marks=() if cell in FAST else pytest.mark.slow, id="-".join(cell)) for cell in CELLS],
)
def test_nothing_is_forgotten_and_nothing_passed(broker: MemoryBroker, tmp_path: Path, event: str, kind: str) -> None:
    if kind == "run-rdkafka":
        pytest.importorskip("confluent_kafka")
    if kind == "arrow":
        pytest.importorskip("pyarrow")
    RunningStore.directory = tmp_path
    options = OPTIONS.get(event, {})
    holder = HOLDERS[kind](broker, **options)
    scene = Scene(broker, holder, tmp_path)
    try:
        holder.start()
        EVENTS[event](scene)
        assert scene.committed() <= scene.bound or event == "pause", "a commit has passed what is in flight"
        scene.open_gate()
        until(lambda: set(scene.wanted) <= set(scene.done()), LONG)
        until(lambda: scene.committed() == scene.end, LONG)
    finally:
        for each in (holder, *scene.others):
            each.stop()
    done = scene.done()
    assert scene.committed() == scene.end
    assert [value for value in scene.once if done.count(value) > 1] == []
    if scene.runs() and event in ("truncation", "made-anew"):
        assert len(set(done) & set(OLD[5 if event == "truncation" else 0 :])) <= holder.begun, "of a log that is gone"
