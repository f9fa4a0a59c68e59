"""What both consumers offer besides messages: offsets in pykafka's and in Kafka's convention, commits, health."""

from __future__ import annotations

import logging
from typing import Any, Iterable, Literal, Mapping, NamedTuple, overload

from managedconsumer import errors as err
from managedconsumer.compat.accept import TopicChoice, accept_partition
from managedconsumer.compat.private import PykafkaNames
from managedconsumer.consumer_reading import ReadingAPI
from managedconsumer.coordinator.committing import Patience, explicit_patience
from managedconsumer.offset_convention import held_from_position, next_offset_of, target_of
from managedconsumer.runtime.committer import Committer
from managedconsumer.runtime.pending import Commit
from managedconsumer.structs import OffsetAndMetadata, OffsetResetStrategy, OffsetType, TopicPartition
from managedconsumer.subscription_state import PartitionNotAssignedError
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


class ConsumerAPI(ReadingAPI, PykafkaNames):
    """Methods common to SimpleConsumer and ManagedBalancedConsumer. Thread-safe unless a method says otherwise."""

    _committer: Committer
    _choice: TopicChoice
    _group: str | None
    _last_held: dict[Any, int] | None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises TypeError: a consumer cannot be copied or pickled."""
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it owns sockets and threads. Make it where it is "
            "used (multiprocessing: in the target function; Spark: inside the function that runs on the worker)"
        )

    # -- keys and partitions --------------------------------------------------------------------------

    def _key(self, tp: TopicPartition) -> Any:
        """Dicts are keyed by partition id with one topic (pykafka), by TopicPartition with several."""
        return tp.partition if self._choice.single else tp

    def _shown(self, tp: TopicPartition) -> str:
        return str(tp.partition) if self._choice.single else f"{tp.topic}-{tp.partition}"

    def _accept(self, partition: Any) -> TopicPartition:
        return accept_partition(partition, self._choice.names)

    def _assigned(self) -> list[TopicPartition]:
        with self._engine.lock:
            return sorted(self._engine.subscription.assignment)

    @property
    def partitions(self) -> dict[Any, Any]:
        """The assigned partitions: ``{id: Partition}`` (``{TopicPartition: Partition}`` with several topics)."""
        with self._engine.lock:
            return {self._key(tp): queue.context.partition for tp, queue in sorted(self._engine.buffer.queues.items())}

    @property
    def held_offsets(self) -> dict[Any, int] | None:
        """The offset *last consumed* of each partition, -2 where nothing was; readable after ``stop()`` too."""
        with self._engine.lock:
            if self._engine.closing and self._last_held is not None:
                return dict(self._last_held)
            return self._held(self._assigned())

    def _held(self, tps: Iterable[TopicPartition]) -> dict[Any, int]:
        return {self._key(tp): held_from_position(self._engine.position(tp)) for tp in tps}

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
        if self._group is None:
            raise err.IllegalStateError("consumer_group is not set: there is no group to commit offsets to")
        self._require_running()
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
        if partition_offsets is None:
            offsets = None
        else:
            pairs = self._pairs("commit_offsets", partition_offsets)
            offsets = {tp: next_offset_of(value, f"commit_offsets, {tp.topic}-{tp.partition}") for tp, value in pairs}
        options = self._options
        patience = explicit_patience(options.offsets_commit_max_retries, options.offsets_channel_backoff_ms)
        commit = self._commit(offsets, patience, wait)
        if not wait:
            return commit
        if not commit.wait(_STOP_PATIENCE):  # a stop is wanted that follows when a callback has come back
            self._committer.end_wait(commit)
        commit.result()
        return None

    def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, patience: Patience, wait: bool
    ) -> Commit:
        """A ``stop()`` in a signal handler that interrupts this is carried out when no lock is held any more."""
        engine, committer = self._engine, self._committer
        who = engine.handler.ident()
        outermost = who not in engine.inside
        engine.inside.add(who)
        try:
            patience = committer.within_stop(patience)
            commit = committer.submit(offsets, patience)
            if wait:
                committer.wait_for(commit, patience)
            return commit
        finally:
            if outermost:
                engine.inside.discard(who)
                if engine.stop_wanted:
                    self._stop_now(engine.stop_timeout)

    def _pairs(self, what: str, partition_offsets: Any) -> list[tuple[TopicPartition, Any]]:
        items = partition_offsets.items() if isinstance(partition_offsets, Mapping) else partition_offsets
        try:
            pairs = [(partition, value) for partition, value in items]
        except (TypeError, ValueError):
            raise TypeError(
                f"{what}: {partition_offsets!r} is neither a list of (partition, offset) nor a dict of them"
            ) from None
        accepted = [(self._accept(partition), value) for partition, value in pairs]
        self._require_held(tp for tp, _ in accepted)
        return accepted

    def _require_held(self, tps: Iterable[TopicPartition]) -> None:
        held = self._assigned()
        for tp in tps:
            if tp not in held:
                mine = ", ".join(f"{topic}-{number}" for topic, number in held[:20]) or "none"
                raise PartitionNotAssignedError(
                    f"partition {tp.partition} of topic {tp.topic!r} is not held by this consumer, which holds {mine}"
                    f"{', ...' if len(held) > 20 else ''}"
                )

    def _require_running(self) -> None:
        self._engine.check_process()
        if self._engine.error is not None:
            raise self._engine.error
        if self._engine.closing:
            raise self._engine.not_running()

    def fetch_offsets(self) -> list[tuple[Any, OffsetFetchPartitionResponse]]:
        """The group's committed (*next*) offsets; with ``reset_offset_on_fetch`` they become the positions too."""
        self._require_running()
        tps = self._assigned()
        found = self._engine.offsets.committed(tps, _PATIENCE, lambda: self._engine.closing)
        if self._options.reset_offset_on_fetch:
            positions = {tp: entry.offset for tp, entry in found.items() if entry.offset >= 0}
            if self._options.auto_offset_reset != "none":
                policy = self._default_reset()
                positions |= self._look_up({tp: policy for tp, entry in found.items() if entry.offset < 0})
            self._engine.seek(positions)
        return [
            (self._key(tp), OffsetFetchPartitionResponse(e.offset, e.metadata.encode(), e.error_code))
            for tp, e in sorted(found.items())
        ]

    def _default_reset(self) -> int:
        return OffsetType.LATEST if self._options.auto_offset_reset == "latest" else OffsetType.EARLIEST

    # -- positions ------------------------------------------------------------------------------------

    def reset_offsets(self, partition_offsets: Any = None) -> None:
        """Move positions: ``[(partition, last consumed), ...]`` or a dict, with -2, -1 or a datetime for look-ups.

        ``None``: every partition to ``auto_offset_reset``. A datetime gives the first message at or after it, the end
        if there is none. Nothing is committed by it. Raises what a look-up raises; then no position has changed.
        """
        self._require_running()
        if partition_offsets is None:
            if self._options.auto_offset_reset == "none":
                raise err.IllegalStateError("auto_offset_reset is 'none': tell reset_offsets() where to go on")
            pairs: list[tuple[TopicPartition, Any]] = [(tp, self._default_reset()) for tp in self._assigned()]
        else:
            pairs = self._pairs("reset_offsets", partition_offsets)
        self._apply_targets({tp: target_of(v, f"reset_offsets, {tp.topic}-{tp.partition}") for tp, v in pairs})

    def _raise_later(self, error: BaseException) -> None:
        """Raise ``error`` once, from the next call that consumes."""
        self._engine.raise_later(error)

    def _apply_targets(self, wanted: Mapping[Any, tuple[str, int]]) -> None:
        """Move positions to what :func:`~managedconsumer.offset_convention.target_of` made of the user's values."""
        targets = {self._accept(key): target for key, target in wanted.items()}
        self._require_held(targets)
        seeks = {tp: number for tp, (kind, number) in targets.items() if kind == "seek"}
        lookups = {tp: number for tp, (kind, number) in targets.items() if kind == "lookup"}
        seeks.update(self._look_up(lookups))
        self._engine.seek(seeks)

    def _look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        engine = self._engine
        answers = engine.offsets.list_offsets(wanted, _PATIENCE, lambda: engine.closing)
        beyond = [tp for tp, a in answers.items() if a.error is None and a.offset < 0]
        if beyond:  # a time after the last message: the end of the log
            latest = {tp: int(OffsetType.LATEST) for tp in beyond}
            answers.update(engine.offsets.list_offsets(latest, _PATIENCE, lambda: engine.closing))
        for tp, answer in answers.items():
            if answer.error is not None:
                raise answer.error
            if answer.offset < 0:
                raise err.OffsetRequestFailedError(f"{tp.topic}-{tp.partition}: the broker knows no offset")
        return {tp: answer.offset for tp, answer in answers.items()}

    def seek(self, partition: Any, next_offset: int) -> None:
        """Read on from ``next_offset`` (Kafka's convention). Raises for a partition that is not held."""
        self._require_running()
        tp = self._accept(partition)
        self._require_held([tp])
        self._engine.seek({tp: next_offset})

    def position(self, partition: Any) -> int:
        """The *next* offset that will be handed out; looks it up if it is not known yet (blocks)."""
        self._require_running()
        tp = self._accept(partition)
        self._require_held([tp])
        position = self._engine.position(tp)
        if position is None:
            self._engine.positions.resolve(_PATIENCE)
            position = self._engine.position(tp)
        if position is None:
            queue = self._engine.buffer.queues.get(tp)
            if queue is not None and queue.undecided is not None:
                raise queue.undecided
            raise err.OffsetRequestFailedError(f"{tp.topic}-{tp.partition}: no position yet: {self._engine.trouble}")
        return position

    def committed(self, partition: Any) -> int | None:
        """The group's committed *next* offset of a partition, None if there is none (asks the coordinator)."""
        self._require_running()
        tp = self._accept(partition)
        there = self._engine.cluster.snapshot.partitions_for_topic(tp.topic)
        if there is not None and tp.partition not in there:
            raise err.KafkaException(
                f"unknown partition {tp.partition}: topic {tp.topic!r} has {len(there)} partitions"
            )
        found = self._engine.offsets.committed([tp], _PATIENCE, lambda: self._engine.closing)
        offset = found[tp].offset if tp in found else -1
        return None if offset < 0 else offset

    def pause(self, *partitions: Any) -> None:
        """Stop fetching and handing out partitions (none named: all); positions stay."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: Any) -> None:
        """Undo :meth:`pause`."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: tuple[Any, ...], paused: bool) -> None:
        self._require_running()
        tps = [self._accept(p) for p in partitions] if partitions else self._assigned()
        self._require_held(tps)
        self._engine.set_paused(tps, paused)

    def lag(self) -> dict[Any, int]:
        """Messages between each partition's position and the end of its log (asks the brokers).

        A partition whose position cannot be told yet (a rebalance is under way) is left out.
        """
        self._require_running()
        engine = self._engine
        tps = self._assigned()
        ends = engine.offsets.list_offsets(dict.fromkeys(tps, OffsetResetStrategy.LATEST), _PATIENCE)
        engine.positions.resolve(_PATIENCE)
        lags = {}
        for tp, end in ends.items():
            if end.error is not None:
                raise end.error
            with engine.lock:
                position = engine.position(tp) if engine.subscription.is_assigned(tp) else None
            if position is not None:
                lags[self._key(tp)] = max(0, end.offset - position)
        return lags

    def health(self) -> dict[str, Any]:
        """What an operator wants to know, as plain values; never blocks on a broker.

        ``partitions`` gives the *next* offset (None: not known yet) by partition: the key is the partition's number as
        a str (``"0"``), with several topics ``"<topic>-<number>"``, so that all of it can be written as JSON.
        ``implementation`` is ``"cython"`` (the accelerator) or ``"python"`` (its slower twin).
        """
        engine = self._engine
        with engine.lock:
            return {
                "running": not engine.closing and engine.error is None,
                "error": str(engine.error or engine.undecided() or "") or None,
                "trouble": engine.trouble,
                "partitions": {self._shown(tp): engine.position(tp) for tp in self._assigned()},
                "queued_messages": engine.buffer.records,
                "queued_bytes": engine.buffer.nbytes,
                "fetchers": engine.fetchers.alive(),
                "handed_out": engine.dispenser.handed_out,
                "implementation": __impl__,
            }
