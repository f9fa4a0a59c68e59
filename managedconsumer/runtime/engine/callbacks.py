"""Delivers rebalance callbacks to the consuming thread, with a time-out, and reports their exceptions."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.results import check_result
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.engine.user_code import blame, shown
from managedconsumer.runtime.waiting.at_once import at_once
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger(__name__)

_SLICE = 0.05
# How often (seconds) a greenlet that runs a coroutine lets the other greenlets run.
_GREEN_TURN = 0.002


class CallbackNotDelivered(err.KafkaException):
    """The consuming thread did not take its callback in time: the member has to leave the group."""


class UserTask:
    """One callback that waits for the consuming thread."""

    def __init__(
        self,
        call: Callable[[], Any],
        handler: Handler,
        valid: Callable[[], bool] = lambda: True,
        on_begin: Callable[[], None] = lambda: None,
        where: str = "raised by a callback",
        fields: Callable[[], Mapping[str, Any]] = dict,
        again: Callable[[UserTask], None] | None = None,
    ) -> None:
        """:meth:`run` first calls ``valid``: the callback may be out of date by then.

        ``where`` is added to an exception of the callback, and ``fields`` to its log line. If a signal handler raises
        before ``call``, the task calls ``again``, so that it runs once more.
        """
        self._again = again
        self._where = where
        self._fields = fields
        self._on_begin = on_begin
        self._call = call
        self._handler = handler
        self._valid = valid
        self.done = handler.Event()
        self.taken_back = self.started = self.begun = False
        # True: ``call`` has begun, so that an interruption is in it, or there is no ``call``.
        self._decided = False

    def run(self) -> None:
        """Run it here; a coroutine runs in a new event loop. Raises the user's exceptions."""
        at_once(self._run(inside=False))

    async def run_async(self) -> None:
        """Run it on the consuming event loop, which runs other tasks while a coroutine waits."""
        await self._run(inside=True)

    async def _run(self, *, inside: bool) -> None:
        try:
            if not self._begin():
                return
            self._decided = True
            result = self._call()
            if not isinstance(result, Awaitable):
                check_result("the callback", result)
            elif inside:
                await _await(result)
            else:
                _run_awaitable(result, self._handler)
        except Exception as error:
            blame(error, self._where, self._fields())
            raise
        finally:
            self._end()

    def _begin(self) -> bool:
        # In this order: the thread that takes it back reads ``started`` afterwards.
        self.started = True
        self.begun = not self.taken_back and self._valid()
        if self.begun:
            self._on_begin()
        else:
            self._decided = True
        return self.begun

    def _end(self) -> None:
        if self._decided or self._again is None:
            self.done.set()
        else:
            self.started = self.begun = False
            self._again(self)


async def _await(result: Awaitable[Any]) -> None:
    check_result("the callback", await result)


def _loop_runs_here() -> bool:
    import asyncio  # in the functions: the import is slow, and few users need it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_awaitable(result: Awaitable[Any], handler: Handler) -> None:
    """Wait for a coroutine in this thread, which has no loop for it."""
    if handler.name == "gevent":
        _run_in_greenlet(result, handler)
    elif not _loop_runs_here():
        import asyncio

        asyncio.run(_await(result))
    else:  # a running loop waits for this call: another loop can only run in another thread
        from concurrent.futures import Future

        outcome: Future[Any] = Future()
        threading.Thread(target=_fill, args=(outcome, result), name="managedconsumer.callback", daemon=True).start()
        outcome.result()


def _fill(outcome: Future[Any], result: Awaitable[Any]) -> None:
    import asyncio

    try:
        outcome.set_result(asyncio.run(_await(result)))
    except BaseException as error:  # noqa: BLE001 - raised where the outcome is read
        outcome.set_exception(error)


def _run_in_greenlet(result: Awaitable[Any], handler: Handler) -> None:
    """Run an event loop that never blocks the hub: it polls, and then lets the other greenlets run."""
    import asyncio

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(_await(result))
        while not task.done():
            if not _loop_runs_here():  # another greenlet's coroutine may be in the middle of a call of ours
                loop.call_soon(loop.stop)
                loop.run_forever()
            if not task.done():
                handler.sleep(_GREEN_TURN)
        task.result()
    finally:
        loop.close()


def _where(method: str, tps: Collection[TopicPartition]) -> str:
    return f"raised by the listener's {method}({shown(tps)})"


class ListenerCalls:
    """Calls a listener's methods in the thread that consumes; the membership worker hands over and waits."""

    def __init__(self, listener: Any, engine: Engine, patience_ms: int) -> None:
        self._listener = listener
        self._engine = engine
        self._patience = patience_ms / 1000.0

    def replace(self, listener: Any) -> None:
        """Call ``listener`` from the next callback on."""
        self._listener = listener

    @property
    def listens(self) -> bool:
        """True when there is a listener."""
        return self._listener is not None

    def call(
        self,
        method: str,
        tps: Collection[TopicPartition],
        valid: Callable[[], bool],
        on_begin: Callable[[], None],
        *,
        for_ever: bool = False,
    ) -> bool:
        """Hand ``method(tps)`` to the consuming thread and wait for it; gives up when ``valid()`` turns false.

        Returns True when it ran. The same thread calls ``on_begin`` right before: from then on it counts as done.
        Raises CallbackNotDelivered when no consuming thread took it within the rebalance timeout; ``for_ever`` waits as
        long as the consumer lives.
        """
        if self._listener is None:
            on_begin()
            return True
        engine = self._engine
        task = UserTask(
            self._bound(method, tps),
            engine.handler,
            valid,
            on_begin,
            _where(method, tps),
            engine.log_fields,
            partial(engine.delivery.run_in_user_thread, first=True),
        )
        engine.delivery.run_in_user_thread(task)
        deadline = Deadline(engine.handler.now(), None if for_ever else self._patience)
        while not task.done.wait(_SLICE):
            late = deadline.expired(engine.handler.now())
            over = not engine.life.running or engine.life.error is not None or not valid()
            # Once it has started, there is no limit for the user's code; heartbeats continue.
            if over:
                task.taken_back = True
                # Not waiting and not started: a stop has emptied the queue.
                if engine.delivery.cancel_task(task) or not task.started:
                    return False
            elif late and engine.delivery.cancel_task(task):
                raise CallbackNotDelivered(
                    f"no thread called consume() within rebalance_timeout_ms={int(self._patience * 1000)} "
                    f"to run {method}"
                )
        return task.begun

    def call_here(self, method: str, tps: Collection[TopicPartition]) -> None:
        """Call ``method(tps)`` in this thread (a coroutine on the loop that consumes, if one does); raises like it."""
        if self._listener is None:
            return
        loop = self._engine.delivery.loop
        task = UserTask(
            self._bound(method, tps),
            self._engine.handler,
            where=_where(method, tps),
            fields=self._engine.log_fields,
        )
        if loop is None or not loop.is_running() or _loop_runs_here():
            task.run()
            return
        import asyncio

        outcome = asyncio.run_coroutine_threadsafe(task.run_async(), loop)
        while not outcome.done() and loop.is_running():
            task.done.wait(_SLICE)
        if outcome.done():
            outcome.result()
        elif not task.begun:  # the loop ended instead
            task.run()

    def _bound(self, method: str, tps: Collection[TopicPartition]) -> Callable[[], Any]:
        """Return the listener's method, bound to ``tps``, without own code before it."""
        log.debug("%s(%s)", method, sorted(tps))
        call = getattr(self._listener, method, None)
        if call is None:  # a listener from before KIP-429 has no on_partitions_lost
            call = self._listener.on_partitions_revoked
        return partial(call, list(tps))
