"""Signal handlers that call the consumer, at any moment: nothing waits for what the interrupted thread holds."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.stopkit import run
from tests.waiting import until

# Most of these start a program of their own, or wait for the end of a session.
pytestmark = pytest.mark.slow

#: A stop that waits in vain takes 5 s (seconds).
AT_ONCE = 3.0
IMPLEMENTATIONS = ["python", "cython", "rdkafka"]
OnTerm = Callable[[Callable[[], None]], list[float]]
broker = memory_broker({"orders": 1}, [b"%d" % n for n in range(100)])


@pytest.fixture
def on_term() -> Iterator[OnTerm]:
    """``took = on_term(action)``: what SIGTERM does, and how long (seconds) that took each time."""
    before = signal.getsignal(signal.SIGTERM)

    def install(action: Callable[[], None]) -> list[float]:
        took: list[float] = []

        def handler(*_: object) -> None:
            began = time.monotonic()
            action()
            took.append(time.monotonic() - began)

        signal.signal(signal.SIGTERM, handler)
        return took

    yield install
    signal.signal(signal.SIGTERM, before)


def program(text: str, impl: str) -> str:
    rdkafka = impl == "rdkafka"
    return run(text, "rdkafka" if rdkafka else "own", impl="" if rdkafka else impl)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("how", ["consume", "iterate"])
def test_handlers_that_look_and_at_last_stop_while_messages_come_at_full_speed(impl: str, how: str) -> None:
    text = """
    import random
    broker = full_broker()
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", queued_max_messages=100000,
        auto_commit_enable=True, use_rdkafka=sys.argv[1] == "rdkafka", consumer_timeout_ms=20000)
    calls, looks = [], [consumer.health, lambda: consumer.position(0), lambda: consumer.held_offsets]

    def look(*_):
        calls.append(random.choice(looks)())
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.002))

    def stop(*_):
        began = time.monotonic()
        consumer.stop()
        calls.append(time.monotonic() - began)

    signal.signal(signal.SIGALRM, look)
    signal.signal(signal.SIGTERM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    threading.Timer(random.uniform(0.4, 0.7), os.kill, (os.getpid(), signal.SIGTERM)).start()
    expected = 0
    try:
        for message in HOW:
            assert message.offset == expected, (message.offset, expected)
            expected += 1
            if expected % 40000 == 0:
                consumer.seek(0, 0)
                expected = 0
    except err.ConsumerStoppedException:
        signal.setitimer(signal.ITIMER_REAL, 0)
    until(lambda: broker.members("g") == [])
    signal.setitimer(signal.ITIMER_REAL, 0)
    consumer.stop()
    print(len(calls))
    """
    text = text.replace("HOW", "consumer" if how == "iterate" else "iter(consumer.consume, None)")
    assert int(program(text, impl)) > 5


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_stop_in_a_handler_between_two_messages_loses_and_repeats_no_finished_one(impl: str) -> None:
    """The message whose processing the signal interrupts is finished when the loop comes back: then the stop comes."""
    print(
        program(
            """
    import random
    broker = full_broker(20)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    seen = []
    for life in range(3):
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", auto_commit_enable=True,
            use_rdkafka=sys.argv[1] == "rdkafka")
        timer = threading.Timer(random.uniform(0.0, 0.03), os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        try:
            while True:
                message = consumer.consume()
                seen.append(message.offset)
        except err.ConsumerStoppedException:
            pass
        until(lambda: broker.members("g") == [])
        committed = broker.committed("g").get(P0, 0)
        assert len(seen) - 1 <= committed <= len(seen), (committed, len(seen))
        del seen[committed:]
        assert seen == list(range(committed))
    """,
            impl,
        )
    )


@pytest.mark.parametrize("call", ["health", "position", "pause", "commit_offsets"])
@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_stop_that_interrupts_a_short_call_does_not_wait_for_it(
    broker: MemoryBroker, on_term: OnTerm, kind: Any, call: str
) -> None:
    """The call holds a lock when the signal comes; the workers that the stop waits for need it."""
    consumer = kind("orders", broker.bootstrap, "g", auto_commit_enable=True, consumer_timeout_ms=10000)
    consumer.consume()
    engine, took = consumer._session.engine, on_term(consumer.stop)
    settle = engine.collector.settle_lane

    def interrupted() -> None:
        settle()
        if threading.current_thread() is threading.main_thread() and not took and engine.lock._is_owned():
            signal.raise_signal(signal.SIGTERM)

    engine.collector.settle_lane = interrupted
    try:
        getattr(consumer, call)(*([0] if call in ("position", "pause") else []))
    except err.KafkaException:
        pass  # it is being stopped
    assert took and took[0] < AT_ONCE
    until(lambda: engine.life.closed and broker.members("g") == [])
    consumer.stop()
    with pytest.raises(err.ConsumerStoppedException):
        consumer.consume()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_membership_asks_for_the_subscription_without_the_consumers_lock(protocol: str) -> None:
    """It asks under its own lock; a thread that holds the consumer's may be waiting for that one."""
    consumer = ManagedBalancedConsumer("orders", "127.0.0.1:1", "g", auto_start=False, group_protocol=protocol)
    consumer._session.subscribe()
    member, done = consumer._lives.make().member, threading.Event()

    def ask() -> None:
        with member._lock:
            getattr(member.machine, "_protocols" if protocol == "classic" else "_topics")()
        done.set()

    with consumer._session.engine.lock:  # somebody is at work
        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(10), "it waits for the consumer's lock with the member's lock held"


def test_a_finalizer_that_stops_in_the_middle_of_a_call_does_not_wait(broker: MemoryBroker) -> None:
    took: list[float] = []

    class Service:
        def __init__(self) -> None:
            self.consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g")
            self.circle = self

        def __del__(self) -> None:
            began = time.monotonic()
            self.consumer.stop()
            took.append(time.monotonic() - began)

    service = Service()
    consumer, engine = service.consumer, service.consumer._session.engine
    settle = engine.collector.settle_lane
    del service

    def collecting() -> None:
        settle()
        if engine.lock._is_owned() and not took:
            gc.collect()

    engine.collector.settle_lane = collecting  # type: ignore[method-assign]
    consumer.health()
    assert took and took[0] < AT_ONCE
    until(lambda: broker.members("g") == [])


@pytest.mark.parametrize("impl", ["python", "cython"])
def test_stop_and_exit_in_a_handler_while_nothing_comes(impl: str) -> None:
    """The way out of a program that waits: the member has left when the process ends."""
    run(
        """
    broker = MemoryBroker({"orders": 1}).start()
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", auto_commit_enable=True)

    def leave(*_):
        consumer.stop()
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        consumer.consume()
    except SystemExit:
        assert broker.members("g") == []
        print("left")
    """,
        impl=impl,
    )


def test_an_event_loop_that_a_plain_handler_interrupts(broker: MemoryBroker, on_term: OnTerm) -> None:
    async def main() -> int:
        consumer = await asyncio.to_thread(ManagedBalancedConsumer, "orders", broker.bootstrap, "g")
        take, took, count = consumer._session.engine.collector.take_for_task, on_term(consumer.stop), 0

        def interrupted(who: int) -> Any:
            if count == 30 and not took:
                signal.raise_signal(signal.SIGTERM)
            return take(who)

        consumer._session.engine.collector.take_for_task = interrupted  # type: ignore[method-assign]
        with pytest.raises(err.ConsumerStoppedException):
            async for _ in consumer:
                count += 1
        assert took and took[0] < AT_ONCE
        assert broker.members("g") == []
        return count

    assert 30 <= asyncio.run(main()) <= 31


@pytest.mark.parametrize("where", ["deserializer", "callback"])
def test_a_stop_in_the_users_code_that_we_call(broker: MemoryBroker, where: str) -> None:
    """It is we who wait for that code: the stop follows."""
    took: list[float] = []

    def stop(*_: Any) -> Any:
        if not took and consumers:
            began = time.monotonic()
            consumers[0].stop()
            took.append(time.monotonic() - began)
        return None if where == "callback" else (None, None)

    consumers: list[Any] = []
    given = {"deserializer": stop} if where == "deserializer" else {"post_rebalance_callback": stop}
    consumers.append(ManagedBalancedConsumer("orders", broker.bootstrap, "g", heartbeat_interval_ms=20, **given))
    if where == "callback":
        broker.evict("g")
    with pytest.raises(err.ConsumerStoppedException):
        while True:
            consumers[0].consume()
    assert took and took[0] < AT_ONCE
    until(lambda: broker.members("g") == [])
