"""Delivering rebalance callbacks: in which thread, with what patience, and where their exceptions go."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any, Callable, Collection

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.runtime.engine import Engine
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

_SLICE = 0.05


class CallbackNotDelivered(err.KafkaException):
    """The consuming thread did not come for its callback in time: the member has to give its place up."""


class ListenerCalls:
    """Calls a listener's methods in the thread that consumes; the membership worker hands over and waits.

    Coroutines (AsyncConsumerRebalanceListener) run on an event loop of the consumer's own in the same place.
    """

    def __init__(self, listener: Any, engine: Engine, patience_ms: int) -> None:
        self._listener = listener
        self._engine = engine
        self._patience = patience_ms / 1000.0

    def call(self, method: str, tps: Collection[TopicPartition], valid: Callable[[], bool]) -> None:
        """Hand ``method(tps)`` to the consuming thread and wait for it; gives up when ``valid()`` turns false.

        Raises CallbackNotDelivered when nobody came within the rebalance timeout.
        """
        if self._listener is None:
            return
        engine = self._engine
        started, done = engine.handler.Event(), engine.handler.Event()

        def task() -> None:
            started.set()
            try:
                self.call_here(method, tps)
            finally:
                done.set()

        engine.run_in_user_thread(task)
        deadline = Deadline(engine.handler.now(), self._patience)
        while not done.wait(_SLICE):
            if started.is_set():
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
        """Call ``method(tps)`` in this thread; raises what it raises."""
        if self._listener is None:
            return
        log.debug("%s(%s)", method, sorted(tps))
        result = getattr(self._listener, method)(list(tps))
        if inspect.iscoroutine(result):
            asyncio.run(result)
