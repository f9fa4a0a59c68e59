"""Several threads past the lock: each gets the next message of the same chunk, and has a hand of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import gevent
import pytest

from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.runtime.waiting.thread_ids import here
from managedconsumer.wire.records import Lane, Message
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.fetch.kit import Kit, batch, tp


class Consuming:
    """A thread that consumes when it is told to."""

    def __init__(self, kit: Kit, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._kit, self._run = kit, run
        self.who: int = run(lambda: here.number)

    def past_the_lock(self) -> tuple[int, int] | None:
        """What the lane gives it."""
        return _place(self._run(self._kit.collector.lane.take))

    def at_the_lock(self) -> tuple[int, int] | None:
        return _place(self._run(lambda: self._kit.collector.take(self.who)))

    def batch(self, limit: int) -> list[int]:
        return [message.offset for message in self._run(lambda: self._kit.collector.take_many(self.who, limit))]

    def finish(self) -> None:
        self._kit.collector.finish(self.who)


def _place(message: Message | None) -> tuple[int, int] | None:
    return None if message is None else (message.partition_id, message.offset)


@pytest.fixture
def kit() -> Kit:
    return Kit(2)


@pytest.fixture
def three(kit: Kit) -> Iterator[list[Consuming]]:
    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)]
        yield [Consuming(kit, lambda fn, pool=pool: pool.submit(fn).result()) for pool in pools]


def begun(kit: Kit, three: list[Consuming], count: int) -> tuple[Consuming, Consuming]:
    """Two of the threads, of which one has gone past the lock already; so many messages are there in all."""
    one, two, _ = three
    kit.fetched(0, batch(0, count))
    assert [one.at_the_lock(), two.at_the_lock(), one.past_the_lock()] == [(0, 0), (0, 1), (0, 2)]
    return one, two


def settled(kit: Kit, partition: int = 0) -> tuple[int | None, int | None]:
    kit.collector.settle_lane()
    return kit.position(partition), kit.finished(partition)


def test_each_thread_comes_to_the_lock_once_and_then_goes_past_it(kit: Kit, three: list[Consuming]) -> None:
    one, two, third = three
    kit.fetched(0, batch(0, 9))
    assert [one.at_the_lock(), one.past_the_lock()] == [(0, 0), (0, 1)]
    assert two.past_the_lock() is None
    assert two.at_the_lock() == (0, 2)
    assert [one.past_the_lock(), two.past_the_lock(), one.past_the_lock()] == [(0, 3), (0, 4), (0, 5)]
    assert third.at_the_lock() == (0, 6)
    assert [two.past_the_lock(), third.past_the_lock(), one.past_the_lock()] == [(0, 7), (0, 8), None]
    assert settled(kit) == (9, 5)
    assert [kit.collector.lowest_in_flight(tp(0), each.who) for each in three] == [7, 5, 5]
    assert kit.collector.handed_out == 9


def test_only_who_comes_back_finishes_its_message(kit: Kit, three: list[Consuming]) -> None:
    slow, quick, _ = three
    kit.fetched(0, batch(0, 6))
    assert slow.at_the_lock() == (0, 0)
    assert quick.at_the_lock() == (0, 1)
    for offset in range(2, 6):
        assert quick.past_the_lock() == (0, offset)
    assert settled(kit) == (6, 0)
    assert slow.at_the_lock() is None
    assert settled(kit) == (6, 5)
    quick.finish()
    assert settled(kit) == (6, 6)


def test_what_a_thread_takes_after_somebody_looked_is_noted_too(kit: Kit, three: list[Consuming]) -> None:
    one, two = begun(kit, three, 8)
    assert settled(kit) == (3, 1)  # the commit worker looks, which ends the lane for both
    assert two.past_the_lock() is None
    assert one.at_the_lock() == (0, 3)
    assert two.past_the_lock() == (0, 4)  # it has kept its slot: what it had in flight is of the same partition
    assert settled(kit) == (5, 3)


def test_who_has_a_message_of_another_partition_comes_to_the_lock(kit: Kit, three: list[Consuming]) -> None:
    """A rebalance may wait for that message, and is told at the lock that it came back."""
    one, two = begun(kit, three, 3)
    kit.fetched(1, batch(0, 4))
    assert one.at_the_lock() == (1, 0)
    assert two.past_the_lock() is None
    assert kit.collector.has_in_flight({tp(0)})
    assert two.at_the_lock() == (1, 1)
    assert [one.past_the_lock(), two.past_the_lock()] == [(1, 2), (1, 3)]
    assert (settled(kit, 0), settled(kit, 1)) == ((3, 3), (4, 2))


def test_who_has_a_batch_in_flight_comes_to_the_lock(kit: Kit, three: list[Consuming]) -> None:
    one, two, _ = three
    kit.fetched(0, batch(0, 9))
    assert [one.at_the_lock(), two.at_the_lock()] == [(0, 0), (0, 1)]
    assert one.batch(3) == [2, 3, 4]
    assert two.at_the_lock() == (0, 5)
    assert one.past_the_lock() is None
    assert two.past_the_lock() == (0, 6)
    assert settled(kit) == (7, 2)


@pytest.mark.parametrize("again", [0, 1])
def test_a_batch_after_a_seek_back_is_in_flight_from_its_first_message(
    kit: Kit, three: list[Consuming], again: int
) -> None:
    one, two = begun(kit, three, 6)
    kit.collector.forget({tp(0)})
    kit.seek(0, again)
    kit.fetched(0, batch(0, 9), again)
    assert one.batch(3) == list(range(again, again + 3))
    assert two.at_the_lock() == (0, again + 3)
    assert two.past_the_lock() == (0, again + 4)
    assert settled(kit) == (again + 5, again)


@pytest.mark.parametrize("how", ["shelve", "forget", "take_away", "leave"])
def test_nothing_comes_past_the_lock_after_a_partition_was_taken(kit: Kit, three: list[Consuming], how: str) -> None:
    one, two = begun(kit, three, 9)
    if how == "leave":
        kit.collector.lane.leave()
    elif how == "shelve":
        kit.collector.shelve()
    else:
        getattr(kit.collector, how)({tp(0)})
    assert [one.past_the_lock(), two.past_the_lock()] == [None, None]
    lost = {tp(0): 1} if how == "take_away" else {}
    assert kit.collector.in_flight.taken_away(one.who) == lost  # 2 was in its hand, and 1 in the other's
    assert kit.collector.has_in_flight({tp(0)}) == (how in ("shelve", "leave"))


def test_what_was_pushed_back_comes_before_anything_past_the_lock(kit: Kit, three: list[Consuming]) -> None:
    one, two, _ = three
    kit.fetched(0, batch(0, 9))
    message = None
    assert [one.at_the_lock(), two.at_the_lock()] == [(0, 0), (0, 1)]
    message = kit.collector.take(one.who)
    assert message is not None
    kit.collector.push_back(one.who, [message])
    assert [one.past_the_lock(), two.past_the_lock()] == [None, None]
    assert [two.at_the_lock(), one.at_the_lock()] == [(0, 2), (0, 3)]
    assert [one.past_the_lock(), two.past_the_lock()] == [(0, 4), (0, 5)]
    assert settled(kit) == (6, 4)


def test_the_message_of_a_thread_that_ended_is_not_finished_by_the_others(kit: Kit, three: list[Consuming]) -> None:
    dead, one, two = three
    kit.fetched(0, batch(0, 9))
    assert [each.at_the_lock() for each in three] == [(0, 0), (0, 1), (0, 2)]
    assert dead.past_the_lock() == (0, 3)
    assert kit.collector.leave_behind(dead.who) == [(tp(0), 3)]
    assert one.at_the_lock() == (0, 4)
    assert dead.past_the_lock() is None
    assert [two.past_the_lock(), one.past_the_lock(), two.past_the_lock()] == [(0, 5), (0, 6), (0, 7)]
    for each in one, two:
        each.finish()
    assert settled(kit) == (8, 3)


def test_an_exception_behind_the_lane_brings_back_one_message(
    kit: Kit, three: list[Consuming], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal comes when others go past the lock already: what they have taken is not taken back."""
    one, two, _ = three
    kit.fetched(0, batch(0, 9))
    assert one.at_the_lock() == (0, 0)
    give = FetchCollector._give_slot

    def interrupted(collector: FetchCollector, who: int, offset: int) -> None:
        give(collector, who, offset)
        assert one.past_the_lock() == (0, 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FetchCollector, "_give_slot", interrupted)
        with pytest.raises(KeyboardInterrupt):
            two.at_the_lock()
    assert settled(kit) == (1, 1)
    assert two.at_the_lock() == (0, 1)
    assert one.at_the_lock() == (0, 3)
    assert settled(kit) == (4, 1)


