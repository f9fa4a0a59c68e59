"""``run()``: the handler in threads, greenlets or tasks, with retries, commits and a clean end."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Literal, NoReturn

from managedconsumer import errors as err
from managedconsumer.config import check_bool, check_callable, check_choice, check_int, wrong_kind
from managedconsumer.consumers.reading import ReadingAPI
from managedconsumer.consumers.session import Session
from managedconsumer.consumers.signals import stop_on_signals
from managedconsumer.processing.values import PARTITION, Plan, Retry, RunSummary, plan_of
from managedconsumer.runtime.running.calls import Calls, MovedOn
from managedconsumer.runtime.running.keeping import keep, let_go
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.running.tasks import TaskRun
from managedconsumer.runtime.running.threads import ThreadRun
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import Message

if TYPE_CHECKING:
    from managedconsumer.observe.tracing import Tracing

_KINDS = ("threads", "greenlets", "asyncio")
# How often (seconds) the progress line is written.
_PROGRESS_EVERY = 0.5
# How much longer (seconds) than its grace a run may take to end before a stop() in another thread goes on without it.
_PATIENCE = 15.0


class _Times(NamedTuple):
    """Both in seconds: how long what runs may take at the end, and how often it is committed."""

    grace: float
    commit: float


def _times(grace_ms: Any, commit_ms: Any) -> _Times:
    return _Times(
        check_int("grace_ms", grace_ms, 0, "ms") / 1000.0, check_int("commit_ms", commit_ms, 1, "ms") / 1000.0
    )


class _Parts(NamedTuple):
    """The parts of a consumer that a run needs."""

    session: Session
    end_soon: Callable[[], None]
    #: Stops the consumer within so many seconds, and does not look whether a run goes on.
    stop_now: Callable[[float | None], Any]
    #: Raises for a batch that cannot be read, unless the user wants it skipped.
    decide_corrupt: Callable[[err.CorruptRecordError], None]
    #: See :class:`~managedconsumer.runtime.running.calls.Calls`.
    deserialize: Callable[[Message], bool] | None
    moved_on: MovedOn | None
    #: False if something else commits what is finished.
    commits: bool


class RunningAPI(ReadingAPI):
    """The part of a consumer that runs a handler. One run at a time."""

    _ordered = ""
    _moved_on: MovedOn | None = None
    _commits = True

    def keep_order(self, why: str, moved_on: MovedOn | None = None, *, commits: bool = True) -> None:
        """From here on :meth:`run` takes ``order="partition"`` alone; ``why`` is what it says where it refuses another.

        ``moved_on(error, messages)`` is asked, in a worker's thread, about what a handler has raised: True if it means
        that the group has given the messages to others (or is about to). Then the failure does not count.
        ``commits=False``: :meth:`run` commits nothing, as the store commits the group's offsets; raises
        ConfigurationError for a consumer with ``auto_commit_enable``, whose late commit could take them back.
        Stores call this when they are attached, as they keep one next offset for each partition. Call it before
        ``run()``. Thread-safe.
        """
        if not commits and self._session.options.auto_commit_enable:
            raise err.ConfigurationError(
                "auto_commit_enable=True: the store commits the group's offsets, and an automatic commit that is late "
                "would take them back. Leave auto_commit_enable off"
            )
        self._ordered, self._moved_on, self._commits = why, moved_on, commits

    def run(
        self,
        handler: Callable[[Any], Any],
        *,
        workers: int = 8,
        order: Literal["key", "partition", "none"] = "key",
        batch: tuple[int, int] | None = None,
        on: Literal["threads", "greenlets", "asyncio"] = "threads",
        retry: Retry | None = None,
        on_dead: Callable[[Message, BaseException], Any] | None = None,
        max_in_flight: int = 1000,
        grace_ms: int = 10000,
        commit_ms: int = 1000,
        signals: bool = True,
        progress: bool = False,
        tracer: Any = None,
    ) -> RunSummary:
        """Call ``handler(message)`` for every message, in ``workers`` threads or greenlets, until an end is wanted.

        A message is processed when its handler has returned. What is processed is committed every ``commit_ms`` (also
        with ``auto_commit_enable``), before partitions are given up, and at the end; what was finished out of order is
        remembered beside the commit, so nobody works on it again.

        ``order``: ``"key"`` (messages of one key one after the other; those without a key in any order),
        ``"partition"`` or ``"none"``. ``batch=(max_messages, max_ms)``: ``handler(list)``, of one key or partition
        where the order asks for it. ``on``: ``"threads"``; with ``use_greenlets`` greenlets run, whatever is said here;
        ``"asyncio"`` runs :meth:`run_async` in a new event loop. ``retry``: a :class:`~managedconsumer.Retry`; without
        one the first failure is the last. ``on_dead(message, error)`` takes messages that failed for good. At most
        ``max_in_flight`` messages are in hand. ``progress``: write a line to stderr if that is a terminal. ``tracer``:
        an OpenTelemetry ``Tracer`` that gets a span for each call of the handler
        (:func:`managedconsumer.observe.process_span`).

        It ends with ``stop()`` or ``end_soon()``, and with SIGTERM and SIGINT (``signals``, in the main thread): what
        runs has ``grace_ms`` to finish, that is committed, and the consumer stops. Returns what was done.

        Raises MessageFailedError for the first message that fails for good without ``on_dead``, what ``on_dead``
        raises, and what ends a consumer; TypeError when the handler or ``on_dead`` returns an awaitable or a generator,
        which nobody awaits here. ConcurrentUseError if the consumer runs a handler already, TypeError or
        ConfigurationError for bad arguments. While it goes on, ``consume()`` and iteration raise ConcurrentUseError.
        """
        if check_choice("on", on, _KINDS) == "asyncio":
            import asyncio

            return asyncio.run(
                self.run_async(
                    handler,
                    workers=workers,
                    order=order,
                    batch=batch,
                    retry=retry,
                    on_dead=on_dead,
                    max_in_flight=max_in_flight,
                    grace_ms=grace_ms,
                    commit_ms=commit_ms,
                    signals=signals,
                    progress=progress,
                    tracer=tracer,
                )
            )
        if _is_coroutine_function(handler):
            raise err.ConfigurationError("handler is a coroutine function: await run_async(handler), or on='asyncio'")
        if on == "greenlets" and self._session.engine.handler.native:
            raise err.ConfigurationError("on='greenlets' needs a consumer made with use_greenlets=True")
        plan = self._plan(plan_of(order, max_in_flight, batch, retry))
        if tracer is not None and callable(handler):
            handler = self._tracing(tracer).around(handler)
        times = _times(grace_ms, commit_ms)
        return _Running(self._parts(), plan, handler, on_dead, workers, times, signals, progress).in_threads()

    async def run_async(
        self,
        handler: Callable[[Any], Awaitable[Any]],
        *,
        workers: int = 8,
        order: Literal["key", "partition", "none"] = "key",
        batch: tuple[int, int] | None = None,
        retry: Retry | None = None,
        on_dead: Callable[[Message, BaseException], Any] | None = None,
        max_in_flight: int = 1000,
        grace_ms: int = 10000,
        commit_ms: int = 1000,
        signals: bool = True,
        progress: bool = False,
        tracer: Any = None,
    ) -> RunSummary:
        """:meth:`run` on the event loop that runs: up to ``workers`` calls of the coroutine ``handler`` at a time.

        ``on_dead`` may be a coroutine function. A task that is cancelled ends the run without its grace: what runs is
        cancelled, what is finished is committed. A CancelledError of something that the handler waits for is a failure
        of the message.
        """
        if not _is_coroutine_function(handler):
            raise wrong_kind("handler", handler, "a coroutine function")
        plan = self._plan(plan_of(order, max_in_flight, batch, retry))
        if tracer is not None:
            handler = self._tracing(tracer).around_async(handler)
        times = _times(grace_ms, commit_ms)
        return await _Running(self._parts(), plan, handler, on_dead, workers, times, signals, progress).in_tasks()

    def _tracing(self, tracer: Any) -> Tracing:
        from managedconsumer.observe.tracing import Tracing  # most runs have no spans

        return Tracing(tracer, self._session.group)

    def _plan(self, plan: Plan) -> Plan:
        if self._ordered and plan.order != PARTITION:
            raise err.ConfigurationError(f'run(order="{plan.order}"): {self._ordered}. Use run(order="partition")')
        return plan

    def _parts(self) -> _Parts:
        deserialize = None if self._session.options.deserializer is None else self._can_use
        decide = self._decide_corrupt
        return _Parts(self._session, self.end_soon, self._stop_now, decide, deserialize, self._moved_on, self._commits)

    def _can_use(self, message: Message) -> bool:
        """Apply the deserializer; False: the user wants the message skipped. What it raises is the handler's error."""
        deserializer = self._session.options.deserializer
        if deserializer is None:
            return True
        try:
            message.value, message.partition_key = deserializer(message.value, message.partition_key)
        except Exception as error:
            if self._decide(error, message) == "skip":
                return False
            raise
        return True


