"""What the user's code returns and raises: nothing that has not run counts as done, and no worker ends in silence."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from managedconsumer import (
    AsyncConsumerRebalanceListener,
    ConsumerRebalanceListener,
    ManagedBalancedConsumer,
    Message,
    Retry,
    SimpleConsumer,
)
from managedconsumer import errors as err
from managedconsumer.results import check_result
from managedconsumer.stores import SQLStore
from managedconsumer.testing import MemoryBroker
from tests.processing.test_running import LONG, TOPIC, Going, committed, fill
from tests.processing.test_running import broker as broker
from tests.processing.test_running import member as member
from tests.waiting import until


async def _coroutine(*_given: Any) -> None:
    raise AssertionError("nobody awaits this")


async def _asynchronous(*_given: Any) -> AsyncIterator[int]:
    yield 1


def _generator(*_given: Any) -> Iterator[int]:
    yield 1


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """``iscoroutinefunction()`` does not see through an ordinary decorator."""
    return lambda *given: function(*given)


WRONG = [
    decorated(_coroutine),
    _generator,
    _asynchronous,
    lambda given: map(print, [given]),
    lambda _: asyncio.Future(),
]
NAMES = ["coroutine", "generator", "asynchronous generator", "map", "future"]


def told(error: BaseException | None, place: str) -> bool:
    """It is a TypeError, and says for which message."""
    notes = getattr(error, "__notes__", [place])
    return isinstance(error, TypeError) and any(place in note for note in notes)


@pytest.fixture
def no_loop() -> Iterator[None]:
    """A future needs a loop to be made."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.parametrize("handler", WRONG[:4], ids=NAMES[:4])
@pytest.mark.parametrize("options", [{}, {"batch": (2, 1)}, {"retry": Retry()}])
def test_a_handler_whose_result_nobody_awaits_has_done_nothing(
    broker: MemoryBroker, member: Callable[..., Any], handler: Any, options: dict[str, Any]
) -> None:
    fill(broker, ["a"] * 5)
    dead: list[Message] = []
    going = Going(member(), handler, on_dead=lambda message, _error: dead.append(message), **options)
    going.join()
    assert told(going.error, "orders-0 at offset 0")
    assert (committed(broker), dead) == (0, [])


@pytest.mark.parametrize("inner", WRONG[1:4], ids=NAMES[1:4])
def test_a_coroutine_handler_that_returns_another_thing_to_await(
    broker: MemoryBroker, member: Callable[..., Any], inner: Any
) -> None:
    fill(broker, ["a"] * 5)

    async def handle(message: Message) -> Any:
        return inner(message)

    going = Going(member(), handle, on="asyncio")
    going.join()
    assert told(going.error, "orders-0 at offset 0")
    assert committed(broker) == 0


@pytest.mark.parametrize("on", ["threads", "asyncio"])
@pytest.mark.parametrize("bury", [decorated(_coroutine), _coroutine, _generator])
def test_on_dead_whose_result_nobody_awaits_buries_nothing(
    broker: MemoryBroker, member: Callable[..., Any], bury: Any, on: str
) -> None:
    fill(broker, ["a"] * 5)

    def fails(_message: Message) -> None:
        raise ValueError

    async def fails_too(_message: Message) -> None:
        raise ValueError

    going = Going(member(), fails if on == "threads" else fails_too, on=on, on_dead=bury)
    going.join()
    awaited = on == "asyncio" and bury is not _generator
    if awaited:  # and run: it raises
        assert isinstance(going.error, err.MessageFailedError)
    else:
        assert told(going.error, "orders-0 at offset 0")
    assert committed(broker) == 0


@pytest.mark.parametrize("result", [None, 0, 3, "x", [], {}, object(), iter([]), print, int])
def test_any_other_result_is_of_no_interest(result: Any) -> None:
    check_result("handler", result)


def test_an_awaitable_of_any_kind_is_found(no_loop: None) -> None:
    class Later:
        def __await__(self) -> Iterator[None]:
            yield

    with closing(asyncio.new_event_loop()) as loop:
        for result in (Later(), loop.create_future()):
            with pytest.raises(TypeError, match="awaitable"):
                check_result("handler", result)


