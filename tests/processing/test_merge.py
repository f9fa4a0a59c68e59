"""``run(order="time")``: exact answers in virtual time, and runs against a broker in memory."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Message, Retry, SimpleConsumer
from managedconsumer.errors import ConfigurationError, MessageFailedError
from managedconsumer.processing.key_queues import KeyQueue
from managedconsumer.processing.values import ALL, PARTITION, TIME, Plan, plan_of
from managedconsumer.processing.work import Work
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.processing.test_work import Gate
from tests.waiting import until

TOPIC = "orders"
LONG = 60.0
IDLE = 0.5


class Bench:
    """A run without threads. Its messages are their timestamps; partitions are numbers."""

    def __init__(self, partitions: int = 2, **more: Any) -> None:
        self.gates = {TopicPartition(TOPIC, number): Gate() for number in range(partitions)}
        self.ended: set[TopicPartition] = set()
        self.next = dict.fromkeys(self.gates, 0)
        self.now = 0.0
        self.work = Work(Plan(TIME, idle=IDLE, **more), sources=self.sources)

    def sources(self) -> Iterator[tuple[TopicPartition, bool]]:
        return ((tp, tp in self.ended) for tp, gate in self.gates.items() if not (gate.paused or gate.suspended))

    def end(self, *partitions: int) -> None:
        """All messages of these partitions were taken."""
        self.ended |= {TopicPartition(TOPIC, number) for number in partitions}

    def offer(self, partition: int, *times: int) -> None:
        tp = TopicPartition(TOPIC, partition)
        part = self.work.parts.get(tp) or self.work.open(tp, self.gates[tp], None)
        first = self.next[tp]
        self.next[tp] += len(times)
        messages = [
            Message(b"", offset=first + n, timestamp=time, topic=TOPIC, partition_id=partition)
            for n, time in enumerate(times)
        ]
        self.work.offer(part, messages, self.now)

    def take(self, limit: int = 1000) -> list[KeyQueue]:
        return self.work.take(limit, self.now)

    def back(self, key_queue: KeyQueue, place: int | None = None, *, failed: bool = False) -> None:
        key_queue.place = len(key_queue.running) if place is None else place
        key_queue.failed = failed
        self.work.take_back([key_queue], self.now)

    def starts(self, limit: int = 1000) -> list[int]:
        """What starts now, if all of it is done at once."""
        found = []
        while taken := self.take(limit):
            for key_queue in taken:
                found += times_of(key_queue)
                self.back(key_queue)
        return found

    def pause(self, partition: int, paused: bool = True) -> None:
        self.gates[TopicPartition(TOPIC, partition)].paused = paused
        self.work.interrupt()


def times_of(key_queue: KeyQueue) -> list[int]:
    return [message.timestamp for message in key_queue.running]


# -- the order --------------------------------------------------------------------------------------------------------


def test_messages_start_in_the_order_of_their_timestamps() -> None:
    bench = Bench()
    bench.offer(0, 10, 30, 50)
    assert bench.starts() == [], "nobody knows what the other one has"
    bench.offer(1, 20, 40)
    assert bench.starts() == [10, 20, 30, 40], "an earlier one than 50 may follow"
    bench.offer(1, 60)
    assert bench.starts() == [50]
    assert bench.work.done == 5


def test_a_partition_keeps_its_order_whatever_its_timestamps_say() -> None:
    bench = Bench()
    bench.offer(0, 10, 5, 30)
    bench.offer(1, 7, 20, 40)
    assert bench.starts() == [7, 10, 5, 20, 30]


def test_equal_timestamps_go_by_partition() -> None:
    bench = Bench()
    bench.offer(1, 5, 5)
    bench.offer(0, 5, 5)
    assert bench.starts() == [5, 5]
    assert (
        bench.work.parts[TopicPartition(TOPIC, 0)].lowest(),
        bench.work.parts[TopicPartition(TOPIC, 1)].lowest(),
    ) == (None, 0)


def test_a_partition_at_its_end_holds_the_others_up_for_a_while() -> None:
    bench = Bench(3)
    bench.offer(0, 10, 20)
    bench.end(1)
    assert (bench.starts(), bench.work.next_deadline()) == ([], 0.05), "the log of 2 may go on"
    bench.now = 0.4
    bench.end(2)
    assert (bench.starts(), bench.work.next_deadline()) == ([], IDLE)
    bench.now = IDLE
    assert (bench.starts(), bench.work.next_deadline()) == ([], 0.4 + IDLE)
    bench.now = 0.4 + IDLE
    assert bench.starts() == [10, 20]
    bench.now = 1.0
    bench.offer(0, 30)
    assert bench.starts() == [30], "it is quiet since"
    bench.offer(0, 50)
    bench.offer(1, 40)
    assert bench.starts() == [40]
    bench.now = 1.0 + IDLE / 2
    assert (bench.starts(), bench.work.next_deadline()) == ([], 1.0 + IDLE), "it was not quiet, so it counts anew"
    bench.now = 1.0 + IDLE
    assert bench.starts() == [50]
    assert bench.work.next_deadline() is None, "nothing waits"


def test_a_partition_that_was_quiet_and_goes_on_is_waited_for() -> None:
    bench = Bench()
    bench.end(1)
    assert bench.starts() == []
    bench.now = 9.0
    bench.offer(0, 10)
    assert bench.starts() == [10]
    bench.ended.clear()
    bench.offer(0, 20)
    assert bench.starts() == [], "it has messages that were not taken yet"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_lots_all_logs_are_merged(seed: int) -> None:
    for more in range(20):
        chance = random.Random(seed * 100 + more)
        bench = Bench(chance.randint(1, 5), max_in_flight=chance.choice((1, 7, 1000)))
        bench.work._merge._idle = 0.0  # type: ignore[union-attr]
        logs = {n: sorted(chance.choices(range(300), k=chance.randint(0, 60))) for n in range(len(bench.gates))}
        wanted, found = sorted(time for log in logs.values() for time in log), list[int]()
        while len(found) < len(wanted):
            for n, log in logs.items():
                part = bench.work.parts.get(TopicPartition(TOPIC, n))
                if log and not (part is not None and part.full) and chance.random() < 0.5:
                    lot = chance.randint(1, max(1, bench.work.capacity() // 2))
                    bench.offer(n, *log[:lot])
                    del log[:lot]
                if not log:
                    bench.end(n)
            found += bench.starts(chance.choice((1, 5, 1000)))
        assert found == wanted


# -- what is taken ----------------------------------------------------------------------------------------------------


def test_each_partition_has_its_share_of_what_is_in_flight() -> None:
    bench = Bench(10, max_in_flight=100)
    bench.starts()
    for number in range(9):
        while (
            not bench.work.parts or not (part := bench.work.parts.get(TopicPartition(TOPIC, number))) or not part.full
        ):
            assert bench.work.capacity() > 0
            bench.offer(number, *range(max(1, bench.work.capacity() // 2)))
    assert bench.work.in_flight <= 100
    assert bench.starts() == [], "the last one is missing"
    bench.offer(9, *range(5))
    assert len(bench.starts()) > 9 * 5 - 9
    assert not any(part.full for tp, part in bench.work.parts.items() if not part.pending), "they are read on"


def test_more_partitions_than_may_be_in_flight() -> None:
    bench = Bench(20, max_in_flight=3)
    for number in range(20):
        assert (bench.starts(), bench.work.capacity()) == ([], 1)
        bench.offer(number, number)
        assert bench.work.parts[TopicPartition(TOPIC, number)].full
    assert bench.starts() == [0]


# -- failures, pauses, revocations ------------------------------------------------------------------------------------


def test_nothing_passes_a_message_that_is_tried_again() -> None:
    bench = Bench(retry=Retry(3, 100, jitter=0.0))
    bench.offer(0, 10, 30)
    bench.offer(1, 20, 40)
    (line,) = bench.take()
    assert times_of(line) == [10, 20, 30]
    assert bench.work.again(line, 1, ValueError())
    bench.back(line, 1, failed=True)
    bench.offer(0, 35, 50)
    assert (bench.starts(), bench.work.next_deadline(), bench.work.parked) == ([], 0.1, 1)
    bench.now = 0.1
    (line,) = bench.take()
    assert times_of(line) == [20, 30]
    assert bench.work.again(line, 0, ValueError()), "the second of three attempts"
    bench.back(line, 0, failed=True)
    bench.now = 9.0
    (line,) = bench.take()
    assert not bench.work.again(line, 0, ValueError())
    assert bench.work.again(line, 1, ValueError()), "the next message has attempts of its own"
    bench.back(line)
    assert bench.starts() == [35, 40]
    assert (bench.work.done, bench.work.retried, bench.work.in_flight) == (5, 2, 1)


def test_the_attempts_of_a_message_go_with_it() -> None:
    """The partition of the failed message is paused, and revoked: the next one's first attempt is its first."""
    for gone in (False, True):
        bench = Bench(retry=Retry(2, 100, jitter=0.0))
        bench.offer(0, 10, 30)
        bench.offer(1, 20, 40)
        (line,) = bench.take()
        bench.back(line, 0, failed=True)
        if gone:
            del bench.gates[TopicPartition(TOPIC, 0)]
            bench.work.forget({TopicPartition(TOPIC, 0)})
        else:
            bench.pause(0)
        bench.now = 1.0
        (line,) = bench.take()
        assert times_of(line) == [20]
        assert bench.work.again(line, 0, ValueError())
        bench.back(line)
        if not gone:
            bench.pause(0, False)
            (line,) = bench.take()
            assert times_of(line) == [10, 30]
            assert not bench.work.again(line, 0, ValueError()), "its second attempt"