def _is_coroutine_function(handler: Any) -> bool:
    from inspect import iscoroutinefunction  # here, as importing it takes long

    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


class _Running:
    """One run of a consumer, from its beginning to the end of the consumer."""

    def __init__(
        self,
        consumer: _Parts,
        plan: Any,
        handler: Any,
        on_dead: Any,
        workers: Any,
        times: _Times,
        signals: Any,
        progress: Any,
    ) -> None:
        if not callable(handler):
            raise wrong_kind("handler", handler, "a function")
        self._consumer = consumer
        self._session = session = consumer.session
        self._engine = session.engine
        self._grace, self._commit_every = times
        self._signals = check_bool("signals", signals)
        shown = check_bool("progress", progress) and sys.stderr.isatty()
        self._shown = self._engine.handler.now() if shown else None
        on_dead = check_callable("on_dead", on_dead)
        fields = self._engine.log_fields
        calls = Calls(handler, on_dead, consumer.deserialize, consumer.moved_on, plan.retry, fields)
        self._run = Run(self._engine, plan, calls, check_int("workers", workers))
        self._reason = "stopped"
        self._ended = self._engine.handler.Event()
        self._owner = self._engine.handler.ident()
        session.require_running()

    # -- what others ask --------------------------------------------------------------------------------

    def end_soon(self) -> None:
        """A signal came."""
        self._reason = "signal"
        self._consumer.end_soon()

    def end(self, timeout: float | None) -> bool:
        """``stop()`` was called in another thread: end the run, which stops the consumer, and wait for that.

        False if it takes too long.
        """
        if self._engine.handler.ident() == self._owner:
            return False
        self._engine.life.end_soon()
        self._engine.life.tell_users()
        return bool(self._ended.wait(self._grace + _PATIENCE if timeout is None else timeout))

    def health(self) -> dict[str, Any]:
        """See :meth:`Run.health`."""
        return self._run.health()

    # -- the two ways -----------------------------------------------------------------------------------

    def in_threads(self) -> RunSummary:
        driver = ThreadRun(self._run, self._consumer.decide_corrupt)
        problem: BaseException | None = None
        self._begin()
        try:
            with ExitStack() as stack:
                self._watch_signals(stack)
                driver.start()
                try:
                    driver.consume(self._show)
                finally:
                    driver.drain(self._grace)
        except BaseException as error:  # noqa: BLE001 - it is raised when all is committed
            problem = error
        try:
            self._run.abandon()
            self._consumer.stop_now(self._engine.life.stop_timeout)
        finally:
            driver.join()
            self._over()
        return self._result(problem)

    async def in_tasks(self) -> RunSummary:
        import asyncio

        driver = TaskRun(self._run, self._consumer.decide_corrupt)
        problem: BaseException | None = None
        self._begin()
        try:
            with ExitStack() as stack:
                self._watch_signals(stack)
                driver.start()
                grace = self._grace
                try:
                    await driver.consume(self._show)
                except asyncio.CancelledError:
                    grace = 0.0
                    raise
                finally:
                    await driver.drain(grace)
        except BaseException as error:  # noqa: BLE001 - it is raised when all is committed
            problem = error
        self._engine.life.check_process()  # a handler has forked, and this is the child: the loop is the parent's, too
        try:
            self._run.abandon()
            problem = await self._stopped() or problem
        finally:
            try:
                await driver.join()
            finally:
                self._over()
        return self._result(problem)

    async def _stopped(self) -> BaseException | None:
        """Stop the consumer. A task that is cancelled meanwhile waits for that all the same, and gets its error back.

        Otherwise the commit at the end would go on without the run, which knows what is finished.
        """
        import asyncio

        cancelled = None
        stop = asyncio.ensure_future(asyncio.to_thread(self._consumer.stop_now, self._engine.life.stop_timeout))
        while not stop.done():
            try:
                await asyncio.shield(stop)
            except asyncio.CancelledError as error:
                cancelled = error
        stop.result()
        return cancelled

    # -- parts of both ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        keep(self._run)
        session = self._session
        session.running = self
        if session.group is not None and self._consumer.commits:
            session.committer.follow(self._run, self._commit_every)

    def _watch_signals(self, stack: ExitStack) -> None:
        if self._signals:
            with suppress(err.IllegalStateError):  # signals come to the main thread only
                stack.enter_context(stop_on_signals(self))

    def _over(self) -> None:
        self._session.committer.follow(None, 0.0)
        self._session.running = None
        let_go(self._run)
        self._ended.set()
        if self._shown is not None:
            sys.stderr.write("\n")

    def _result(self, problem: BaseException | None) -> RunSummary:
        if problem is not None and not isinstance(problem, err.ConsumerStoppedException):
            raise problem
        if self._run.failure is not None:
            self._raise(*self._run.failure)
        run, work = self._run, self._run.work
        seconds = self._engine.handler.now() - run.began
        return RunSummary(work.done, work.retried, work.dead, work.unfinished, seconds, self._reason)

    def _raise(self, message: Any, cause: BaseException) -> NoReturn:
        if message is None:
            raise cause
        place = f"{message.topic}-{message.partition_id} at offset {message.offset}"
        text = f"{place} failed for good, and the run has ended: {type(cause).__name__}: {cause}"
        raise err.MessageFailedError(text, message) from cause

    def _show(self) -> None:
        """The progress line, if it is wanted."""
        now = self._engine.handler.now()
        if self._shown is None or now < self._shown:
            return
        self._shown = now + _PROGRESS_EVERY
        told, seconds = self._run.health(), now - self._run.began
        oldest = told["oldest_unfinished_s"]
        line = (
            f"\r{told['done']:,} done ({told['done'] / max(seconds, 0.001):,.0f}/s), {told['in_flight']} in flight, "
            f"{told['waiting_keys']} wait for a retry, {told['dead']} dead, "
            f"oldest {0.0 if oldest is None else oldest:.1f} s  "
        )
        sys.stderr.write(line)
        sys.stderr.flush()
