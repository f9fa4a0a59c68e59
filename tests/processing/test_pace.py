"""``run(rate=...)`` and ``run(not_before=...)``: exact answers in virtual time, and runs against a broker in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Message, Retry, SimpleConsumer
from managedconsumer.errors import ConfigurationError, MessageFailedError
from managedconsumer.processing.key_queues import KeyQueue
from managedconsumer.processing.pace import Throttle, seconds_of
from managedconsumer.processing.values import ALL, KEY, NONE, PARTITION, plan_of
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.processing.test_work import OTHER, TP, Bench, offsets
from tests.waiting import until

TOPIC = "orders"
LONG = 60.0


def wait(bench: Bench, key_queue: KeyQueue, due: float, place: int = 0) -> None:
    """The time of the key queue's message at ``place`` has not come."""
    key_queue.until = due
    bench.back(key_queue, place, failed=True)


def starts(bench: Bench, until_: float) -> list[tuple[float, list[int]]]:
    """What starts when, if a worker comes at each deadline and is done at once."""
    found = []
    while True:
        while taken := bench.take():
            found.append((round(bench.now, 3), [offset for each in offsets(taken) for offset in each]))
            for key_queue in taken:
                bench.back(key_queue)
        due = bench.work.next_deadline()
        if due is None or due > until_:
            return found
        bench.now = max(bench.now, due)


# -- a rate -----------------------------------------------------------------------------------------------------------


def test_a_rate_of_all_messages() -> None:
    bench = Bench(NONE, rate=(4.0, ALL))
    bench.offer(2)
    bench.offer(2, OTHER)
    assert starts(bench, 10.0) == [(0.0, [0]), (0.25, [1]), (0.5, [0]), (0.75, [1])]
    assert bench.work.next_deadline() is None, "nothing waits"
    bench.now = 9.0
    bench.offer(3)
    assert starts(bench, 9.3) == [(9.0, [2]), (9.2, [3])], "what was not used before is no credit, but for 50 ms"


def test_a_rate_of_each_partition() -> None:
    bench = Bench(KEY, rate=(2.0, PARTITION))
    bench.offer("abca")
    bench.offer("ab", OTHER)
    assert starts(bench, 10.0) == [(0.0, [0, 0]), (0.5, [1, 1]), (1.0, [2]), (1.5, [3])]
    bench.offer("ab")
    bench.gates[TP].paused = True
    assert starts(bench, 20.0) == [], "what is paused has no time at which to look again"
    bench.gates[TP].paused = False
    bench.now = 3.0
    assert starts(bench, 20.0) == [(3.0, [4]), (3.45, [5])]


def test_a_rate_of_each_key() -> None:
    bench = Bench(KEY, rate=(1.0, KEY))
    bench.offer("aab")
    bench.offer(2)
    assert starts(bench, 10.0) == [(0.0, [0, 2, 3, 4]), (1.0, [1])], "a message without a key is a key of its own"
    bench.offer("a")
    assert starts(bench, 10.0) == [(2.0, [5])], "a key that has nothing in flight is remembered"


def test_a_high_rate_starts_several_messages_at_a_time() -> None:
    bench = Bench(NONE, rate=(1000.0, ALL))
    bench.offer(20)
    lots = starts(bench, 1.0)
    assert [offset for _, lot in lots for offset in lot] == list(range(20))
    assert 0.018 < lots[-1][0] < 0.03
    assert len(lots) <= 6
    bench.offer(2000)
    bench.now = 60.0
    assert len(bench.take()) in (50, 51), "50 ms' worth after a pause"


def test_a_list_is_paid_for_afterwards() -> None:
    bench = Bench(PARTITION, batch=(10, 0.0), rate=(5.0, ALL))
    bench.offer(15)
    assert starts(bench, 10.0) == [(0.0, list(range(10))), (2.0, list(range(10, 15)))]


def test_what_did_not_start_is_not_counted() -> None:
    bench = Bench(PARTITION, rate=(1.0, ALL))
    bench.offer(1)
    (one,) = bench.take()
    bench.back(one, 0)  # a rebalance has come in between
    assert offsets(bench.take()) == [[0]]
    bench.offer(1, OTHER)
    assert bench.take() == []
    assert bench.work.next_deadline() == 1.0


def test_an_attempt_counts_as_a_message() -> None:
    bench = Bench(KEY, rate=(1.0, KEY), retry=Retry(3, 100, jitter=0.0))
    bench.offer("a")
    (one,) = bench.take()
    bench.back(one, 0, failed=True)
    assert bench.work.next_deadline() == 0.1
    assert starts(bench, 10.0) == [(1.0, [0])]
    assert bench.work.retried == 1


def test_a_stop_and_a_revocation_do_not_wait() -> None:
    bench = Bench(KEY, rate=(0.01, PARTITION))
    bench.offer("ab")
    (one,) = bench.take()
    bench.back(one)
    assert bench.work.next_deadline() == 100.0
    bench.work.forget({TP})
    assert (bench.work.next_deadline(), bench.work.in_flight, bench.work.unfinished) == (None, 0, 1)
    bench.offer("a", OTHER)
    bench.work.end()
    assert (bench.take(), bench.work.next_deadline()) == ([], None)


