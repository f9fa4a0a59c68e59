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
from managedconsumer.compat import registry
from managedconsumer.compat.accept import accept_cluster, accept_partition, accept_topic
from managedconsumer.compat.objects import Cluster as PublicCluster
from managedconsumer.config import ConsumerOptions, check_group, check_names
from managedconsumer.consumer_api import ConsumerAPI
from managedconsumer.fetch.epochs import checked_epochs
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.runtime.committer import Committer
from managedconsumer.runtime.engine import Engine
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

# What stop() grants each worker to end, and the last commit to get through (seconds).
_STOP_TIMEOUT = 5.0
_START_PATIENCE = 30.0
# How long (seconds) start() waits for the leaders of a topic that is just being created.
_CREATION_PATIENCE = 3.0
_UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE = 3, 5
# How long (seconds) a stop that a signal handler asked for waits for the consuming greenlet.
_HUB_PATIENCE = 1.0


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
        if auto_commit_enable and self._group is None:
            raise err.ConfigurationError("auto_commit_enable=True needs a consumer_group to commit to")
        self._setup(topic, cluster, options, use_greenlets)
        self._chosen = self._choose(partitions)
        self._managed = False
        if auto_start is True:
            self.start()

    def _choose(self, partitions: Iterable[Any] | None) -> list[TopicPartition] | None:
        if partitions is None:
            return None
        if not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes):
            raise TypeError(
                f"partitions={partitions!r} is a {type(partitions).__name__}: a list of Partition objects or numbers "
                "(or None: all) is needed"
            )
        return [accept_partition(partition, self._choice.names) for partition in partitions]

    @classmethod
    def _held_by(cls, topic: Any, cluster: Any, group: str, options: ConsumerOptions, greenlets: bool | None) -> Any:
        """One that a managed consumer owns: same machinery, but its partitions come from the group."""
        self = cls.__new__(cls)
        self._group, self._chosen, self._managed = group, None, True
        self._setup(topic, cluster, options, greenlets)
        return self

    def _setup(self, topic: Any, cluster: Any, options: ConsumerOptions, use_greenlets: bool | None) -> None:
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
        self._life = self._engine.handler.RLock()
        self._engine.partition_object = self._public_cluster.partition
        self._finalizer = weakref.finalize(self, abandon, weakref.ref(self._engine))

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
        with self._life:
            if not self._engine.closing:
                return
            self._open()
            try:
                self._assign_all()
            except BaseException:
                self._close(_STOP_TIMEOUT)
                raise
            if self._options.auto_commit_enable:
                self._committer.start()

    def _open(self) -> None:
        """Workers up, topics known. Raises UnknownTopicOrPartition for a topic that does not exist."""
        self._engine.open()
        try:
            self._find_topics()
        except BaseException:
            self._close(_STOP_TIMEOUT)
            raise

    def _find_topics(self) -> None:
        names, now = self._choice.names, self._engine.handler.now
        patience = Deadline(now(), _CREATION_PATIENCE)
        while True:
            snapshot = self._cluster.refresh(names if self._choice.pattern is None else None)
            missing = [name for name in names if snapshot.partitions_for_topic(name) is None]
            codes = {snapshot.topics[name].error_code for name in missing if name in snapshot.topics}
            if codes != {_LEADER_NOT_AVAILABLE} or patience.expired(now()):
                break
            self._engine.handler.sleep(0.1)  # the topic has just been created and has no leaders yet
        for code in codes - {0, _UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE}:
            raise err.error_for_code(code, f"topics {missing}")
        if missing:
            raise err.UnknownTopicOrPartition(
                f"topic {missing[0]!r} does not exist on {self._cluster.address}: create it, or correct its name"
            )

    def _assign_all(self) -> None:
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
        self._find_positions(new, reset=self._options.reset_offset_on_start)
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

    def _find_positions(self, tps: list[TopicPartition], *, reset: bool, interrupted: Any = None) -> None:
        """Positions from the group's committed offsets, or by ``auto_offset_reset`` where there are none."""
        engine = self._engine
        stop = interrupted or (lambda: engine.closing)
        committed: dict[TopicPartition, int] = {}
        positions, epochs = committed, dict[TopicPartition, int]()
        if self._group is not None and not reset and tps:
            found = engine.offsets.committed(tps, _START_PATIENCE, stop)
            committed = {tp: entry.offset for tp, entry in found.items() if entry.offset >= 0}
            positions, epochs = self._compared(committed, {tp: entry.leader_epoch for tp, entry in found.items()})
        missing = [tp for tp in tps if tp not in committed]
        if missing and self._options.auto_offset_reset == "none":
            raise err.NoOffsetForPartitionError(
                f"nothing is committed for {missing} in group {self._group!r} and auto_offset_reset is 'none': commit "
                "or seek to an offset first, or choose 'earliest' or 'latest'"
            )
        with engine.lock:
            if engine.closing:
                return
            engine.seek({tp: at for tp, at in positions.items() if engine.subscription.is_assigned(tp)}, epochs)
            for tp, offset in committed.items():
                if engine.subscription.is_assigned(tp):
                    engine.subscription.partition_state(tp).committed = offset
            policy = self._default_reset()
            engine.reset({tp: policy for tp in missing if engine.subscription.is_assigned(tp)})

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
                    raise gone
                log.warning("%s Reading on at %d", gone, end.end_offset)
                positions[tp], known[tp] = end.end_offset, end.leader_epoch
        return positions, known

    def stop(self, timeout: float | None = None) -> None:
        """Stop: what is finished is committed (with ``auto_commit_enable``), workers end, sockets close.

        Idempotent, from any thread and from a signal handler; never raises. ``timeout`` in seconds (default 5).
        """
        handler = self._engine.handler
        if handler.ident() in self._engine.inside:
            self._ask_for_stop(timeout)
            return
        if not handler.may_wait():
            self._stop_later(self.stop, timeout)
            return
        with self._life:
            if not self._engine.closing:
                self._wind_down(_STOP_TIMEOUT if timeout is None else timeout)

    def _stop_later(self, stop: Callable[[float | None], None], timeout: float | None) -> None:
        """In gevent's hub (signal handler): the greenlet that consumes stops, as it may end the program right after.

        If none comes back in time, a greenlet of our own does it.
        """
        engine = self._engine

        def stop_if_nobody_came() -> None:
            deadline = Deadline(engine.handler.now(), _HUB_PATIENCE)
            while not engine.closing and not deadline.expired(engine.handler.now()):
                engine.handler.sleep(0.01)
            stop(timeout)

        if not engine.closing:
            self._ask_for_stop(timeout)
            engine.handler.spawn("stopper", stop_if_nobody_came)

    def _ask_for_stop(self, timeout: float | None = None) -> None:
        """This thread is inside ``consume()`` or a commit (signal handler): let it come out first, it then stops."""
        with self._engine.lock:
            self._engine.stop_wanted, self._engine.stop_timeout = True, timeout
            self._engine.call_user()
            self._engine.commits.notify_all()

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


registry.simple_consumer = SimpleConsumer
