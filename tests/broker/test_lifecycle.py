"""Starting, stopping and being interrupted, on real brokers: nothing hangs, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.waiting.handlers import GEventHandler
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import MARGIN_S, OPTIONS, Fleet, ProcessMember, committed, pairs, until, write

Make = Callable[..., Fleet]


class Belongings:
    """What this process has: threads of ours, file descriptors, memory. The broker's client threads are not ours."""

    def __init__(self) -> None:
        gc.collect()
        self.threads = sum(thread.name.startswith("managedconsumer.") for thread in threading.enumerate())
        self.greenlets = sum(type(each).__name__ == "Greenlet" and not each.dead for each in _greenlets())
        self.engines = sum(isinstance(each, Engine) for each in gc.get_objects())
        self.fds = len(list(Path("/proc/self/fd").iterdir()))
        self.rss = psutil.Process().memory_info().rss / 2**20

    def check(self, before: Belongings, mib: float) -> None:
        print(f"threads {before.threads} -> {self.threads}, greenlets {before.greenlets} -> {self.greenlets}, ")
        print(f"descriptors {before.fds} -> {self.fds}, memory {before.rss:.0f} -> {self.rss:.0f} MiB")
        assert self.threads <= before.threads
        assert self.greenlets <= before.greenlets
        assert self.engines <= before.engines, "consumers that nobody has any more are still there"
        assert self.fds <= before.fds + 2
        assert self.rss <= before.rss + mib


def _greenlets() -> list[Any]:
    import greenlet

    return [each for each in gc.get_objects() if isinstance(each, greenlet.greenlet)]


def made(group: Fleet, **options: Any) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer(
        group.topic,
        group.broker.bootstrap,
        group.group,
        use_greenlets=isinstance(group.handler, GEventHandler),
        **{**OPTIONS, **options},
    )


# -- stop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["consume", "consume_batch", "iteration"])
@pairs
def test_stop_by_another_thread_ends_a_blocked_call_at_once(kafka: DevBroker, fleet: Make, how: str) -> None:
    group = fleet(kafka, 2)
    consumer = made(group, consumer_timeout_ms=-1)
    ended: list[float] = []
    calls: dict[str, Callable[[], Any]] = {
        "consume": consumer.consume,
        "consume_batch": lambda: consumer.consume_batch(10, -1),
        "iteration": lambda: next(iter(consumer)),
    }

    def blocked() -> None:
        try:
            calls[how]()
        except err.ConsumerStoppedException:
            ended.append(time.monotonic())

    worker = group.handler.spawn("test.blocked", blocked)
    group.handler.sleep(0.3)
    assert worker.is_alive()
    stopped = time.monotonic()
    stopper = group.handler.spawn("test.stopper", consumer.stop)
    worker.join(5)
    stopper.join(5)
    assert ended and ended[0] - stopped < MARGIN_S  # 50 ms on a machine that has nothing else to do
    assert not consumer.health()["running"]


@pairs
def test_stop_start_stop(kafka: DevBroker, fleet: Make) -> None:
    """Ten times on one object, each time as a new member that goes on where the group is."""
    group = fleet(kafka, 2)
    write(kafka, group.topic, 2, 50)
    consumer = made(group, auto_commit_enable=True, consumer_timeout_ms=5000)
    consumer.stop()
    before = Belongings()
    seen = []
    for _ in range(10):
        consumer.start()
        consumer.start()
        for _ in range(5):
            message = consumer.consume()
            seen.append((message.partition_id, message.offset))
        consumer.commit_offsets()
        consumer.stop()
        consumer.stop()
    assert len(set(seen)) == len(seen) == 50
    Belongings().check(before, 20)
    with pytest.raises(err.ConsumerStoppedException):
        consumer.consume()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pairs
def test_a_signal_handler_that_stops(
    kafka: DevBroker, fleet: Make, spawn: Callable[..., ProcessMember], number: int
) -> None:
    """While a message is worked on, it is not committed, and the process is gone within two seconds."""
    group = fleet(kafka, 1)
    write(kafka, group.topic, 1, 10)
    member = spawn(group, hold=0.5, options={"auto_commit_enable": True, "consumer_timeout_ms": -1})
    group.until(lambda: len(member.of("got")) == 3, 20, "the third message is worked on")
    member.signal(number)
    group.until(lambda: member.process.poll() is not None, 2 + MARGIN_S, "the process ends")
    assert member.process.returncode == 0
    group.until(lambda: member.of("stopped"), 15, "its last word")
    told = [event[0] for event in member.events]
    before = told[: told.index("signal")]
    assert committed(kafka, group.group, group.topic, 1)[0] in (before.count("done"), told.count("done"))
    assert member.of("revoked") == [("revoked", [0])]
    assert [event[2] for event in member.of("got")] == list(range(before.count("got"))), "one came after the signal"


