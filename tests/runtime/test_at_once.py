"""Code for threads and tasks alike: in a thread its coroutines end at once."""

from __future__ import annotations

import asyncio

import pytest

from managedconsumer.runtime.waiting.at_once import at_once, awaited


async def _doubled(number: int, wait: bool = False) -> int:
    if wait:
        await asyncio.sleep(0)
    if number < 0:
        raise StopAsyncIteration(number)
    return 2 * number


def test_the_result_or_the_error_comes_at_once() -> None:
    assert at_once(_doubled(4)) == 8
    with pytest.raises(StopAsyncIteration):
        at_once(_doubled(-1))


def test_blocking_functions_can_be_awaited() -> None:
    async def total() -> int:
        return sum([await awaited(max)(1, 2), await awaited(len)("abc")])

    assert at_once(total()) == 5


def test_a_coroutine_that_needs_a_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        at_once(_doubled(4, wait=True))
