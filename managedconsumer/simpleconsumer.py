"""SimpleConsumer: reads partitions of its own choice, commits to a group if it is given one. pykafka's API.

It has no group membership; a :class:`~managedconsumer.ManagedBalancedConsumer` holds one of these and tells it which
partitions to read.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from typing import Any, Callable, Iterable

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.compat.accept import accept_cluster, accept_partition, accept_topic
from managedconsumer.compat.objects import Cluster as PublicCluster
from managedconsumer.config import ConsumerOptions, check_bool, check_group, check_names, wrong_kind
from managedconsumer.consumer_api import ConsumerAPI
from managedconsumer.fetch.epochs import checked_epochs
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.fetch.resets import OffsetAnswer
from managedconsumer.runtime import diagnose
from managedconsumer.runtime.accelerator import warn_if_missing
from managedconsumer.runtime.cluster import PASSING
from managedconsumer.runtime.committer import Committer
from managedconsumer.runtime.engine import Engine
from managedconsumer.runtime.starting import StartPatience, stopped_while_starting
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import FetchState

log = logging.getLogger(__name__)

# What stop() grants each worker to end, and the last commit to get through (seconds).
_STOP_TIMEOUT = 5.0
# How long (seconds) start() waits through trouble that passes: for brokers, and for the group's committed offsets.
_START_PATIENCE = 30.0
# How long (seconds) a rebalance that is wanted waits for leaders that have been asked where a partition starts.
_SLOWEST_LEADER = 5.0
# How long (seconds) start() waits for the leaders of a topic that is just being created.
_CREATION_PATIENCE = 3.0
_UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE = 3, 5


def abandon(there: weakref.ref[Engine]) -> None:
    """The consumer was collected without ``stop()``: let its workers end. No lock, no I/O: this runs inside the GC.

    A weak reference, because a finalizer's arguments live until it is called, and the engine leads to its consumer.
    """
    engine = there()
    if engine is not None:
        engine.abandoned = engine.closing = True


class SimpleConsumer(ConsumerAPI):
    """Reads all (or the given) partitions of a topic from one process."""

    def __init__(
        self,
        topic: Any,
        cluster: Any,
        consumer_group: Any = None,
        partitions: Iterable[Any] | None = None,
        fetch_message_max_bytes: int = 1024 * 1024,
        num_consumer_fetchers: int = 1,
        auto_commit_enable: bool = False,
        auto_commit_interval_ms: int = 60 * 1000,
        queued_max_messages: int = 2000,
        fetch_min_bytes: int = 1,
        fetch_error_backoff_ms: int = 500,
        fetch_wait_max_ms: int = 100,
        offsets_channel_backoff_ms: int = 1000,
        offsets_commit_max_retries: int = 5,
        auto_offset_reset: Any = -2,
        consumer_timeout_ms: int = -1,
        auto_start: bool = True,
        reset_offset_on_start: bool = False,
        compacted_topic: bool = False,
        generation_id: int = -1,
        consumer_id: Any = b"",
        deserializer: Any = None,
        reset_offset_on_fetch: bool = True,
        *,
        use_greenlets: bool | None = None,
        **more: Any,
    ) -> None:
        """Every option is described in ``docs/options.rst``; ``generation_id`` and ``consumer_id`` are unused.

        Raises TypeError or ConfigurationError for bad arguments; with ``auto_start`` whatever :meth:`start` raises.
        """
        check_names(type(self).__name__, more, ConsumerOptions)
        options = ConsumerOptions(
            fetch_message_max_bytes=fetch_message_max_bytes,
            num_consumer_fetchers=num_consumer_fetchers,
            auto_commit_enable=auto_commit_enable,
            auto_commit_interval_ms=auto_commit_interval_ms,
            queued_max_messages=queued_max_messages,
            fetch_min_bytes=fetch_min_bytes,
            fetch_error_backoff_ms=fetch_error_backoff_ms,
            fetch_wait_max_ms=fetch_wait_max_ms,
            offsets_channel_backoff_ms=offsets_channel_backoff_ms,
            offsets_commit_max_retries=offsets_commit_max_retries,
            auto_offset_reset=auto_offset_reset,
            consumer_timeout_ms=consumer_timeout_ms,
            reset_offset_on_start=reset_offset_on_start,
            compacted_topic=compacted_topic,
            deserializer=deserializer,
            reset_offset_on_fetch=reset_offset_on_fetch,
            **more,
        )
        self._group = check_group(consumer_group, required=False)
        if options.auto_commit_enable and self._group is None:
            raise err.ConfigurationError("auto_commit_enable=True needs a consumer_group to commit to")
        self._setup(topic, cluster, options, use_greenlets)
        self._chosen = self._choose(partitions)
        self._managed = False
        if check_bool("auto_start", auto_start):
            self.start()

    def _choose(self, partitions: Iterable[Any] | None) -> list[TopicPartition] | None:
        if partitions is None:
            return None
        if not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes):
            raise wrong_kind("partitions", partitions, "a list of Partition objects or numbers (or None: all)")
        return [accept_partition(partition, self._choice.names) for partition in partitions]

    @classmethod
    def _held_by(cls, topic: Any, cluster: Any, group: str, options: ConsumerOptions, greenlets: bool | None) -> Any:
        """One that a managed consumer owns: same machinery, but its partitions come from the group."""
        self = cls.__new__(cls)
        self._group, self._chosen, self._managed = group, None, True
        self._setup(topic, cluster, options, greenlets)
        return self

    def _setup(self, topic: Any, cluster: Any, options: ConsumerOptions, use_greenlets: bool | None) -> None:
        warn_if_missing()
        self._options = options
        self._choice = accept_topic(topic)
        self._cluster = accept_cluster(cluster, use_greenlets)
        room = self._cluster.settings.max_frame_bytes
        # An answer holds at least one batch of each partition, however large: leave room for it.
        needed = FetchLimits().max_bytes + 2 * options.fetch_message_max_bytes
        self._cluster.settings = replace(self._cluster.settings, max_frame_bytes=max(room, needed))
        self._engine = Engine(self._cluster, options, self._group)
        self._committer = Committer(self._engine)
        self._open_short_way()
        self._public_cluster = PublicCluster(self._cluster)
        self._topic_given = topic
        self._last_held: dict[Any, int] | None = None
        self._starting = False
        self._life = self._engine.handler.RLock()
        self._engine.partition_object = self._public_cluster.partition
        self._finalizer = weakref.finalize(self, abandon, weakref.ref(self._engine))
        self._finalizer.atexit = False  # the workers are needed then, for a member that leaves

    def __repr__(self) -> str:
        group = "" if self._group is None else f" (consumer_group={self._group})"
        return f"<{type(self).__module__}.{type(self).__name__} at {hex(id(self))}{group}>"

    @property
    def topic(self) -> Any:
        """The topic this consumer reads (a list of them, or the pattern, where it was given one)."""
        if self._choice.single:
            given = self._topic_given
            return given if hasattr(given, "partitions") else self._public_cluster.topic(self._choice.names[0])
        return self._choice.pattern or [self._public_cluster.topic(name) for name in self._choice.names]

    # -- lifecycle ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading. Raises when it cannot: no broker, unknown topic, login refused, no offsets to be had."""
        self._engine.check_process()
        with self._life:
            if not self._engine.closing:
                return
            self._starting = True
            try:
                patience = StartPatience(self._group or "consumer", self._cluster, _START_PATIENCE)
                self._open(patience)
                self._assign_all(patience)
            except BaseException as error:
                self._close(_STOP_TIMEOUT)
                if self._engine.stop_wanted and isinstance(error, PASSING):
                    raise stopped_while_starting() from error
                raise
            finally:
                self._starting = False
            if self._options.auto_commit_enable:
                self._committer.start()

    def _open(self, patience: StartPatience) -> None:
        """Workers up, topics known. Raises UnknownTopicOrPartition for a topic that does not exist."""
        self._engine.open()
        try:
            self._find_topics(patience)
        except BaseException:
            self._close(_STOP_TIMEOUT)
            raise

    def _find_topics(self, patience: StartPatience) -> None:
        engine, names = self._engine, self._choice.names
        now, wanted = engine.handler.now, names if self._choice.pattern is None else None
        creation = Deadline(now(), _CREATION_PATIENCE)
        while True:
            snapshot = patience.call(lambda: self._cluster.refresh(wanted), lambda: engine.stop_wanted)
            missing = [name for name in names if snapshot.partitions_for_topic(name) is None]
            codes = {snapshot.topics[name].error_code for name in missing if name in snapshot.topics}
            if codes != {_LEADER_NOT_AVAILABLE} or creation.expired(now()):
                break
            self._engine.handler.sleep(0.1)  # the topic has just been created and has no leaders yet
        for code in codes - {0, _UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE}:
            refused = [name for name in missing if snapshot.topics[name].error_code == code]
            if code == err.TopicAuthorizationFailed.ERROR_CODE:
                raise diagnose.not_authorized(
                    self._cluster.address, self._cluster.settings.security, "topic", refused[0]
                )
            raise err.error_for_code(code, f"topic {refused[0]!r} cannot be used")
        if missing:
            raise err.UnknownTopicOrPartition(
                f"topic {missing[0]!r} does not exist on {self._cluster.address}: create it, or correct its name"
            )

    def _assign_all(self, patience: StartPatience) -> None:
        engine = self._engine
        tps = self._chosen
        if tps is not None:
            self._check_chosen(tps)
        else:
            if not self._topic_names():
                raise err.UnknownTopicOrPartition(
                    f"no topic on {self._cluster.address} matches the pattern {self._choice.pattern!r}"
                )
            tps = [
                TopicPartition(name, number)
                for name in self._topic_names()
                for number in sorted(self._cluster.snapshot.partitions_for_topic(name) or ())
            ]
        new = engine.take_over(tps, retain=False, manual=True)
        late = self._find_positions(
            new,
            reset=self._options.reset_offset_on_start,
            interrupted=lambda: engine.stop_wanted,
            waiting=patience.outlasted,
        )
        if engine.stop_wanted:
            raise stopped_while_starting()
        if late and self._options.auto_offset_reset == "latest" and not engine.closing:
            tp, answer = next(iter(late.items()))
            # Found later, the end would be a later one, and what came in between would be passed over.
            raise err.OffsetRequestFailedError(
                f"{tp.topic}-{tp.partition}: where the log ends could not be asked for: {answer.error}"
            )
        engine.release(new)

    def _check_chosen(self, tps: list[TopicPartition]) -> None:
        for name, number in tps:
            there = self._cluster.snapshot.partitions_for_topic(name) or ()
            if number not in there:
                raise err.UnknownTopicOrPartition(
                    f"topic {name!r} has no partition {number}: it has {len(there)}, numbered from 0"
                )

    def _topic_names(self) -> list[str]:
        pattern = self._choice.pattern
        if pattern is None:
            return self._choice.names
        topics = self._cluster.snapshot.topics.values()
        return sorted(t.name for t in topics if pattern.match(t.name) and not t.is_internal)

    def _find_positions(
        self,
        tps: list[TopicPartition],
        *,
        reset: bool,
        patience: float = _START_PATIENCE,
        interrupted: Callable[[], bool] = lambda: False,
        waiting: Callable[[err.KafkaException], object] = lambda _problem: None,
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Positions from the group's committed offsets, or by ``auto_offset_reset`` where there are none.

        They are known when this returns, but for those whose leaders could not be asked within ``patience`` seconds:
        these are returned with what went wrong, and the position worker goes on asking. ``waiting`` is told what keeps
        the group's offsets away, after each attempt.
        """
        engine = self._engine
        committed: dict[TopicPartition, int] = {}
        positions, epochs = committed, dict[TopicPartition, int]()
        if self._group is not None and not reset and tps:
            found = engine.offsets.committed(tps, _START_PATIENCE, lambda: engine.closing or interrupted(), waiting)
            committed = {tp: entry.offset for tp, entry in found.items() if entry.offset >= 0}
            positions, epochs = self._compared(committed, {tp: entry.leader_epoch for tp, entry in found.items()})
        missing = [tp for tp in tps if tp not in committed]
        late: dict[TopicPartition, OffsetAnswer] = {}
        if self._options.auto_offset_reset != "none":
            looked_up, late = self._look_up_starts(missing, patience, interrupted)
            positions = {**positions, **looked_up}
        with engine.lock:
            if engine.closing:
                return {}
            # A seek of the user's in the meantime wins.
            unplaced = engine.subscription.partitions_in(FetchState.INITIALIZING)
            engine.seek({tp: at for tp, at in positions.items() if tp in unplaced}, epochs)
            for tp, offset in committed.items():
                if engine.subscription.is_assigned(tp):
                    engine.subscription.partition_state(tp).committed = offset
            policy = self._default_reset()
            engine.reset({tp: policy for tp in late if tp in unplaced})
            if self._options.auto_offset_reset == "none":
                engine.nothing_committed([tp for tp in missing if tp in unplaced], self._group)
        return late

    def _look_up_starts(
        self, tps: list[TopicPartition], patience: float, interrupted: Callable[[], bool]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, OffsetAnswer]]:
        """Where ``auto_offset_reset`` says that partitions start, and those whose leaders could not be asked yet.

        Raises what no later attempt can heal.
        """
        engine, began = self._engine, self._engine.handler.now()
        wanted = dict.fromkeys(tps, self._default_reset())

        def broken_off() -> bool:
            # Leaders that answer at once are heard even if the group goes on: "latest" must not be found later.
            ends = engine.closing or engine.stopping or engine.stop_wanted
            return ends or (interrupted() and engine.handler.now() > began + _SLOWEST_LEADER)

        answers = engine.offsets.list_offsets(wanted, patience, broken_off, once=interrupted)
        found, late = {}, {}
        for tp, answer in answers.items():
            if answer.error is None:
                found[tp] = max(0, answer.offset)
                log.info("%s-%d: starting at offset %d", *tp, found[tp])
            elif answer.may_change or engine.closing:
                late[tp] = answer
                if not interrupted():
                    log.warning("%s-%d: where to start is not known yet: %s", *tp, answer.error)
            else:
                raise answer.error
        return found, late

    def _compared(
        self, committed: dict[TopicPartition, int], epochs: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The positions, with their leader epochs, that the logs' present leaders agree to (KIP-320)."""
        engine = self._engine
        known, outdated = checked_epochs({tp: epochs[tp] for tp in committed}, engine.cluster.snapshot)
        positions = dict(committed)
        for tp, end in engine.offsets.epoch_ends(outdated).items():
            if end.end_offset < committed[tp]:
                gone = err.LogTruncationError(*tp, committed[tp], end.end_offset)
                if self._options.auto_offset_reset == "none":
                    del positions[tp]
                    engine.ask_user(tp, gone)
                    continue
                log.warning("%s Reading continues at offset %d", gone, end.end_offset)
                positions[tp], known[tp] = end.end_offset, end.leader_epoch
        return positions, known

    def _stop_now(self, timeout: float | None) -> None:
        if self._starting:  # another thread waits for the brokers, perhaps for long: it raises
            self._engine.want_stop()
            self._cluster.close()
            self._engine.tell_users()
        with self._life:
            if not self._engine.closing:
                self._wind_down(_STOP_TIMEOUT if timeout is None else timeout)

    def _wind_down(self, timeout: float) -> None:
        engine = self._engine
        tps = self._assigned()
        engine.stop_by = engine.handler.now() + timeout
        with engine.lock:
            engine.stopping = True
            engine.call_user()
        engine.hold(tps)
        if self._group is not None:
            self._committer.drain(timeout, auto=self._options.auto_commit_enable)
        self._close(timeout)

    def _close(self, timeout: float) -> None:
        with self._engine.lock:
            self._last_held = self._held(self._assigned())
        self._engine.close(timeout)
        self._committer.join(timeout)
