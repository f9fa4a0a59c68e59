"""Consuming from an event loop: ``async for message in consumer``.

The loop never blocks: messages are taken without waiting, and while there are none a worker of the consumer waits for
the loop. Rebalance callbacks run on the loop; those of an ``AsyncConsumerRebalanceListener`` are awaited there.

A message is in the hand of the task that asked for it. Several tasks may read one consumer, as several threads may.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Coroutine, TypeVar

from managedconsumer import errors as err
from managedconsumer.runtime.engine.delivery import Task
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.waiting import thread_ids
from managedconsumer.wire.records import Message

T = TypeVar("T")

# How long (seconds) a task waits at most before it looks for itself, and how often it looks whether a stop is through.
_NAP = 0.5
_SLICE = 0.01


class AsyncReader:
    """An event loop's way to a consumer; made by ``async for``. Each task that asks has its own hand."""

    def __init__(
        self,
        engine: Engine,
        timeout: float | None,
        deserialize: Callable[[Message, int], bool],
        decide_corrupt: Callable[[err.CorruptRecordError], None],
        stop: Callable[[float | None], None],
    ) -> None:
        """``timeout``: seconds without a message after which the iteration ends (None: never)."""
        self._engine = engine
        self._timeout = timeout
        self._deserialize = deserialize
        self._decide_corrupt = decide_corrupt
        self._stop = stop
        import asyncio  # here, as few consume from a loop and importing it takes long

        self._current_task = asyncio.current_task

    def __aiter__(self) -> AsyncReader:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        # Not a coroutine function: before Python 3.12 ``asyncio.wait_for(anext(reader), 1)`` runs what is returned here
        # in a separate task, but it is the caller's task that works on the message.
        who = self._task_number()
        thread_ids.acting.set(who)
        return self._next(who)

    def _task_number(self) -> int:
        """The number of the task that runs here, 0 outside of one."""
        try:
            task = self._current_task()
        except RuntimeError:
            return 0
        return 0 if task is None else thread_ids.of_task(task)

    async def _next(self, who: int) -> Message:
        message = await self._get(who)
        if message is None:
            raise StopAsyncIteration
        return message

    async def _get(self, who: int) -> Message | None:
        """The next message for the task ``who``; None after the time-out without one."""
        who = who or self._task_number() or self._engine.handler.ident()
        take = self._engine.collector.take_for_task
        while (message := await self._take(take, who, self._timeout)) is not None:
            if self._deserialize(message, who):
                break
        return message

    async def batch(self, limit: int, timeout: float | None, usable: Callable[..., list[Message]]) -> list[Message]:
        """Return up to ``limit`` messages for the calling task; an empty list after ``timeout`` seconds without one.

        ``usable(messages, who)`` applies the deserializer, and gives those that are not skipped.
        """
        who = self._task_number() or self._engine.handler.ident()
        thread_ids.acting.set(who)
        take = partial(self._engine.collector.take_many, limit=limit)
        while messages := await self._take(take, who, timeout):
            if good := usable(messages, who):
                return good
        return []

    async def _take(self, take: Callable[[int], T | None], who: int, timeout: float | None) -> T | None:
        """Return the first result of ``take(who)`` that is not None; None after ``timeout`` seconds."""
        import asyncio

        engine, loop = self._engine, asyncio.get_running_loop()
        engine.delivery.loop = loop
        end = None if timeout is None else loop.time() + timeout
        while True:
            while engine.life.stopping:  # the listener's last callback needs this loop
                await asyncio.sleep(_SLICE)
            try:
                taken, task = self._attempt(take, who)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
                continue
            if task is not None:
                await self._run_task(task)
            elif taken:
                return taken
            elif engine.life.stop_wanted:
                await asyncio.to_thread(self._stop, None)
                raise err.ConsumerStoppedException("the consumer was stopped")
            else:
                left = _NAP if end is None else min(_NAP, end - loop.time())
                if left <= 0 or engine.life.no_more:
                    return None
                await engine.async_waiters.wait(left)

    def _attempt(self, take: Callable[[int], T | None], who: int) -> tuple[T | None, Task | None]:
        """Look without waiting. A ``stop()`` in a signal handler that interrupts it follows when this has come back."""
        engine = self._engine
        me = engine.handler.ident()
        engine.delivery.inside.add(me)
        try:
            return engine.delivery.attempt(take, who)
        finally:
            engine.delivery.inside.discard(me)

    async def _run_task(self, task: Task) -> None:
        """A ``stop()`` on this thread while a callback is on its way follows when it has come back."""
        me = self._engine.handler.ident()
        self._engine.delivery.inside.add(me)
        try:
            await task.run_async()
        finally:
            self._engine.delivery.inside.discard(me)
