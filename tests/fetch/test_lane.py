"""The short way past the lock: the same messages, positions and finished offsets as the long one.

The accelerator's lane and its twin in Python make the same promises, so the same tests run on both.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.runtime.waiting.thread_ids import here
from managedconsumer.wire.records import FastPath, Lane, Message, load
from managedconsumer.wire.records._lane_py import FastPath as PythonFastPath
from managedconsumer.wire.records._lane_py import Lane as PythonLane
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.fetch.kit import Kit, batch, filled, tp

ME, OTHER = 1, 2


def next_offset(kit: Kit, who: int = ME) -> tuple[int, int] | None:
    """What a consumer does: the short way if there is one, else the long way."""
    message: Message | None = kit.collector.lane.take()
    if message is None:
        return kit.take(who)
    return message.partition_id, message.offset


def settled(kit: Kit, partition: int = 0) -> tuple[int | None, int | None]:
    kit.collector.settle_lane()
    return kit.position(partition), kit.finished(partition)


def test_the_short_way_gives_the_same_messages_in_the_same_order() -> None:
    kit = filled(batch(0, 3) + batch(3, 2), batch(0, 2))
    taken = [next_offset(kit) for _ in range(7)]
    assert taken == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)]
    assert next_offset(kit) is None
    assert settled(kit, 0) == (5, 5)
    assert settled(kit, 1) == (2, 2)
    assert kit.collector.handed_out == 7


def test_what_is_in_flight_is_not_finished_whoever_looks() -> None:
    kit = filled(batch(0, 5))
    for expected in range(4):
        assert next_offset(kit) == (0, expected)
        assert settled(kit) == (expected + 1, expected)  # the commit worker looks between any two messages
    assert kit.collector.lowest_in_flight(tp(0)) == 3
    assert kit.collector.lowest_in_flight(tp(0), but=ME) is None


def test_nothing_comes_out_of_a_partition_after_it_was_held() -> None:
    kit = filled(batch(0, 5), batch(0, 1))
    assert [next_offset(kit), next_offset(kit)] == [(0, 0), (0, 1)]
    kit.collector.shelve()
    kit.states[0].suspended = True
    assert kit.collector.lane.take() is None
    assert next_offset(kit) == (1, 0)
    assert next_offset(kit) is None
    kit.states[0].suspended = False
    assert next_offset(kit) == (0, 2)


def test_nothing_comes_out_of_a_partition_after_it_was_taken_away() -> None:
    kit = filled(batch(0, 5))
    assert [next_offset(kit), next_offset(kit)] == [(0, 0), (0, 1)]
    kit.collector.forget({tp(0)})
    kit.buffer.drop([tp(0)])
    assert next_offset(kit) is None
    assert not kit.collector.has_in_flight()


def test_a_second_consuming_thread_gets_its_own_hand() -> None:
    kit = filled(batch(0, 6))
    assert [next_offset(kit), next_offset(kit)] == [(0, 0), (0, 1)]
    got: list[tuple[int, int] | None] = []
    thread = threading.Thread(target=lambda: got.append(next_offset(kit, OTHER)))
    thread.start()
    thread.join()
    assert got == [(0, 2)]
    assert settled(kit) == (3, 1)  # 1 and 2 are in two hands
    assert next_offset(kit) == (0, 3)
    assert settled(kit) == (4, 2)


def test_a_lane_can_be_iterated_and_ends_where_the_long_way_ends() -> None:
    kit = filled(batch(0, 4))

    def long_way() -> Message | None:
        return kit.collector.take(ME)

    assert [message.offset for message in kit.collector.lane.iterate(long_way)] == [0, 1, 2, 3]
    kit.fetched(0, batch(4, 2))
    assert [message.offset for message in kit.collector.lane.iterate(long_way)] == [4, 5]


class Shop(FastPath):
    """What a consumer is made of."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.seen: list[tuple[bool, object]] = []
        self._open_lane(kit.collector.lane)

    def _consume_waiting(self, block: bool, unblock_event: object) -> Message | None:
        self.seen.append((block, unblock_event))
        return self.kit.collector.take(here.number)


def test_consume_takes_the_short_way_and_passes_its_arguments_to_the_long_one() -> None:
    kit = filled(batch(0, 4))
    shop, event = Shop(kit), object()
    assert shop.consume(False, event).offset == 0
    assert shop.consume().offset == 1
    assert shop.consume(unblock_event=event).offset == 2, "with an event only the long way, which looks at it"
    assert shop.consume().offset == 3
    assert shop.consume(block=False) is None
    assert shop.seen == [(False, event), (True, event), (False, None)]


def test_a_bound_consume_and_an_iterator_keep_the_consumer_and_make_no_circle() -> None:
    kit = filled(batch(0, 4))
    shop = Shop(kit)
    gone, consume, messages = weakref.ref(shop), shop.consume, kit.collector.lane.iterate(shop.consume)
    gc.disable()
    try:
        del shop
        assert [consume().offset, next(messages).offset, consume().offset] == [0, 1, 2]
        del consume, messages
        assert gone() is None
    finally:
        gc.enable()


def test_consume_can_be_asked_for_its_signature_and_its_text() -> None:
    assert list(inspect.signature(FastPath.consume).parameters) == ["self", "block", "unblock_event"]
    assert (FastPath.consume.__doc__ or "").startswith("The next message, or None")