@pytest.mark.parametrize("kind", [ConsumerRebalanceListener, AsyncConsumerRebalanceListener])
def test_a_listener_that_returns_a_generator(broker: MemoryBroker, member: Callable[..., Any], kind: Any) -> None:
    fill(broker, ["a"])
    asynchronous = kind is AsyncConsumerRebalanceListener

    class Listener(kind):  # type: ignore[misc, valid-type]
        def on_partitions_revoked(self, revoked: Any) -> Any:
            return _nothing() if asynchronous else None

        def on_partitions_assigned(self, assigned: Any) -> Any:
            return _wrapped() if asynchronous else _generator()

    consumer = member(listener=Listener())
    with pytest.raises(TypeError, match="generator") as caught:
        consumer.consume()
    if sys.version_info >= (3, 11):
        assert "on_partitions_assigned" in caught.value.__notes__[0]


async def _nothing() -> None:
    """A callback."""


async def _wrapped() -> Any:
    return _generator()


def test_an_asynchronous_post_rebalance_callback(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a"])
    consumer = member(post_rebalance_callback=_coroutine)
    with pytest.raises(TypeError, match="coroutine"):
        consumer.consume()


@pytest.mark.parametrize("way", ["consume", "batch", "run", "async"])
@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_an_asynchronous_deserializer_skips_nothing(broker: MemoryBroker, way: str, on_error: str) -> None:
    fill(broker, ["a"] * 3)
    given: dict[str, Any] = {"auto_offset_reset": "earliest", "deserializer": _coroutine, "on_error": on_error}
    consumer = SimpleConsumer(TOPIC, broker.bootstrap, "billing", consumer_timeout_ms=LONG * 1000, **given)
    ways: dict[str, Callable[[], Any]] = {
        "consume": consumer.consume,
        "batch": consumer.consume_batch,
        "run": lambda: consumer.run(print, signals=False),
        "async": lambda: asyncio.run(consumer.consume_batch_async()),
    }
    with pytest.warns(RuntimeWarning, match="never awaited"), pytest.raises(TypeError) as caught:
        ways[way]()
        import gc

        gc.collect()
    assert told(caught.value, "orders-0 at offset 0")
    consumer.stop()
    assert committed(broker) == 0


def test_an_asynchronous_on_error(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a"])

    def refuse(_value: bytes, _key: Any) -> Any:
        raise ValueError

    with pytest.raises(TypeError, match="coroutine"):
        member(deserializer=refuse, on_error=_coroutine).consume()


def test_a_store_whose_write_nobody_awaits(tmp_path: Any) -> None:
    import sqlite3

    made = SQLStore(lambda: sqlite3.connect(tmp_path / "db"), "sqlite")
    with closing(made) as store, MemoryBroker({TOPIC: 1}) as broker:
        fill(broker, ["a"] * 3)
        consumer = SimpleConsumer(TOPIC, broker.bootstrap, "g", auto_offset_reset="earliest")
        store.attach(consumer)
        messages = consumer.consume_batch(10, 5000)
        with pytest.raises(TypeError, match="coroutine"):
            store.save(messages, _coroutine)
        stored: list[int] = []
        store.save(messages, lambda _handle, given: stored.extend(message.offset for message in given))
        assert stored == [0, 1, 2], "nothing counts as stored before"
        consumer.stop()


# -- what is raised ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch": (1, 1)}])
def test_something_that_the_handler_waits_for_is_cancelled(
    broker: MemoryBroker, member: Callable[..., Any], options: dict[str, Any]
) -> None:
    """It is a failure of the message: the worker goes on."""
    fill(broker, [f"k{n}" for n in range(20)])
    done: list[int] = []
    dead: list[tuple[int, type]] = []

    async def handle(given: Any) -> None:
        message = given[0] if isinstance(given, list) else given
        if message.offset in (2, 5, 7):
            helper = asyncio.ensure_future(asyncio.sleep(LONG))
            asyncio.get_running_loop().call_soon(helper.cancel)
            await helper
        done.append(message.offset)

    def bury(message: Message, error: BaseException) -> None:
        dead.append((message.offset, type(error)))

    going = Going(member(), handle, on="asyncio", workers=2, on_dead=bury, commit_ms=20, **options)
    until(lambda: going.error or committed(broker) == 20, LONG)
    summary = going.stop()
    assert sorted(dead) == [(n, asyncio.CancelledError) for n in (2, 5, 7)]
    assert sorted(done) == sorted(set(range(20)) - {2, 5, 7})
    assert (summary.done, summary.dead, summary.unfinished) == (17, 3, 0)


@pytest.mark.parametrize("on", ["threads", "asyncio"])
def test_a_cancelled_error_without_on_dead_ends_the_run(
    broker: MemoryBroker, member: Callable[..., Any], on: str
) -> None:
    fill(broker, ["a"])

    def handle(_message: Message) -> None:
        raise asyncio.CancelledError

    async def handle_too(_message: Message) -> None:
        raise asyncio.CancelledError

    going = Going(member(), handle if on == "threads" else handle_too, on=on)
    going.join()
    assert isinstance(going.error, err.MessageFailedError)
    assert isinstance(going.error.__cause__, asyncio.CancelledError)


def test_on_dead_that_is_cancelled_ends_the_run(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a"])

    async def handle(_message: Message) -> None:
        raise ValueError

    async def bury(_message: Message, _error: BaseException) -> None:
        raise asyncio.CancelledError

    going = Going(member(), handle, on="asyncio", on_dead=bury)
    going.join()
    assert isinstance(going.error, err.MessageFailedError)
    assert isinstance(going.error.__cause__, asyncio.CancelledError)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 a task cannot tell who was cancelled")
def test_a_worker_that_is_cancelled_from_outside_ends_the_run(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a"])

    async def handle(_message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(LONG)

    going = Going(member(), handle, on="asyncio", grace_ms=90_000)
    going.join()
    assert isinstance(going.error, err.IllegalStateError)
    assert "a worker of run_async() was cancelled" in str(going.error)


class Odd(BaseException):
    """As gevent.Timeout: no Exception."""


@pytest.mark.parametrize("on", ["threads", "asyncio"])
@pytest.mark.parametrize("batch", [None, (1, 1)])
def test_what_retry_names_is_tried_again(broker: MemoryBroker, member: Callable[..., Any], on: str, batch: Any) -> None:
    fill(broker, ["a"] * 3)
    tries: list[int] = []

    def handle(given: Any) -> None:
        message = given[0] if isinstance(given, list) else given
        tries.append(message.offset)
        if tries.count(1) < 3 and message.offset == 1:
            raise Odd

    async def handle_too(given: Any) -> None:
        handle(given)

    retry = Retry(attempts=5, first_ms=1, on=(Odd,))
    going = Going(member(), handle if on == "threads" else handle_too, on=on, batch=batch, retry=retry)
    until(lambda: going.error or len(tries) == 5, LONG)
    summary = going.stop()
    assert going.error is None
    assert (summary.done, summary.retried) == (3, 2)


@pytest.mark.parametrize("on", ["threads", "asyncio"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Odd()])
def test_what_is_no_failure_of_a_message_ends_the_run_at_once(
    broker: MemoryBroker, member: Callable[..., Any], on: str, error: BaseException
) -> None:
    """It does not wait for the worker that has raised it, which is at nothing any more."""
    fill(broker, ["a", "b", "c"])

    def handle(message: Message) -> None:
        if message.offset == 2:
            raise error

    async def handle_too(message: Message) -> None:
        handle(message)

    began = time.monotonic()
    going = Going(member(), handle if on == "threads" else handle_too, on=on, grace_ms=90_000)
    going.join()
    assert type(going.error) is type(error)
    assert time.monotonic() - began < LONG
    assert committed(broker) == 2


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_is_cancelled_does_not_wait_for_what_runs(
    broker: MemoryBroker, member: Callable[..., Any], times: int
) -> None:
    """What is finished is committed all the same, and the consumer has stopped."""
    fill(broker, [f"k{n}" for n in range(6)])
    seen: list[int] = []
    ended: list[int] = []
    consumer = member()

    async def handle(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 3:
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(message.offset)

    async def main() -> None:
        run = asyncio.ensure_future(consumer.run_async(handle, workers=2, grace_ms=90_000, commit_ms=600_000))
        while len(seen) < 6:
            await asyncio.sleep(0.01)
        for _ in range(times):
            run.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, LONG)
        assert ended == [3]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert committed(broker) == 3
    assert broker.members("billing") == []
    assert consumer.health()["run"] is None
    again: list[int] = []
    going = Going(member(), lambda message: again.append(message.offset))
    until(lambda: again, LONG)
    going.stop()
    assert again == [3]


# -- asyncio without run_async --------------------------------------------------------------------------------------


def test_batches_and_commits_of_a_task(broker: MemoryBroker) -> None:
    fill(broker, [None] * 10)
    consumer = SimpleConsumer(TOPIC, broker.bootstrap, "billing", auto_offset_reset="earliest")
    beats: list[int] = []

    async def beat() -> None:
        while True:
            beats.append(1)
            await asyncio.sleep(0.001)

    async def main() -> None:
        beating = asyncio.ensure_future(beat())
        seen: list[int] = []
        while len(seen) < 10:
            batch = await consumer.consume_batch_async(4, 10_000)
            assert 0 < len(batch) <= 4
            seen += [message.offset for message in batch]
            await consumer.commit()
            assert committed(broker) == seen[-1] + 1, "what the task has in flight is committed"
        assert seen == list(range(10))
        before = len(beats)
        assert await consumer.consume_batch_async(4, 50) == []
        assert len(beats) > before, "the loop went on meanwhile"
        await consumer.commit([(0, 3)])
        assert committed(broker) == 3
        with pytest.raises(err.KafkaException):
            await consumer.commit([(7, 3)])
        beating.cancel()

    asyncio.run(main())
    consumer.stop()


def test_tasks_have_their_own_batches_in_flight(broker: MemoryBroker) -> None:
    fill(broker, [None] * 4)
    consumer = SimpleConsumer(TOPIC, broker.bootstrap, "billing", auto_offset_reset="earliest")

    async def main() -> None:
        taken, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            assert len(await consumer.consume_batch_async(2, 10_000)) == 2
            taken.set()
            await go_on.wait()
            await consumer.consume_batch_async(2, 0)

        holding = asyncio.ensure_future(hold())
        await taken.wait()
        assert [message.offset for message in await consumer.consume_batch_async(2, 10_000)] == [2, 3]
        await consumer.commit()
        assert committed(broker) == 0, "another task has the first two in flight"
        go_on.set()
        await holding
        await consumer.commit()
        assert committed(broker) == 4

    asyncio.run(main())
    consumer.stop()


def test_a_batch_that_cannot_be_used_comes_again(broker: MemoryBroker) -> None:
    fill(broker, [None] * 4)
    bad = threading.Event()
    bad.set()

    def deserialize(value: bytes, key: Any) -> Any:
        if bad.is_set() and value == b"2":
            raise ValueError
        return int(value), key

    consumer = SimpleConsumer(
        TOPIC, broker.bootstrap, "billing", auto_offset_reset="earliest", deserializer=deserialize
    )

    async def main() -> None:
        first = await consumer.consume_batch_async(10, 10_000)
        assert [message.value for message in first] == [0, 1]
        with pytest.raises(ValueError):
            await consumer.consume_batch_async(10, 10_000)
        bad.clear()
        assert [message.value for message in await consumer.consume_batch_async(10, 10_000)] == [2, 3]

    asyncio.run(main())
    consumer.stop()


@pytest.mark.gevent
def test_a_timeout_of_gevent_is_tried_again(broker: MemoryBroker) -> None:
    gevent = pytest.importorskip("gevent")
    fill(broker, ["a"] * 3)
    tries: list[int] = []
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "use_greenlets": True}
    consumer = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "billing", **options)

    def handle(message: Message) -> None:
        tries.append(message.offset)
        if tries.count(1) < 3 and message.offset == 1:
            with gevent.Timeout(0.01):
                gevent.sleep(LONG)
        if message.offset == 2:
            consumer.end_soon()

    summary = consumer.run(handle, retry=Retry(attempts=5, first_ms=1, on=(gevent.Timeout, Exception)))
    assert (summary.done, summary.retried) == (3, 2)
