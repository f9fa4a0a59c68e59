"""The short way past the lock: the same messages, positions and finished offsets as the long one.

The accelerator's lane and its twin in Python make the same promises, so the same tests run on both.
"""

from __future__ import annotations

import sys
import threading

from managedconsumer.wire.encode import Record, encode_batch
from managedconsumer.wire.records import Message
from tests.fetch.kit import Kit, batch, tp

ME, OTHER = 1, 2


def next_offset(kit: Kit, who: int = ME) -> tuple[int, int] | None:
    """What a consumer does: the short way if there is one, else the long way."""
    message: Message | None = kit.dispenser.lane.take()
    if message is None:
        return kit.take(who)
    return message.partition_id, message.offset


def settled(kit: Kit, partition: int = 0) -> tuple[int | None, int | None]:
    kit.dispenser.settle_lane()
    return kit.position(partition), kit.finished(partition)


def test_the_short_way_gives_the_same_messages_in_the_same_order() -> None:
    kit = Kit(2)
    kit.fetched(0, batch(0, 3) + batch(3, 2))
    kit.fetched(1, batch(0, 2))
    taken = [next_offset(kit) for _ in range(7)]
    assert taken == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)]
    assert next_offset(kit) is None
    assert settled(kit, 0) == (5, 5)
    assert settled(kit, 1) == (2, 2)
    assert kit.dispenser.handed_out == 7


def test_the_short_way_is_really_taken() -> None:
    kit = Kit()
    kit.fetched(0, batch(0, 3))
    kit.take(ME)
    assert kit.dispenser.lane.attached


def test_what_is_in_hand_is_not_finished_whoever_looks() -> None:
    kit = Kit()
    kit.fetched(0, batch(0, 5))
    for expected in range(4):
        assert next_offset(kit) == (0, expected)
        assert settled(kit) == (expected + 1, expected)  # the commit worker looks between any two messages
    assert kit.dispenser.lowest_in_hand(tp(0)) == 3
    assert kit.dispenser.lowest_in_hand(tp(0), but=ME) is None


def test_nothing_comes_out_of_a_partition_after_it_was_held() -> None:
    kit = Kit(2)
    kit.fetched(0, batch(0, 5))
    kit.fetched(1, batch(0, 1))
    assert [next_offset(kit), next_offset(kit)] == [(0, 0), (0, 1)]
    kit.dispenser.shelve()
    kit.states[0].held = True
    assert kit.dispenser.lane.take() is None
    assert next_offset(kit) == (1, 0)
    assert next_offset(kit) is None
    kit.states[0].held = False
    assert next_offset(kit) == (0, 2)


def test_nothing_comes_out_of_a_partition_after_it_was_taken_away() -> None:
    kit = Kit()
    kit.fetched(0, batch(0, 5))
    assert [next_offset(kit), next_offset(kit)] == [(0, 0), (0, 1)]
    kit.dispenser.forget({tp(0)})
    kit.buffer.drop([tp(0)])
    assert next_offset(kit) is None
    assert not kit.dispenser.in_hand()


def test_a_second_consuming_thread_gets_its_own_hand() -> None:
    kit = Kit()
    kit.fetched(0, batch(0, 6))
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
    kit = Kit()
    kit.fetched(0, batch(0, 4))

    def long_way() -> Message | None:
        return kit.dispenser.take(ME)

    assert [message.offset for message in kit.dispenser.lane.iterate(long_way)] == [0, 1, 2, 3]
    kit.fetched(0, batch(4, 2))
    assert [message.offset for message in kit.dispenser.lane.iterate(long_way)] == [4, 5]


def test_consume_as_one_call_passes_its_arguments_to_the_long_way() -> None:
    kit = Kit()
    kit.fetched(0, batch(0, 2))
    seen: list[tuple[bool, object]] = []

    def long_way(block: bool = True, unblock_event: object = None) -> Message | None:
        seen.append((block, unblock_event))
        return kit.dispenser.take(ME)

    call = kit.dispenser.lane.caller(long_way)
    event = object()
    assert [call(False, event).offset, call().offset, call(block=False)] == [0, 1, None]
    assert seen == [(False, event), (False, None)]


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
            return kit.dispenser.take(ME)

    def consume() -> None:
        for message in kit.dispenser.lane.iterate(long_way):
            seen[0] = message.offset  # it is in hand from before this until after the next line
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
            assert finished <= max(passed, 0), "it was still in hand"
    finally:
        sys.setswitchinterval(before)
        worker.join()
    assert got == [*offsets, *range(2000, 2050)]
    assert settled(kit) == (2050, 2050)
