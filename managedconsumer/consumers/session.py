"""The session of a consumer: the parts that consumers of both kinds own, and how they start and stop."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Iterable, Mapping, Protocol

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.compat.accept import accept_cluster, accept_partition, accept_topic
from managedconsumer.compat.cluster import Cluster as PublicCluster
from managedconsumer.config import ConsumerOptions, check_bool
from managedconsumer.consumers.positioning import Positioning
from managedconsumer.consumers.pushing import Pusher
from managedconsumer.coordinator.committing import RetryPolicy, explicit_retry_policy
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.offset_convention import held_from_position
from managedconsumer.runtime.cluster.cluster import PASSING, PLAIN
from managedconsumer.runtime.cluster.starting import StartPatience, stopped_while_starting
from managedconsumer.runtime.engine.accelerator import warn_if_missing
from managedconsumer.runtime.engine.commits.committer import Committer, MemberIdentity
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.net import diagnose
from managedconsumer.runtime.waiting.reentry import in_our_work
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import PartitionNotAssignedError

log = logging.getLogger(__name__)

# How long (seconds) stop() waits for each worker to end, and for the last commit.
_STOP_TIMEOUT = 5.0
# How long (seconds) a stop that interrupted a call waits for the consuming thread to carry it out.
_STOP_SOON = 1.0
# How long (seconds) start() waits for the leaders of a topic that is just being created.
_CREATION_PATIENCE = 3.0


class Reading(Protocol):
    """Starts and ends the reading of one kind of consumer: ``GroupLives``, or ``AssignedByUser``."""

    def start(self) -> None:
        """Open the session and get partitions. Raises what prevents it."""

    def end(self, timeout: float, reason: str) -> None:
        """Commit by policy, give the partitions up and close the session. ``timeout``: seconds for each step."""

    def hurry(self) -> None:
        """Interrupt the requests of a :meth:`start` in another thread, which a stop is to end."""


def _abandon(there: weakref.ref[Engine]) -> None:
    engine = there()
    if engine is not None:
        engine.life.abandon()


class Session:
    """Engine, commits, topics, positions, start and stop of one consumer. Made once, by its constructor. Thread-safe.

    It does not know the consumer that owns it, so that a forgotten consumer can be collected while workers run.
    """

    def __init__(
        self, topic: Any, cluster: Any, group: str | None, options: ConsumerOptions, use_greenlets: bool | None
    ) -> None:
        """``topic`` and ``cluster``: the user's arguments. Raises TypeError or ConfigurationError for bad ones."""
        warn_if_missing()
        self.group = group
        self.options = options
        self.choice = accept_topic(topic)
        self.cluster = accept_cluster(cluster, use_greenlets)
        # A response holds at least one batch of each partition, however large: leave room for it.
        self.cluster.allow_answers_of(FetchLimits().max_bytes + 2 * options.fetch_message_max_bytes)
        self._topic_given = topic
        self._public_cluster = PublicCluster(self.cluster)
        self.engine = Engine(self.cluster, options, group, self._public_cluster.partition)
        self.committer = Committer(self.engine)
        self.positioning = Positioning(self.engine)
        self.pusher = Pusher(self.engine, self.committer, enabled=options.enable_metrics_push)
        self.engine.attend = self.pusher.attend
        #: ``held_offsets`` when the consumer stopped; None before it has.
        self.last_consumed: dict[Any, int] | None = None
        # Held while the consumer starts or stops: one thread at a time does either.
        self._life_lock = self.engine.handler.RLock()
        self._reading: weakref.ref[Reading] | None = None
        #: The ``run()`` in progress; None: there is none.
        self.running: Any = None
        #: Whether the next stop leaves the group (KIP-1092); None: unless the member is static.
        self.leaving: bool | None = None
        #: True while a thread is inside :meth:`start`.
        self.starting = False

    def serve(self, reading: Reading) -> None:
        """Start and stop by ``reading``. The reference is weak: the consumer owns it."""
        self._reading = weakref.ref(reading)

    def _present(self) -> Reading | None:
        return None if self._reading is None else self._reading()

    # -- start ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, unless the consumer runs. Raises what prevents it; then the consumer is stopped.

        Raises ConsumerStoppedException when another thread stops the consumer meanwhile.
        """
        life, reading = self.engine.life, self._present()
        life.check_process()
        with self._life_lock:
            if reading is None or not life.closed:
                return
            life.prepare()
            self.starting, self.leaving = True, None
            try:
                reading.start()
            except BaseException as error:
                if life.no_more and isinstance(error, (err.ConsumerStoppedException, *PASSING)):
                    return  # a signal: consuming threads get nothing, and stop
                wanted = life.stop_timeout if life.stop_wanted else None
                reading.end(_STOP_TIMEOUT if wanted is None else wanted, "start failed")
                if life.stop_wanted and isinstance(error, PASSING):
                    raise stopped_while_starting() from error
                if isinstance(error, PLAIN):
                    raise error.with_traceback(None) from error.__cause__
                raise
            finally:
                self.starting = False
            if self.options.auto_commit_enable:
                self.committer.start()

    def open(self, patience: StartPatience) -> None:
        """Start the workers and find the topics. Raises UnknownTopicOrPartition for a topic that does not exist."""
        self.pusher.begin()
        self.engine.open()
        if self.engine.life.end_wanted:  # a stop before open() closed the connections that are open again now
            raise stopped_while_starting()
        self._find_topics(patience)

    def become(self, identity: MemberIdentity) -> None:
        """Act as this member of the group from now on."""
        self.committer.join_group(identity)
        self.pusher.become(identity)
        self.engine.delivery.lease = identity.lease
        self.engine.positions.watch_metadata(identity.metadata_changed)

    def require_running(self) -> None:
        """Raise the error that ended the consumer, or ConsumerStoppedException if it does not run."""
        life = self.engine.life
        life.check_process()
        if life.error is not None:
            raise life.error
        if life.closed:
            raise life.not_running()

    # -- stop -----------------------------------------------------------------------------------------

    def stop(self, timeout: float | None, leave: bool | None) -> None:
        """See ``ConsumerAPI.stop``."""
        engine = self.engine
        if not engine.life.in_own_process():
            return  # the locks and sockets belong to the parent
        if leave is not None:
            self.leaving = check_bool("leave", leave)
        # An interrupted call may hold a lock, and continues only after this one has returned.
        if engine.handler.ident() in engine.delivery.inside or not engine.handler.may_wait() or in_our_work():
            self._stop_soon(timeout)
        elif self.running is None or not self.running.end(timeout):
            self.stop_now(timeout)

    def stop_now(self, timeout: float | None) -> None:
        """Stop and wait for the end; a start in another thread ends, too. Does not wait for a ``run()``."""
        life, reading = self.engine.life, self._present()
        if self.starting:  # it may wait for long: it raises
            life.want_stop(timeout)
            if reading is not None:
                reading.hurry()
            life.tell_users()
        with self._life_lock:
            if reading is not None and not life.closed:
                reading.end(_STOP_TIMEOUT if timeout is None else timeout, "consumer stopped")

    def _stop_soon(self, timeout: float | None) -> None:
        """Let the consuming thread stop, without a lock or a wait; if it does not come in time, a worker stops."""
        if self.starting or not self.engine.life.closed:
            self.engine.life.want_stop(timeout)
            self.engine.handler.spawn("stopper", self._stop_if_no_thread_does, timeout)

    def _stop_if_no_thread_does(self, timeout: float | None) -> None:
        engine, now = self.engine, self.engine.handler.now
        engine.life.tell_users()
        deadline = Deadline(now(), _STOP_SOON)
        while not engine.life.closed and not deadline.expired(now()):
            engine.handler.sleep(0.01)
            if engine.delivery.inside:  # a thread is still in the call that will stop, perhaps in a callback
                deadline = Deadline(now(), _STOP_SOON)
        self.stop_now(timeout)

    def stop_if_wanted(self) -> bool:
        """Carry out a stop that a signal handler or a callback wanted in this call; True if there was one."""
        if self.engine.life.stop_wanted:
            self.stop_now(self.engine.life.stop_timeout)
            return True
        return False

    def end_soon(self) -> None:
        """See ``ConsumerAPI.end_soon``."""
        life = self.engine.life
        if life.in_own_process() and not life.no_more:
            life.end_soon()
            # Waking the threads takes a lock, which the interrupted thread may hold.
            self.engine.handler.spawn("waker", life.tell_users)

    def close(self, timeout: float) -> None:
        """End the workers and close the sockets; the held offsets stay readable. ``timeout``: seconds for each."""
        with self.engine.lock:
            self.last_consumed = self.consumed(self.assigned())
        self.pusher.finish(timeout)
        self.engine.close(timeout)
        self.committer.join(timeout)

    def close_with(self, consumer: object) -> None:
        """End the workers when ``consumer`` is collected without a ``stop()``."""
        # A weak reference, because a finalizer's arguments live until it is called, and the engine leads to the user's
        # code, which may lead to the consumer.
        finalizer = weakref.finalize(consumer, _abandon, weakref.ref(self.engine))
        finalizer.atexit = False  # the workers are needed then, for a member that leaves

    # -- topics ---------------------------------------------------------------------------------------

    @property
    def topic(self) -> Any:
        """The Topic that is read; a list of them, or the pattern, where the user gave one of these."""
        if self.choice.single:
            given = self._topic_given
            return given if hasattr(given, "partitions") else self._public_cluster.topic(self.choice.names[0])
        return self.choice.pattern or [self._public_cluster.topic(name) for name in self.choice.names]

    def topic_names(self) -> list[str]:
        """Return the chosen topics, or those that match the pattern as of the last metadata."""
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
            snapshot = patience.call(lambda: self.cluster.refresh(wanted), lambda: engine.life.end_wanted)
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

    def subscribe(self) -> None:
        """Subscribe to the chosen topics, for a group that assigns their partitions."""
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
        """Return the key of ``tp`` in dicts: the partition id with one topic (pykafka), itself with several."""
        return tp.partition if self.choice.single else tp

    def shown(self, tp: TopicPartition) -> str:
        """Return :meth:`key` as text."""
        return str(tp.partition) if self.choice.single else f"{tp.topic}-{tp.partition}"

    def accept(self, partition: Any) -> TopicPartition:
        """Return the partition that the user means. Raises TypeError, or KafkaException for one of another topic."""
        return accept_partition(partition, self.choice.names)

    def assigned(self) -> list[TopicPartition]:
        """Return the assigned partitions, sorted."""
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

    def consumed(self, tps: Iterable[TopicPartition]) -> dict[Any, int]:
        """Return the offset *last consumed* of each of ``tps``, -2 where there is none."""
        return {self.key(tp): held_from_position(self.engine.assignment.position(tp)) for tp in tps}

    def held_offsets(self) -> dict[Any, int]:
        """Return :meth:`consumed` of the assignment, or of the one at which the consumer stopped."""
        with self.engine.lock:
            if self.engine.life.closed and self.last_consumed is not None:
                return dict(self.last_consumed)
            return self.consumed(self.assigned())

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long an explicit commit goes on."""
        return explicit_retry_policy(self.options.offsets_commit_max_retries, self.options.offsets_channel_backoff_ms)

    def move(self, wanted: Mapping[Any, tuple[str, int]]) -> None:
        """Move positions to results of ``offset_convention.target_of``; an error leaves all positions unchanged."""
        targets = {self.accept(key): target for key, target in wanted.items()}
        self.require_held(targets)
        seeks = {tp: number for tp, (kind, number) in targets.items() if kind == "seek"}
        lookups = {tp: number for tp, (kind, number) in targets.items() if kind == "lookup"}
        seeks.update(self.positioning.look_up(lookups))
        self.engine.assignment.seek(seeks)
