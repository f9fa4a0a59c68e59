"""Receive buffers are used again, but never while anybody can still see into one."""

from __future__ import annotations

import pytest

from managedconsumer.runtime.buffers import BufferPool

MIB = 1 << 20


@pytest.mark.parametrize("size", [100 << 10, 3 * MIB, 9 * MIB + 1])
def test_a_buffer_comes_again_when_nothing_refers_to_it(size: int) -> None:
    pool = BufferPool()
    view = memoryview(pool.take(size))[:size]
    assert len(view) == size
    view[-1] = 7
    part = view[5:10]
    del view
    other = pool.take(size)
    assert other is not part.obj
    first = part.obj
    del part
    assert pool.take(size) is not first, "the test itself refers to it"
    del first
    view = memoryview(pool.take(size - 10))
    assert view[size - 1] == 7


def test_only_so_many_are_kept_and_what_is_used_stays_sound() -> None:
    pool = BufferPool(most=2)
    views = [memoryview(pool.take(3 * MIB)) for _ in range(5)]
    for number, view in enumerate(views):
        view[:4] = bytes([number] * 4)
    assert [bytes(view[:4]) for view in views] == [bytes([number] * 4) for number in range(5)]


def test_small_buffers_are_made_to_measure() -> None:
    assert len(BufferPool().take(1000)) == 1000