def test_a_message_whose_time_has_not_come_holds_all_others_up() -> None:
    bench = Bench()
    bench.offer(0, 10, 30)
    bench.offer(1, 20)
    (line,) = bench.take(1)
    line.until = 5.0
    bench.back(line, 0, failed=True)
    assert (bench.starts(), bench.work.next_deadline(), bench.work.retried) == ([], 5.0, 0)
    bench.now = 5.0
    assert bench.starts() == [10, 20]


def test_a_rate_of_all_messages() -> None:
    bench = Bench(rate=(2.0, ALL))
    bench.offer(0, 10, 30)
    bench.offer(1, 20, 40)
    assert bench.starts() == [10]
    assert bench.work.next_deadline() == 0.5
    bench.now = 0.5
    assert bench.starts() == [20]
    with pytest.raises(ConfigurationError, match="order must be another one with a rate for each partition"):
        plan_of(TIME, 1000, None, None, (1, PARTITION))


def test_lists_are_in_order_and_fail_as_a_whole() -> None:
    bench = Bench(batch=(3, 1.0), retry=Retry(2, 100, jitter=0.0))
    bench.offer(0, 10, 30, 50, 70)
    bench.offer(1, 20, 40)
    (lot,) = bench.take()
    assert times_of(lot) == [10, 20, 30]
    bench.back(lot, 0, failed=True)
    bench.offer(1, 25, 60)
    assert bench.take() == []
    bench.now = 0.1
    (lot,) = bench.take()
    assert times_of(lot) == [10, 20, 30]
    bench.work.interrupt()
    bench.back(lot, 0)
    (lot,) = bench.take()
    assert times_of(lot) == [10, 20, 30], "it comes back at once, and as it was"
    bench.back(lot)
    assert bench.starts() == [40, 25, 50]
    assert (bench.starts(), bench.work.in_flight) == ([], 2)
    bench.offer(0, 80)
    bench.offer(1, 90)
    assert bench.starts() == [60, 70, 80]


