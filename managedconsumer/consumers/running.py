"""One ``run()`` of a consumer: the handler in threads, greenlets or tasks, with retries, commits and a clean end."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from typing import Any, Mapping, NoReturn

from managedconsumer import errors as err
from managedconsumer.config import check_bool, check_callable, check_int, wrong_kind
from managedconsumer.consumers.reading import Reader
from managedconsumer.consumers.session import Session
from managedconsumer.consumers.signals import stop_on_signals
from managedconsumer.fetch.in_flight import RUN_OWNER
from managedconsumer.processing.values import PARTITION, TIME, RunSummary, plan_of
from managedconsumer.runtime.running.calls import Calls, StoreRules, in_time, is_coroutine_function
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.running.tasks import TaskRun
from managedconsumer.runtime.running.threads import ThreadRun
from managedconsumer.runtime.waiting import process
from managedconsumer.runtime.waiting.at_once import at_once

# How often (seconds) the progress line is written.
_PROGRESS_EVERY = 0.5
# How much longer (seconds) than its grace a run may take to end before a stop() in another thread continues without it.
_PATIENCE = 15.0


class Running:
    """One run of a consumer, from its beginning to the end of the consumer."""

    def __init__(self, session: Session, reader: Reader, rules: StoreRules, given: Mapping[str, Any]) -> None:
        """``given``: the arguments of ``ConsumerAPI.run``. Raises TypeError or ConfigurationError for bad ones."""
        plan = plan_of(*map(given.__getitem__, ("order", "max_in_flight", "batch", "retry", "rate", "idle_ms")))
        if rules.ordered and plan.order not in (PARTITION, TIME):
            raise err.ConfigurationError(f'run(order="{plan.order}"): {rules.ordered}. Use run(order="partition")')
        handler, engine = given["handler"], session.engine
        if not callable(handler):
            raise wrong_kind("handler", handler, "a function")
        if given["tracer"] is not None:
            from managedconsumer.observe.tracing import Tracing  # most runs have no spans

            tracing = Tracing(given["tracer"], session.group)
            handler = (tracing.around_async if is_coroutine_function(handler) else tracing.around)(handler)
        if check_callable("not_before", given["not_before"]) is not None:
            handler = in_time(handler, given["not_before"], engine.handler)
        self._session, self._reader, self._commits, self._engine = session, reader, rules.commits, engine
        self._grace = check_int("grace_ms", given["grace_ms"], 0, "ms") / 1000.0
        self._commit_every = check_int("commit_ms", given["commit_ms"], 1, "ms") / 1000.0
        self._signals = check_bool("signals", given["signals"])
        shown = check_bool("progress", given["progress"]) and sys.stderr.isatty()
        self._shown = engine.handler.now() if shown else None
        on_dead = check_callable("on_dead", given["on_dead"])
        deserialize = None if session.options.deserializer is None else reader.can_use
        calls = Calls(handler, on_dead, deserialize, rules.moved_on, plan.retry, engine.log_fields)
        workers = check_int("workers", given["workers"])
        self.run = Run(engine, plan, calls, 1 if plan.order == TIME else workers)
        self._reason = "stopped"
        self._ended = engine.handler.Event()
        self._owner = engine.handler.ident()
        session.require_running()

    def end_soon(self) -> None:
        """End the run, as a signal came."""
        self._reason = "signal"
        self._session.end_soon()

    def end(self, timeout: float | None) -> bool:
        """End the run for a ``stop()`` in another thread, and wait for it; False if that takes too long."""
        if self._engine.handler.ident() == self._owner:
            return False
        self._engine.life.end_soon()
        self._engine.life.tell_users()
        return bool(self._ended.wait(self._grace + _PATIENCE if timeout is None else timeout))

    def in_threads(self) -> RunSummary:
        """Run in threads or greenlets, until the run ends."""
        return at_once(self._go(ThreadRun(self.run, self._reader.decide_corrupt)))

    async def in_tasks(self) -> RunSummary:
        """Run on the current event loop, until the run ends."""
        return await self._go(TaskRun(self.run, self._reader.decide_corrupt))

    async def _go(self, driver: ThreadRun | TaskRun) -> RunSummary:
        problem: BaseException | None = None
        self._begin()
        try:
            with ExitStack() as stack:
                self._watch_signals(stack)
                driver.start()
                grace = self._grace
                try:
                    await driver.consume(self._show)
                except driver.cancelled:
                    grace = 0.0
                    raise
                finally:
                    await driver.drain(grace)
        except BaseException as error:  # noqa: BLE001 - it is raised after the last commit
            problem = error
        self._engine.life.check_process()  # a handler has forked, and this is the child: a loop is the parent's, too
        try:
            self.run.abandon()
            problem = await driver.stop(lambda: self._session.stop_now(self._engine.life.stop_timeout)) or problem
        finally:
            try:
                await driver.join()
            finally:
                self._finish()
        return self._result(problem)

    def _begin(self) -> None:
        """Take the consumer's messages from now on. Raises ConcurrentUseError during another run."""
        run, engine, session = self.run, self._engine, self._session
        with engine.lock:
            if engine.collector.in_flight.run_state is not None:
                raise err.ConcurrentUseError("run() is under way already: a consumer has one at a time")
            engine.collector.in_flight.run_state = run
            process.in_children.add(run)
            engine.delivery.inside.add(RUN_OWNER)
            engine.life.wake_consumers()  # threads that wait for a message must notice the run
        session.running = self
        if session.group is not None and self._commits:
            session.committer.follow(run, self._commit_every)

    def _watch_signals(self, stack: ExitStack) -> None:
        if self._signals:
            with suppress(err.IllegalStateError):  # signals come to the main thread only
                stack.enter_context(stop_on_signals(self))

    def _finish(self) -> None:
        """Give the consumer back. Unfinished messages stay unfinished if the stop was interrupted."""
        engine, in_flight = self._engine, self._engine.collector.in_flight
        self._session.committer.follow(None, 0.0)
        self._session.running = None
        with engine.lock:
            in_flight.run_state = None
            if RUN_OWNER in in_flight:
                in_flight.leave_behind(RUN_OWNER)
            engine.delivery.inside.discard(RUN_OWNER)
        self._ended.set()
        if self._shown is not None:
            sys.stderr.write("\n")

    def _result(self, problem: BaseException | None) -> RunSummary:
        if problem is not None and not isinstance(problem, err.ConsumerStoppedException):
            raise problem
        if self.run.failure is not None:
            self._raise(*self.run.failure)
        run, work = self.run, self.run.work
        seconds = self._engine.handler.now() - run.began
        return RunSummary(work.done, work.retried, work.dead, work.unfinished, seconds, self._reason)

    def _raise(self, message: Any, cause: BaseException) -> NoReturn:
        if message is None:
            raise cause
        place = f"{message.topic}-{message.partition_id} at offset {message.offset}"
        text = f"{place} failed for good, and the run has ended: {type(cause).__name__}: {cause}"
        raise err.MessageFailedError(text, message) from cause

    def _show(self) -> None:
        """Write the progress line, if the user wants it."""
        now = self._engine.handler.now()
        if self._shown is None or now < self._shown:
            return
        self._shown = now + _PROGRESS_EVERY
        told, seconds = self.run.health(), now - self.run.began
        oldest = told["oldest_unfinished_s"]
        line = (
            f"\r{told['done']:,} done ({told['done'] / max(seconds, 0.001):,.0f}/s), {told['in_flight']} in flight, "
            f"{told['waiting_keys']} wait for a retry, {told['dead']} dead, "
            f"oldest {0.0 if oldest is None else oldest:.1f} s  "
        )
        sys.stderr.write(line)
        sys.stderr.flush()