def test_a_thread_does_not_get_on_where_a_dead_one_was() -> None:
    """The system gives the numbers of ended threads away again; the lane knows them apart."""
    kit = filled(batch(0, 6))
    lane = kit.collector.lane
    got: list[object] = []

    def in_thread(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=lambda: got.append(work()))
        thread.start()
        thread.join()

    in_thread(lambda: (kit.take(here.number), lane.take() is not None))
    assert got == [((0, 0), True)]
    for _ in range(5):
        in_thread(lane.take)
    assert got[1:] == [None] * 5
    assert settled(kit) == (2, 1)


def test_a_look_from_a_handler_that_interrupts_the_lane_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler runs in the middle of the lane's own work, in the same thread, and looks at the consumer."""
    kit, looks = Kit(), []
    kit.collector = FetchCollector(kit.buffer, PythonLane(None, here))
    chunk_class = load("python").RecordChunk
    queue = kit.queue()
    for first in (0, 600):
        kit.buffer.accept(queue, queue.version, chunk_class(queue.context, batch(first, 600), first))
    refill = chunk_class._refill

    def interrupted(chunk: object) -> bool:
        before = settled(kit)
        more: bool = refill(chunk)
        looks.append((before, settled(kit)))
        return more

    monkeypatch.setattr(chunk_class, "_refill", interrupted)
    taken = list(iter(lambda: next_offset(kit, here.number), None))
    assert taken == [(0, n) for n in range(1200)]
    assert len(looks) > 4
    for before, after in looks:
        assert before == after
    assert settled(kit) == (1200, 1200)


def test_whoever_looks_at_any_moment_sees_where_the_consumer_is() -> None:
    """A thread iterates while another looks as often as it can: no message is missed or comes twice, nothing is
    finished before the consumer is past it, and positions fit at each look, over gaps and batches of one."""
    offsets = sorted({*range(300), *range(300, 1200, 3), *range(1200, 2000)})
    kit, lock, seen = Kit(max_messages=10_000), threading.RLock(), [-1]
    for first in range(0, len(offsets), 230):
        lot = offsets[first : first + 230]
        kit.fetched(0, encode_batch([Record(b"v", offset_delta=n - lot[0]) for n in lot], base_offset=lot[0]))
    for single in range(2000, 2050):
        kit.fetched(0, batch(single, 1))
    got: list[int] = []

    def long_way() -> Message | None:
        with lock:
            return kit.collector.take(ME)

    def consume() -> None:
        for message in kit.collector.lane.iterate(long_way):
            seen[0] = message.offset  # it is in flight from before this until after the next line
            got.append(message.offset)
            seen[0] = message.offset + 1

    worker, before = threading.Thread(target=consume), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        worker.start()
        while worker.is_alive():
            with lock:
                position, finished = settled(kit)
                passed = seen[0]
            assert position is not None
            assert finished is not None
            assert finished <= position
            assert finished <= max(passed, 0), "it was still in flight"
    finally:
        sys.setswitchinterval(before)
        worker.join()
    assert got == [*offsets, *range(2000, 2050)]
    assert settled(kit) == (2050, 2050)


def test_nothing_is_taken_when_the_time_is_over() -> None:
    """The slow path then looks at the session, and says for how long the lane may go on."""
    kit, now = Kit(), [0.0]
    kit.collector = FetchCollector(kit.buffer, Lane(None, here, lambda: now[0]))
    lane = kit.collector.lane
    kit.fetched(0, batch(0, 5))
    lane.allow(1.0)
    assert kit.take(ME) == (0, 0)
    assert lane.take().offset == 1
    now[0] = 1.1
    assert lane.take() is None
    lane.allow(1.0)
    assert lane.take().offset == 2
    lane.allow(float("inf"))
    now[0] = 1000.0
    assert lane.take().offset == 3
    assert settled(kit) == (4, 3)


class _Twin(PythonFastPath):
    """The twin's ``consume()`` over a kit."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        kit.collector.lane = PythonLane(None, here)
        self._open_lane(kit.collector.lane)

    def _consume_waiting(self, block: bool, unblock_event: object) -> Message | None:
        return self.kit.collector.take(ME)


def test_the_twins_consume_loses_no_message_between_two_of_its_lines() -> None:
    """A signal's handler raises there: the message is not taken yet, or it is returned."""
    for count in range(1, 20):
        kit = Kit()
        consumer = _Twin(kit)
        module = load("python")
        context = module.PartitionContext("orders", 0)
        kit.buffer.accept(kit.queue(), kit.queue().version, module.RecordChunk(context, batch(0, 9), 0))
        assert [consumer.consume().offset for _ in range(2)] == [0, 1]  # type: ignore[union-attr]
        left = count

        def trace(frame: object, event: str, _: object) -> object:
            nonlocal left
            if frame.f_code is not PythonFastPath.consume.__code__:  # type: ignore[attr-defined]
                return None
            left -= event == "line"
            if not left:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            consumer.consume()
        except KeyboardInterrupt:
            pass
        else:
            assert count > 2, "it was interrupted at each of its lines"
            return
        finally:
            sys.settrace(None)
        message = consumer.consume()
        assert message is not None
        assert message.offset == 2
