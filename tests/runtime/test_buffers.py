"""Receive buffers are used again, but never while anybody can still see into one."""

from __future__ import annotations

import pytest

from managedconsumer.runtime.net.buffers import BufferPool
from managedconsumer.wire.records import PartitionContext, RecordChunk
from managedconsumer.wire.records.encode import Record, encode_batch

MIB = 1 << 20
SIZES = [100 << 10, 3 * MIB, 9 * MIB + 1]


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_comes_again_when_nobody_has_a_view_of_it(size: int) -> None:
    pool = BufferPool()
    view = memoryview(pool.take(size))[:size]
    assert len(view) == size
    view[-1] = 7
    part = view[5:10]
    del view
    other = pool.take(size)
    assert other is not part.obj
    del other
    part.release()
    view = memoryview(pool.take(size - 10))
    assert view[size - 1] == 7


@pytest.mark.parametrize("size", SIZES)
def test_views_decide_and_references_do_not(size: int) -> None:
    """How many references a local variable and an argument count differs between versions of Python."""
    pool = BufferPool()
    held = pool.take(size)
    also = [held, held]
    assert pool.take(size) is held
    assert len(held) >= size
    view = memoryview(held)[1:2]
    del held, also
    assert pool.take(size) is not view.obj


@pytest.mark.parametrize("size", SIZES)
def test_the_answers_that_wait_in_a_chunk_stay_what_they_are(size: int) -> None:
    """As a fetch worker does it: the frame goes, a chunk looks at a part of it, and the next answers come."""
    pool, data = BufferPool(), encode_batch([Record(b"v%d" % n) for n in range(5)])
    chunks = []
    for _ in range(3):
        frame = memoryview(pool.take(size))[:size]
        frame[100 : 100 + len(data)] = data
        chunks.append(RecordChunk(PartitionContext("t", 0), frame[100 : 100 + len(data)], 0))
        frame[: len(data)] = bytes(len(data))
        del frame
        memoryview(pool.take(size))[:size] = b"\xff" * size
    for chunk in chunks:
        assert [message.value for message in chunk] == [b"v%d" % n for n in range(5)]


def test_only_so_many_are_kept_and_what_is_used_stays_sound() -> None:
    pool = BufferPool(most=2)
    views = [memoryview(pool.take(3 * MIB)) for _ in range(5)]
    for number, view in enumerate(views):
        view[:4] = bytes([number] * 4)
    assert [bytes(view[:4]) for view in views] == [bytes([number] * 4) for number in range(5)]


def test_small_buffers_are_made_to_measure() -> None:
    assert len(BufferPool().take(1000)) == 1000
