"""Wakes event loops when a consumer may have a message: one worker of the consumer waits for all reading tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from managedconsumer.runtime.engine.delivery import Delivery

if TYPE_CHECKING:
    import asyncio


# A missed wake-up can cost a waiting task at most this much (seconds). The worker ends after it without a task.
_LONGEST_NAP = 0.5


class AsyncWaiters:
    """The tasks of one consumer that wait for a message; ``engine.lock`` guards everything here."""

    def __init__(self, engine: Delivery) -> None:
        self._engine = engine
        self._waiting: dict[asyncio.Future[None], Any] = {}
        self._worker: Any = None

    async def wait(self, seconds: float) -> None:
        """Wait until the consumer may have a message, or for ``seconds``."""
        import asyncio

        engine, loop = self._engine, asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        with engine.lock:
            if engine.has_news():
                return
            self._waiting[woken] = loop
            if self._worker is None:
                self._worker = engine.handler.spawn("async-wait", self._work)
            else:
                engine.lock.notify_all()
        timer, began = loop.call_later(seconds, wake, woken), engine.handler.now()
        try:
            await woken
        finally:
            timer.cancel()
            with engine.lock:
                self._waiting.pop(woken, None)
                engine.waited += engine.handler.now() - began

    def _work(self) -> None:
        engine = self._engine
        idle = False
        while True:
            with engine.lock:
                if self._waiting and engine.has_news():
                    woken, self._waiting = self._waiting, {}
                elif engine.life.closed or (idle and not self._waiting):
                    self._worker = None
                    return
                else:
                    idle = not engine.lock.wait(_LONGEST_NAP) and not self._waiting
                    continue
            for future, loop in woken.items():
                try:
                    loop.call_soon_threadsafe(wake, future)
                except RuntimeError:
                    pass  # that loop has ended, and its tasks with it


def wake(future: asyncio.Future[None]) -> None:
    """End the wait for ``future``; call it on its loop."""
    if not future.done():
        future.set_result(None)
