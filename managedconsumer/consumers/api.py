"""The methods of both kinds of consumers: messages, ``run()``, offsets, commits, health, start and stop.

Offsets are in pykafka's convention (last consumed) or in Kafka's (next), as each docstring says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from managedconsumer import consumers
from managedconsumer import errors as err
from managedconsumer.compat.private import PykafkaNames
from managedconsumer.config import check_choice, check_int, wrong_kind
from managedconsumer.consumers.group_metadata import TopicIds
from managedconsumer.consumers.insight import Health, ProgressTable, page_of, stuck, unplaced
from managedconsumer.fetch.stuck import DEAD_AFTER_S, STUCK_AFTER_S
from managedconsumer.offset_convention import next_offset_of, target_of
from managedconsumer.processing.values import Retry, RunSummary
from managedconsumer.runtime.running.calls import MovedOn, StoreRules, is_coroutine_function
from managedconsumer.structs import OffsetAndMetadata, OffsetAndTimestamp, OffsetType, TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import FastPath, Message, __impl__, arrow

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Unpack

    from managedconsumer.runtime.engine.commits.pending import Commit, Pending
    from managedconsumer.runtime.waiting.handlers import Handler
    from managedconsumer.typed_columns import TypedColumns
    from managedconsumer.typed_options import ColumnFormats

Me = TypeVar("Me", bound="ConsumerAPI")

_KINDS = ("threads", "greenlets", "asyncio")
# How long (seconds) a call that needs a broker's response tries before it raises.
_PATIENCE = 30.0
# How long (seconds) a commit in a callback continues while a stop waits for the end of the callback.
_STOP_PATIENCE = 5.0


class OffsetFetchPartitionResponse(NamedTuple):
    """pykafka's result of ``fetch_offsets``: ``offset`` is the *next* offset, -1 when none is committed."""

    offset: int
    metadata: bytes
    err: int


def _seconds(timeout_ms: Any) -> float | None:
    timeout_ms = check_int("timeout_ms", timeout_ms, 0, "ms", also=(-1,))
    return None if timeout_ms < 0 else timeout_ms / 1000.0


