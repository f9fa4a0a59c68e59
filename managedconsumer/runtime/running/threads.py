"""``run()`` in threads or greenlets: the calling thread takes messages and runs callbacks, workers run the handler."""

from __future__ import annotations

import logging
from typing import Any, Callable

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.processing.key_queues import KeyQueue
from managedconsumer.processing.pace import NotYet
from managedconsumer.processing.worker_slots import WorkerSlot
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.waiting.primitives import Worker

log = logging.getLogger(__name__)

# A missed wake-up can cost the calling thread at most this much (seconds).
_NAP = 0.5
# How long (seconds) the workers may take to end; a worker that is stuck in a handler is left behind.
_JOIN = 0.2


class ThreadRun:
    """One ``run()`` with threads or greenlets as workers."""

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

    def consume(self, look: Callable[[], None] = lambda: None) -> None:
        """Take messages until a stop is wanted; call ``look`` now and then. Raises the error that ends the consumer."""
        run, engine = self._run, self._engine
        while not (run.work.ending or engine.life.end_wanted):
            try:
                engine.delivery.wait_for(run.take_in, _NAP)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
            look()

    def drain(self, seconds: float) -> None:
        """Let running messages finish, for at most ``seconds``; no new ones start."""
        run, engine = self._run, self._engine
        run.end()
        deadline = Deadline(engine.handler.now(), seconds)
        with engine.lock:
            while run.busy(None) and not deadline.expired(engine.handler.now()):
                engine.lock.wait(min(_NAP, deadline.remaining(engine.handler.now()) or 0.0))

    def join(self) -> None:
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
                if not self._goes_on(key_queue, place, place + 1, error):
                    return
                place = key_queue.place

    def _goes_on(self, key_queue: KeyQueue, place: int, end: int, error: BaseException) -> bool:
        """Handle the handler's ``error`` for these messages. True: they are dead, and the worker continues."""
        run, messages = self._run, key_queue.running[place:end]
        if isinstance(error, NotYet):
            key_queue.until, key_queue.failed = error.due, True
        elif not run.calls.of_message(error):
            run.fail(None, error)  # it ends the run, which raises it
        elif not run.calls.not_ours(messages, error):
            if run.work.again(key_queue, place, error):
                key_queue.failed = True
            elif self._died(messages, error):
                run.bury(key_queue, end)
                return True
        return False

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
        """Call the handler with all of the key queue's messages as one list."""
        run, calls, messages = self._run, self._run.calls, key_queue.running
        if run.work.era != slot.era or self._engine.handler.now() > slot.until:
            return
        raw = [(message.value, message.partition_key) for message in messages] if calls.deserialize else []
        try:
            wanted = [message for message in messages if calls.deserialize is None or calls.deserialize(message)]
            if wanted:
                run.calls.check("the handler", calls.handler(wanted), wanted[0])
            key_queue.place = len(messages)
        except BaseException as error:  # the user's code may raise anything
            for message, (value, key) in zip(messages, raw, strict=False):
                message.value, message.partition_key = value, key
            self._goes_on(key_queue, 0, len(messages), error)

    def _died(self, messages: list[Any], error: BaseException) -> bool:
        """Give these messages to ``on_dead``; False: there is none, or it raised, and the run ends."""
        run, on_dead = self._run, self._run.calls.on_dead
        for message in messages:
            if on_dead is None:
                run.fail(message, error)
                return False
            try:
                run.calls.check("on_dead", on_dead(message, error), message)
            except BaseException as problem:  # it ends the run, which raises it
                problem.__context__ = error
                run.fail_dead(message, problem)
                return False
        return True
