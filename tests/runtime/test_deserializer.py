"""A deserializer is applied past the consumer's lock, and what it raises comes out as it does at the lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from managedconsumer import Message, SimpleConsumer
from managedconsumer.testing import MemoryBroker

KINDS: dict[str, dict[str, Any]] = {
    "threads": {},
    "greenlets": {"use_greenlets": True},
    "rdkafka": {"use_rdkafka": True},
}
COUNT = 40
Take = Callable[[SimpleConsumer], "Message | None"]


def by_consume(consumer: SimpleConsumer) -> Message | None:
    return consumer.consume()


def by_iteration(consumer: SimpleConsumer) -> Message | None:
    return next(iter(consumer), None)


class Bad:
    """Raises at these values, each time."""

    def __init__(self, *values: bytes, error: type[BaseException] = ValueError) -> None:
        self.values = set(values)
        self.error = error
        self.calls = 0

    def __call__(self, value: Any, key: Any) -> tuple[Any, Any]:
        self.calls += 1
        assert isinstance(value, bytes), "it was applied twice"
        if value in self.values:
            raise self.error(value.decode())
        return int(value), key


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[..., SimpleConsumer]]:
    made: list[SimpleConsumer] = []
    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"%d" % n for n in range(COUNT)])

        def make(**options: Any) -> SimpleConsumer:
            options = {"consumer_timeout_ms": 3000, **KINDS[request.param], **options}
            made.append(SimpleConsumer("orders", broker.bootstrap, **options))
            return made[-1]

        yield make
        for consumer in made:
            consumer.stop()


ways = pytest.mark.parametrize("take", [by_consume, by_iteration])


@ways
def test_messages_come_past_the_lock(opened: Callable[..., SimpleConsumer], take: Take) -> None:
    consumer = opened(deserializer=Bad())
    got = [message.value for _ in range(COUNT) if (message := take(consumer)) is not None]
    assert got == list(range(COUNT))
    collector = consumer._session.engine.collector
    collector.settle_lane()
    assert collector.lane.count > COUNT / 2


@ways
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
def test_what_it_raises_leaves_the_position_before_the_message(
    opened: Callable[..., SimpleConsumer], take: Take, error: type[BaseException]
) -> None:
    bad = Bad(b"30", error=error)
    consumer, got = opened(deserializer=bad), []
    for _ in range(2):
        with pytest.raises(error, match="30") as raised:
            while (message := take(consumer)) is not None:
                got.append(message.value)
        if error is ValueError and hasattr(raised.value, "__notes__"):
            assert raised.value.__notes__ == ["raised by the deserializer for orders-0 at offset 30"]
        assert consumer.position(0) == 30
    bad.values.clear()
    assert got == list(range(30))
    while len(got) < COUNT and (message := take(consumer)) is not None:
        got.append(message.value)
    assert got == list(range(COUNT))


@ways
def test_what_is_skipped_does_not_come(opened: Callable[..., SimpleConsumer], take: Take) -> None:
    consumer = opened(deserializer=Bad(b"0", b"7", b"8", b"9", b"38"), on_error="skip")
    want = [n for n in range(COUNT) if n not in (0, 7, 8, 9, 38)]
    assert [message.value for _ in want if (message := take(consumer)) is not None] == want


@pytest.mark.slow
def test_the_one_of_several_threads_that_meets_an_error_brings_its_message_back() -> None:
    bad = Bad(b"500", b"1200")
    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"%d" % n for n in range(2000)])
        with SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=1000, deserializer=bad) as consumer:
            got: list[list[int]] = [[], [], []]
            errors: list[str] = []

            def consume(mine: list[int]) -> None:
                while True:
                    try:
                        for message in consumer:
                            mine.append(message.value)  # noqa: PERF401 (what comes before an error counts)
                    except ValueError as error:
                        errors.append(str(error))
                        bad.values.discard(str(error).encode())
                    else:
                        return

            workers = [threading.Thread(target=consume, args=(mine,)) for mine in got]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    assert sorted(number for mine in got for number in mine) == list(range(2000))
    assert set(errors) == {"500", "1200"}


def test_a_slow_deserializer_lets_other_greenlets_run() -> None:
    turns: list[float] = []

    def slow(value: Any, key: Any) -> tuple[Any, Any]:
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
        return value, key

    def other() -> None:
        while True:
            turns.append(time.monotonic())
            gevent.sleep(0.001)

    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b""] * 100)
        options: dict[str, Any] = {"use_greenlets": True, "consumer_timeout_ms": 3000, "deserializer": slow}
        with SimpleConsumer("orders", broker.bootstrap, **options) as consumer:
            assert consumer.consume() is not None
            before, ticking = len(turns), gevent.spawn(other)
            for _ in range(99):
                assert consumer.consume() is not None
            assert len(turns) - before >= 5, "they had to wait until the chunk was used up"
            ticking.kill()
