"""The delivery of messages to the consuming threads and tasks of one consumer, which run its callbacks too."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Callable, Collection, Protocol, Sequence, TypeVar

from managedconsumer import errors as err
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.life import Locks
from managedconsumer.runtime.member import Lease
from managedconsumer.runtime.waiting import thread_ids
from managedconsumer.runtime.waiting.conditions import wait_until
from managedconsumer.runtime.waiting.greenlet_yield import GreenletYield
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

log = logging.getLogger(__name__)

T = TypeVar("T")

# A missed wake-up can cost a blocked consumer at most this much (seconds).
_LONGEST_NAP = 1.0
_NEVER = float("inf")
_RUN_GOES_ON = (
    "run() goes on and takes all messages of this consumer: consume(), consume_batch(), consume_arrow() and iteration "
    "are not possible beside it. Make another consumer (of the same group, to share the partitions), or wait"
)


class Task(Protocol):
    """Work for the consuming thread: a callback (``engine.callbacks.UserTask``), or the end of a :class:`Lease`."""

    def run(self) -> None:
        """Run it in a thread."""

    async def run_async(self) -> None:
        """Run it on an event loop."""


class Delivery:
    """Thread-safe: every method takes the engine's lock, unless its docstring says otherwise."""

    def __init__(self, locks: Locks, assignment: Assignment, greenlet_yield: GreenletYield | None) -> None:
        self.lock, self.mutex, self.recalled, self.inline = locks.lock, locks.mutex, locks.recalled, locks.inline
        self.handler, self.life, self.buffer = assignment.handler, assignment.life, assignment.buffer
        self.collector = assignment.collector
        if self.inline is not None:
            timeout_ms = assignment.options.consumer_timeout_ms
            self.collector.draw_from(self.inline, _NEVER if timeout_ms < 0 else timeout_ms / 1000.0)
        self._assignment = assignment
        self._undecided = assignment.undecided
        self._greenlet_yield = greenlet_yield
        #: True if the calling thread may receive from the connections that workers have lent. The lock is held.
        self.inline_ready: Callable[[], bool] = lambda: False
        #: Ids of the threads inside ``consume()`` or a callback; a ``stop()`` called in one of them happens after it
        #: has returned.
        self.inside: set[int] = set()
        #: How long messages may be delivered; None: as long as their partitions are assigned.
        self.lease: Lease | None = None
        #: How often a consuming thread has asked for messages (the lane counts its own).
        self.visits = 0
        #: How long (seconds) consuming threads and tasks have waited for messages, without compiled code.
        self.waited = 0.0
        #: The event loop that consumed last: the last callback of a stop runs on it.
        self.loop: Any = None
        self._draining = 0
        self._tasks: deque[Task] = deque()

    def next_message(self, timeout: float | None) -> Message | None:
        """Return the next message; None after ``timeout`` seconds without one (None: wait for ever, 0: do not wait)."""
        return self.wait_for(self.collector.take, timeout)

    def next_batch(self, limit: int, timeout: float | None) -> list[Message]:
        """Return up to ``limit`` messages as soon as there is one; an empty list after ``timeout`` seconds."""
        return self.wait_for(lambda who: self.collector.take_many(who, limit), timeout) or []

    def next_columns(self, columns: Sequence[str], timeout: float | None) -> Any:
        """Return messages of one partition as Arrow columns; None after ``timeout`` seconds."""
        found = self.wait_for(lambda who: self.collector.take_columns(who, columns), timeout)
        return None if found is None else found[0]

    def attempt(self, take: Callable[[int], T | None], who: int) -> tuple[T | None, Task | None]:
        """Call ``take`` without waiting; return its result, or a callback to run first, outside the lock.

        Raises the error that ended the consumer. Neither: there is no message, or a stop is wanted.
        """
        with self.mutex:
            self.visits += 1
            if self.inline is not None:
                self.inline.heard()
            in_flight = self.collector.in_flight
            if in_flight and who not in in_flight:
                self.leave_dead_owners()
            if self.life.interrupted:
                self._on_return(who)
                if not self.life.stop_wanted:
                    self.life.raise_if_over()
                return None, None
            if in_flight.run_state is not None and take != in_flight.run_state.take_in:
                self._on_return(who)
                raise err.ConcurrentUseError(_RUN_GOES_ON)
            if self._tasks:
                self._on_return(who)
                return None, self._tasks.popleft()
            if self._undecided and (question := self._assignment.open_question()) is not None:
                self._on_return(who)
                raise question.with_traceback(None)  # else the traceback would grow with every call
            if self.lease is not None:
                left = self.lease.until() - self.handler.now()
                if left < 0:
                    self._on_return(who)
                    return None, self.lease
                self.collector.lane.allow(left)
            return self._take(take, who), None

    def attempt_inside(self, take: Callable[[int], T | None], who: int) -> tuple[T | None, Task | None]:
        """:meth:`attempt` on an event loop. The ``stop()`` of a signal handler that interrupts it follows after it."""
        me = self.handler.ident()
        self.inside.add(me)
        try:
            return self.attempt(take, who)
        finally:
            self.inside.discard(me)

    def hand_out_until(self) -> float:
        """Until when (handler's clock) fetched messages may be delivered; after that call :meth:`attempt`."""
        return _NEVER if self.lease is None else self.lease.until()

    def take_in_passing(self, take: Callable[[int], T | None], who: int) -> T | None:
        """:meth:`attempt` for a worker of ``run()``, without callbacks and errors. The lock is held."""
        if self.life.interrupted or self._tasks or self._undecided:
            return None
        return self._take(take, who)

    def give_turn(self) -> None:
        """Let other greenlets run now and then."""
        if self._greenlet_yield is not None:
            self._greenlet_yield.give_turn()

    def has_news(self) -> bool:
        """True when :meth:`attempt` may have a result; the lock is held."""
        busy = self.life.interrupted or bool(self._tasks) or self.buffer.ready()
        return busy or self._assignment.open_question() is not None

    def come_back(self, who: int) -> None:
        """Finish the message in flight of ``who``, which asks for no other."""
        with self.lock:
            self.visits += 1
            self._on_return(who)

    def wait_for(self, take: Callable[[int], T | None], timeout: float | None) -> T | None:
        """Return the first result of ``take`` that is not None, after callbacks; None at ``timeout`` or a stop."""
        who = self.handler.ident()
        taken: T | None = None
        try:
            try:
                taken = self._wait_as(who, take, timeout)
            finally:
                if self.inline is not None and (self._assignment.sitting or self.inline.recalled):
                    self._leave_inline()
        except BaseException:
            self._give_back(who, taken, None)
            raise
        return taken

    def _wait_as(self, who: int, take: Callable[[int], T | None], timeout: float | None) -> T | None:
        end: float | None = None
        while True:
            if self._greenlet_yield is not None:
                self._greenlet_yield.give_turn()
            taken = task = None
            self.inside.add(who)
            try:
                with self.mutex:
                    taken, task = self.attempt(take, who)
                    if taken or self.life.end_wanted:
                        return taken
                    if task is None:
                        now = self.handler.now()
                        if end is None:
                            began = self.collector.lane.since() or now
                            end = _NEVER if timeout is None or timeout < 0 else began + timeout
                        if now >= end:
                            return None
                        self._rest(min(end - now, _LONGEST_NAP))
            except BaseException:
                self._give_back(who, taken, task)
                raise
            finally:
                self.inside.discard(who)
            if task is not None:
                self._run_task(task, who)
            else:
                self.life.check_process()

    def _give_back(self, who: int, taken: Any, task: Task | None) -> None:
        """Keep the message or the callback of an interrupted call for a later one."""
        if taken or task is not None:
            with self.lock:
                if taken:
                    self.collector.take_back(who)
                if task is not None:
                    self._tasks.appendleft(task)

    def _rest(self, seconds: float) -> None:
        """Wait for a change, or receive a response. The lock is held, once."""
        inline = self.inline
        if inline is None or not self.inline_ready():
            self._assignment.sitting += 1
            began = self.handler.now()
            try:
                self.lock.wait(seconds)
            finally:
                self._assignment.sitting -= 1
                self.waited += self.handler.now() - began
            return
        inline.begin()
        self.mutex.release()
        try:
            inline.wait(seconds)
        finally:
            self.mutex.acquire()

    def _leave_inline(self) -> None:
        """Let another thread receive, and wake workers that wait for their connection. Call it without the lock."""
        with self.mutex:
            self.lock.notify_all()
            self.recalled.notify_all()

    def _run_task(self, task: Task, who: int) -> None:
        """Run a callback. A ``stop()`` in it acts as in a signal handler: the stop follows after the callback."""
        self.inside.add(who)
        try:
            task.run()
        finally:
            self.inside.discard(who)

    def _take(self, take: Callable[[int], T | None], who: int) -> T | None:
        queued, had = self.buffer.pops, bool(self._draining) and who in self.collector.in_flight
        taken = None
        try:
            taken = take(who) if self._greenlet_yield is None else self._greenlet_yield.call(take, who)
            self._tell_of_taking(queued, had)
        except BaseException:
            if taken is not None:
                self.collector.take_back(who)
            self._tell_of_taking(queued, had)
            raise
        return taken

    def _tell_of_taking(self, queued: int, had: bool) -> None:
        if self.buffer.pops != queued:
            self._assignment.wake_fetchers()
        # Only if a message was put back: else threads that wait here would wake each other all the time.
        if had:
            self.lock.notify_all()

    def _on_return(self, who: int) -> None:
        """Finish the message in flight of a thread that asked for the next one and got none."""
        self.collector.finish(who)
        self.lock.notify_all()

    def run_in_user_thread(self, task: Task, *, first: bool = False) -> None:
        """Queue ``task`` for the thread that consumes. ``first``: a signal interrupted it before it began."""
        with self.lock:
            (self._tasks.appendleft if first else self._tasks.append)(task)
            self.life.wake_consumers()

    def cancel_task(self, task: Task) -> bool:
        """Remove ``task`` if no thread has taken it; False when one has."""
        with self.lock:
            if task not in self._tasks:
                return False
            self._tasks.remove(task)
            return True

    def drop_tasks(self) -> None:
        """Forget the callbacks that wait: no thread runs them any more."""
        self._tasks.clear()

    @property
    def tasks_waiting(self) -> bool:
        """True when a callback waits for the consuming thread."""
        return bool(self._tasks)

    def caller(self) -> int:
        """Return the number of the asyncio task that called, or of the calling thread."""
        me = self.handler.ident()
        with self.lock:
            return me if me in self.collector.in_flight else thread_ids.acting.get() or me

    def leave_dead_owners(self) -> None:
        """Disown messages in flight of threads that have ended; the lock is held."""
        log_fields = self._assignment.log_fields
        for who in self.collector.owners():
            if not self.handler.is_alive(who):
                for tp, offset in self.collector.leave_behind(who):
                    log.warning(
                        "%s: a thread (greenlet, task) ended with offset %d of %s-%d in flight, which is not finished: "
                        "nothing beyond it is committed until another member or another start reads it again",
                        *(self._assignment.group_id or "consumer", offset, *tp),
                        extra=log_fields(tp),
                    )

    @property
    def draining(self) -> bool:
        """True while a thread waits until messages in flight are finished."""
        return bool(self._draining)

    def drain(self, tps: Collection[TopicPartition], seconds: float) -> bool:
        """Wait until no other thread has a message of ``tps`` in flight; False when ``seconds`` were not enough."""
        me = self.caller()

        def drained() -> bool:
            return not self.collector.has_in_flight(tps, but=me) or self.life.closed or self.life.stop_wanted

        with self.lock:
            self.leave_dead_owners()
            self._draining += 1
            try:
                return wait_until(self.lock, self.handler.now, drained, seconds)
            finally:
                self._draining -= 1

    def push_back(self, messages: Sequence[Message], who: int | None = None) -> None:
        """Put back unused ``messages`` of ``who`` (None: the calling thread): they are delivered again."""
        with self.lock:
            self.collector.push_back(self.handler.ident() if who is None else who, messages)
            self.lock.notify_all()

    def take_back(self, who: int | None = None, first: int | None = None) -> None:
        """Deliver again what ``who`` (None: the calling thread) took last; ``first``: from this offset on."""
        with self.lock:
            self.collector.take_back(self.handler.ident() if who is None else who, first)
            self._assignment.wake_fetchers()
            self.lock.notify_all()

    def patient(self, fn: Callable[..., T] | None) -> Callable[..., T] | None:
        """Return ``fn``, called without the lock for each message, so that other greenlets run meanwhile."""
        if fn is None or self._greenlet_yield is None:
            return fn
        return self._greenlet_yield.between(self.collector.lane.leave, fn)

    def skip_corrupt(self, tp: TopicPartition, offset: int) -> None:
        """Skip the unreadable batch whose error named ``offset``."""
        with self.lock:
            self.collector.skip_corrupt(tp, offset)
