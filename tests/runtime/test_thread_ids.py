"""The number of a thread, greenlet or task: its own, and nobody's after it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import gevent
import pytest

from managedconsumer.runtime.waiting import thread_ids
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler


def in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_greenlet(work: Any) -> None:
    gevent.spawn(work).join()


@pytest.mark.parametrize(
    ("handler", "run"),
    [(ThreadingHandler(), in_thread), pytest.param(GEventHandler(), in_greenlet, marks=pytest.mark.gevent)],
)
def test_twenty_one_after_the_other_have_twenty_numbers(handler: Handler, run: Any) -> None:
    seen: list[int] = []
    alive: list[bool] = []

    def work() -> None:
        seen.append(handler.ident())
        assert handler.ident() == seen[-1], "the same as long as it lives"
        alive.append(handler.is_alive(seen[-1]))

    for _ in range(20):
        run(work)
    assert len(set(seen)) == 20
    assert alive == [True] * 20
    gevent.sleep(0)
    assert [handler.is_alive(number) for number in seen] == [False] * 20
    assert handler.ident() not in seen
    assert handler.is_alive(handler.ident())


def test_tasks_have_numbers_until_they_are_done() -> None:
    async def work() -> int:
        task = asyncio.current_task()
        number = thread_ids.of_task(task)
        await asyncio.sleep(0)
        assert thread_ids.of_task(task) == number
        assert thread_ids.is_alive(number)
        return number

    async def main() -> list[int]:
        tasks = [asyncio.create_task(work()) for _ in range(5)]  # kept: a task that is done is over all the same
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)
        return [task.result() for task in tasks if not thread_ids.is_alive(task.result())]

    assert len(set(asyncio.run(main()))) == 5
