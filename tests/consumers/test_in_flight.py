"""What a thread, greenlet or task has in flight is its own: nobody else finishes it, also when its owner has ended."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

TOPIC = TopicPartition("orders", 0)
KINDS = ["threads", "greenlets", "rdkafka"]
broker = memory_broker({"orders": 1}, [b"%d" % n for n in range(8)])


def consumer_of(broker: MemoryBroker, kind: str = "threads", **more: Any) -> ManagedBalancedConsumer:
    options: dict[str, Any] = {"consumer_timeout_ms": 3000, "auto_commit_enable": True, **more}
    options |= {"use_greenlets": True} if kind == "greenlets" else {"use_rdkafka": kind == "rdkafka"}
    return ManagedBalancedConsumer("orders", broker.bootstrap, "billing", **options)


def in_worker(kind: str, work: Callable[[], Any]) -> Any:
    """``work()`` in a new thread or greenlet that ends with it, perhaps by an exception."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except RuntimeError:
            pass

    if kind == "greenlets":
        gevent.spawn(run).join()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    return result[0] if result else None


def fails(consumer: Any, failed: list[int]) -> None:
    failed.append(consumer.consume().offset)
    raise RuntimeError("it could not be processed")


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_of_a_worker_that_died_is_never_committed(broker: MemoryBroker, kind: str) -> None:
    broker.produce("orders", [b""] * 60)
    consumer, failed = consumer_of(broker, kind), list[int]()
    in_worker(kind, lambda: fails(consumer, failed))
    done = [in_worker(kind, lambda: consumer.consume().offset) for _ in range(60)]  # the system uses its numbers again
    rest = [consumer.consume().offset for _ in range(3)]
    assert (failed, done, rest) == ([0], list(range(1, 61)), [61, 62, 63])
    consumer.stop()
    assert broker.committed("billing").get(TOPIC, 0) == 0
    with consumer_of(broker, kind) as again:
        assert again.consume().offset == 0, "whoever starts next reads it again"


@pytest.mark.parametrize("how", ["iteration", "consume_batch", "consume_arrow"])
def test_it_is_the_same_for_every_way_of_reading(broker: MemoryBroker, how: str) -> None:
    consumer = consumer_of(broker)
    calls: dict[str, Callable[[], Any]] = {
        "iteration": lambda: next(iter(consumer)),
        "consume_batch": lambda: consumer.consume_batch(2),
        "consume_arrow": lambda: consumer.consume_arrow(),
    }
    in_worker("threads", calls[how])
    for _ in range(8):
        in_worker("threads", lambda: consumer.consume_batch(1, 10))
    assert consumer.consume_batch(1, 0) == []
    consumer.stop()
    assert broker.committed("billing").get(TOPIC, 0) == 0