def test_a_list_that_is_not_full_waits_no_longer_than_allowed() -> None:
    bench = Bench(batch=(5, 1.0))
    bench.offer(0, 10)
    bench.offer(1, 20)
    assert bench.starts() == []
    bench.now = 0.5
    bench.offer(0, 15)
    assert bench.starts() == []
    bench.now = 1.0
    assert bench.starts() == [10, 15]


def test_what_is_paused_neither_starts_nor_holds_up() -> None:
    bench = Bench()
    bench.offer(0, 10, 30)
    bench.pause(1)
    assert bench.work.sooner, "a worker that waits has to look"
    assert bench.starts() == [10, 30]
    bench.offer(0, 40)
    bench.offer(1, 20)
    assert bench.starts() == [40]
    bench.offer(0, 50, 70)
    bench.pause(1, False)
    bench.offer(1, 60)
    assert bench.starts() == [20, 50, 60]


def test_what_was_drawn_when_its_partition_is_paused_comes_first_afterwards() -> None:
    bench = Bench()
    bench.offer(0, 10, 30, 50)
    bench.offer(1, 20, 40)
    (line,) = bench.take()
    bench.pause(1)
    bench.back(line, 1)
    assert bench.starts() == [30, 50]
    bench.offer(0, 60)
    bench.pause(1, False)
    assert bench.starts() == [20, 40]
    assert bench.work.in_flight == 1


