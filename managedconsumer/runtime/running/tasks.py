"""``run_async()``: the handler is a coroutine function, and the workers are tasks of the event loop that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from managedconsumer import errors as err
from managedconsumer.processing.key_queues import KeyQueue
from managedconsumer.processing.worker_slots import WorkerSlot
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.waiting import thread_ids
from managedconsumer.runtime.waiting.async_waiters import wake

if TYPE_CHECKING:
    import asyncio

# A missed wake-up can cost the dispatching task at most this much (seconds).
_NAP = 0.5
# How often (seconds) the end checks whether all handlers have finished.
_SLICE = 0.01
# How long (seconds) handlers that are cancelled may take to end.
_JOIN = 5.0
# Let other tasks run at the latest after so many messages whose handlers did not wait.
_TURN = 64


class TaskRun:
    """One ``run_async()``."""

    def __init__(self, run: Run, decide_corrupt: Callable[[err.CorruptRecordError], None]) -> None:
        """Call it on the event loop of the run."""
        import asyncio  # here: the import is slow, and few users consume from a loop

        self._run = run
        self._engine = run.engine
        self._decide_corrupt = decide_corrupt
        self._loop = asyncio.get_running_loop()
        self._asyncio = asyncio
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = run.engine.handler.ident()
        self._waiting: list[asyncio.Future[None]] = []
        #: What is raised in the caller when it is to end without grace.
        self.cancelled = asyncio.CancelledError
        run.notify, run.is_cancelled, run.inside = self._notify, self._is_cancelled, True
        self._room = asyncio.Event()
        self._joining = False

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [self._loop.create_task(self._work(slot)) for slot in self._run.slots]

    async def consume(self, look: Callable[[], None] = lambda: None) -> None:
        """Take messages until a stop is wanted; call ``look`` now and then. Raises the error that ends the consumer."""
        run, engine = self._run, self._engine
        task = self._asyncio.current_task()
        who = engine.handler.ident() if task is None else thread_ids.of_task(task)
        engine.delivery.loop = self._loop
        while not (run.work.ending or engine.life.end_wanted):
            try:
                came, callback = engine.delivery.attempt_inside(run.take_in, who)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
                continue
            look()
            if callback is not None:
                await callback.run_async()
            elif came:
                await self._asyncio.sleep(0)
            elif run.wants_more():
                await engine.async_waiters.wait(_NAP)
            else:
                await self._wait_for_capacity()

    async def _wait_for_capacity(self) -> None:
        self._room.clear()
        try:
            await self._asyncio.wait_for(self._room.wait(), _NAP / 5)
        except self._asyncio.TimeoutError:
            pass

    async def drain(self, seconds: float) -> None:
        """Let running messages finish, for at most ``seconds``; no new ones start."""
        run = self._run
        run.end()
        until = self._loop.time() + seconds
        while self._busy() and self._loop.time() < until:
            await self._asyncio.sleep(_SLICE)

    def _busy(self) -> bool:
        with self._engine.lock:
            return self._run.busy(None)

    async def stop(self, stop: Callable[[], None]) -> BaseException | None:
        """Stop the consumer even if the task is cancelled (returns that error): the last commit needs the run."""
        asyncio, cancelled = self._asyncio, None
        stopping = asyncio.ensure_future(asyncio.to_thread(stop))
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError as error:
                cancelled = error
        stopping.result()
        return cancelled

    async def join(self) -> None:
        """End the workers; cancel one that is stuck in the handler, and leave it behind if it does not end then."""
        self._run.finish()
        self._joining = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await self._asyncio.wait(self._tasks, timeout=_JOIN)

    async def _work(self, slot: WorkerSlot) -> None:
        run, engine = self._run, self._engine
        quick = 0
        try:
            task = self._asyncio.current_task()
            who = 0 if task is None else thread_ids.of_task(task)
            while not run.over:
                with engine.mutex:
                    run.take_reports(slot)
                    self._room.set()
                    woken = None if run.claim(slot, who) else self._line_up()
                    longest = run.patience()
                if woken is not None:
                    await self._wait(woken, longest)
                    continue
                while slot.todo:
                    key_queue = slot.current = slot.todo.popleft()
                    size = len(key_queue.running)
                    if slot.era == run.work.era and engine.handler.now() <= slot.until:
                        await (run.hand_list(key_queue) if run.lists else self._one_by_one(key_queue, slot))
                    slot.through.append(key_queue)
                    quick += size
                    if quick >= _TURN:
                        quick = 0
                        await self._asyncio.sleep(0)
        except self._asyncio.CancelledError as error:
            if not self._joining:  # else the run would lose one worker after the other
                text = "a worker of run_async() was cancelled, by the handler or by code outside of the run"
                failure = err.IllegalStateError(text)
                failure.__cause__ = error
                run.fail(None, failure)
            raise
        except BaseException as error:  # a worker's death must reach the user
            run.fail(None, error)
        finally:
            run.leave(slot)

    def _is_cancelled(self, error: BaseException) -> bool:
        """True if ``error`` cancels this worker, and not a task that the handler waited for."""
        if not isinstance(error, self._asyncio.CancelledError):
            return False
        cancelling = getattr(self._asyncio.current_task(), "cancelling", None)  # Python 3.11 and newer
        return self._joining or (cancelling is not None and cancelling() > 0)

    def _line_up(self) -> asyncio.Future[None]:
        """Return a future that is done when there may be work for the calling worker. The engine's lock is held."""
        woken: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(woken)
        self._run.idle = len(self._waiting)
        return woken

    async def _wait(self, woken: asyncio.Future[None], seconds: float) -> None:
        timer = self._loop.call_later(seconds, wake, woken)
        try:
            await woken
        finally:
            timer.cancel()
            with self._engine.lock:
                if woken in self._waiting:
                    self._waiting.remove(woken)
                    self._run.idle = len(self._waiting)

    def _notify(self, count: int) -> None:
        """See :attr:`Run.notify`. The event loop's wake-up writes one byte to a pipe, and never waits."""
        woken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._run.idle = len(self._waiting)
        here = self._engine.handler.ident() == self._thread
        for future in woken:
            if here:
                wake(future)
            else:
                try:
                    self._loop.call_soon_threadsafe(wake, future)
                except RuntimeError:
                    pass  # that loop has ended, and its tasks with it

    async def _one_by_one(self, key_queue: KeyQueue, slot: WorkerSlot) -> None:
        run, calls, running = self._run, self._run.calls, key_queue.running
        while key_queue.place < len(running):
            if run.work.era != slot.era or self._engine.handler.now() > slot.until:
                return
            place, message = key_queue.place, running[key_queue.place]
            raw = message.value, message.partition_key
            try:
                if calls.deserialize is None or calls.deserialize(message):
                    calls.check("the handler", await calls.handler(message), message)
                key_queue.place = place + 1
            except BaseException as error:  # the user's code may raise anything
                message.value, message.partition_key = raw
                if not await run.goes_on(key_queue, place, place + 1, error):
                    return
