"""The life of one consumer's engine: its lock with the conditions on it, its state, and what ends it."""

from __future__ import annotations

import logging
import os
from collections import deque
from enum import Enum
from types import TracebackType

from managedconsumer import errors as err
from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.logs import LogFields
from managedconsumer.runtime.engine.accelerator import inline_fetch
from managedconsumer.runtime.waiting.handlers import Handler

log = logging.getLogger(__name__)


class Locks:
    """One re-entrant lock and what waits on it; the engine's parts keep the ones that they use."""

    def __init__(self, handler: Handler) -> None:
        shared = handler.RLock()
        #: The connections from which a consuming thread receives by itself; None: it cannot do so here.
        self.inline = inline_fetch(handler)
        wake = None if self.inline is None else self.inline.wake
        # The user waits here for messages.
        self.lock = handler.Condition(shared) if wake is None else handler.WakingCondition(shared, wake)
        self.not_full = handler.Condition(shared)  # fetch workers wait here for memory
        self.commits = handler.Condition(shared)  # the commit worker and threads that commit wait here
        self.recalled = handler.Condition(shared)  # fetch workers that have lent their connection wait here
        self.work = handler.Condition(shared)  # the workers of run() wait here
        #: The same lock for frequent users that neither wait nor notify: a condition needs two calls instead of one.
        self.mutex = shared

    def replace_in(self, part: object) -> None:
        """Make ``part`` use these instead of those that it has."""
        for name, value in vars(self).items():
            if hasattr(part, name):
                setattr(part, name, value)


class State(Enum):
    """Where an engine is in its life."""

    NEW = "not started"
    RUNNING = "running"
    #: A stop goes on: calls that consume raise, and no other start begins.
    STOPPING = "stopping"
    CLOSED = "stopped"


_RUNNING = State.RUNNING  # at each message a global name: to find the member of an enum takes long


class Ending(Enum):
    """Why a life has to end. Requests of signal handlers are among them, so they are noted without the lock."""

    #: The consumer wants no more messages: consuming calls finish the messages in flight and return none.
    NO_MORE = "no more messages"
    #: A ``stop()`` interrupted another call: the next consuming call carries it out.
    STOP = "stop"
    FAILED = "failed"
    #: The consumer was deleted without ``stop()``: the last worker closes everything.
    ABANDONED = "abandoned"


_MOVES = {
    State.NEW: {State.RUNNING},
    State.RUNNING: {State.STOPPING, State.CLOSED},
    State.STOPPING: {State.CLOSED},
    State.CLOSED: {State.RUNNING},
}


