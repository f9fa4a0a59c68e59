"""The engine's methods for consuming threads and tasks: they return messages and run callbacks."""

from __future__ import annotations

from typing import Any, Callable, Sequence, TypeVar

from managedconsumer import errors as err
from managedconsumer.runtime.engine.assignment_part import AssignmentPart
from managedconsumer.runtime.engine.state import Task
from managedconsumer.runtime.waiting.greenlet_yield import GreenletYield
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

T = TypeVar("T")


# A missed wake-up can cost a blocked consumer at most this much (seconds).
_LONGEST_NAP = 1.0
_NEVER = float("inf")
_RUN_GOES_ON = (
    "run() goes on and takes all messages of this consumer: consume(), consume_batch(), consume_arrow() and iteration "
    "are not possible beside it. Make another consumer (of the same group, to share the partitions), or wait"
)


class ConsumingPart(AssignmentPart):
    """Base of :class:`managedconsumer.runtime.engine.engine.Engine`. Thread-safe, but where a method says otherwise."""

    _greenlet_yield: GreenletYield | None

    # -- messages -------------------------------------------------------------------------------------

    def next_message(self, timeout: float | None) -> Message | None:
        """Return the next message; None after ``timeout`` seconds without one (None: wait for ever, 0: do not wait)."""
        return self._wait_for(self.collector.take, timeout)

    def next_batch(self, limit: int, timeout: float | None) -> list[Message]:
        """Return up to ``limit`` messages as soon as there is one; an empty list after ``timeout`` seconds."""
        return self._wait_for(lambda who: self.collector.take_many(who, limit), timeout) or []

    def next_columns(self, columns: Sequence[str], timeout: float | None) -> Any:
        """Return messages of one partition as Arrow columns; None after ``timeout`` seconds."""
        found = self._wait_for(lambda who: self.collector.take_columns(who, columns), timeout)
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
            if self._interrupts():
                self._on_return(who)
                if not self.stop_wanted:
                    self.raise_if_over()
                return None, None
            if in_flight.run_state is not None and take != in_flight.run_state.take_in:
                self._on_return(who)
                raise err.ConcurrentUseError(_RUN_GOES_ON)
            if self._tasks:
                self._on_return(who)
                return None, self._tasks.popleft()
            if self._undecided and (open_question := self.undecided()) is not None:
                self._on_return(who)
                raise open_question.with_traceback(None)  # else the traceback would grow with every call
            if self.lease is not None:
                left = self.lease.until() - self.handler.now()
                if left < 0:
                    self._on_return(who)
                    return None, self.lease
                self.collector.lane.allow(left)
            return self._take(take, who), None

    def hand_out_until(self) -> float:
        """Until when (handler's clock) fetched messages may be delivered; after that call :meth:`attempt`."""
        return _NEVER if self.lease is None else self.lease.until()

    def _interrupts(self) -> bool:
        over = self.closing or self.stopping or self.stop_wanted or self.ending
        return over or self.error is not None or bool(self._raise_once)

    def take_in_passing(self, take: Callable[[int], T | None], who: int) -> T | None:
        """:meth:`attempt` for a worker of ``run()``, without callbacks and errors: its calling thread handles these.

        The lock is held, and the time :meth:`hand_out_until` is not over.
        """
        if self._interrupts() or self._tasks or self._undecided:
            return None
        return self._take(take, who)

    def give_turn(self) -> None:
        """Let other greenlets run now and then."""
        if self._greenlet_yield is not None:
            self._greenlet_yield.give_turn()

    def wait_for(self, take: Callable[[int], T | None], timeout: float | None) -> T | None:
        """Return the first result of ``take`` that is not None; None after ``timeout`` seconds, or at a stop."""
        return self._wait_for(take, timeout)

    def has_news(self) -> bool:
        """True when :meth:`attempt` may have a result; the lock is held."""
        return self._interrupts() or bool(self._tasks) or self.buffer.ready() or self.undecided() is not None

    def come_back(self, who: int) -> None:
        """Finish the message in flight of ``who``, which asks for no other."""
        with self.lock:
            self.visits += 1
            self._on_return(who)

    def _wait_for(self, take: Callable[[int], T | None], timeout: float | None) -> T | None:
        """Call ``take`` until its result is not None; run the consuming thread's callbacks first, outside the lock."""
        who = self.handler.ident()
        taken: T | None = None
        try:
            try:
                taken = self._wait_as(who, take, timeout)
            finally:
                if self.inline is not None and (self.sitting or self.inline.recalled):
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
                    if taken or self.stop_wanted or self.ending:
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
                self.check_process()

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
        if inline is None or not self.fetchers.inline_receive.ready():
            self.sitting += 1
            try:
                self.lock.wait(seconds)
            finally:
                self.sitting -= 1
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
            self.wake_fetchers()
        # Only if a message was put back: else threads that wait here would wake each other all the time.
        if had:
            self.lock.notify_all()

    def _on_return(self, who: int) -> None:
        """Finish the message in flight of a thread that asked for the next one and got none."""
        self.collector.finish(who)
        self.lock.notify_all()

    def run_in_user_thread(self, task: Task) -> None:
        """Queue ``task`` for the thread that consumes."""
        with self.lock:
            self._tasks.append(task)
            self.wake_consumers()

    def run_first_in_user_thread(self, task: Task) -> None:
        """Queue ``task`` before all others: a signal interrupted it before it began."""
        with self.lock:
            self._tasks.appendleft(task)
            self.wake_consumers()

    def cancel_task(self, task: Task) -> bool:
        """Remove ``task`` if no thread has taken it; False when one has."""
        with self.lock:
            if task not in self._tasks:
                return False
            self._tasks.remove(task)
            return True

    def push_back(self, messages: Sequence[Message], who: int | None = None) -> None:
        """Put back ``messages`` that ``who`` (None: the calling thread) could not use.

        The consumer delivers them again, and the position stays before them.
        """
        with self.lock:
            self.collector.push_back(self.handler.ident() if who is None else who, messages)
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