def test_the_log_says_what_keeps_the_offset(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    consumer = consumer_of(broker)
    in_worker("threads", lambda: fails(consumer, []))
    with caplog.at_level(logging.WARNING, "managedconsumer"):
        in_worker("threads", consumer.consume)
    text = caplog.text
    consumer.stop()
    assert "ended with offset 0 of orders-0 in flight" in text


def test_nobody_waits_for_a_dead_worker_to_come_back(broker: MemoryBroker) -> None:
    """A rebalance and a stop wait for messages in flight, but not for one that nobody works on."""
    consumer = consumer_of(broker, revoke_drain_ms=20_000)
    in_worker("threads", lambda: fails(consumer, []))
    began = time.monotonic()
    consumer.stop()
    assert time.monotonic() - began < 10


def test_many_workers_with_a_message_each_leave_one_hand(broker: MemoryBroker) -> None:
    broker.produce("orders", [b""] * 300)
    consumer = consumer_of(broker)
    for _ in range(300):
        in_worker("threads", consumer.consume)
    assert len(consumer._session.engine.collector.in_flight) <= 2
    consumer.stop()
    assert broker.committed("billing").get(TOPIC, 0) == 0


def test_after_a_worker_that_had_finished_the_next_one_gets_the_short_way(broker: MemoryBroker) -> None:
    consumer = consumer_of(broker, consumer_timeout_ms=0)

    def read_all() -> list[int]:
        while not (found := [message.offset for message in consumer]):
            time.sleep(0.005)
        return found

    assert in_worker("threads", read_all) == list(range(8))
    broker.produce("orders", [b"more"] * 10)
    assert in_worker("threads", lambda: [consumer.consume_batch(1, 3000), consumer.consume()][1].offset) == 9
    assert consumer._session.engine.collector.lane.attached
    consumer.stop()


# -- asyncio ------------------------------------------------------------------------------------------


def test_tasks_have_a_hand_each(broker: MemoryBroker) -> None:
    async def main() -> None:
        consumer = await asyncio.to_thread(consumer_of, broker, auto_commit_interval_ms=50)
        working, done, free = asyncio.Event(), list[int](), asyncio.Event()

        async def slow() -> None:
            async for message in consumer:
                done.append(-message.offset)
                working.set()
                await free.wait()
                break

        async def quick() -> None:
            await working.wait()
            async for message in consumer:
                done.append(message.offset)
                if message.offset == 7:
                    break

        tasks = [asyncio.create_task(slow()), asyncio.create_task(quick())]
        await tasks[1]
        assert done == [0, *range(1, 8)]
        await asyncio.to_thread(consumer._session.committer.commit_finished, 1.0, "test")
        assert broker.committed("billing").get(TOPIC, 0) == 0, "the slow one still works on it"
        free.set()
        await tasks[0]
        await asyncio.to_thread(consumer.stop)
        assert broker.committed("billing").get(TOPIC, 0) == 0, "it has not come back"

    asyncio.run(main())


def test_a_cancelled_task_leaves_its_message_unfinished(broker: MemoryBroker) -> None:
    async def main() -> None:
        consumer = await asyncio.to_thread(consumer_of, broker)
        got = asyncio.Event()

        async def worker() -> None:
            async for _ in consumer:
                got.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(worker())
        await got.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async for message in consumer:
            if message.offset == 7:
                break
        await asyncio.to_thread(consumer.stop)
        assert broker.committed("billing").get(TOPIC, 0) == 0

    asyncio.run(main())


def test_a_second_loop_of_a_task_finishes_what_the_first_had(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with await asyncio.to_thread(consumer_of, broker) as consumer:
            async for message in consumer:
                if message.offset == 3:
                    break
            async for message in consumer:
                assert message.offset == 4
                await asyncio.to_thread(consumer._session.committer.commit_finished, 1.0, "test")
                assert broker.committed("billing")[TOPIC] == 4
                break
        assert broker.committed("billing")[TOPIC] == 5, "the block ended without an exception"

    asyncio.run(main())


def test_wait_for_does_not_take_the_message_into_another_hand(broker: MemoryBroker) -> None:
    """Before Python 3.12 asyncio.wait_for() runs what it waits for in a task of its own."""

    async def main() -> None:
        consumer = await asyncio.to_thread(consumer_of, broker)
        reader = aiter(consumer)
        for n in range(8):
            assert (await asyncio.wait_for(anext(reader), 5)).offset == n
        await asyncio.to_thread(consumer._session.committer.commit_finished, 1.0, "test")
        assert broker.committed("billing")[TOPIC] == 7
        await asyncio.to_thread(consumer.stop)

    asyncio.run(main())


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_task_commits_what_it_has_in_flight_and_nobody_elses(broker: MemoryBroker, in_a_thread: bool) -> None:
    async def main() -> None:
        consumer = await asyncio.to_thread(consumer_of, broker, auto_commit_enable=False)
        first, committed, both = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def commit() -> None:
            if in_a_thread:
                await asyncio.to_thread(consumer.commit_offsets)
            else:
                consumer.commit_offsets()

        async def one() -> int:
            async for message in consumer:
                first.set()
                await committed.wait()
                await commit()
                both.set()
                return int(message.offset)
            return -1

        async def other() -> int:
            await first.wait()
            async for message in consumer:
                await commit()
                assert broker.committed("billing").get(TOPIC, 0) == 0, "the first is still at work on 0"
                committed.set()
                await both.wait()
                return int(message.offset)
            return -1

        assert await asyncio.gather(one(), other()) == [0, 1]
        await asyncio.to_thread(consumer.stop)
        assert broker.committed("billing")[TOPIC] == 1, "1 was in the other's hand, which has not committed since"

    asyncio.run(main())


def _waiting_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "async-wait" in thread.name]


def test_a_loop_that_an_exception_ends_leaves_no_waiting_thread(broker: MemoryBroker) -> None:
    async def main() -> None:
        consumer = await asyncio.to_thread(consumer_of, broker)
        kept = []  # tracebacks hold the frames of the loop, as a program's error handling may
        for _ in range(3):
            try:
                async for message in consumer:
                    if message.offset in (2, 5, 7):
                        await asyncio.wait_for(anext(aiter(consumer)), 0.05) if message.offset == 7 else None
                        raise ValueError(message.offset)
            except (ValueError, asyncio.TimeoutError) as error:
                kept.append(error)
        await asyncio.to_thread(consumer.stop)
        assert len(kept) == 3

    gc.disable()
    try:
        asyncio.run(main())
        until(lambda: not _waiting_threads())
    finally:
        gc.enable()


def test_twenty_tasks_that_wait_use_one_thread_and_all_wake(broker: MemoryBroker) -> None:
    async def main() -> list[int]:
        consumer = await asyncio.to_thread(SimpleConsumer, "orders", broker.bootstrap, consumer_timeout_ms=-1)
        got: list[int] = []

        async def worker() -> None:
            async for message in consumer:
                got.append(message.offset)  # noqa: PERF401

        tasks = [asyncio.create_task(worker()) for _ in range(20)]
        while len(got) < 8:
            await asyncio.sleep(0.01)
        assert len(_waiting_threads()) <= 1
        broker.produce("orders", [b""] * 40)
        while len(got) < 48:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(consumer.stop)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end).__name__ for end in ends} == {"ConsumerStoppedException"}
        return got

    assert sorted(asyncio.run(main())) == list(range(48))
