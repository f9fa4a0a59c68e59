"""``stop_on_signals`` and ``with``: a deployment loses nothing and processes nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer, TopicPartition, stop_on_signals
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TOPIC = TopicPartition("orders", 0)
KINDS = ["threads", "greenlets", "rdkafka"]
broker = memory_broker({"orders": 1}, [b"%d" % n for n in range(200)])


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before
    for number, handler in before.items():
        signal.signal(number, handler)


def consumer_of(broker: MemoryBroker, kind: str = "threads", **more: Any) -> ManagedBalancedConsumer:
    options: dict[str, Any] = {"auto_commit_enable": True, **more}
    options |= {"use_greenlets": True} if kind == "greenlets" else {"use_rdkafka": kind == "rdkafka"}
    return ManagedBalancedConsumer("orders", broker.bootstrap, "g", **options)


def when_all_is_read(consumer: Any) -> None:
    """Somebody sends SIGTERM as soon as the last message has been handed out."""
    handler, collector = consumer._session.engine.handler, consumer._session.engine.collector

    def watch() -> None:
        while collector.handed_out < 200 or consumer._session.engine.collector.lane.attached:
            with consumer._session.engine.lock:
                collector.settle_lane()
            handler.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    handler.spawn("test.watch", watch)


def read_on(consumer: Any, how: str) -> list[int]:
    if how == "iteration":
        return [message.offset for message in consumer]
    if how == "consume":
        return [message.offset for message in iter(consumer.consume, None)]
    return [message.offset for batch in iter(lambda: consumer.consume_batch(7, -1), []) for message in batch]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", KINDS)
def test_the_message_in_flight_is_finished_and_committed(
    broker: MemoryBroker, kind: str, number: signal.Signals
) -> None:
    seen = []
    with consumer_of(broker, kind) as consumer, stop_on_signals(consumer):
        for message in consumer:
            if message.offset == 57:
                signal.raise_signal(number)
            seen.append(message.offset)
    assert seen == list(range(58))
    assert broker.committed("g")[TOPIC] == 58
    assert broker.members("g") == []


@pytest.mark.parametrize("how", ["iteration", "consume", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_waits_ends_at_once(broker: MemoryBroker, kind: str, how: str) -> None:
    with consumer_of(broker, kind) as consumer, stop_on_signals(consumer):
        when_all_is_read(consumer)
        assert read_on(consumer, how) == list(range(200))
        assert consumer.consume() is None, "there is nothing more"
        assert consumer.consume_batch(5, -1) == []
        assert list(consumer) == []
    assert broker.committed("g")[TOPIC] == 200


def test_threads_that_consume_while_the_main_thread_waits(broker: MemoryBroker) -> None:
    seen: list[int] = []

    def work() -> None:
        seen.extend(message.offset for message in consumer)

    with consumer_of(broker) as consumer:
        workers = [threading.Thread(target=work) for _ in range(3)]
        with stop_on_signals(consumer):
            for worker in workers:
                worker.start()
            when_all_is_read(consumer)
            for worker in workers:
                worker.join(20)
                assert not worker.is_alive()
    assert sorted(seen) == list(range(200))
    assert broker.committed("g")[TOPIC] == 200


def test_tasks_of_an_event_loop(broker: MemoryBroker) -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def work() -> None:
            async for message in consumer:
                await asyncio.sleep(0)
                seen.append(message.offset)

        async with await asyncio.to_thread(consumer_of, broker) as consumer:
            with stop_on_signals(consumer):
                when_all_is_read(consumer)
                await asyncio.gather(*(work() for _ in range(3)))
        return seen

    assert sorted(asyncio.run(main())) == list(range(200))
    assert broker.committed("g")[TOPIC] == 200


def test_the_second_signal_does_what_it_did_before(broker: MemoryBroker) -> None:
    consumer = consumer_of(broker, auto_commit_enable=False)
    with pytest.raises(KeyboardInterrupt), consumer, stop_on_signals(consumer):
        for _ in consumer:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
    assert broker.committed("g") == {}, "nobody asked for a commit"


def test_without_a_signal_nothing_is_different_and_handlers_come_back(broker: MemoryBroker) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
    with consumer_of(broker) as consumer:
        with stop_on_signals(consumer):
            assert consumer.consume().offset == 0
        signal.raise_signal(signal.SIGTERM)
        assert calls == [signal.SIGTERM]
        assert consumer.consume().offset == 1
    signal.signal(signal.SIGTERM, before)


def test_start_after_it_consumes_again(broker: MemoryBroker) -> None:
    consumer = consumer_of(broker)
    with stop_on_signals(consumer):
        assert consumer.consume().offset == 0
        signal.raise_signal(signal.SIGTERM)
        assert consumer.consume() is None
    consumer.stop()
    consumer.start()
    assert consumer.consume().offset == 1
    consumer.stop()


def test_elsewhere_than_in_the_main_thread_it_says_why_not(broker: MemoryBroker) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with stop_on_signals():
                pass
        except err.IllegalStateError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


# -- with ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raises", [False, True])
def test_a_block_finishes_the_message_in_flight_unless_it_ends_with_an_exception(
    broker: MemoryBroker, kind: str, raises: bool
) -> None:
    with contextlib.suppress(ValueError), consumer_of(broker, kind) as consumer:
        for message in consumer:
            if message.offset == 4:
                if raises:
                    raise ValueError(4)
                break
    assert broker.committed("g")[TOPIC] == (4 if raises else 5)


def test_a_block_finishes_nothing_that_another_thread_has_in_flight(broker: MemoryBroker) -> None:
    with consumer_of(broker, revoke_drain_ms=0) as consumer:
        got, free = threading.Event(), threading.Event()

        def work() -> None:
            consumer.consume()
            got.set()
            free.wait(20)

        worker = threading.Thread(target=work)
        worker.start()
        got.wait(20)
        assert consumer.consume().offset == 1
    assert broker.committed("g").get(TOPIC, 0) == 0
    free.set()
    worker.join()


# -- unblock_event ------------------------------------------------------------------------------------


@pytest.mark.parametrize("deserializer", [None, lambda value, key: (value, key)], ids=["plain", "deserializer"])
def test_a_set_event_is_seen_while_messages_are_there(broker: MemoryBroker, deserializer: Any) -> None:
    event = threading.Event()
    consumer = SimpleConsumer("orders", broker.bootstrap, "g", auto_commit_enable=True, deserializer=deserializer)
    assert [consumer.consume(unblock_event=event).offset for _ in range(3)] == [0, 1, 2]
    event.set()
    began = time.monotonic()
    assert consumer.consume(unblock_event=event) is None
    assert consumer.consume(unblock_event=event) is None
    assert time.monotonic() - began < 5
    consumer.stop()
    assert broker.committed("g")[TOPIC] == 3, "the thread has come back: its message is finished"


def test_an_event_that_is_set_while_nothing_comes(broker: MemoryBroker) -> None:
    event = threading.Event()
    consumer = SimpleConsumer("orders", broker.bootstrap, "g", auto_commit_enable=True, auto_offset_reset=-1)
    threading.Timer(0.1, event.set).start()
    assert consumer.consume(unblock_event=event) is None
    consumer.stop()


# -- the shipped example ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_loop_through_a_row_of_deployments() -> None:
    """SIGTERM in the middle, a new process, again and again: each message is processed exactly once."""
    with MemoryBroker({"orders": 1}) as broker:
        seen: list[str] = []
        for life in range(3):
            broker.produce("orders", [b""] * 4000)  # more than a pipe takes: it is in the middle of one when it is told
            arguments = ["--bootstrap", broker.bootstrap, "--topic", "orders", "--group", "g"]
            with subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / "consume_loop.py"), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None and process.stderr is not None
                mine = [process.stdout.readline() for _ in range(11 + 7 * life)]
                process.send_signal(signal.SIGTERM)
                *more, last = process.stdout.readlines()
                assert (process.wait(30), process.stderr.read()) == (0, "")
            seen += mine + more
            assert last == f"{len(mine + more)} messages\n"
            assert broker.members("g") == []
            assert broker.committed("g")[TOPIC] == len(seen) < 4000 * (life + 1)
        assert [int(line.split()[0].split(":")[1]) for line in seen] == list(range(len(seen)))


# -- a signal while start() waits --------------------------------------------------------------------------------


def _signal_soon(condition: Any) -> threading.Thread:
    """SIGTERM for this process, from another thread, as soon as ``condition()`` is true."""

    def send() -> None:
        until(condition)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("greenlets", [False, pytest.param(True, marks=pytest.mark.gevent)])
def test_a_signal_ends_a_start_that_waits_for_the_group(greenlets: bool) -> None:
    """As after ``kill -9`` of the last process: the join is answered when that one's session is over."""
    with MemoryBroker({"orders": 1}, rebalance_delay_ms=30_000) as broker:
        options: dict[str, Any] = {"use_greenlets": greenlets, "group_protocol": "classic"}
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", auto_start=False, **options)
        began = time.monotonic()
        with stop_on_signals(consumer):
            sender = _signal_soon(lambda: broker.members("g"))
            with consumer:
                assert list(consumer) == []
        sender.join()
        assert time.monotonic() - began < 15.0
        assert broker.members("g") == []  # it has left: the next process need not wait for it


@pytest.mark.parametrize("kind", [ManagedBalancedConsumer, SimpleConsumer])
def test_a_signal_ends_a_start_that_waits_for_brokers(kind: Any) -> None:
    with MemoryBroker({"orders": 1}) as broker:
        client = KafkaClient(broker.bootstrap)
        topic = client.topics["orders"]
    consumer = kind(topic, client.cluster, "g", auto_start=False)
    began = time.monotonic()
    with stop_on_signals(consumer):
        sender = _signal_soon(lambda: consumer._session.starting)
        with consumer:
            assert list(consumer) == []
    sender.join()
    assert time.monotonic() - began < 15.0
    client.close()
