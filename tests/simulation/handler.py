"""A :class:`~managedconsumer.runtime.waiting.handlers.Handler` whose waiting is all imaginary.

Everything that waits in this package waits through a handler. With this one whole consumers run as they are, in the
virtual time of a :class:`~tests.simulation.kernel.Kernel`.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from managedconsumer.runtime.waiting import primitives, thread_ids
from managedconsumer.runtime.waiting.handlers import Handler
from tests.simulation.kernel import FIRST_NUMBER, Killed, Process, Task, current_greenlet

T = TypeVar("T")
_PREFIX = "managedconsumer."


class VirtualLock:
    """A mutex, reentrant or not."""

    __slots__ = ("_depth", "_kernel", "_owner", "_process", "_reentrant", "_waiters")

    def __init__(self, process: Process, reentrant: bool) -> None:
        self._process = process
        self._kernel = process.kernel
        self._reentrant = reentrant
        self._owner: Task | None = None
        self._depth = 0
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; False if it could not be had."""
        kernel = self._kernel
        me = kernel.current
        owner = self._owner
        if me is None or self._process.dead:
            return True
        if owner is None and not kernel.interrupt_every:
            self._owner, self._depth = me, 1
            return True
        if owner is me:
            if not self._reentrant:
                raise RuntimeError(f"{me.name} takes a lock that it holds and that is not reentrant: deadlock")
            self._depth += 1
            return True
        if kernel.interrupt_every:
            kernel.maybe_interrupt()
        deadline = None if timeout < 0 else kernel.now + timeout
        while self._owner is not None:
            if not blocking or (deadline is not None and kernel.now >= deadline):
                return False
            self._waiters.append(me)
            me.park(None if deadline is None else deadline - kernel.now)
            if me in self._waiters:
                self._waiters.remove(me)
        self._owner, self._depth = me, 1
        return True

    @property
    def taken(self) -> bool:
        return self._owner is not None

    def release(self) -> None:
        me = self._kernel.current
        if me is None or self._process.dead:
            return
        if self._owner is not me:
            raise RuntimeError(f"{me.name} releases a lock that it does not hold")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiters:
                self._waiters.pop(0).wake()

    def give_up(self) -> int:
        """Release it whatever the depth, for a condition's wait; returns the depth."""
        if self._owner is not self._process.kernel.current:
            raise RuntimeError("wait() and notify() need the lock of their condition")
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def restore(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualCondition:
    __slots__ = ("_lock", "_notified", "_process", "_waiters", "acquire", "release")

    def __init__(self, process: Process, lock: VirtualLock) -> None:
        self._process = process
        self._lock = lock
        self._notified = 0
        self._waiters: list[Task] = []
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; False after ``timeout`` seconds."""
        me = self._process.kernel.current
        if me is None or self._process.dead:
            raise Killed
        depth, woken = self._lock.give_up(), True
        notified = self._notified
        self._waiters.append(me)
        try:
            woken = me.park(timeout)
            return woken
        finally:
            if me in self._waiters:
                self._waiters.remove(me)
            self._lock.restore(depth)
            # A notify while the waiter is on its way has not forgotten it, though it does not wait any more.
            me.missed_wake_up = None
            if timeout is not None and not woken:
                me.missed_wake_up = timeout, lambda: self._notified == notified

    def notify(self, n: int = 1) -> None:
        self._notified += 1
        woken, self._waiters = self._waiters[:n], self._waiters[n:]
        for task in woken:
            task.wake()

    def notify_all(self) -> None:
        self._notified += 1
        if self._waiters:
            self.notify(len(self._waiters))


class VirtualEvent:
    __slots__ = ("_process", "_set", "_waiters")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._set = False
        self._waiters: list[Task] = []

    def set(self) -> None:
        self._set = True
        woken, self._waiters = self._waiters, []
        for task in woken:
            task.wake()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; False if it is not up after ``timeout`` seconds."""
        me = self._process.kernel.current
        if not self._set and me is not None:
            self._waiters.append(me)
            me.park(timeout)
            if me in self._waiters:
                self._waiters.remove(me)
        return self._set


class VirtualHandler(Handler):
    """How the workers of one simulated process wait."""

    name = "virtual"
    real = False

    def __init__(self, process: Process) -> None:
        self.process = process
        self.kernel = process.kernel
        #: All locks that the program has asked for.
        self.locks: list[VirtualLock] = []

    def Event(self) -> primitives.Event:
        return VirtualEvent(self.process)

    def Lock(self) -> primitives.Lock:
        return self._lock(reentrant=False)

    def RLock(self) -> primitives.Lock:
        return self._lock(reentrant=True)

    def _lock(self, reentrant: bool) -> VirtualLock:
        self.locks.append(VirtualLock(self.process, reentrant))
        return self.locks[-1]

    def Condition(self, lock: Any = None) -> primitives.Condition:
        return VirtualCondition(self.process, lock or VirtualLock(self.process, reentrant=True))

    def Semaphore(self, n: int = 1) -> primitives.Semaphore:
        raise NotImplementedError("no simulated consumer has one")

    def Queue(self, maxsize: int = 0) -> primitives.Queue:
        raise NotImplementedError("no simulated consumer has one")

    def sleep(self, seconds: float = 0) -> None:
        task = self.kernel.current
        if task is not None:
            task.park(seconds)
        elif self.process.dead:  # its stack is being unwound, and the end was taken for a failure to try again after
            raise Killed

    def now(self) -> float:
        return self.kernel.now

    def wall_time(self) -> float:
        return self.kernel.now

    def random(self) -> float:
        return self.kernel.jitter()

    def new_id(self) -> str:
        return self.kernel.new_id()

    def spawn(self, name: str, fn: Callable[..., Any], *args: Any) -> primitives.Worker:
        return Task(self.process, _PREFIX + name, fn, args)

    def ident(self) -> int:
        task = self.kernel.current
        return 0 if task is None else task.number

    @property
    def current(self) -> Callable[[], Any]:
        return current_greenlet

    def is_alive(self, ident: int) -> bool:
        return not ident or (ident in self.process.tasks if ident > FIRST_NUMBER else thread_ids.is_alive(ident))

    def run_blocking(self, fn: Callable[..., T], *args: Any) -> T:
        return fn(*args)

    def getaddrinfo(self, host: str, port: int) -> list[tuple[Any, ...]]:
        raise NotImplementedError("there is no network in virtual time")

    def socket(self, family: int, kind: int, proto: int) -> Any:
        raise NotImplementedError("there is no network in virtual time")
