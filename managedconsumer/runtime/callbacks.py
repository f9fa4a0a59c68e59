"""Delivering rebalance callbacks: in which thread, with what patience, and where their exceptions go."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any, Callable, Collection

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.runtime.engine import Engine
from managedconsumer.runtime.handlers import Handler
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

_SLICE = 0.05


class CallbackNotDelivered(err.KafkaException):
    """The consuming thread did not come for its callback in time: the member has to give its place up."""


class UserTask:
    """One callback on its way to the thread that consumes."""

    def __init__(self, call: Callable[[], Any], handler: Handler) -> None:
        self._call = call
        self.started = handler.Event()
        self.done = handler.Event()

    def run(self) -> None:
        """Run it here; a coroutine gets an event loop of its own. Raises what the user's code raises."""
        self.started.set()
        try:
            result = self._call()
            if inspect.isawaitable(result):
                asyncio.run(_await(result))
        finally:
            self.done.set()

    async def run_async(self) -> None:
        """Run it on the event loop that consumes, which stays live while a coroutine waits."""
        self.started.set()
        try:
            result = self._call()
            if inspect.isawaitable(result):
                await result
        finally:
            self.done.set()


async def _await(result: Any) -> Any:
    return await result


class ListenerCalls:
    """Calls a listener's methods in the thread that consumes; the membership worker hands over and waits."""

    def __init__(self, listener: Any, engine: Engine, patience_ms: int) -> None:
        self._listener = listener
        self._engine = engine
        self._patience = patience_ms / 1000.0

    @property
    def listens(self) -> bool:
        """True when there is a listener."""
        return self._listener is not None

    def call(self, method: str, tps: Collection[TopicPartition], valid: Callable[[], bool]) -> None:
        """Hand ``method(tps)`` to the consuming thread and wait for it; gives up when ``valid()`` turns false.

        Raises CallbackNotDelivered when nobody came within the rebalance timeout.
        """
        if self._listener is None:
            return
        engine = self._engine
        task = UserTask(lambda: self._invoke(method, tps), engine.handler)
        engine.run_in_user_thread(task)
        deadline = Deadline(engine.handler.now(), self._patience)
        while not task.done.wait(_SLICE):
            if task.started.is_set():
                continue  # the user's code takes its time, and heartbeats go on
            if engine.closing or engine.stopping or not valid():
                engine.cancel_tasks()
                return
            if deadline.expired(engine.handler.now()):
                engine.cancel_tasks()
                raise CallbackNotDelivered(
                    f"no thread called consume() within rebalance_timeout_ms={int(self._patience * 1000)} "
                    f"to run {method}"
                )

    def call_here(self, method: str, tps: Collection[TopicPartition]) -> None:
        """Call ``method(tps)`` in this thread (a coroutine on the loop that consumes, if one does); raises like it."""
        if self._listener is None:
            return
        loop = self._engine.loop
        task = UserTask(lambda: self._invoke(method, tps), self._engine.handler)
        if loop is None or not loop.is_running():
            task.run()
        else:
            asyncio.run_coroutine_threadsafe(task.run_async(), loop).result()

    def _invoke(self, method: str, tps: Collection[TopicPartition]) -> Any:
        log.debug("%s(%s)", method, sorted(tps))
        return getattr(self._listener, method)(list(tps))