class Life:
    """State and end of an engine, whose lock it uses. Thread-safe."""

    def __init__(self, locks: Locks, collector: FetchCollector, name: str, log_fields: LogFields) -> None:
        """``name``: for log lines."""
        self.lock, self.commits = locks.lock, locks.commits
        self._collector, self._name, self._log_fields = collector, name, log_fields
        self._pid = os.getpid()
        self.state = State.NEW
        self.endings: set[Ending] = set()
        #: When (handler's clock) the stop in progress should be over.
        self.stop_by = 0.0
        #: How long (seconds) the requested stop may take; None: its default.
        self.stop_timeout: float | None = None
        self.error: BaseException | None = None
        self._cause: TracebackType | None = None
        self._raise_once: deque[BaseException] = deque()

    def _move(self, state: State) -> None:
        if state not in _MOVES[self.state]:
            raise err.IllegalStateError(f"{self._name}: a consumer that is {self.state.value} cannot be {state.value}")
        self.state = state

    def prepare(self) -> None:
        """Forget how the last life ended. A request to end that comes from here on ends the life that begins.

        A signal that came before the first start counts for it, too.
        """
        self.endings.intersection_update({Ending.NO_MORE} if self.state is State.NEW else ())
        self.error = None
        self._raise_once.clear()

    def begin(self) -> None:
        """Run, for the first time or again."""
        self._move(State.RUNNING)

    def begin_stop(self, until: float) -> None:
        """Begin a stop that should be over at ``until`` (handler's clock)."""
        with self.lock:
            self.stop_by = until
            if self.state is State.RUNNING:
                self._move(State.STOPPING)
            self.wake_consumers()

    def close(self) -> None:
        """End; nothing where the engine does not run."""
        if not self.closed:
            self._move(State.CLOSED)

    def abandon(self) -> None:
        """End the workers of a consumer that was deleted without ``stop()``. The GC calls it: no lock, no I/O."""
        self.endings.add(Ending.ABANDONED)
        self.close()

    @property
    def running(self) -> bool:
        """True while the engine is open and no stop has begun."""
        return self.state is _RUNNING

    @property
    def stopping(self) -> bool:
        """True while a stop goes on."""
        return self.state is State.STOPPING

    @property
    def closed(self) -> bool:
        """True before the first start and after a stop: no worker runs for long."""
        return self.state is State.CLOSED or self.state is State.NEW

    @property
    def stop_wanted(self) -> bool:
        """True when the next consuming call has to stop the consumer."""
        return bool(self.endings) and Ending.STOP in self.endings

    @property
    def no_more(self) -> bool:
        """True when consuming calls have to return nothing."""
        return bool(self.endings) and Ending.NO_MORE in self.endings

    @property
    def end_wanted(self) -> bool:
        """True when a stop or no more messages are wanted."""
        return bool(self.endings) and (self.stop_wanted or self.no_more)

    @property
    def interrupted(self) -> bool:
        """True when a consuming call may not just take a message. Takes no lock."""
        return bool(self.endings) or self.state is not _RUNNING or bool(self._raise_once)

    def want_stop(self, timeout: float | None = None) -> None:
        """Make the next consuming call stop. Takes no lock and never waits: a signal may run it at any line.

        ``timeout``: how long (seconds) that stop may take; None: its default.
        """
        self.stop_timeout = timeout
        self.endings.add(Ending.STOP)
        self._collector.lane.leave()

    def end_soon(self) -> None:
        """Like :meth:`want_stop`, but consuming calls finish the messages in flight and return none."""
        self.endings.add(Ending.NO_MORE)
        self._collector.lane.leave()

    def fail(self, error: BaseException) -> None:
        """End the consumer with an error, which every later call raises."""
        with self.lock:
            if self.closed or self.error is not None:
                return
            self.forbid(error)
            self.wake_consumers()
        # Refusals by a broker or a network are logged in one line; tracebacks are for errors that should not happen.
        expected = isinstance(error, err.KafkaException) and not isinstance(error, err.IllegalStateError)
        trace = None if expected else error
        log.error("%s: the consumer ends: %s", self._name, error, exc_info=trace, extra=self._log_fields())

    def forbid(self, error: BaseException) -> None:
        """Raise ``error`` from every later call."""
        self.error, self._cause = error, error.__traceback__
        self.endings.add(Ending.FAILED)

    def raise_later(self, error: BaseException) -> None:
        """Keep an error of the user's code: the next consuming call raises it, once."""
        with self.lock:
            self._raise_once.append(error)
            self.wake_consumers()

    def raise_if_over(self) -> None:
        """Raise the error that ended the consumer, or a kept error of the user's code."""
        if self.error is not None:
            raise self.error.with_traceback(self._cause)  # else the traceback would grow with every call
        if self._raise_once:
            raise self._raise_once.popleft()
        if not self.running:
            raise self.not_running()

    def not_running(self) -> err.ConsumerStoppedException:
        """Return the error for a call that needs a running consumer: never started, or stopped (by any thread)."""
        if self.state is State.NEW:
            return err.ConsumerStoppedException("the consumer is not running: call start() first")
        return err.ConsumerStoppedException("the consumer was stopped; start() starts it again")

    def in_own_process(self) -> bool:
        """False in a child of the process that made this consumer."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raise ForkedProcessError in a child of the process that made this consumer."""
        if os.getpid() != self._pid:
            raise self.forked()

    def forked(self) -> err.ForkedProcessError:
        """Return the error of a child that uses its parent's consumer."""
        return err.ForkedProcessError(
            f"this consumer was created in process {self._pid} and is used in its child {os.getpid()}: threads and "
            "sockets do not survive a fork. Create the consumer in the process that uses it"
        )

    def tell_users(self) -> None:
        """Wake the threads that consume or commit after :meth:`want_stop` or :meth:`end_soon`."""
        with self.lock:
            self.wake_consumers()
            self.commits.notify_all()

    def wake_consumers(self) -> None:
        """Wake the consuming threads and end the fast path: each of them takes the lock. The lock is held."""
        self._collector.settle_lane()
        self.lock.notify_all()
