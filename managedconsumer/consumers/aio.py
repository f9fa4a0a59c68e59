"""Consuming from an event loop: ``async for message in consumer``.

The loop never blocks: the reader takes messages without waiting, and while there are none a worker of the consumer
waits for the loop. Rebalance callbacks run on the loop, which awaits those of an ``AsyncConsumerRebalanceListener``.

A message is in flight for the task that took it. Several tasks may read one consumer, as several threads may.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Sequence, TypeVar

from managedconsumer import errors as err
from managedconsumer.consumers.reading import Reader
from managedconsumer.consumers.session import Session
from managedconsumer.runtime.engine.delivery import Task
from managedconsumer.runtime.waiting import thread_ids
from managedconsumer.wire.records import Message

if TYPE_CHECKING:
    from managedconsumer.typed_columns import TypedColumns

T = TypeVar("T")

# A missed wake-up can cost a waiting task at most this much (seconds); how often it checks whether a stop has ended.
_NAP = 0.5
_SLICE = 0.01


class AsyncReader:
    """Iterates over a consumer's messages on an event loop; made by ``async for``."""

    def __init__(self, session: Session, reader: Reader, consumer: object) -> None:
        """``consumer``: kept alive by this object, as one to which nobody refers is stopped."""
        self._session, self._engine, self._reader, self._consumer = session, session.engine, reader, consumer
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
        """Return the number of the current task, 0 outside of one."""
        try:
            task = self._current_task()
        except RuntimeError:
            return 0
        return 0 if task is None else thread_ids.of_task(task)

    async def _next(self, who: int) -> Message:
        who = who or self._task_number() or self._engine.handler.ident()
        take, timeout = self._engine.collector.take_for_task, self._reader.timeout
        while (message := await self._take(take, who, timeout)) is not None:
            if self._reader.deserialize(message, who):
                return message
        raise StopAsyncIteration

    def _act(self) -> int:
        who = self._task_number() or self._engine.handler.ident()
        thread_ids.acting.set(who)
        return who

    async def batch(self, limit: int, timeout: float | None) -> list[Message]:
        """Return up to ``limit`` messages for the calling task; an empty list after ``timeout`` seconds without one."""
        who = self._act()
        take = partial(self._engine.collector.take_many, limit=limit)
        while messages := await self._take(take, who, timeout):
            if good := self._reader.deserialize_all(messages, who):
                return good
        return []

    async def columns(self, names: Sequence[str], timeout: float | None, typed: TypedColumns | None) -> Any:
        """Return messages of one partition as Arrow columns for the calling task; None after ``timeout`` seconds."""
        import asyncio

        who = self._act()
        take = partial(self._engine.collector.take_columns, columns=names if typed is None else typed.raw)

        async def fetch(seconds: float | None) -> Any:
            found = await self._take(take, who, seconds)
            return None if found is None else found[0]

        if typed is None:
            return await fetch(timeout)
        return await self._reader.decoded(typed, timeout, who, fetch, asyncio.to_thread, asyncio.sleep)

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
                taken, task = engine.delivery.attempt_inside(take, who)
            except err.CorruptRecordError as error:
                self._reader.decide_corrupt(error)
                continue
            if task is not None:
                await self._run_task(task)
            elif taken:
                return taken
            elif engine.life.stop_wanted:
                await asyncio.to_thread(self._session.stop_now, None)
                raise err.ConsumerStoppedException("the consumer was stopped")
            else:
                left = _NAP if end is None else min(_NAP, end - loop.time())
                if left <= 0 or engine.life.no_more:
                    return None
                await engine.async_waiters.wait(left)

    async def _run_task(self, task: Task) -> None:
        """Run a callback. A ``stop()`` on this thread meanwhile follows after it."""
        me = self._engine.handler.ident()
        self._engine.delivery.inside.add(me)
        try:
            await task.run_async()
        finally:
            self._engine.delivery.inside.discard(me)
