"""An asyncio event loop in virtual time: the real loop and real tasks, only its clock and its waiting are imaginary."""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import events
from typing import Any, Callable, Coroutine

from tests.simulation.handler import VirtualHandler
from tests.simulation.kernel import Killed, Task

#: Which task runs. Since Python 3.14 the operating system's thread knows it; before that each loop did, and 3.12 raises
#: KeyError when no task runs.
_swap_current_task: Callable[[Any, Any], Any] | None = (
    getattr(asyncio.tasks, "_swap_current_task", None) if sys.version_info >= (3, 14) else None
)


class VirtualLoop(asyncio.BaseEventLoop):
    """One simulated thread that runs coroutines. It is its own selector: there are no sockets to select."""

    def __init__(self, handler: VirtualHandler) -> None:
        super().__init__()
        self._handler = handler
        self._wake = handler.Event()
        self._selector = self
        self._thread: Task | None = None
        #: The task that has switched to another simulated thread.
        self._left: asyncio.Task[Any] | None = None

    def run(self, coroutines: list[Coroutine[Any, Any, None]]) -> list[BaseException]:
        """Run all of them to their ends, in the calling simulated thread; what they have raised."""
        self._thread = task = self._handler.kernel.current
        if task is None:
            raise RuntimeError("an event loop needs a simulated thread to run in")
        # All simulated threads are one thread, which would know one running loop only, and one running task.
        task.on_leave, task.on_return = self._leave, self._come_back
        self._come_back()
        try:
            running = [self.create_task(coroutine) for coroutine in coroutines]
            while not all(each.done() for each in running):
                self._run_once()  # type: ignore[attr-defined]
            self._end_with_process()
            return [error for each in running if not each.cancelled() and (error := each.exception()) is not None]
        finally:
            task.on_leave = task.on_return = None
            self._leave()
            self.close()
            for coroutine in coroutines:
                coroutine.close()  # of a program that was killed, some have not even begun

    def _leave(self) -> None:
        self._thread_id: int | None = None
        if _swap_current_task is not None:
            self._left = _swap_current_task(self, None)
        events._set_running_loop(None)

    def _come_back(self) -> None:
        self._thread_id = threading.get_ident()
        events._set_running_loop(self)
        if _swap_current_task is not None:
            _swap_current_task(self, self._left)

    def _end_with_process(self) -> None:
        if self._handler.process.dead:
            raise Killed  # a coroutine's task has swallowed it

    # -- what a loop asks of its system ---------------------------------------------------------------

    def time(self) -> float:
        return self._handler.now()

    def select(self, timeout: float | None) -> list[Any]:
        """Wait for ``timeout`` seconds, or until another thread has something for the loop."""
        self._end_with_process()
        if timeout is None or timeout > 0:
            self._wake.wait(timeout)
        else:
            self._handler.sleep(0)  # as a system's select does, which lets other threads run
        self._wake.clear()
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._wake.set()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Run ``func(*args)`` in a new simulated thread."""
        del executor
        future = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)

        def work() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except Exception as raised:  # noqa: BLE001 (raised where the future is awaited)
                error = raised
            if not self.is_closed():
                self.call_soon_threadsafe(settle, result, error)

        self._handler.spawn("async-wait", work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task that died is the simulation's business, not the log's."""
