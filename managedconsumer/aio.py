"""Consuming from an event loop: ``async for message in consumer``.

The loop never blocks: messages are taken without waiting, and while there are none a thread of the consumer's own waits
in its place. Rebalance callbacks run on the loop; those of an ``AsyncConsumerRebalanceListener`` are awaited there.
"""

from __future__ import annotations

from typing import Any, Callable

from managedconsumer import errors as err
from managedconsumer.runtime.engine import Engine, Task
from managedconsumer.wire.records import Message

# How long (seconds) the waiting thread sleeps at most before it looks whether it is still needed.
_NAP = 0.5


class AsyncReader:
    """One event loop's way to a consumer; made by ``async for``. Used by one task at a time."""

    def __init__(
        self,
        engine: Engine,
        timeout: float | None,
        deserialize: Callable[[Message], bool],
        decide_corrupt: Callable[[err.CorruptRecordError], None],
        stop: Callable[[], None],
    ) -> None:
        """``timeout``: seconds without a message after which the iteration ends (None: never)."""
        self._engine = engine
        self._timeout = timeout
        self._deserialize = deserialize
        self._decide_corrupt = decide_corrupt
        self._stop = stop
        from concurrent.futures import ThreadPoolExecutor  # few consume from a loop, and this and asyncio take long

        self._waiter = ThreadPoolExecutor(1, "managedconsumer.async-wait")

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> Message:
        message = await self.get(self._timeout)
        if message is None:
            self.close()
            raise StopAsyncIteration
        return message

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message, None after ``timeout`` seconds without one (None: wait for ever)."""
        import asyncio

        engine, loop = self._engine, asyncio.get_running_loop()
        engine.loop = loop
        end = None if timeout is None else loop.time() + timeout
        who = engine.handler.ident()
        while True:
            while engine.stopping and not engine.closing:  # the listener's last callback needs this loop
                await loop.run_in_executor(self._waiter, engine.wait_for_end, _NAP)
            try:
                message, task = engine.attempt(engine.dispenser.take, who)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
                continue
            if task is not None:
                await self._run_task(task, who)
            elif message is not None:
                if self._deserialize(message):
                    return message
            elif engine.stop_wanted:
                await loop.run_in_executor(self._waiter, self._stop)
                raise err.ConsumerStoppedException("the consumer was stopped")
            else:
                left = _NAP if end is None else min(_NAP, end - loop.time())
                if left <= 0:
                    return None
                await loop.run_in_executor(self._waiter, engine.wait_for_news, left)

    async def _run_task(self, task: Task, who: int) -> None:
        """A ``stop()`` on this thread while a callback is on its way follows when it has come back."""
        self._engine.inside.add(who)
        try:
            await task.run_async()
        finally:
            self._engine.inside.discard(who)

    def close(self) -> None:
        """End the waiting thread."""
        self._waiter.shutdown(wait=False)


async def stop(consumer: Any, timeout: float | None = None) -> None:
    """``consumer.stop()`` without blocking the loop; an async listener's callbacks are awaited on it."""
    import asyncio

    await asyncio.get_running_loop().run_in_executor(None, consumer.stop, timeout)