class ConsumerAPI(FastPath, PykafkaNames):
    """Methods common to SimpleConsumer and ManagedBalancedConsumer. Thread-safe unless a method says otherwise."""

    _session: consumers.Session

    def __init__(self, session: consumers.Session) -> None:
        """``session``: everything that this consumer owns."""
        super().__init__()
        self._session = session
        self._reader = consumers.Reader(session)
        self._rules = StoreRules()
        self._own_metrics = session.pusher.share()
        # The compiled consume() calls these two where its fast path ends. They do not know this object, which may
        # therefore be collected without the garbage collector.
        self._consume_waiting = self._reader.wait  # type: ignore[method-assign]
        self._not_deserialized = self._reader.not_deserialized  # type: ignore[method-assign]
        self._applied_here = session.engine.delivery.patient(session.options.deserializer)
        self._open_lane(session.engine.collector.lane, self._applied_here)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises TypeError: a consumer cannot be copied or pickled."""
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it owns sockets and threads. Make it where it is "
            "used (multiprocessing: in the target function; Spark: inside the function that runs on the worker)"
        )

    def __repr__(self) -> str:
        session = self._session
        group = "" if session.group is None else f" (consumer_group={session.group})"
        has = ", ".join(map(session.shown, sorted(session.engine.subscription.assignment))) or "none"
        where = session.choice.pattern.pattern if session.choice.pattern else ", ".join(session.choice.names)
        what = f"{self._shown_state()}, topic {where}, partitions {has}"
        return f"<{type(self).__module__}.{type(self).__name__} at {hex(id(self))}{group} {what}>"

    def _repr_html_(self) -> str:
        return page_of(repr(self), self.health(), self.progress())

    def _shown_state(self) -> str:
        life = self._session.engine.life
        return "failed" if life.error is not None else life.state.value if life.closed else "running"

    # -- start and stop -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading. A group's member returns with its first assignment, or before it when a listener waits.

        Raises when that is not possible: no broker listens at the address, unknown topic, login refused, a group that
        refuses this member. Waits through transient trouble (brokers that restart, a coordinator that loads): a
        SimpleConsumer for 30 s, a member as long as pykafka does with the same ``rebalance_max_retries`` and
        ``rebalance_backoff_ms`` (20 s by default); then it raises it. The consumer is stopped then and may be started
        again.
        """
        self._session.start()

    def stop(self, timeout: float | None = None, *, leave: bool | None = None) -> None:
        """Stop: commit what is finished (``auto_commit_enable``), leave the group, end the workers, close the sockets.

        ``leave`` (KIP-1092): None: a static member (``group_instance_id``) keeps its place in the group until its
        session is over, others leave. True: a static member leaves, too. False: no member leaves.

        Idempotent, from any thread and from a signal handler; raises only TypeError for another ``leave``.
        ``timeout`` in seconds (default 5). A call that interrupts another call of the consumer (in a signal handler, a
        callback, a ``__del__``) returns at once: the next ``consume()`` then stops and raises
        ConsumerStoppedException; if none comes within a second, a worker stops. In a child of the process that made
        the consumer it does nothing.
        """
        self._session.stop(timeout, leave)

    def close(self, timeout: float | None = None, *, leave: bool | None = None) -> None:
        """The same as :meth:`stop`."""
        self.stop(timeout, leave=leave)

    def end_soon(self) -> None:
        """End reading: calls that consume finish their thread's messages in flight, and return None or end.

        For signal handlers (:func:`managedconsumer.stop_on_signals` calls it): it takes no lock and does not wait. The
        consumer stays in its group until :meth:`stop`; after that :meth:`start` makes it consume again. A
        :meth:`start` in progress returns soon, with the partitions that it has by then.
        """
        self._session.end_soon()

    def __enter__(self: Me) -> Me:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Without an exception, the calling thread's messages in flight are finished."""
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
        engine = self._session.engine
        if kind is None and engine.life.in_own_process():
            engine.delivery.come_back(engine.delivery.caller())

    # -- messages -------------------------------------------------------------------------------------

    def consume_batch(self, max_messages: int = 500, timeout_ms: int = 1000) -> list[Message]:
        """Return up to ``max_messages`` as soon as there is one; an empty list after ``timeout_ms`` (-1: never).

        The whole batch is in flight until the next call.
        """
        return self._reader.batch(check_int("max_messages", max_messages), _seconds(timeout_ms))

    def consume_arrow(
        self, timeout_ms: int = 1000, columns: Sequence[str] | None = None, **formats: Unpack[ColumnFormats]
    ) -> Any:
        """Return messages of one partition as a ``pyarrow.RecordBatch``; None after ``timeout_ms`` (-1: wait for ever).

        Columns and types are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
        timestampType and headers, or those named in ``columns``. The whole batch is in flight until the next call. The
        deserializer is not applied. Needs the package pyarrow (extra ``arrow``).

        ``formats``: see :class:`~managedconsumer.typed_options.ColumnFormats`. With ``value_format`` or ``key_format``
        that column is a struct of the decoded fields, and the last column is ``_error``: null, or for a record that
        cannot be decoded the reason and its bytes. While a registry does not answer, the messages wait, as they do for
        a broker; RegistryError if it refuses the login. ConfigurationError for a wrong schema. Needs the extra
        ``typed``.
        """
        timeout, names = _seconds(timeout_ms), arrow.check_columns(arrow.COLUMNS if columns is None else columns)
        typed = self._typed("consume_arrow", formats, names) if formats else None
        return self._reader.columns(names, timeout) if typed is None else self._reader.typed(typed, timeout)

    async def consume_arrow_async(
        self, timeout_ms: int = 1000, columns: Sequence[str] | None = None, **formats: Unpack[ColumnFormats]
    ) -> Any:
        """:meth:`consume_arrow` on an event loop, which it does not block; raises the same."""
        timeout, names = _seconds(timeout_ms), arrow.check_columns(arrow.COLUMNS if columns is None else columns)
        typed = None
        if formats:
            import asyncio

            typed = await asyncio.to_thread(self._typed, "consume_arrow_async", formats, names)
        return await self.__aiter__().columns(names, timeout, typed)

    def _typed(self, callee: str, formats: ColumnFormats, names: Sequence[str]) -> TypedColumns | None:
        from managedconsumer.typed_columns import typed_columns  # few have typed values

        session = self._session
        return session.engine.handler.run_blocking(typed_columns, callee, formats, session.choice.names, names)

    def __iter__(self) -> Iterator[Message]:
        """Messages until ``consume()`` returns None; may be iterated again."""
        if type(self).consume is ConsumerAPI.consume:
            lane = self._session.engine.collector.lane
            return lane.iterate(self.consume, self._applied_here, self._reader.not_deserialized)
        return iter(self.consume, None)

    def __aiter__(self) -> consumers.AsyncReader:
        """``async for message in consumer``: like iterating, without blocking the event loop."""
        return consumers.AsyncReader(self._session, self._reader, self)

    async def consume_batch_async(self, max_messages: int = 500, timeout_ms: int = 1000) -> list[Message]:
        """:meth:`consume_batch` on an event loop, which it does not block; raises the same.

        The batch is in flight for the calling task, until that calls again.
        """
        return await self.__aiter__().batch(check_int("max_messages", max_messages), _seconds(timeout_ms))

    # -- run() ----------------------------------------------------------------------------------------

    def keep_order(self, why: str, moved_on: MovedOn | None = None, *, commits: bool = True) -> None:
        """Make :meth:`run` accept ``order="partition"`` only; ``why`` is part of the error for another order.

        A worker's thread calls ``moved_on(error, messages)`` after a handler has raised: True if the group has given
        the messages to others (or is about to). Then the failure does not count.
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
        self._rules = StoreRules(why, moved_on, commits)

    def run(
        self,
        handler: Callable[[Any], Any],
        *,
        workers: int = 8,
        order: Literal["key", "partition", "none", "time"] = "key",
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
        rate: float | tuple[float, Literal["key", "partition", "all"]] | None = None,
        not_before: Callable[[Any], float | datetime | None] | None = None,
        idle_ms: int = 500,
    ) -> RunSummary:
        """Call ``handler(message)`` for every message, in ``workers`` threads or greenlets, until the end is wanted.

        A message is finished when its handler has returned. Finished messages are committed every ``commit_ms`` (also
        with ``auto_commit_enable``), before partitions are given up, and at the end; those finished out of order are
        listed in the commit's metadata, so no member processes them again.

        ``order``: ``"key"`` (messages of one key one after the other; those without a key in any order),
        ``"partition"``, ``"none"``, or ``"time"`` (all in the order of their timestamps, one at a time; a partition at
        its end holds the others up for ``idle_ms`` at most). ``batch=(max_messages, max_ms)``: ``handler(list)``, of
        one key or partition where the order needs it. ``on``: ``"threads"``; with ``use_greenlets`` the workers are
        greenlets in any case;
        ``"asyncio"`` runs :meth:`run_async` in a new event loop. ``retry``: a :class:`~managedconsumer.Retry`; without
        one the first failure is the last. ``on_dead(message, error)`` takes messages that failed for good. At most
        ``max_in_flight`` messages are in flight. ``progress``: write a line to stderr if that is a terminal.
        ``tracer``: an OpenTelemetry ``Tracer`` that gets a span for each call of the handler
        (:func:`managedconsumer.observe.process_span`). ``rate``: the most calls of the handler for messages per second,
        in all (``100``), for each key (``(10, "key")``) or for each partition. ``not_before(message)`` returns when the
        message may start (seconds since 1970, or a datetime, naive ones in UTC), or None; with ``batch`` a list waits
        for the latest of its messages. Messages that wait are in flight, hold back their key only, and are handed out
        again after a stop or a rebalance, which do not wait for them.

        It ends with ``stop()`` or ``end_soon()``, and with SIGTERM and SIGINT (``signals``, in the main thread):
        running handlers have ``grace_ms`` to finish, their messages are committed, and the consumer stops. Returns a
        summary.

        Raises MessageFailedError for the first message that fails for good without ``on_dead``, what ``on_dead``
        raises, and what ends a consumer; TypeError when the handler or ``on_dead`` returns an awaitable or a generator,
        which run() does not await. ConcurrentUseError if the consumer runs a handler already, TypeError or
        ConfigurationError for bad arguments. While it runs, ``consume()`` and iteration raise ConcurrentUseError.
        """
        given = dict(locals())
        del given["self"], given["on"]
        if check_choice("on", on, _KINDS) == "asyncio":
            import asyncio

            return asyncio.run(self.run_async(**given))
        if is_coroutine_function(handler):
            raise err.ConfigurationError("handler is a coroutine function: await run_async(handler), or on='asyncio'")
        if on == "greenlets" and self._session.engine.handler.native:
            raise err.ConfigurationError("on='greenlets' needs a consumer made with use_greenlets=True")
        return consumers.Running(self._session, self._reader, self._rules, given).in_threads()

    async def run_async(
        self,
        handler: Callable[[Any], Awaitable[Any]],
        *,
        workers: int = 8,
        order: Literal["key", "partition", "none", "time"] = "key",
        batch: tuple[int, int] | None = None,
        retry: Retry | None = None,
        on_dead: Callable[[Message, BaseException], Any] | None = None,
        max_in_flight: int = 1000,
        grace_ms: int = 10000,
        commit_ms: int = 1000,
        signals: bool = True,
        progress: bool = False,
        tracer: Any = None,
        rate: float | tuple[float, Literal["key", "partition", "all"]] | None = None,
        not_before: Callable[[Any], float | datetime | None] | None = None,
        idle_ms: int = 500,
    ) -> RunSummary:
        """:meth:`run` on the current event loop: up to ``workers`` calls of the coroutine ``handler`` at a time.

        ``on_dead`` may be a coroutine function. Cancelling the task ends the run without its grace: running handlers
        are cancelled, finished messages are committed. A CancelledError of something that the handler waits for is a
        failure of the message.
        """
        given = dict(locals())
        del given["self"]
        if not is_coroutine_function(handler):
            raise wrong_kind("handler", handler, "a coroutine function")
        return await consumers.Running(self._session, self._reader, self._rules, given).in_tasks()

    # -- what it reads --------------------------------------------------------------------------------

    @property
    def topic(self) -> Any:
        """The topic this consumer reads (a list of them, or the pattern, where it was given one)."""
        return self._session.topic

    @property
    def topic_ids(self) -> TopicIds:
        """The ids of its topics, for stores: a topic that was deleted and created again has another id."""
        return TopicIds(self._session)

    @property
    def group(self) -> str | None:
        """The group that offsets are committed to, None without one."""
        return self._session.group

    @property
    def partitions(self) -> dict[Any, Any]:
        """The assigned partitions: ``{id: Partition}`` (``{TopicPartition: Partition}`` with several topics)."""
        session = self._session
        with session.engine.lock:
            return {
                session.key(tp): queue.context.partition for tp, queue in sorted(session.engine.buffer.queues.items())
            }

    @property
    def held_offsets(self) -> dict[Any, int] | None:
        """The offset *last consumed* of each partition, -2 where there is none; readable after ``stop()`` too."""
        return self._session.held_offsets()

    def topic_partition(self, key: Any) -> TopicPartition:
        """Return the partition of a key of the offset dicts. Raises as the methods that take a partition."""
        return self._session.accept(key)

    def group_partitions(self) -> int:
        """Return the number of partitions of all its topics, as of the last metadata."""
        session = self._session
        return sum(len(session.cluster.snapshot.partitions_for_topic(name) or ()) for name in session.topic_names())

    @property
    def handler(self) -> Handler:
        """The threads or greenlets that the consumer runs on, for other work beside it."""
        return self._session.engine.handler

    # -- commits --------------------------------------------------------------------------------------

    @overload
    def commit_offsets(self, partition_offsets: Any = None, *, wait: Literal[True] = True) -> None: ...

    @overload
    def commit_offsets(self, partition_offsets: Any = None, *, wait: Literal[False]) -> Commit: ...

    def commit_offsets(self, partition_offsets: Any = None, *, wait: bool = True) -> Commit | None:
        """Commit now; return when all of it is committed, and raise when it is not. Thread-safe.

        ``None``: the delivered messages, this thread's messages in flight included. Otherwise
        ``[(partition, next), ...]`` or ``{partition: next}`` with the *next* offset of each. Waits for a coordinator
        that is away: 30 s with the default ``offsets_commit_max_retries`` and ``offsets_channel_backoff_ms``.

        Raises CommitFailedError (``retriable``: the same call may succeed later; otherwise a rebalance has revoked
        partitions, at once), the broker's typed error when it refuses, PartitionNotAssignedError for a named partition
        that is not assigned. The text says what was committed and what was not.

        ``wait=False``: do not wait, never block, and return a :class:`~managedconsumer.Commit` with the result.
        Commits happen in the order of the calls.
        """
        commit = self._begin_commit(partition_offsets, wait)
        if not wait:
            from managedconsumer.runtime.engine.commits.pending import Commit  # the consumer has loaded it

            return Commit(commit)
        self._end(commit)
        return None

    def _begin_commit(self, partition_offsets: Any, wait: bool) -> Pending:
        if self._session.group is None:
            raise err.IllegalStateError("consumer_group is not set: there is no group to commit offsets to")
        self._session.require_running()
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None
        if partition_offsets is not None:
            pairs = self._pairs("commit_offsets", partition_offsets)
            offsets = {tp: next_offset_of(value, f"commit_offsets, {tp.topic}-{tp.partition}") for tp, value in pairs}
        # A ``stop()`` in a signal handler that interrupts this is carried out when no lock is held any more.
        engine, committer = self._session.engine, self._session.committer
        who, inside = engine.handler.ident(), engine.delivery.inside
        outermost = who not in inside
        inside.add(who)
        try:
            retry_policy = committer.within_stop(self._session.retry_policy)
            commit = committer.submit(offsets, retry_policy)
            if wait:
                committer.wait_for(commit, retry_policy)
            return commit
        finally:
            if outermost:
                inside.discard(who)
                self._session.stop_if_wanted()

    def _end(self, commit: Pending) -> None:
        if not commit.wait(_STOP_PATIENCE):  # a stop is wanted, which follows after the callback
            self._session.committer.end_wait(commit)
        commit.result()

    async def commit(self, partition_offsets: Any = None) -> None:
        """:meth:`commit_offsets` on an event loop, which it does not block; raises the same.

        ``None``: the delivered messages, the calling task's messages in flight included.
        """
        import asyncio

        commit = self._begin_commit(partition_offsets, wait=False)
        await asyncio.to_thread(self._session.committer.wait_for, commit, self._session.retry_policy)
        await asyncio.to_thread(self._end, commit)

    def _pairs(self, what: str, partition_offsets: Any) -> list[tuple[TopicPartition, Any]]:
        items = partition_offsets.items() if isinstance(partition_offsets, Mapping) else partition_offsets
        try:
            pairs = [(partition, value) for partition, value in items]
        except (TypeError, ValueError):
            raise TypeError(
                f"{what}: {partition_offsets!r} is neither a list of (partition, offset) nor a dict of them"
            ) from None
        accepted = [(self._session.accept(partition), value) for partition, value in pairs]
        self._session.require_held(tp for tp, _ in accepted)
        return accepted

    # -- offsets of the group and of the logs: requests to brokers --------------------------------------

    def fetch_offsets(self) -> list[tuple[Any, OffsetFetchPartitionResponse]]:
        """Return the group's committed (*next*) offsets; with ``reset_offset_on_fetch`` they become positions too.

        Positions stay while :meth:`run` runs, which has begun the messages behind them. :meth:`seek` moves them.
        """
        session = self._session
        session.require_running()
        found = self._committed(session.assigned())
        if session.options.reset_offset_on_fetch and session.running is None:
            positions = {tp: entry.offset for tp, entry in found.items() if entry.offset >= 0}
            if session.options.auto_offset_reset != "none":
                policy = session.positioning.default_reset
                positions |= session.positioning.look_up(
                    {tp: policy for tp, entry in found.items() if entry.offset < 0}
                )
            session.engine.assignment.seek(positions)
        return [
            (session.key(tp), OffsetFetchPartitionResponse(e.offset, e.metadata.encode(), e.error_code))
            for tp, e in sorted(found.items())
        ]

    def _committed(self, tps: list[TopicPartition]) -> Mapping[TopicPartition, Any]:
        engine = self._session.engine
        return engine.offsets.committed(tps, _PATIENCE, lambda: engine.life.closed)

    def committed(self, partition: Any) -> int | None:
        """Return the group's committed *next* offset of a partition, None if there is none (asks the coordinator)."""
        session = self._session
        session.require_running()
        tp = session.accept(partition)
        there = session.cluster.snapshot.partitions_for_topic(tp.topic)
        if there is not None and tp.partition not in there:
            raise err.KafkaException(
                f"unknown partition {tp.partition}: topic {tp.topic!r} has {len(there)} partitions"
            )
        found = self._committed([tp])
        return found[tp].offset if tp in found and found[tp].offset >= 0 else None

    def lag(self) -> dict[Any, int]:
        """Return the messages between each partition's position and the end of its log (asks the brokers).

        Leaves out a partition whose position is not known yet (a rebalance is in progress).
        """
        session, engine = self._session, self._session.engine
        session.require_running()
        ends = engine.offsets.list_offsets(dict.fromkeys(session.assigned(), OffsetType.LATEST), _PATIENCE)
        engine.positions.resolve(_PATIENCE)
        lags = {}
        for tp, end in ends.items():
            if end.error is not None:
                raise end.error
            with engine.lock:
                position = engine.assignment.position(tp) if engine.subscription.is_assigned(tp) else None
            if position is not None:
                lags[session.key(tp)] = max(0, end.offset - position)
        return lags

    def beginning_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        """Return the first offset of each partition's log; kafka-python's name. Asks the brokers, for 30 s at most.

        ``partitions``: any of the topics that this consumer reads, assigned or not. Keyed as the offset dicts.
        """
        return self._ends(partitions, OffsetType.EARLIEST)

    def end_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        """As :meth:`beginning_offsets`, each log's end; with "read_committed" its first open transaction."""
        return self._ends(partitions, OffsetType.LATEST)

    def _ends(self, partitions: Iterable[Any], which: int) -> dict[Any, int]:
        session = self._session
        session.require_running()
        found = session.positioning.look_up({session.accept(each): which for each in partitions})
        return {session.key(tp): offset for tp, offset in found.items()}

    def offsets_for_times(self, timestamps: Mapping[Any, int]) -> dict[Any, OffsetAndTimestamp | None]:
        """Return the first message at or after each time (ms since 1970) by partition, None where there is none.

        kafka-python's call; keyed as the offset dicts. To read from there: ``seek(partition, found.offset)``.
        """
        session = self._session
        session.require_running()
        asked = {session.accept(key): check_int("timestamps", ms, 0, "ms") for key, ms in timestamps.items()}
        answers = session.engine.offsets.list_offsets(asked, _PATIENCE, lambda: session.engine.life.closed)
        found: dict[Any, OffsetAndTimestamp | None] = {}
        for tp, answer in answers.items():
            if answer.error is not None:
                raise answer.error
            there = OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
            found[session.key(tp)] = None if answer.offset < 0 else there
        return found

    # -- positions ------------------------------------------------------------------------------------

    def reset_offsets(self, partition_offsets: Any = None) -> None:
        """Move positions: ``[(partition, last consumed), ...]`` or a dict; "earliest" (-2), "latest" (-1) and datetimes
        are looked up.

        ``None``: every partition to ``auto_offset_reset``. A datetime means the first message at or after it, the end
        if there is none. It commits nothing. Raises what a look-up raises; then no position has changed.
        """
        session = self._session
        session.require_running()
        if partition_offsets is None:
            if session.options.auto_offset_reset == "none":
                raise err.IllegalStateError("auto_offset_reset is 'none': tell reset_offsets() where to go on")
            pairs: list[tuple[TopicPartition, Any]] = [
                (tp, session.positioning.default_reset) for tp in session.assigned()
            ]
        else:
            pairs = self._pairs("reset_offsets", partition_offsets)
        session.move({tp: target_of(v, f"reset_offsets, {tp.topic}-{tp.partition}") for tp, v in pairs})

    def _held(self, partition: Any) -> TopicPartition:
        """Return the assigned partition that the user means; raises unless the consumer runs."""
        self._session.require_running()
        tp = self._session.accept(partition)
        self._session.require_held([tp])
        return tp

    def seek(self, partition: Any, next_offset: int) -> None:
        """Read on from ``next_offset`` (Kafka's convention). Raises for a partition that is not assigned."""
        self._session.engine.assignment.seek({self._held(partition): next_offset})

    def position(self, partition: Any) -> int:
        """Return the *next* offset to deliver; looks it up if it is not known yet (blocks)."""
        tp, engine = self._held(partition), self._session.engine
        position = engine.assignment.position(tp)
        if position is None:
            engine.positions.resolve(_PATIENCE)
            position = engine.assignment.position(tp)
        if position is None:
            queue = engine.buffer.queues.get(tp)
            if queue is not None and queue.undecided is not None:
                raise queue.undecided
            raise err.OffsetRequestFailedError(f"{tp.topic}-{tp.partition}: no position yet: {engine.troubles.text}")
        return position

    def pause(self, *partitions: Any) -> None:
        """Stop to fetch and deliver partitions (none named: all); positions stay."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: Any) -> None:
        """Undo :meth:`pause`."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: tuple[Any, ...], paused: bool) -> None:
        session = self._session
        session.require_running()
        tps = [session.accept(p) for p in partitions] if partitions else session.assigned()
        session.require_held(tps)
        session.engine.set_paused(tps, paused)

    # -- reports --------------------------------------------------------------------------------------

    def progress(self) -> ProgressTable:
        """Return how far each partition is, keyed as the offset dicts. Sends no request, never blocks; thread-safe.

        Ends and timestamps come with the fetches. Reading the oldest message takes about 0.1 ms for each partition.
        :class:`~managedconsumer.PartitionProgress` describes the values, ``docs/howto/observability.rst`` where they
        are bounds.
        """
        session = self._session
        found = session.engine.progress_tracker.progress()
        return ProgressTable((session.key(tp), each) for tp, each in found.items())

    def health(self, *, stuck_after_s: float = STUCK_AFTER_S, dead_after_s: float = DEAD_AFTER_S) -> Health:
        """Return the state of the consumer for an operator, as plain values; never blocks on a broker.

        ``live``: the workers run, the coordinator responds, and no partition has stood still with lag for longer than
        ``dead_after_s`` seconds (at its default: nor longer than a larger ``stuck_after_s``). ``ready``: it is live,
        the member is stable, all positions are known, and no partition has stood still for longer than
        ``stuck_after_s``. ``reasons``: a sentence for each reason that makes one of the two False.
        ``partitions`` has the *next* offset (None: not known yet) by partition: the key is the partition's number as
        a str (``"0"``), with several topics ``"<topic>-<number>"``, so that all of it can be written as JSON.
        ``run`` is the state of :meth:`run` (``docs/howto/processing.rst``), None while it does not run.
        ``implementation`` is ``"cython"`` (the accelerator) or ``"python"`` (its slower twin).
        """
        session, engine = self._session, self._session.engine
        if dead_after_s == DEAD_AFTER_S:  # not dead before a stuck partition may be reported
            dead_after_s = max(dead_after_s, stuck_after_s)
        ill, unready = self._reasons(stuck_after_s, dead_after_s)
        with engine.lock:
            error = engine.life.error or engine.assignment.open_question()
            known = {
                "running": not engine.life.closed and engine.life.error is None,
                "error": str(error or "") or None,
                "trouble": engine.troubles.text,
                "partitions": {session.shown(tp): engine.assignment.position(tp) for tp in session.assigned()},
                "queued_messages": engine.buffer.records,
                "queued_bytes": engine.buffer.nbytes,
                "fetchers": engine.fetchers.alive(),
                "handed_out": engine.collector.handed_out,
                "implementation": __impl__,
                "run": None if session.running is None else session.running.health(),
            }
        return Health(known | {"live": not ill, "ready": not ill and not unready, "reasons": ill + unready})

    def client_instance_id(self) -> str | None:
        """Return the id that the broker has given this consumer for its telemetry (KIP-714), as Kafka's tools show it.

        None: the broker takes no telemetry, has not responded yet, or ``enable_metrics_push`` is False. Never blocks.
        """
        return self._session.pusher.instance_id

    def register_metric(
        self,
        name: str,
        read: Callable[[], float],
        labels: Mapping[str, str] | None = None,
        *,
        kind: Literal["gauge", "counter"] = "gauge",
    ) -> None:
        """Push a metric of the application beside the consumer's own, if the broker asks for its name (KIP-1076).

        ``read`` returns the number; a worker calls it for each push, so it must not block. While it raises, the metric
        is left out. A "counter" only rises. The same ``name`` and ``labels`` again: the newest counts. Raises TypeError
        or ConfigurationError for a name that is not possible. Thread-safe.
        """
        self._own_metrics.register(name, read, labels, kind)

    def unregister_metric(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Push that metric no more. Does nothing if there is none. Thread-safe."""
        self._own_metrics.unregister(name, labels)

    def _reasons(self, stuck_after_s: float, dead_after_s: float) -> tuple[list[str], list[str]]:
        """Return why the consumer is not live, and why it is not ready."""
        life = self._session.engine.life
        if life.error is not None:
            return [f"the consumer has failed: {life.error}"], []
        if life.closed:
            return ["the consumer does not run"], []
        progress = self.progress()
        dead = stuck(progress, dead_after_s)
        return dead, [each for each in stuck(progress, stuck_after_s) if each not in dead] + unplaced(progress)