def test_greenlets_of_one_thread_have_a_slot_each() -> None:
    kit = Kit()
    kit.collector = FetchCollector(kit.buffer, Lane(gevent.getcurrent))
    kit.fetched(0, batch(0, 7))
    got: list[tuple[int, tuple[int, int] | None]] = []

    def consume(who: int) -> None:
        got.append((who, _place(kit.collector.take(who))))
        for _ in range(2):
            gevent.sleep(0)
            got.append((who, _place(kit.collector.lane.take())))

    gevent.joinall([gevent.spawn(consume, who) for who in (1, 2)])
    assert got == [(1, (0, 0)), (2, (0, 1)), (1, (0, 2)), (2, (0, 3)), (1, (0, 4)), (2, (0, 5))]
    assert settled(kit) == (6, 4)
    gevent.spawn(lambda: got.append((3, _place(kit.collector.lane.take())))).join()
    assert got[-1] == (3, None)  # perhaps at the address of one that has ended


def test_threads_that_iterate_share_everything_and_nothing_is_finished_too_early() -> None:
    """While others look as often as they can: each message comes once, in order for each thread."""
    offsets = sorted({*range(100), *range(100, 400, 3), *range(400, 1100)})
    kit, lock = Kit(max_messages=10_000), threading.RLock()
    for first in range(0, len(offsets), 250):
        lot = offsets[first : first + 250]
        kit.fetched(0, encode_batch([Record(b"v", offset_delta=n - lot[0]) for n in lot], base_offset=lot[0]))
    got: dict[int, list[int]] = {}

    def consume() -> None:
        who, mine = here.number, got.setdefault(here.number, [])

        def long_way() -> Message | None:
            with lock:
                return kit.collector.take(who)

        for message in kit.collector.lane.iterate(long_way):
            mine.append(message.offset)  # in flight until the next call

    workers, before = [threading.Thread(target=consume) for _ in range(4)], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            with lock:
                _, finished = settled(kit)
                in_flight = dict(kit.collector.in_flight)
                known = {who: list(mine) for who, mine in list(got.items())}
            assert finished is not None
            for who in in_flight:
                assert finished <= min((at for _, at in in_flight[who]), default=finished)
            arrived = {at for mine in known.values() for at in mine}
            on_the_way = {at for at in offsets if at < finished} - arrived
            assert not on_the_way, "it is finished, and has not come to its thread"
    finally:
        sys.setswitchinterval(before)
        for worker in workers:
            worker.join()
    assert sorted(at for mine in got.values() for at in mine) == offsets
    assert all(mine == sorted(mine) for mine in got.values())
    assert settled(kit) == (1100, 1100)
