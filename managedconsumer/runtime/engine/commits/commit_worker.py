"""The worker that sends all commits of a consumer, in the order of the calls, and at intervals."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Sequence

from managedconsumer import errors as err
from managedconsumer.coordinator.committing import INTERVAL
from managedconsumer.runtime.engine.commits.pending import Explicit, Finished, Pending, give_up, stopped

if TYPE_CHECKING:
    from managedconsumer.runtime.engine.engine import Engine

# The worker checks this often (seconds) whether its consumer was deleted without stop().
_SLICE = 5.0
# The limit of an automatic commit is its interval (seconds), but within these bounds.
_INTERVAL_PATIENCE, _INTERVAL_LEAST = 10.0, 1.0


class CommitWorker:
    """Sends commits one after the other. Thread-safe; the engine's lock guards its state.

    It starts with the first commit and ends when the engine closes. A thread that waits for a commit holds no lock.
    """

    def __init__(self, engine: Engine, work: Callable[[list[Pending]], None]) -> None:
        """``work`` sends commits and finishes them; the worker calls it without a lock."""
        self._engine = engine
        self._work = work
        self._waiting: deque[Pending] = deque()
        self._current: list[Pending] = []
        self._worker: Any = None
        self._thread: int | None = None
        self._running = False
        self._life = 0
        self._interval = 0.0
        #: When (handler's clock) the next commit at an interval is due; None: no such commits.
        self._due: float | None = None

    def append(self, commit: Pending) -> None:
        """Queue a commit behind the earlier ones. An impossible one fails at once. Does not block."""
        engine = self._engine
        with engine.lock:
            if engine.life.closed:
                give_up([commit], engine.group_id, err.ConsumerStoppedException("the consumer is not running"))
                return
            self._waiting.append(commit)
            try:
                self._ensure()
            except RuntimeError as error:  # the interpreter is ending: there are no new threads any more
                give_up([commit], engine.group_id, err.IllegalStateError(f"no worker can be started: {error}"))
            engine.commits.notify_all()

    def under_way(self) -> list[Pending]:
        """Return the commit in flight and those that wait; the engine's lock is held."""
        return [*self._current, *self._waiting]

    def start(self, interval: float) -> None:
        """Also commit finished messages every ``interval`` seconds from here on."""
        engine = self._engine
        with engine.lock:
            self._interval = interval
            self._due = engine.handler.now() + interval
            if not engine.life.closed:
                self._ensure()
            engine.commits.notify_all()

    def pending(self) -> list[Pending]:
        """Return the unfinished commits in order."""
        with self._engine.lock:
            return [commit for commit in (*self._current, *self._waiting) if not commit.done()]

    def busy_elsewhere(self) -> bool:
        """True while the worker, and not the calling thread, carries out a commit."""
        with self._engine.lock:
            return bool(self._current) and self._engine.handler.ident() != self._thread

    def pause(self, batch: Sequence[Pending], seconds: float) -> bool:
        """Wait up to ``seconds`` before the next attempt for ``batch``; False when no caller waits for it any more."""
        engine = self._engine
        with engine.lock:
            if not all(commit.done() for commit in batch):
                engine.commits.wait(seconds)
            return not engine.life.closed and not all(commit.done() for commit in batch)

    def join(self, timeout: float) -> None:
        """Fail the pending commits and wait up to ``timeout`` seconds for the worker; the engine is closing."""
        engine = self._engine
        with engine.lock:
            self._life += 1
            worker, self._worker, self._running, self._due = self._worker, None, False, None
            left = self.pending()
            self._waiting.clear()
            self._current = []
            engine.commits.notify_all()
        give_up(left, engine.group_id, stopped())
        if worker is not None:
            worker.join(timeout)

    def _ensure(self) -> None:
        """Start the worker if it does not run; the engine's lock is held."""
        if not self._running:
            self._running = True
            try:
                self._worker = self._engine.handler.spawn("commits", self._run, self._life)
            except BaseException:
                self._running = False
                raise

    def _run(self, life: int) -> None:
        engine = self._engine
        self._thread = engine.handler.ident()
        try:
            while batch := self._next(life):
                try:
                    self._work(batch)
                finally:
                    with engine.lock:
                        if self._current is batch:
                            self._current = []
                    give_up(batch, engine.group_id, err.IllegalStateError("the commit worker failed"))
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            engine.life.fail(error)

    def _next(self, life: int) -> list[Pending]:
        """Wait for the next batch: one automatic commit, or all explicit ones that wait in a row.

        Empty: the worker has to end.
        """
        engine = self._engine
        with engine.lock:
            while life == self._life and not engine.life.closed:
                now = engine.handler.now()
                batch = self._take()
                if not batch and self._due is not None and now >= self._due:
                    self._due = now + self._interval
                    seconds = min(max(self._interval, _INTERVAL_LEAST), _INTERVAL_PATIENCE)
                    batch = [Finished(engine.commits, engine.handler.now, seconds, INTERVAL)]
                if batch:
                    self._current = batch
                    return batch
                engine.commits.wait(_SLICE if self._due is None else min(_SLICE, self._due - now))
        return []

    def _take(self) -> list[Pending]:
        batch: list[Pending] = []
        while self._waiting:
            commit = self._waiting[0]
            if batch and not (isinstance(batch[-1], Explicit) and isinstance(commit, Explicit)):
                break
            self._waiting.popleft()
            if not commit.done():
                batch.append(commit)
        return batch