@pairs
def test_a_signal_handler_while_nothing_comes(
    kafka: DevBroker, fleet: Make, spawn: Callable[..., ProcessMember]
) -> None:
    group = fleet(kafka, 1)
    member = spawn(group, options={"consumer_timeout_ms": -1})
    group.until(lambda: member.of("assigned"), 20, "assigned")
    group.handler.sleep(0.3)
    member.signal(signal.SIGTERM)
    group.until(lambda: member.process.poll() is not None, 2 + MARGIN_S, "the process ends")
    assert member.process.returncode == 0
    survivor = group.join()
    group.until(lambda: survivor.owned == {0}, MARGIN_S, "it has left: nobody waits for its session to end")


def test_a_child_of_a_fork_is_told(kafka44: DevBroker, fleet: Make) -> None:
    """A clear error there, and the parent goes on."""
    group = fleet(kafka44, 1)
    write(kafka44, group.topic, 1, 2)
    consumer = made(group)
    assert consumer.consume() is not None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            consumer.consume()
            os.write(writing, b"no error")
        except err.ForkedProcessError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reading, 1000).decode()
    os.close(reading)
    os.close(writing)
    assert "fork" in text and str(os.getpid()) in text
    assert consumer.consume().offset == 1
    consumer.stop()


# -- nothing is left ----------------------------------------------------------------------------------


def cycles(group: Fleet, count: int) -> None:
    """Start, read a little of a full queue, stop; both consumers."""
    write(group.broker, group.topic, 2, 300)
    settle = [Belongings()]
    for n in range(count + 3):
        if n == 3:  # the first ones warm up caches and thread pools
            settle[0] = Belongings()
        consumer = made(group, queued_max_messages=50, consumer_timeout_ms=10_000)
        assert consumer.consume() is not None
        consumer.stop()
        simple = SimpleConsumer(
            group.topic,
            group.broker.bootstrap,
            use_greenlets=isinstance(group.handler, GEventHandler),
            queued_max_messages=50,
        )
        assert simple.consume() is not None
        simple.stop()
        del consumer, simple
    Belongings().check(settle[0], 10)


@pairs
def test_a_hundred_start_stop_cycles(kafka: DevBroker, fleet: Make) -> None:
    """pykafka left 30 threads, 27 descriptors and 200 MiB behind after 30."""
    cycles(fleet(kafka, 2), 50)


@pytest.mark.soak
@pairs
def test_a_thousand_start_stop_cycles(kafka: DevBroker, fleet: Make) -> None:
    cycles(fleet(kafka, 2), 1000)


def rebalances(group: Fleet, count: int) -> None:
    """One stays, with full queues that nobody reads; another comes and goes."""
    write(group.broker, group.topic, 4, 2000)
    staying = made(group, queued_max_messages=100, consumer_timeout_ms=10_000)
    first = [staying.consume().offset for _ in range(4)]
    assert first[0] == 0
    before = Belongings()
    for n in range(count):
        if n == 2:
            before = Belongings()
        generation = staying.generation_id
        other = made(group, queued_max_messages=100)
        until(group.handler, lambda: len(staying.partitions) == 2, 20, "half of them are given away")
        other.stop()
        until(group.handler, lambda: len(staying.partitions) == 4, 20, "and come back")
        assert staying.generation_id > generation
    assert staying.consume() is not None
    Belongings().check(before, 10)
    staying.stop()


@pairs
def test_thirty_rebalances_with_full_queues(kafka: DevBroker, fleet: Make) -> None:
    rebalances(fleet(kafka, 4), 15)


@pytest.mark.soak
@pairs
def test_two_hundred_rebalances_with_full_queues(kafka: DevBroker, fleet: Make) -> None:
    rebalances(fleet(kafka, 4), 200)


@pairs
def test_a_forgotten_consumer_goes_away(kafka: DevBroker, fleet: Make) -> None:
    """Deleted without ``stop()``: its workers end by themselves, without a word from the garbage collector."""
    group = fleet(kafka, 2)
    before = Belongings()
    consumer = made(group)
    assert consumer.health()["running"]
    del consumer

    def gone() -> bool:
        now = Belongings()
        return now.threads <= before.threads and now.greenlets <= before.greenlets

    until(group.handler, gone, 20, "the workers of a forgotten consumer end")
