"""Receive buffers are used again, but never while anybody can still see into one, and keep to their limit."""

from __future__ import annotations

import pytest

from managedconsumer.runtime.net.buffers import BufferPool
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.wire.records import PartitionContext, RecordChunk
from managedconsumer.wire.records.encode import Record, encode_batch

MIB = 1 << 20
SIZES = [100 << 10, 3 * MIB, 9 * MIB + 1]


def _pool(limit: int = 64 * MIB, spare: int = 4) -> BufferPool:
    return BufferPool(ThreadingHandler(), limit, spare)


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_comes_again_when_nobody_has_a_view_of_it(size: int) -> None:
    pool = _pool()
    view = pool.take(size)[:size]
    assert len(view) == size
    view[-1] = 7
    part = view[5:10]
    del view
    other = pool.take(size)
    assert other.obj is not part.obj
    del other
    part.release()
    views = [pool.take(size - 10), pool.take(size - 10)]
    assert 7 in [view[size - 1] for view in views]


@pytest.mark.parametrize("size", SIZES)
def test_views_decide_and_references_do_not(size: int) -> None:
    """How many references a local variable and an argument count differs between versions of Python."""
    pool = _pool()
    held = pool.take(size).obj
    also = [held, held]
    assert pool.take(size).obj is held
    view = memoryview(held)[1:2]
    del held, also
    assert pool.take(size).obj is not view.obj


@pytest.mark.parametrize("size", SIZES)
def test_the_answers_that_wait_in_a_chunk_stay_what_they_are(size: int) -> None:
    """As a fetch worker does it: the frame goes, a chunk looks at a part of it, and the next answers come."""
    pool, data = _pool(), encode_batch([Record(b"v%d" % n) for n in range(5)])
    chunks = []
    for _ in range(3):
        frame = pool.take(size)[:size]
        frame[100 : 100 + len(data)] = data
        chunks.append(RecordChunk(PartitionContext("t", 0), frame[100 : 100 + len(data)], 0))
        frame[: len(data)] = bytes(len(data))
        del frame
        pool.take(size)[:size] = b"\xff" * size
    for chunk in chunks:
        assert [message.value for message in chunk] == [b"v%d" % n for n in range(5)]


def test_only_so_many_are_kept_and_what_is_used_stays_sound() -> None:
    pool = _pool(spare=2)
    views = [pool.take(3 * MIB) for _ in range(5)]
    for number, view in enumerate(views):
        view[:4] = bytes([number] * 4)
    assert [bytes(view[:4]) for view in views] == [bytes([number] * 4) for number in range(5)]
    assert pool.in_use() == pool.at_most() == 15 * MIB
    del views, view
    assert pool.in_use() == 0
    pool.take(4 * MIB)
    assert pool.at_most() <= (2 * 3 + 4) * MIB


def test_small_buffers_are_made_to_measure_and_count() -> None:
    pool = _pool()
    views = [pool.take(1000) for _ in range(10)]
    assert [len(view) for view in views] == [1000] * 10
    assert pool.in_use() == 10_000
    del views
    assert pool.in_use() == 0
    assert len(pool.take(0)) == 0


def test_small_buffers_that_nobody_needs_are_not_kept() -> None:
    pool = _pool()
    for _ in range(1000):
        pool.take(60 * 1024)
    assert pool.at_most() <= 2 * MIB


@pytest.mark.parametrize("limit", [4 * MIB, 16 * MIB])
def test_free_buffers_make_room_for_one_of_another_size(limit: int) -> None:
    """Memory that is kept for the next answer is memory, too."""
    pool = _pool(limit)
    for size in [MIB, 3 * MIB, 2 * MIB, limit, 100 << 10, limit // 2, limit // 4] * 3:
        pool.take(size)
        assert pool.at_most() <= limit


def test_what_is_needed_is_given_whatever_the_limit_is() -> None:
    pool = _pool(limit=MIB)
    first, second = pool.take(5 * MIB), pool.take(5 * MIB)
    assert first.obj is not second.obj
    assert pool.in_use() == 10 * MIB


def test_a_small_answer_is_not_received_into_a_large_buffer_when_memory_is_short() -> None:
    """It would hold all of it."""
    pool = _pool(limit=10 * MIB)
    held = pool.take(2 * MIB)
    pool.take(8 * MIB)
    small = pool.take(MIB)
    assert pool.in_use() == 3 * MIB
    assert held.obj is not small.obj