def test_a_partition_that_is_revoked_takes_its_messages_with_it() -> None:
    bench = Bench(3)
    bench.offer(0, 10, 30)
    bench.offer(1, 20)
    tp = TopicPartition(TOPIC, 2)
    assert bench.starts() == []
    del bench.gates[tp]
    bench.work.forget({tp})
    assert bench.starts() == [10, 20]
    del bench.gates[TopicPartition(TOPIC, 0)]
    bench.work.forget({TopicPartition(TOPIC, 0)})
    assert (bench.work.unfinished, bench.work.in_flight, bench.starts()) == (1, 0, [])
    bench.offer(1, 40)
    bench.work.end()
    assert (bench.take(), bench.work.next_deadline()) == ([], None)
    bench.work.abandon()
    assert bench.work.unfinished == 2


def test_a_log_that_was_cut_takes_what_waits_beyond() -> None:
    bench = Bench()
    bench.offer(0, 10, 30, 50)
    bench.work.forget({TopicPartition(TOPIC, 0)}, 2)
    bench.offer(1, 5, 60)
    assert bench.starts() == [5, 10, 30]


# -- runs -------------------------------------------------------------------------------------------------------------


def records(*times: int) -> list[Record]:
    return [Record(b"%d" % time, b"k", timestamp=time) for time in times]


def going(consumer: Any, handler: Callable[[Any], Any], **options: Any) -> threading.Thread:
    options = {"order": "time", "signals": False, **options}
    thread = threading.Thread(target=consumer.run, args=(handler,), kwargs=options, daemon=True)
    thread.start()
    return thread


def in_flight(consumer: Any) -> int | None:
    run = consumer.health()["run"]  # None before it begins
    return None if run is None else run["in_flight"]


WAYS: dict[str, dict[str, Any]] = {
    "threads": {},
    "asyncio": {"on": "asyncio"},
    "lists": {"batch": (7, 5)},
    "few": {"max_in_flight": 4},
    "greenlets": {"on": "greenlets"},
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.gevent] if way == "greenlets" else []) for way in WAYS]
)
def test_a_backlog_of_many_partitions_in_order(way: str) -> None:
    seen: list[int] = []

    def note(given: Message | list[Message]) -> None:
        seen.extend(message.timestamp for message in (given if isinstance(given, list) else [given]))

    async def note_async(message: Message) -> None:
        await asyncio.sleep(0)
        note(message)

    with MemoryBroker({TOPIC: 9}) as broker:
        chance, times = random.Random(1), range(1, 901)
        for time, number in zip(
            times, chance.choices(range(9), weights=[90, 5, 3, 1, 1, 1, 1, 1, 1], k=900), strict=True
        ):
            broker.produce(TOPIC, records(time), partition=number)
        consumer = SimpleConsumer(TOPIC, broker.bootstrap, use_greenlets=way == "greenlets")
        options = {"idle_ms": 0, **WAYS[way]}
        if way == "greenlets":
            import gevent

            def handler(message: Message) -> None:
                note(message)
                if len(seen) == len(times):
                    consumer.end_soon()

            with gevent.Timeout(LONG):
                consumer.run(handler, order="time", signals=False, **options)
        else:
            thread = going(consumer, note_async if way == "asyncio" else note, **options)
            until(lambda: len(seen) == len(times), LONG)
            consumer.stop()
            thread.join(LONG)
    assert seen == list(times)


def test_messages_that_come_live_wait_for_a_quiet_partition_no_longer_than_allowed() -> None:
    seen: list[int] = []
    with MemoryBroker({TOPIC: 2}) as broker:
        consumer = SimpleConsumer(TOPIC, broker.bootstrap)
        thread = going(consumer, lambda message: seen.append(message.timestamp), idle_ms=3_600_000)
        broker.produce(TOPIC, records(20), partition=0)
        until(lambda: in_flight(consumer) == 1, LONG)
        broker.produce(TOPIC, records(10, 30), partition=1)
        until(lambda: seen == [10, 20], LONG)
        assert in_flight(consumer) == 1
        consumer.pause(0)
        until(lambda: seen == [10, 20, 30], LONG)
        consumer.stop()
        thread.join(LONG)
        consumer = SimpleConsumer(TOPIC, broker.bootstrap)
        thread = going(consumer, lambda message: seen.append(message.timestamp), idle_ms=50)
        until(lambda: seen[3:] == [10, 20, 30], LONG)
        consumer.stop()
        thread.join(LONG)


