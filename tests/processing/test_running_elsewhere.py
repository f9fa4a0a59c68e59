"""``run()`` in greenlets and on an event loop: the same promises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Message, Retry
from managedconsumer import errors as err
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record

TOPIC, LONG = "orders", 60.0


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: 2}) as broker:
        keys = [b"a", b"b", None] * 10
        for partition in range(2):
            records = [Record(b"%d" % n, key, 1, ()) for n, key in enumerate(keys)]
            broker.produce(TOPIC, records, partition=partition)
        yield broker


def member(broker: MemoryBroker, **options: Any) -> ManagedBalancedConsumer:
    given = {"auto_offset_reset": "earliest", "fetch_wait_max_ms": 20, **options}
    return ManagedBalancedConsumer(TOPIC, broker.bootstrap, "billing", **given)


def committed(broker: MemoryBroker) -> list[int]:
    return [broker.committed("billing").get(TopicPartition(TOPIC, number), 0) for number in range(2)]


def in_order(seen: list[Message]) -> bool:
    for place in {(message.partition_id, message.key) for message in seen if message.key is not None}:
        offsets = [message.offset for message in seen if (message.partition_id, message.key) == place]
        if offsets != sorted(offsets):
            return False
    return True


class Meeting:
    """Where so many coroutines wait for each other."""

    def __init__(self, count: int) -> None:
        self.count, self.open = count, asyncio.Event()

    async def wait(self) -> None:
        self.count -= 1
        if self.count == 0:
            self.open.set()
        await asyncio.wait_for(self.open.wait(), LONG)


def test_a_coroutine_handler_runs_side_by_side_and_in_order(broker: MemoryBroker) -> None:
    seen: list[Message] = []

    async def main() -> Any:
        meeting, consumer = Meeting(4), member(broker)

        async def handle(message: Message) -> None:
            if message.offset < 2:
                await meeting.wait()
            await asyncio.sleep(0)
            seen.append(message)
            if len(seen) == 60:
                consumer.end_soon()

        return await asyncio.wait_for(consumer.run_async(handle, workers=4), LONG)

    summary = asyncio.run(main())
    assert len(seen) == 60
    assert in_order(seen)
    assert summary[:4] == (60, 0, 0, 0)
    assert committed(broker) == [30, 30]


def test_retries_and_on_dead_of_coroutines(broker: MemoryBroker) -> None:
    tries: list[int] = []
    dead: list[int] = []

    async def main() -> Any:
        consumer = member(broker)

        async def handle(message: Message) -> None:
            if message.offset == 4 and message.partition_id == 0:
                tries.append(message.offset)
                raise ValueError("no luck")

        async def bury(message: Message, _error: BaseException) -> None:
            await asyncio.sleep(0)
            dead.append(message.offset)
            consumer.end_soon()

        return await consumer.run_async(handle, retry=Retry(attempts=3, first_ms=1), on_dead=bury)

    summary = asyncio.run(main())
    assert (len(tries), dead, summary.dead, summary.retried) == (3, [4], 1, 2)


def test_a_coroutine_that_fails_ends_the_run(broker: MemoryBroker) -> None:
    async def handle(message: Message) -> None:
        if message.offset == 4:
            raise ValueError("no luck")

    consumer = member(broker)
    with pytest.raises(err.MessageFailedError) as caught:
        consumer.run(handle, on="asyncio")
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.message.offset == 4  # type: ignore[attr-defined]


def test_lists_of_coroutines(broker: MemoryBroker) -> None:
    seen: list[int] = []

    async def main() -> Any:
        consumer = member(broker)

        async def handle(messages: list[Message]) -> None:
            seen.append(len(messages))
            if sum(seen) == 60:
                consumer.end_soon()

        return await consumer.run_async(handle, batch=(7, 10), order="partition")

    assert asyncio.run(main()).done == 60
    assert max(seen) <= 7


def test_a_cancelled_run_leaves_the_group(broker: MemoryBroker) -> None:
    async def main() -> None:
        consumer, began = member(broker), asyncio.Event()

        async def handle(_message: Message) -> None:
            began.set()
            await asyncio.sleep(LONG)

        task = asyncio.ensure_future(consumer.run_async(handle, grace_ms=0))
        await asyncio.wait_for(began.wait(), LONG)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert broker.members("billing") == []


def test_a_plain_function_is_no_coroutine_function(broker: MemoryBroker) -> None:
    consumer = member(broker, auto_start=False)
    with pytest.raises(TypeError, match="coroutine function"):
        asyncio.run(consumer.run_async(lambda _message: None))  # type: ignore[arg-type, return-value]


@pytest.mark.gevent
def test_greenlets(broker: MemoryBroker) -> None:
    gevent = pytest.importorskip("gevent")
    seen: list[Message] = []
    workers: set[int] = set()
    threads: set[int] = set()
    consumer = member(broker, use_greenlets=True)

    def handle(message: Message) -> None:
        workers.add(id(gevent.getcurrent()))
        threads.add(threading.get_ident())
        gevent.sleep(0.001)
        seen.append(message)
        if len(seen) == 60:
            consumer.end_soon()

    summary = consumer.run(handle, workers=4, on="greenlets")
    assert len(workers) == 4
    assert len(threads) == 1
    assert in_order(seen)
    assert summary[:4] == (60, 0, 0, 0)
    assert committed(broker) == [30, 30]
