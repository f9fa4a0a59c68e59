"""How a consumer ends: by ``stop()`` from anywhere, in a signal handler, by the end of a ``with``, after a fork."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TypeVar

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.config import check_bool
from managedconsumer.consumers.session import Session
from managedconsumer.runtime.waiting.reentry import in_our_work

log = logging.getLogger(__name__)

Me = TypeVar("Me", bound="LifeAPI")

# How long (seconds) a stop that was asked for in the middle of a call waits for the consuming thread to carry it out.
_PATIENCE = 1.0


class LifeAPI:
    """Start, stop and what is built on them. Thread-safe."""

    def __init__(self, session: Session) -> None:
        """``session``: all that this consumer owns."""
        super().__init__()
        self._session = session

    def start(self) -> None:
        """Start this consumer."""
        raise NotImplementedError

    def _stop_now(self, timeout: float | None) -> None:
        """Stop, and wait for it."""
        raise NotImplementedError

    def stop(self, timeout: float | None = None, *, leave: bool | None = None) -> None:
        """Stop: commit what is finished (``auto_commit_enable``), leave the group, end the workers, close the sockets.

        ``leave`` (KIP-1092): None: a static member (``group_instance_id``) keeps its place in the group until its
        session is over, others leave. True: a static member leaves, too. False: nobody leaves.

        Idempotent, from any thread and from a signal handler; raises nothing but TypeError for a ``leave`` that is none
        of these. ``timeout`` in seconds (default 5). A call
        that interrupts another call of the consumer (in a signal handler, a callback, a ``__del__``) returns at once:
        the next ``consume()`` then stops and raises ConsumerStoppedException; if none comes within a second, a worker
        stops. In a child of the process that made the consumer it does nothing.
        """
        engine = self._session.engine
        if not engine.life.in_own_process():
            return  # the locks and sockets are the parent's
        if leave is not None:
            self._session.leaving = check_bool("leave", leave)
        # Whatever is interrupted may hold a lock, and goes on only when this has returned.
        if engine.handler.ident() in engine.delivery.inside or not engine.handler.may_wait() or in_our_work():
            self._stop_soon(timeout)
        elif self._session.running is None or not self._session.running.end(timeout):
            self._stop_now(timeout)

    def close(self, timeout: float | None = None, *, leave: bool | None = None) -> None:
        """The same as :meth:`stop`."""
        self.stop(timeout, leave=leave)

    def _stop_soon(self, timeout: float | None) -> None:
        """Without a lock and without waiting: the thread that consumes stops, as it may end the program right after.

        If none comes in time, a worker does it.
        """
        engine = self._session.engine
        if not engine.life.closed:
            engine.life.want_stop(timeout)
            engine.handler.spawn("stopper", self._stop_if_nobody_does, timeout)

    def _stop_if_nobody_does(self, timeout: float | None) -> None:
        engine = self._session.engine
        now = engine.handler.now
        engine.life.tell_users()
        deadline = Deadline(now(), _PATIENCE)
        while not engine.life.closed and not deadline.expired(now()):
            engine.handler.sleep(0.01)
            if engine.delivery.inside:  # it is still in the call that will stop, perhaps in a callback
                deadline = Deadline(now(), _PATIENCE)
        self._stop_now(timeout)

    def _finish_stop(self) -> None:
        """A signal handler or a callback asked for a stop while this thread was consuming: do it now."""
        if self._session.engine.life.stop_wanted:
            self._stop_now(self._session.engine.life.stop_timeout)
            raise err.ConsumerStoppedException("the consumer was stopped")

    def end_soon(self) -> None:
        """No more messages: calls that consume finish what their thread has in hand, and give None or end.

        For signal handlers (:func:`managedconsumer.stop_on_signals` calls it): it takes no lock and does not wait. The
        consumer stays in its group until :meth:`stop`; :meth:`start` after that makes it consume again. A
        :meth:`start` that goes on returns soon, with what it has by then.
        """
        engine = self._session.engine
        if engine.life.in_own_process() and not engine.life.no_more:
            engine.life.end_soon()
            # Waking the threads takes a lock, which the interrupted thread may hold.
            engine.handler.spawn("waker", engine.life.tell_users)

    def _stop_at_exit(self) -> None:
        """A signal handler called ``stop()`` and ``sys.exit()``: nobody comes back to stop."""
        if self._session.engine.life.stop_wanted:
            self._stop_now(self._session.engine.life.stop_timeout)

    # -- with -----------------------------------------------------------------------------------------

    def __enter__(self: Me) -> Me:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Without an exception, what the calling thread has in hand is finished."""
        self._leave_block(kind)
        self.stop()

    async def __aenter__(self: Me) -> Me:
        import asyncio  # not at the top: it takes a third of the time that importing all of this takes

        await asyncio.get_running_loop().run_in_executor(None, self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        self._leave_block(kind)
        await asyncio.to_thread(self.stop)

    def _leave_block(self, kind: type[BaseException] | None) -> None:
        if kind is None and self._session.engine.life.in_own_process():
            self._session.engine.delivery.come_back(self._session.engine.delivery.caller())