def test_keys_that_may_start_again_are_forgotten() -> None:
    throttle = Throttle(10.0, KEY)
    part = Bench(KEY).part()
    for number in range(5000):
        throttle.spend(KeyQueue(part, b"%d" % number, []), 1, number / 100)
    assert len(throttle._free) < 1100


@pytest.mark.parametrize(
    ("order", "batch", "rate", "error", "text"),
    [
        (KEY, None, 0, ConfigurationError, "rate must be more than 0 messages a second, not 0"),
        (KEY, None, (1, "topic"), ConfigurationError, "rate[1] must be one of 'key', 'partition', 'all', not 'topic'"),
        (KEY, None, "fast", TypeError, "rate must be messages a second, or a pair .* not str: 'fast'"),
        (NONE, None, (1, KEY), ConfigurationError, "order must be 'key' with a rate for each key, not 'none'"),
        (KEY, (5, 5), (1, PARTITION), ConfigurationError, "order must be 'partition' with batch and a rate"),
    ],
)
def test_rates_that_are_refused(order: str, batch: Any, rate: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace("[", r"\[")):
        plan_of(order, 1000, batch, None, rate)


# -- a time ----------------------------------------------------------------------------------------------------------


def test_a_message_that_waits_holds_its_key_back_and_no_other() -> None:
    bench = Bench(KEY, retry=Retry(2, 100, jitter=0.0))
    bench.offer("aab")
    first, other = bench.take()
    wait(bench, first, 5.0)
    bench.back(other)
    assert (bench.take(), bench.work.next_deadline()) == ([], 5.0)
    assert (bench.work.retried, bench.work.parked, bench.work.in_flight, bench.commit()) == (0, 1, 2, 0)
    assert bench.part().known().unfinished == (0, 1), "the commit's map has what is finished behind it"
    assert starts(bench, 9.0) == [(5.0, [0, 1])]


def test_waiting_is_no_attempt_and_takes_none_away() -> None:
    bench = Bench(KEY, retry=Retry(2, 100, jitter=0.0))
    bench.offer("a")
    (one,) = bench.take()
    wait(bench, one, 5.0)
    bench.now = 5.0
    (one,) = bench.take()
    assert bench.work.again(one, 0, ValueError())
    bench.back(one, 0, failed=True)
    assert bench.work.next_deadline() == 5.1
    bench.now = 5.1
    (one,) = bench.take()
    wait(bench, one, 8.0)  # not_before has changed its mind
    assert not bench.work.again(one, 0, ValueError())
    assert bench.work.retried == 1


def test_a_list_waits_as_it_is() -> None:
    bench = Bench(KEY, batch=(3, 1.0))
    bench.offer(3)
    (lot,) = bench.take()
    wait(bench, lot, 5.0)
    bench.offer(3)
    assert offsets(bench.take()) == [[3, 4, 5]]
    bench.now = 5.0
    assert offsets(bench.take()) == [[0, 1, 2]]


def test_what_waits_for_its_time_leaves_room_to_other_partitions() -> None:
    bench = Bench(NONE, max_in_flight=100)
    for _ in range(100):
        if bench.part().full or not bench.work.capacity():
            break
        bench.offer(1)
        (one,) = bench.take()
        wait(bench, one, 1e6)
    assert bench.part().full
    assert bench.work.capacity() >= 20
    bench.offer(20, OTHER)
    assert len(bench.take()) == 20
    bench.work.forget({TP})
    assert bench.work.next_deadline() is None


def test_what_is_paused_when_its_time_comes_starts_after_the_pause() -> None:
    bench = Bench(PARTITION)
    bench.offer(1)
    (one,) = bench.take()
    wait(bench, one, 5.0)
    bench.gates[TP].paused, bench.now = True, 5.0
    assert bench.take() == []
    bench.gates[TP].paused = False
    assert offsets(bench.take()) == [[0]]


def test_the_results_of_not_before() -> None:
    moment = datetime(2026, 11, 25, 8, tzinfo=timezone.utc)
    assert seconds_of(moment) == seconds_of(moment.replace(tzinfo=None)) == seconds_of(moment.timestamp())
    assert seconds_of(moment.astimezone(timezone(timedelta(hours=5)))) == moment.timestamp()
    assert seconds_of(None) == 0.0
    with pytest.raises(TypeError, match="not_before must be seconds, a datetime or None, not str: 'soon'"):
        seconds_of("soon")


# -- runs -------------------------------------------------------------------------------------------------------------


