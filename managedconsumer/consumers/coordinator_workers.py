"""The two workers of a ConsumerCoordinator: commits at intervals, and asynchronous commits."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from managedconsumer import errors as err
from managedconsumer.coordinator.committing import INTERVAL


def commit_forever(commit: weakref.WeakMethod[Callable[[Any, Any], None]], queue: Any) -> None:
    """Run the worker of ``commit_offsets_async``; it references its coordinator only while it commits."""
    while (item := queue.get()) is not None:
        offsets, generation, future = item
        call = commit()
        if call is None:
            future.failure(err.CommitFailedError("the coordinator was deleted"))
            return
        try:
            call(offsets, generation)
            future.success(True)
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.failure(error)
        del call


class AutoCommitTask:
    """Commits finished offsets at intervals, in a worker thread or greenlet, from the first :meth:`reschedule` on."""

    def __init__(self, coordinator: Any, interval: float) -> None:
        """``interval`` in seconds."""
        self._coordinator = weakref.ref(coordinator)
        self._handler = coordinator.handler
        self.interval = interval
        self._changed = self._handler.Condition()
        self._at = 0.0
        self._stopped = True
        self._worker: Any = None

    def reschedule(self, at: float | None = None) -> None:
        """Commit next at ``at`` (seconds of the handler's monotonic clock; None: after one interval)."""
        with self._changed:
            self._at = self._handler.now() + self.interval if at is None else at
            self._stopped = False
            if self._worker is None:
                self._worker = self._handler.spawn("auto-commit", self._run)
            self._changed.notify_all()

    def stop(self, timeout: float | None = None) -> None:
        """End the worker."""
        with self._changed:
            self._stopped = True
            worker, self._worker = self._worker, None
            self._changed.notify_all()
        if worker is not None:
            worker.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                left = self._at - self._handler.now()
                if self._stopped:
                    return
                if left > 0:
                    self._changed.wait(left)
                    continue
                self._at = self._handler.now() + self.interval
            coordinator = self._coordinator()
            if coordinator is None:
                return
            coordinator.commit_finished(INTERVAL)
            del coordinator
