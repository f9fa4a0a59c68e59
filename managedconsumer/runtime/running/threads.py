"""``run()`` in threads or greenlets: the calling thread takes messages and runs callbacks, workers run the handler."""

from __future__ import annotations

import logging
from typing import Any, Callable

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.processing.key_queues import KeyQueue
from managedconsumer.processing.worker_slots import WorkerSlot
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.waiting.at_once import at_once
from managedconsumer.runtime.waiting.conditions import wait_until
from managedconsumer.runtime.waiting.primitives import Worker

log = logging.getLogger(__name__)

# A missed wake-up can cost the calling thread at most this much (seconds).
_NAP = 0.5
# How long (seconds) the workers may take to end; a worker that is stuck in a handler is left behind.
_JOIN = 0.2


class ThreadRun:
    """One ``run()`` with threads or greenlets as workers. Its coroutines await nothing, see ``waiting.at_once``."""

    #: What is raised in the caller when it is to end without grace.
    cancelled: tuple[type[BaseException], ...] = ()

    def __init__(self, run: Run, decide_corrupt: Callable[[err.CorruptRecordError], None]) -> None:
        self._run = run
        self._engine = run.engine
        self._decide_corrupt = decide_corrupt
        self._workers: list[Worker] = []
        self._call = run.calls.handler if run.calls.deserialize is None else self._deserialized

    def start(self) -> None:
        """Start the workers."""
        for number, slot in enumerate(self._run.slots):
            self._workers.append(self._engine.handler.spawn(f"run-{number}", self._work, slot))

    async def consume(self, look: Callable[[], None] = lambda: None) -> None:
        """Take messages until a stop is wanted; call ``look`` now and then. Raises the error that ends the consumer."""
        run, engine = self._run, self._engine
        while not (run.work.ending or engine.life.end_wanted):
            try:
                engine.delivery.wait_for(run.take_in, _NAP)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
            look()

    async def drain(self, seconds: float) -> None:
        """Let running messages finish, for at most ``seconds``; no new ones start."""
        run, engine = self._run, self._engine
        run.end()
        with engine.lock:
            wait_until(engine.lock, engine.handler.now, lambda: not run.busy(None), seconds, _NAP)

    async def stop(self, stop: Callable[[], None]) -> BaseException | None:
        """Call ``stop``, which stops the consumer."""
        stop()
        return None

    async def join(self) -> None:
        """Wait for the workers to end."""
        self._run.finish()
        deadline = Deadline(self._engine.handler.now(), _JOIN)
        for worker in self._workers:
            worker.join(deadline.remaining(self._engine.handler.now()))

    def _work(self, slot: WorkerSlot) -> None:
        run, engine = self._run, self._engine
        who, todo, through = engine.handler.ident(), slot.todo, slot.through
        one = self._list if run.lists else self._one_by_one
        try:
            while self._next(slot, who):
                while True:
                    try:
                        key_queue = todo.popleft()
                    except IndexError:
                        break
                    # In this order: a worker that suspends partitions afterwards sees that this message has begun.
                    slot.current = key_queue
                    one(key_queue, slot)
                    through.append(key_queue)
                engine.delivery.give_turn()
            engine.life.check_process()  # a handler has forked, and returns in the child, too
        except err.ForkedProcessError as error:
            if run.failure is None:  # once
                run.failure = None, error
                log.error("run() does not go on here: %s", error)
        except BaseException as error:  # a worker's death must reach the user
            run.fail(None, error)
        finally:
            run.leave(slot)

    def _next(self, slot: WorkerSlot, who: int) -> bool:
        """Report, and wait for the next block; False: the worker ends."""
        run, engine = self._run, self._engine
        with engine.mutex:
            run.take_reports(slot)
            while not run.over:
                if run.claim(slot, who):
                    return True
                run.wait_for_work()
        return False

    def _one_by_one(self, key_queue: KeyQueue, slot: WorkerSlot) -> None:
        """Call the handler with the key queue's messages, until one fails or the rest has to be given back."""
        work, running, call, now = self._run.work, key_queue.running, self._call, self._engine.handler.now
        era, until, place = slot.era, slot.until, 0
        while True:
            try:
                for message in running[place:] if place else running:
                    if work.era != era or now() > until:
                        return
                    result = call(message)
                    if result is not None:
                        self._run.calls.check("the handler", result, message)
                    # One atomic step, so other threads may read it at any moment: the message is finished.
                    place = key_queue.place = place + 1
                return
            except BaseException as error:  # the user's code may raise anything
                if not at_once(self._run.goes_on(key_queue, place, place + 1, error)):
                    return
                place = key_queue.place

    def _deserialized(self, message: Any) -> Any:
        """Return the deserialized message for the handler; if that fails the message is unchanged."""
        calls, raw = self._run.calls, (message.value, message.partition_key)
        try:
            if calls.deserialize is None or calls.deserialize(message):
                return calls.handler(message)
        except BaseException:
            message.value, message.partition_key = raw
            raise
        return None

    def _list(self, key_queue: KeyQueue, slot: WorkerSlot) -> None:
        if self._run.work.era == slot.era and self._engine.handler.now() <= slot.until:
            at_once(self._run.hand_list(key_queue))
