"""The methods of both consumers besides messages: offsets in pykafka's and in Kafka's convention, commits, health."""

from __future__ import annotations

import logging
from typing import Any, Iterable, Literal, Mapping, overload

from managedconsumer import errors as err
from managedconsumer.compat.private import PykafkaNames
from managedconsumer.config import check_int
from managedconsumer.consumers.insight import Health, ProgressTable, page_of, stuck, unplaced
from managedconsumer.consumers.running import RunningAPI
from managedconsumer.consumers.session import Session
from managedconsumer.coordinator.committing import RetryPolicy, explicit_retry_policy
from managedconsumer.fetch.stuck import DEAD_AFTER_S, STUCK_AFTER_S
from managedconsumer.offset_convention import next_offset_of, target_of
from managedconsumer.runtime.engine.commits.pending import Commit, Pending
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import OffsetAndMetadata, OffsetAndTimestamp, OffsetType, TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import __impl__

log = logging.getLogger(__name__)

# How long (seconds) a call that needs a broker's answer tries before it raises.
_PATIENCE = 30.0
# How long (seconds) a commit goes on in a callback while a stop waits for the callback to come back.
_STOP_PATIENCE = 5.0


class OffsetFetchPartitionResponse(NamedTuple):
    """pykafka's answer of ``fetch_offsets``: ``offset`` is the *next* offset, -1 when nothing is committed."""

    offset: int
    metadata: bytes
    err: int