def going(consumer: Any, handler: Callable[[Any], Any], **options: Any) -> threading.Thread:
    thread = threading.Thread(target=consumer.run, args=(handler,), kwargs=options, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("way", ["threads", "asyncio", "batch", pytest.param("greenlets", marks=pytest.mark.gevent)])
def test_messages_wait_for_the_time_in_their_header(way: str) -> None:
    began, seen = time.time(), list[tuple[int, float]]()
    due = began + 0.3

    def note(given: Message | list[Message]) -> None:
        messages = given if isinstance(given, list) else [given]
        seen.extend((message.offset, time.time()) for message in messages)

    async def note_async(given: Message) -> None:
        await asyncio.sleep(0)
        note(given)

    def not_before(message: Message) -> float | None:
        return float(message.headers[0][1] or b"") if message.headers else None

    with MemoryBroker({TOPIC: 1}) as broker:
        late = Record(b"x", b"a", headers=(("at", repr(due).encode()),))
        broker.produce(TOPIC, [late, Record(b"x", b"a"), Record(b"x", b"b")])
        ways: dict[str, dict[str, Any]] = {"batch": {"batch": (5, 0)}, "asyncio": {"on": "asyncio"}}
        greenlets = way == "greenlets"
        consumer = SimpleConsumer(TOPIC, broker.bootstrap, use_greenlets=greenlets)
        if greenlets:
            import gevent

            def handler(message: Message) -> None:
                note(message)
                if len(seen) == 3:
                    consumer.end_soon()

            with gevent.Timeout(LONG):
                consumer.run(handler, not_before=not_before, signals=False)
        else:
            thread = going(
                consumer,
                note_async if way == "asyncio" else note,
                not_before=not_before,
                signals=False,
                **ways.get(way, {}),
            )
            until(lambda: len(seen) == 3, LONG)
            consumer.stop()
            thread.join(LONG)
    assert [offset for offset, _ in seen if offset != 2] == [0, 1]
    assert all(at >= due for offset, at in seen if offset != 2)


def test_what_waits_neither_holds_a_stop_back_nor_is_lost() -> None:
    later = time.time() + 3600
    seen: list[int] = []
    with MemoryBroker({TOPIC: 1}) as broker:
        broker.produce(TOPIC, [Record(b"x", b"a"), Record(b"x", b"b"), Record(b"x", b"a")])
        member = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g", max_processing_ms=5000)
        not_before = lambda message: later if message.offset == 0 else 0  # noqa: E731
        thread = going(member, lambda message: seen.append(message.offset), not_before=not_before, signals=False)
        until(lambda: seen == [1], LONG)
        until(lambda: member.health()["run"]["waiting_keys"] == 1, LONG)
        visits = member._session.engine.delivery.visits
        until(lambda: member._session.engine.delivery.visits > visits, LONG)  # to max_processing_ms it is progress
        member.stop()
        thread.join(LONG)
        assert broker.committed("g")[TopicPartition(TOPIC, 0)] == 0
        again = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g")
        thread = going(again, lambda message: seen.append(message.offset), signals=False)
        until(lambda: len(seen) == 3, LONG)
        again.stop()
        thread.join(LONG)
    assert seen == [1, 0, 2], "what was finished out of order is not done again"


def test_a_rebalance_does_not_wait_for_what_waits() -> None:
    later = time.time() + 3600
    seen: list[int] = []
    options: dict[str, Any] = {"revoke_drain_ms": 3_600_000}
    with MemoryBroker({TOPIC: 2}) as broker:
        for partition in range(2):
            broker.produce(TOPIC, [b"x"], partition=partition)
        first = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g", **options)
        threads = [going(first, print, not_before=lambda _message: later, signals=False)]
        until(lambda: first.health()["run"]["waiting_keys"] == 2, LONG)
        second = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g", **options)
        threads.append(going(second, lambda message: seen.append(message.partition_id), signals=False))
        until(lambda: len(seen) == 1, LONG)
        assert first.health()["run"]["in_flight"] == 1
        for consumer, thread in zip((first, second), threads, strict=True):
            consumer.stop()
            thread.join(LONG)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_rate_in_a_run(kind: str) -> None:
    seen: list[float] = []

    async def note(_message: Message) -> None:
        seen.append(time.monotonic())

    handler: Any = note if kind == "asyncio" else lambda _message: seen.append(time.monotonic())
    with MemoryBroker({TOPIC: 2}) as broker:
        for partition in range(2):
            broker.produce(TOPIC, [b"x"] * 10, partition=partition)
        consumer = SimpleConsumer(TOPIC, broker.bootstrap)
        thread = going(consumer, handler, rate=40, on=kind, signals=False)
        until(lambda: len(seen) == 20, LONG)
        consumer.stop()
        thread.join(LONG)
    # 19 of them at 40 a second, less what 50 ms allow at the beginning, and a message that is begun late.
    assert seen[-1] - seen[0] >= 0.35


def test_not_before_that_is_wrong_ends_the_run() -> None:
    with MemoryBroker({TOPIC: 1}) as broker:
        broker.produce(TOPIC, [b"x"])
        buried: list[Any] = []
        soon: Any = lambda _message: "soon"  # noqa: E731
        with pytest.raises(TypeError, match="the result of not_before"):
            SimpleConsumer(TOPIC, broker.bootstrap).run(
                print, not_before=soon, on_dead=lambda *given: buried.append(given), signals=False
            )
        assert not buried
        with pytest.raises(MessageFailedError, match="KeyError"):
            SimpleConsumer(TOPIC, broker.bootstrap).run(
                print, not_before=lambda message: dict(message.headers)["at"], signals=False
            )