def test_a_seek_takes_what_waits_with_it() -> None:
    seen: list[int] = []
    with MemoryBroker({TOPIC: 2}) as broker:
        broker.produce(TOPIC, records(10, 20, 30), partition=0)
        consumer = SimpleConsumer(TOPIC, broker.bootstrap)
        thread = going(consumer, lambda message: seen.append(message.timestamp), idle_ms=3_600_000)
        until(lambda: in_flight(consumer) == 3, LONG)
        consumer.seek(0, 1)
        until(lambda: in_flight(consumer) == 2, LONG)
        broker.produce(TOPIC, records(25, 40), partition=1)
        until(lambda: seen == [20, 25, 30], LONG)
        consumer.stop()
        thread.join(LONG)


def test_what_waits_neither_holds_a_stop_back_nor_is_lost() -> None:
    seen: list[int] = []
    with MemoryBroker({TOPIC: 2}) as broker:
        broker.produce(TOPIC, records(10, 30), partition=0)
        broker.produce(TOPIC, records(20), partition=1)
        member = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g")
        thread = going(member, lambda message: seen.append(message.timestamp), idle_ms=3_600_000)
        until(lambda: seen == [10, 20], LONG)
        member.stop()
        thread.join(LONG)
        assert broker.committed("g") == {TopicPartition(TOPIC, 0): 1, TopicPartition(TOPIC, 1): 1}
        again = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g")
        thread = going(again, lambda message: seen.append(message.timestamp), idle_ms=0)
        until(lambda: seen == [10, 20, 30], LONG)
        again.stop()
        thread.join(LONG)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_gives_what_waits_to_its_new_owner(protocol: Any) -> None:
    """The first member has messages of one partition and waits for the other one; then each has one."""
    seen: list[int] = []
    with MemoryBroker({TOPIC: 2}) as broker:
        broker.produce(TOPIC, records(10, 20), partition=0)

        def join() -> tuple[ManagedBalancedConsumer, threading.Thread]:
            consumer = ManagedBalancedConsumer(
                TOPIC, broker.bootstrap, "g", group_protocol=protocol, revoke_drain_ms=3_600_000
            )
            return consumer, going(consumer, lambda message: seen.append(message.timestamp), idle_ms=3_600_000)

        members = [join()]
        until(lambda: in_flight(members[0][0]) == 2, LONG)
        assert not seen
        members.append(join())
        until(lambda: seen == [10, 20], LONG)
        for consumer, thread in members:
            consumer.stop()
            thread.join(LONG)
        assert broker.committed("g")[TopicPartition(TOPIC, 0)] == 2


def test_an_evicted_member_reads_what_waited_again() -> None:
    seen: list[int] = []
    with MemoryBroker({TOPIC: 2}) as broker:
        broker.produce(TOPIC, records(10, 30), partition=0)
        broker.produce(TOPIC, records(20), partition=1)
        member = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "g", heartbeat_interval_ms=50)
        thread = going(member, lambda message: seen.append(message.timestamp), idle_ms=3_600_000, commit_ms=1)
        done = {TopicPartition(TOPIC, 0): 1, TopicPartition(TOPIC, 1): 1}
        until(lambda: broker.committed("g") == done, LONG)
        broker.evict("g")
        until(lambda: broker.members("g") != [], LONG)  # it drops what it has before it joins again
        until(lambda: in_flight(member) == 1, LONG)
        broker.produce(TOPIC, records(25, 40), partition=1)
        until(lambda: seen == [10, 20, 25, 30], LONG)
        member.stop()
        thread.join(LONG)


def test_the_first_message_that_is_dead_ends_the_run_before_later_ones() -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.timestamp)
        if message.timestamp == 20:
            raise ValueError("no luck")

    with MemoryBroker({TOPIC: 2}) as broker:
        broker.produce(TOPIC, records(10, 30), partition=0)
        broker.produce(TOPIC, records(20, 40), partition=1)
        with pytest.raises(MessageFailedError):
            SimpleConsumer(TOPIC, broker.bootstrap).run(
                handle, order="time", idle_ms=0, signals=False, retry=Retry(2, 1)
            )
    assert seen == [10, 20, 20]
