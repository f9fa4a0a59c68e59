"""Virtual time: one scheduler, one clock, one random source, and processes whose workers are greenlets of one thread.

The clock jumps from event to event. What happens first of several things that could is decided by the seed, and so is
whether a worker is interrupted where it takes a lock. A process may be frozen (SIGSTOP) and killed (-9).

Needs the package ``greenlet`` (comes with the extra ``gevent``).
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import Any, Callable

from managedconsumer.errors import MissingPackageError

try:
    import greenlet  # type: ignore[import-untyped]
except ImportError as missing:
    raise MissingPackageError(
        "the simulation runs on greenlets, which are not installed: pip install 'gevent>=22.10' "
        "(the extra 'managedconsumer[gevent]' brings them)"
    ) from missing

#: The clock's first reading: far from 0, so that nothing works only because "never" and "0.0" are near each other.
START = 1000.0


#: Gives the greenlet that runs: each worker is one.
current_greenlet: Callable[[], Any] = greenlet.getcurrent

#: Unwinds a worker of a process that was killed.
Killed: type[BaseException] = greenlet.GreenletExit


#: Numbers of workers: not those that the package gives to real threads and to asyncio tasks.
FIRST_NUMBER = 1 << 40
#: So many things never happen at the same time, unless somebody waits in a circle.
_LONGEST_STANDSTILL = 20_000


class Livelock(Exception):
    """Workers keep each other busy for ever, and no time passes."""


class Kernel:
    """The scheduler, and all chance: ``random`` makes the schedule, ``jitter`` is what consumers draw from.

    They are two, so that a consumer that draws once more does not meet another schedule.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.jitter = Random(seed).random
        self.now = START
        self.current: Task | None = None
        self.events = 0
        #: Set when the simulation is over: nothing more happens.
        self.stopped = False
        #: Every so many lock acquisitions a worker is interrupted (0: never).
        self.interrupt_every = 0
        self._until_interrupt = 0
        #: The greenlet of the scheduler: the one that made the kernel.
        self.hub: Any = greenlet.getcurrent()
        self._heap: list[tuple[float, float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._chance = self.random.random
        self._pushed = self._ids = 0
        self._tasks = FIRST_NUMBER
        self._standing = 0

    def new_id(self) -> str:
        """``c1``, ``c2``, and so on: ids that members give themselves (KIP-848)."""
        self._ids += 1
        return f"c{self._ids}"

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> None:
        """Call ``call(*args)`` at ``when``; the order of what happens at the same time is chance."""
        self._pushed += 1
        heappush(self._heap, (when, self._chance(), self._pushed, call, args))

    def resume_at(self, when: float, task: Task, token: int, value: bool) -> None:
        """The same for a worker that waits: nine of ten events are that."""
        self._pushed += 1
        heappush(self._heap, (when, self._chance(), self._pushed, task.resume, (token, value)))

    def after(self, delay: float, call: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Let everything happen that is due up to ``until``, unless ``done()`` or ``stopped`` comes true before."""
        heap = self._heap
        while heap and heap[0][0] <= until and not self.stopped:
            when, _, _, call, args = heappop(heap)
            if when > self.now:
                self.now = when
                self._standing = 0
            self.events += 1
            self._standing += 1
            if self._standing > _LONGEST_STANDSTILL:
                raise Livelock(f"{_LONGEST_STANDSTILL} things happened at once, and time stands still")
            call(*args)
            if done is not None and done():
                return
        if not self.stopped:
            self.now = max(self.now, until)

    def forget(self) -> None:
        """The simulation is over: lead nowhere any more."""
        self._heap.clear()

    def next_task_number(self) -> int:
        """Numbers of tasks: what ``ident()`` gives."""
        self._tasks += 1
        return self._tasks

    def maybe_interrupt(self) -> None:
        """Called where a lock is taken: now and then somebody else runs first."""
        self._until_interrupt -= 1
        if self._until_interrupt <= 0:
            self._until_interrupt = 1 + int(self._chance() * 2 * self.interrupt_every)
            if self.current is not None and not self.current.process.dead:
                self.current.park(0.0)


class Process:
    """A program with its workers; what happens to a frozen one waits, what happens to a dead one does not happen."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.dead = False
        self.frozen = False
        #: When it was last thawed.
        self.thawed_at = 0.0
        self.tasks: dict[int, Task] = {}
        self._waiting: list[tuple[Task, int, bool]] = []

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: all that became due in the meantime happens now, in any order."""
        self.frozen, self.thawed_at = False, self.kernel.now
        waiting, self._waiting = self._waiting, []
        for task, token, value in waiting:
            self.kernel.resume_at(self.kernel.now, task, token, value)

    def hold_back(self, task: Task, token: int, value: bool) -> None:
        self._waiting.append((task, token, value))

    def kill(self) -> None:
        """SIGKILL: no code of it runs any more (its stacks are unwound, to no effect on anybody)."""
        self.dead = True
        for task in list(self.tasks.values()):
            task.unwind()
        self.tasks.clear()
        self._waiting.clear()


class Task:
    """A worker: a greenlet that runs until it waits. The ``Worker`` of this handler."""

    __slots__ = (
        "_args",
        "_done",
        "_fn",
        "_greenlet",
        "_joining",
        "_token",
        "exception",
        "kernel",
        "missed_wake_up",
        "name",
        "number",
        "on_leave",
        "on_return",
        "process",
    )

    def __init__(self, process: Process, name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.process = process
        self.kernel = process.kernel
        self.name = name
        self.number = process.kernel.next_task_number()
        self.exception: BaseException | None = None
        #: If the seconds of its last wait on a condition ran out: those, and how to ask whether it still was in vain.
        self.missed_wake_up: tuple[float, Callable[[], bool]] | None = None
        #: Called when it gives way to the others and when it comes back: what belongs to this worker alone (a trace
        #: function, the running event loop) is the operating system thread's, which all of them share.
        self.on_leave: Callable[[], None] | None = None
        self.on_return: Callable[[], None] | None = None
        self._fn, self._args = fn, args
        self._token = 0
        self._joining: list[Task] = []
        self._done = process.dead
        self._greenlet = greenlet.greenlet(self._main, process.kernel.hub)
        if not process.dead:
            process.tasks[self.number] = self
            process.kernel.at(process.kernel.now, self.resume, 0, True)

    def _main(self, _value: bool) -> None:
        try:
            self._fn(*self._args)
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 (as the other handlers do it)
            self.exception = error
        finally:
            del self._fn, self._args
            self._done = True
            self.process.tasks.pop(self.number, None)
            if not self.process.dead:
                for task in self._joining:
                    task.wake()

    def resume(self, token: int, value: bool) -> None:
        """Run on, if this is still what the task waits for; called by the scheduler only."""
        if token != self._token or self._done:
            return
        process = self.process
        if process.dead:
            return
        if process.frozen:
            process.hold_back(self, token, value)
            return
        self._token = token + 1
        kernel = self.kernel
        kernel.current = self
        try:
            self._greenlet.switch(value)
        finally:
            kernel.current = None

    def park(self, timeout: float | None) -> bool:
        """Wait to be woken (True) or for ``timeout`` seconds (False)."""
        kernel = self.kernel
        if self.process.dead:
            raise Killed
        if timeout is not None:
            kernel.resume_at(kernel.now + (timeout if timeout > 0.0 else 0.0), self, self._token, False)
        leave, come_back = self.on_leave, self.on_return
        if leave is not None:
            leave()
        try:
            woken: bool = kernel.hub.switch()
        finally:
            if come_back is not None:
                come_back()
        return woken

    def woken_by_time(self) -> float:
        """How long it has waited on a condition that nobody has notified since; 0.0: it has not, or it was asked."""
        missed, self.missed_wake_up = self.missed_wake_up, None
        return missed[0] if missed is not None and missed[1]() else 0.0

    def wake(self) -> None:
        if not self.process.dead:
            kernel = self.kernel
            kernel.resume_at(kernel.now, self, self._token, True)

    def unwind(self) -> None:
        self._done = True
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.throw(Killed)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; returns at once in the task itself."""
        kernel = self.kernel
        me = kernel.current
        if me is None or me is self:
            return
        deadline = None if timeout is None else kernel.now + timeout
        while not self._done and (deadline is None or kernel.now < deadline):
            self._joining.append(me)
            me.park(None if deadline is None else deadline - kernel.now)
            self._joining.remove(me)

    def is_alive(self) -> bool:
        return not self._done
