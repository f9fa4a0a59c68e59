"""The session of a consumer: all that consumers of both kinds own and do alike."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Callable, Iterable, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.compat.accept import accept_cluster, accept_partition, accept_topic
from managedconsumer.compat.cluster import Cluster as PublicCluster
from managedconsumer.config import ConsumerOptions
from managedconsumer.consumers.positioning import Positioning
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.offset_convention import held_from_position
from managedconsumer.runtime.cluster.cluster import PASSING, PLAIN
from managedconsumer.runtime.cluster.starting import StartPatience, stopped_while_starting
from managedconsumer.runtime.engine.accelerator import warn_if_missing
from managedconsumer.runtime.engine.commits.committer import Committer, MemberIdentity
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.net import diagnose
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import PartitionNotAssignedError

log = logging.getLogger(__name__)

# How long (seconds) stop() waits for each worker to end, and for the last commit.
_STOP_TIMEOUT = 5.0
# How long (seconds) start() waits for the leaders of a topic that is just being created.
_CREATION_PATIENCE = 3.0


def _abandon(there: weakref.ref[Engine]) -> None:
    engine = there()
    if engine is not None:
        engine.abandon()


class Session:
    """Engine, commits, topics, positions, start and stop of one consumer. Made once, by its constructor. Thread-safe.

    It knows nothing of the consumer that owns it, so that a forgotten consumer can be collected while workers run.
    """

    def __init__(
        self, topic: Any, cluster: Any, group: str | None, options: ConsumerOptions, use_greenlets: bool | None
    ) -> None:
        """``topic`` and ``cluster`` are what the user gave. Raises TypeError or ConfigurationError for bad ones."""
        warn_if_missing()
        self.group = group
        self.options = options
        self.choice = accept_topic(topic)
        self.cluster = accept_cluster(cluster, use_greenlets)
        # An answer holds at least one batch of each partition, however large: leave room for it.
        self.cluster.allow_answers_of(FetchLimits().max_bytes + 2 * options.fetch_message_max_bytes)
        self._topic_given = topic
        self._public_cluster = PublicCluster(self.cluster)
        self.engine = Engine(self.cluster, options, group, self._public_cluster.partition)
        self.committer = Committer(self.engine)
        self.positioning = Positioning(self.engine)
        #: ``held_offsets`` when the consumer stopped; None before it has.
        self.last_held: dict[Any, int] | None = None
        # Held while the consumer starts or stops: one thread at a time does either.
        self._life_lock = self.engine.handler.RLock()
        #: The ``run()`` that goes on, None: there is none.
        self.running: Any = None
        #: Whether the next stop leaves the group (KIP-1092); None: unless the member is static.
        self.leaving: bool | None = None
        #: True while a thread is inside :meth:`start`.
        self.starting = False

    # -- start and stop -------------------------------------------------------------------------------

    def start(self, begin: Callable[[], None], undo: Callable[[float], None]) -> None:
        """Start by ``begin()``, unless the consumer runs; what that raises is raised after ``undo(seconds)``.

        Raises ConsumerStoppedException when another thread stops the consumer meanwhile.
        """
        self.engine.check_process()
        with self._life_lock:
            if not self.engine.closing:
                return
            self.starting, self.leaving = True, None
            try:
                begin()
            except BaseException as error:
                if self.engine.ending and isinstance(error, (err.ConsumerStoppedException, *PASSING)):
                    return  # a signal: consuming threads get nothing, and stop
                wanted = self.engine.stop_timeout if self.engine.stop_wanted else None
                undo(_STOP_TIMEOUT if wanted is None else wanted)
                if self.engine.stop_wanted and isinstance(error, PASSING):
                    raise stopped_while_starting() from error
                if isinstance(error, PLAIN):
                    raise error.with_traceback(None) from error.__cause__
                raise
            finally:
                self.starting = False
            if self.options.auto_commit_enable:
                self.committer.start()

    def stop(
        self, wind_down: Callable[[float], None], timeout: float | None, hurry: Callable[[], None] = lambda: None
    ) -> None:
        """Stop by ``wind_down(seconds)``, unless the consumer has stopped; a start that goes on in another thread ends.

        ``hurry()`` is called for the latter: it may break off what that thread waits for.
        """
        if self.starting:  # perhaps it waits for long: it raises
            self.engine.want_stop(timeout)
            hurry()
            self.engine.tell_users()
        with self._life_lock:
            if not self.engine.closing:
                wind_down(_STOP_TIMEOUT if timeout is None else timeout)

    def open(self, patience: StartPatience) -> None:
        """Workers up, topics known. Raises UnknownTopicOrPartition for a topic that does not exist."""
        self.engine.open()
        self._find_topics(patience)

    def close(self, timeout: float) -> None:
        """End the workers and close the sockets; the held offsets stay readable. ``timeout``: seconds for each."""
        with self.engine.lock:
            self.last_held = self.held(self.assigned())
        self.engine.close(timeout)
        self.committer.join(timeout)

    def close_with(self, consumer: object) -> None:
        """When ``consumer`` is collected without a ``stop()``, its workers end."""
        # A weak reference, because a finalizer's arguments live until it is called, and the engine leads to the user's
        # code, which may lead to the consumer.
        finalizer = weakref.finalize(consumer, _abandon, weakref.ref(self.engine))
        finalizer.atexit = False  # the workers are needed then, for a member that leaves

    def become(self, identity: MemberIdentity) -> None:
        """From here on this is a member of its group, and ``identity`` says which one."""
        self.committer.join_group(identity)
        self.engine.lease = identity.lease
        self.engine.positions.watch_metadata(identity.metadata_changed)

    def require_running(self) -> None:
        """Raise what has ended the consumer, or ConsumerStoppedException if it does not run."""
        self.engine.check_process()
        if self.engine.error is not None:
            raise self.engine.error
        if self.engine.closing:
            raise self.engine.not_running()

    # -- topics ---------------------------------------------------------------------------------------

    @property
    def topic(self) -> Any:
        """The Topic that is read; a list of them, or the pattern, where that was given."""
        if self.choice.single:
            given = self._topic_given
            return given if hasattr(given, "partitions") else self._public_cluster.topic(self.choice.names[0])
        return self.choice.pattern or [self._public_cluster.topic(name) for name in self.choice.names]

    def topic_names(self) -> list[str]:
        """The topics that were chosen, or those that match the pattern as of the last metadata."""
        pattern = self.choice.pattern
        if pattern is None:
            return self.choice.names
        topics = self.cluster.snapshot.topics.values()
        return sorted(t.name for t in topics if pattern.match(t.name) and not t.is_internal)

    def _find_topics(self, patience: StartPatience) -> None:
        engine, names = self.engine, self.choice.names
        now, wanted = engine.handler.now, names if self.choice.pattern is None else None
        creation = Deadline(now(), _CREATION_PATIENCE)
        while True:
            snapshot = patience.call(lambda: self.cluster.refresh(wanted), self._end_is_wanted)
            missing = [name for name in names if snapshot.partitions_for_topic(name) is None]
            found = {snapshot.topics[name].error_code for name in missing if name in snapshot.topics}
            if found != {codes.LEADER_NOT_AVAILABLE} or creation.expired(now()):
                break
            engine.handler.sleep(0.1)  # the topic has just been created and has no leaders yet
        for code in found - codes.NOT_THERE_YET - {codes.NONE}:
            refused = [name for name in missing if snapshot.topics[name].error_code == code]
            if code == err.TopicAuthorizationFailed.ERROR_CODE:
                raise diagnose.not_authorized(self.cluster.address, self.cluster.settings.security, "topic", refused[0])
            raise err.error_for_code(code, f"topic {refused[0]!r} cannot be used")
        if missing:
            raise err.UnknownTopicOrPartition(
                f"topic {missing[0]!r} does not exist on {self.cluster.address}: create it, or correct its name"
            )

    def _end_is_wanted(self) -> bool:
        return self.engine.stop_wanted or self.engine.ending

    def subscribe(self) -> None:
        """Subscribe to what was chosen, for a group that shares it out."""
        subscription = self.engine.subscription
        with self.engine.lock:
            subscription.unsubscribe()
            if self.choice.pattern is not None:
                subscription.subscribe(pattern=self.choice.pattern)
                subscription.update_pattern_subscription(self.cluster.snapshot)
            else:
                subscription.subscribe(topics=self.choice.names)

    # -- partitions -----------------------------------------------------------------------------------

    def key(self, tp: TopicPartition) -> Any:
        """Dicts are keyed by partition id with one topic (pykafka), by TopicPartition with several."""
        return tp.partition if self.choice.single else tp

    def shown(self, tp: TopicPartition) -> str:
        """The same as text."""
        return str(tp.partition) if self.choice.single else f"{tp.topic}-{tp.partition}"

    def accept(self, partition: Any) -> TopicPartition:
        """Return the partition that the user means. Raises TypeError, or KafkaException for one of another topic."""
        return accept_partition(partition, self.choice.names)

    def assigned(self) -> list[TopicPartition]:
        """The partitions that the consumer has, sorted."""
        with self.engine.lock:
            return sorted(self.engine.subscription.assignment)

    def require_held(self, tps: Iterable[TopicPartition]) -> None:
        """Raise PartitionNotAssignedError unless all of ``tps`` are assigned."""
        held = self.assigned()
        for tp in tps:
            if tp not in held:
                mine = ", ".join(f"{topic}-{number}" for topic, number in held[:20]) or "none"
                raise PartitionNotAssignedError(
                    f"partition {tp.partition} of topic {tp.topic!r} is not held by this consumer, which holds {mine}"
                    f"{', ...' if len(held) > 20 else ''}"
                )

    # -- offsets --------------------------------------------------------------------------------------

    def held(self, tps: Iterable[TopicPartition]) -> dict[Any, int]:
        """The offset *last consumed* of each of ``tps``, -2 where nothing was."""
        return {self.key(tp): held_from_position(self.engine.position(tp)) for tp in tps}

    def held_offsets(self) -> dict[Any, int]:
        """:meth:`held` of all that is assigned, or that was when the consumer stopped."""
        with self.engine.lock:
            if self.engine.closing and self.last_held is not None:
                return dict(self.last_held)
            return self.held(self.assigned())

    def move(self, wanted: Mapping[Any, tuple[str, int]]) -> None:
        """Move positions to what :func:`~managedconsumer.offset_convention.target_of` made of the user's values.

        Raises PartitionNotAssignedError and what a look-up raises; then no position has changed.
        """
        targets = {self.accept(key): target for key, target in wanted.items()}
        self.require_held(targets)
        seeks = {tp: number for tp, (kind, number) in targets.items() if kind == "seek"}
        lookups = {tp: number for tp, (kind, number) in targets.items() if kind == "lookup"}
        seeks.update(self.positioning.look_up(lookups))
        self.engine.seek(seeks)