class ConsumerAPI(RunningAPI, PykafkaNames):
    """Methods common to SimpleConsumer and ManagedBalancedConsumer. Thread-safe unless a method says otherwise."""

    _session: Session

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
        engine = self._session.engine
        if engine.life.error is not None:
            return "failed"
        if engine.life.closed:
            return engine.life.state.value
        return "running"

    @property
    def topic(self) -> Any:
        """The topic this consumer reads (a list of them, or the pattern, where it was given one)."""
        return self._session.topic

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
        """The offset *last consumed* of each partition, -2 where nothing was; readable after ``stop()`` too."""
        return self._session.held_offsets()

    # -- commits --------------------------------------------------------------------------------------

    @overload
    def commit_offsets(self, partition_offsets: Any = None, *, wait: Literal[True] = True) -> None: ...

    @overload
    def commit_offsets(self, partition_offsets: Any = None, *, wait: Literal[False]) -> Commit: ...

    def commit_offsets(self, partition_offsets: Any = None, *, wait: bool = True) -> Commit | None:
        """Commit now; returns when all of it is committed, and raises when it is not. Thread-safe.

        ``None``: what was handed out, this thread's message in hand included. Otherwise ``[(partition, next), ...]`` or
        ``{partition: next}`` with the *next* offset of each. A coordinator that is away is waited for: 30 s with the
        default ``offsets_commit_max_retries`` and ``offsets_channel_backoff_ms``.

        Raises CommitFailedError (``retriable``: the same call may succeed later; otherwise partitions were taken away
        by a rebalance, at once), the broker's typed error when it refuses, PartitionNotAssignedError for a named
        partition that is not held. The text says what was committed and what was not.

        ``wait=False``: do not wait, never block, and return a :class:`~managedconsumer.Commit` that tells the result.
        Commits happen in the order of the calls.
        """
        commit = self._begin_commit(partition_offsets, wait)
        if not wait:
            return Commit(commit)
        self._end(commit)
        return None

    def _begin_commit(self, partition_offsets: Any, wait: bool) -> Pending:
        if self._session.group is None:
            raise err.IllegalStateError("consumer_group is not set: there is no group to commit offsets to")
        self._session.require_running()
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
        if partition_offsets is None:
            offsets = None
        else:
            pairs = self._pairs("commit_offsets", partition_offsets)
            offsets = {tp: next_offset_of(value, f"commit_offsets, {tp.topic}-{tp.partition}") for tp, value in pairs}
        return self._commit(offsets, self._retry_policy, wait)

    def _end(self, commit: Pending) -> None:
        if not commit.wait(_STOP_PATIENCE):  # a stop is wanted that follows when a callback has come back
            self._session.committer.end_wait(commit)
        commit.result()

    async def commit(self, partition_offsets: Any = None) -> None:
        """:meth:`commit_offsets` on an event loop, which goes on meanwhile; raises the same.

        ``None``: what was handed out, what the calling task has in hand included.
        """
        import asyncio

        commit = self._begin_commit(partition_offsets, wait=False)
        await asyncio.to_thread(self._session.committer.wait_for, commit, self._retry_policy)
        await asyncio.to_thread(self._end, commit)

    @property
    def _retry_policy(self) -> RetryPolicy:
        options = self._session.options
        return explicit_retry_policy(options.offsets_commit_max_retries, options.offsets_channel_backoff_ms)

    def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, retry_policy: RetryPolicy, wait: bool
    ) -> Pending:
        """A ``stop()`` in a signal handler that interrupts this is carried out when no lock is held any more."""
        engine, committer = self._session.engine, self._session.committer
        who = engine.handler.ident()
        outermost = who not in engine.delivery.inside
        engine.delivery.inside.add(who)
        try:
            retry_policy = committer.within_stop(retry_policy)
            commit = committer.submit(offsets, retry_policy)
            if wait:
                committer.wait_for(commit, retry_policy)
            return commit
        finally:
            if outermost:
                engine.delivery.inside.discard(who)
                if engine.life.stop_wanted:
                    self._stop_now(engine.life.stop_timeout)

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

    def fetch_offsets(self) -> list[tuple[Any, OffsetFetchPartitionResponse]]:
        """The group's committed (*next*) offsets; with ``reset_offset_on_fetch`` they become the positions too.

        While :meth:`run` goes on positions stay: it has begun the messages behind them. :meth:`seek` moves them.
        """
        session, engine = self._session, self._session.engine
        session.require_running()
        tps = session.assigned()
        found = engine.offsets.committed(tps, _PATIENCE, lambda: engine.life.closed)
        if session.options.reset_offset_on_fetch and session.running is None:
            positions = {tp: entry.offset for tp, entry in found.items() if entry.offset >= 0}
            if session.options.auto_offset_reset != "none":
                policy = session.positioning.default_reset
                positions |= session.positioning.look_up(
                    {tp: policy for tp, entry in found.items() if entry.offset < 0}
                )
            engine.assignment.seek(positions)
        return [
            (session.key(tp), OffsetFetchPartitionResponse(e.offset, e.metadata.encode(), e.error_code))
            for tp, e in sorted(found.items())
        ]

    # -- positions ------------------------------------------------------------------------------------

    def reset_offsets(self, partition_offsets: Any = None) -> None:
        """Move positions: ``[(partition, last consumed), ...]`` or a dict; "earliest" (-2), "latest" (-1) and datetimes
        are looked up.

        ``None``: every partition to ``auto_offset_reset``. A datetime gives the first message at or after it, the end
        if there is none. Nothing is committed by it. Raises what a look-up raises; then no position has changed.
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

    def seek(self, partition: Any, next_offset: int) -> None:
        """Read on from ``next_offset`` (Kafka's convention). Raises for a partition that is not held."""
        session = self._session
        session.require_running()
        tp = session.accept(partition)
        session.require_held([tp])
        session.engine.assignment.seek({tp: next_offset})

    def position(self, partition: Any) -> int:
        """The *next* offset that will be handed out; looks it up if it is not known yet (blocks)."""
        session, engine = self._session, self._session.engine
        session.require_running()
        tp = session.accept(partition)
        session.require_held([tp])
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

    def committed(self, partition: Any) -> int | None:
        """The group's committed *next* offset of a partition, None if there is none (asks the coordinator)."""
        session, engine = self._session, self._session.engine
        session.require_running()
        tp = session.accept(partition)
        there = engine.cluster.snapshot.partitions_for_topic(tp.topic)
        if there is not None and tp.partition not in there:
            raise err.KafkaException(
                f"unknown partition {tp.partition}: topic {tp.topic!r} has {len(there)} partitions"
            )
        found = engine.offsets.committed([tp], _PATIENCE, lambda: engine.life.closed)
        offset = found[tp].offset if tp in found else -1
        return None if offset < 0 else offset

    def pause(self, *partitions: Any) -> None:
        """Stop fetching and handing out partitions (none named: all); positions stay."""
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

    def lag(self) -> dict[Any, int]:
        """Messages between each partition's position and the end of its log (asks the brokers).

        A partition whose position cannot be told yet (a rebalance is under way) is left out.
        """
        session, engine = self._session, self._session.engine
        session.require_running()
        tps = session.assigned()
        ends = engine.offsets.list_offsets(dict.fromkeys(tps, OffsetType.LATEST), _PATIENCE)
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
        """The first offset of each partition's log; kafka-python's name. Asks the brokers, for 30 s at most.

        ``partitions``: any of the topics that this consumer reads, held or not. Keyed as the offset dicts.
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
        """The first message at or after each time (ms since 1970) by partition, None where there is none.

        kafka-python's call; keyed as the offset dicts. To go there: ``seek(partition, found.offset)``.
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

    def progress(self) -> ProgressTable:
        """How far each partition is, keyed as the offset dicts. Asks no broker and never blocks on one; thread-safe.

        Ends and timestamps come with the fetches. Reading the oldest message takes about 0.1 ms for each partition.
        See :class:`~managedconsumer.PartitionProgress` for what the values mean, ``docs/howto/observability.rst`` for
        where they are bounds.
        """
        session = self._session
        found = session.engine.progress_tracker.progress()
        return ProgressTable((session.key(tp), each) for tp, each in found.items())

    def topic_partition(self, key: Any) -> TopicPartition:
        """Which partition a key of the offset dicts means. Raises as the methods that take a partition."""
        return self._session.accept(key)

    def group_partitions(self) -> int:
        """How many partitions the topics have in all, as of the last metadata."""
        session = self._session
        return sum(len(session.cluster.snapshot.partitions_for_topic(name) or ()) for name in session.topic_names())

    @property
    def handler(self) -> Handler:
        """Threads or greenlets: what the consumer runs on, for what is to run beside it."""
        return self._session.engine.handler

    def health(self, *, stuck_after_s: float = STUCK_AFTER_S, dead_after_s: float = DEAD_AFTER_S) -> Health:
        """Return the state of the consumer for an operator, as plain values; never blocks on a broker.

        ``live``: the workers run, the member hears of its coordinator, and no partition has stood still with lag for
        longer than ``dead_after_s`` seconds (at its default: nor longer than a larger ``stuck_after_s``). ``ready``: it
        is live, the member is stable, all positions are known, and no partition has stood still for longer than
        ``stuck_after_s``. ``reasons``: a sentence for whatever makes one of the two False.
        ``partitions`` gives the *next* offset (None: not known yet) by partition: the key is the partition's number as
        a str (``"0"``), with several topics ``"<topic>-<number>"``, so that all of it can be written as JSON.
        ``run`` says how :meth:`run` gets on (``docs/howto/processing.rst``), None while it does not run.
        ``implementation`` is ``"cython"`` (the accelerator) or ``"python"`` (its slower twin).
        """
        session, engine = self._session, self._session.engine
        if dead_after_s == DEAD_AFTER_S:  # not dead before a stuck partition may be reported
            dead_after_s = max(dead_after_s, stuck_after_s)
        ill, unready = self._reasons(stuck_after_s, dead_after_s)
        with engine.lock:
            known = {
                "running": not engine.life.closed and engine.life.error is None,
                "error": str(engine.life.error or engine.assignment.open_question() or "") or None,
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

    def _reasons(self, stuck_after_s: float, dead_after_s: float) -> tuple[list[str], list[str]]:
        """Why the consumer is not live, and why it is not ready."""
        engine = self._session.engine
        if engine.life.error is not None:
            return [f"the consumer has failed: {engine.life.error}"], []
        if engine.life.closed:
            return ["the consumer does not run"], []
        progress = self.progress()
        dead = stuck(progress, dead_after_s)
        return dead, [each for each in stuck(progress, stuck_after_s) if each not in dead] + unplaced(progress)
