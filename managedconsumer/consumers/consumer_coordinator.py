"""The coordinator of a consumer: kafka-python's ``ConsumerCoordinator`` on our own machine.

Assignment, commits and committed offsets of one member of a consumer group, for programs that fetch by other means. The
consumers of this package drive the same machine, negotiation and offset requests without it.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.consumers.coordinator_futures import Future
from managedconsumer.consumers.coordinator_metrics import ConsumerCoordinatorMetrics as ConsumerCoordinatorMetrics
from managedconsumer.consumers.group_coordinator import BaseCoordinator
from managedconsumer.coordinator import handover
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from managedconsumer.coordinator.committing import INTERVAL, AutoCommitLog, Committing, RetryPolicy, Wanted, failure
from managedconsumer.coordinator.handover import HandOver, Rules, carry_out
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.coordinator.protocol import ConsumerProtocol
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.member import GroupMember
from managedconsumer.structs import NO_GENERATION, ClusterSnapshot, Generation, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

# How long (seconds) a leader tries to get the metadata for an assignment.
_METADATA_PATIENCE = 60.0
# How long (seconds) a commit at a rebalance or a close may take.
_LAST_COMMIT = 5.0
_FOR_EVER = float("inf")


class ConsumerCoordinator(BaseCoordinator):
    """Coordinates one consumer: ``subscription`` is a :class:`~managedconsumer.SubscriptionState`.

    Callbacks of the subscription's listener run inside :meth:`ensure_active_group`, in the calling thread. Automatic
    commits cover *finished* messages only (``TopicPartitionState.finish``). The workers take ``self.lock`` around every
    use of the subscription; code that changes it while they run must do so, too.
    """

    DEFAULT_CONFIG: Mapping[str, Any] = {
        **BaseCoordinator.DEFAULT_CONFIG,
        "assignors": (RangePartitionAssignor, RoundRobinPartitionAssignor),
        "enable_auto_commit": True,
        "auto_commit_interval_ms": 5000,
        "default_offset_commit_callback": lambda _offsets, _response: None,
        "exclude_internal_topics": True,
        "metric_group_prefix": "consumer",
        # An addition to kafka-python's:
        "client_rack": None,
    }

    def __init__(self, client: Any, subscription: Any, metrics: Any, **configs: Any) -> None:
        """Raises ConfigurationError for assignors without a common rebalance protocol, or none at all."""
        super().__init__(client, metrics, **configs)
        self._subscription = subscription
        subscription.exclude_internal_topics = bool(self.config["exclude_internal_topics"])
        assignors = [made() if isinstance(made, type) else made for made in self.config["assignors"]]
        self._negotiation = Negotiation(assignors, self.config["client_rack"])
        self.consumer_sensors = ConsumerCoordinatorMetrics(
            metrics, self.config["metric_group_prefix"], subscription, {"group": self.group_id}
        )
        self._offsets = OffsetClient(self._client, self._link, self.group_id, 0)
        self._holder = _Holder(subscription, self.lock, self._client, weakref.WeakMethod(self._find_member))
        self._hand_over = HandOver(self.group_id, self._negotiation, self._holder, Rules())
        self._metadata_seen: Any = None
        # One commit after the other, each with the messages that are finished when it is sent.
        self._turn = self.handler.RLock()
        self._queue: Any = self.handler.Queue()
        self._committing: Any = None
        self._auto_commits = AutoCommitLog(log, self._log.fields)
        self._auto_commit_task: AutoCommitTask | None = None
        if self.config["enable_auto_commit"]:
            self._auto_commit_task = AutoCommitTask(self, self.config["auto_commit_interval_ms"] / 1000.0)

    # -- membership -----------------------------------------------------------------------------------

    def protocol_type(self) -> str:
        """``consumer``."""
        return ConsumerProtocol.PROTOCOL_TYPE

    def group_protocols(self) -> Sequence[tuple[str, Any]]:
        """Return ``[(assignor's name, subscription blob), ...]`` in the order of the ``assignors``.

        Raises IllegalStateError before a subscription, as kafka-python does.
        """
        with self.lock:
            if self._subscription.subscription is None:
                raise err.IllegalStateError(
                    "the consumer has not subscribed to topics: subscription.subscribe() does it"
                )
            topics = set(self._subscription.subscription)
            owned = self._subscription.assigned_partitions()
        return self._negotiation.protocols(topics, owned, self.generation)

    def need_rejoin(self) -> bool:
        """True if the group assigns partitions and this member has to join: also after a changed subscription."""
        with self.lock:
            if not self._subscription.partitions_auto_assigned():
                return False
            outgrown = self._look_at_metadata()
            new_subscription = bool(self._subscription.needs_partition_assignment)
        if outgrown is not None:
            self.request_rejoin(outgrown)  # without our lock: group_protocols() takes it under the member's
        return super().need_rejoin() or new_subscription

    def ensure_active_group(self, timeout: float | None = None) -> bool:
        """See :meth:`BaseCoordinator.ensure_active_group`; True at once when the user assigns the partitions."""
        if not self._subscription.partitions_auto_assigned():
            return True
        if self._subscription.subscribed_pattern is not None and self._metadata_seen is None:
            self._client.refresh(None)
        if self.need_rejoin() and not super().need_rejoin():
            self.request_rejoin("the subscription has changed")
        return super().ensure_active_group(timeout)

    def _look_at_metadata(self) -> str | None:
        """Update a pattern's topics; return the reason to rejoin if a leader finds new partitions. The lock is held."""
        snapshot = self._client.snapshot
        if snapshot is self._metadata_seen:
            return None
        self._metadata_seen = snapshot
        self._subscription.update_pattern_subscription(snapshot)
        return self._hand_over.outgrown()

    def _on_join_prepare(self, generation: int, member_id: str) -> bool | None:  # the event has both
        return carry_out(self._hand_over.prepare_join(self._event), self._do)

    def _perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> Mapping[str, Any]:
        self._log.fields.tell(log.debug, "%s assigns by %s to %d members", leader_id, protocol, len(members))
        return carry_out(self._hand_over.elect(self._event), self._do)

    def _on_join_complete(
        self,
        generation: int,
        member_id: str,
        protocol: str | None,
        member_assignment_bytes: bytes,  # the event has it too
    ) -> str | None:
        self._log.fields.tell(log.debug, "%s in generation %d, assigned by %s", member_id, generation, protocol)
        return carry_out(self._hand_over.take_over(self._event), self._do)

    def _on_membership_lost(self, error: BaseException | None) -> None:  # the event has it too
        carry_out(self._hand_over.lost(self._event), self._do)

    def _find_member(self) -> GroupMember | None:
        return self._made

    # -- the steps of a hand-over -----------------------------------------------------------------------

    def _do(self, step: handover.Step) -> Any:
        """Carry one step out. Code that fetches checks the subscription, and stops by itself."""
        match step:
            case handover.Commit():
                self.commit_finished("rebalance")
            case handover.CallListener():
                self._tell(step)
            case handover.Drop():
                self._drop(step.partitions)
            case handover.TakeOver():
                self._take_over(step)
            case handover.RefreshMetadata():
                return self._look(step.topics)
            case handover.Describe():
                return self._member.describe_group()
            case handover.Record():
                self._log.note(step.kind, step.generation, step.partitions, step.reason)
        return None

    def _tell(self, step: handover.CallListener) -> None:
        """Call the listener. Its error is raised after the hand-over."""
        step.begin()
        listener = self._subscription.listener
        # Listeners made for kafka-python do not know on_partitions_lost.
        call = getattr(listener, step.method, None) or getattr(listener, handover.REVOKED, None)
        if call is None:
            return
        try:
            call(set(step.partitions))
        except Exception as error:
            log.exception("group %s: the listener's %s raised", self.group_id, step.method, extra=self._log.fields())
            self._problem = self._problem or error

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        with self.lock:
            if not self._subscription.partitions_auto_assigned():
                return  # the user has unsubscribed
            rest = self._subscription.assigned_partitions().difference(tps)
            self._subscription.assign_from_subscribed(rest, retain=True)
            if not rest:
                self._subscription.mark_for_reassignment()

    def _take_over(self, step: handover.TakeOver) -> None:
        with self.lock:
            if not self._holder.current(step.generation):
                return
            self._subscription.assign_from_subscribed(step.share, retain=self._negotiation.cooperative)
            self._subscription.needs_fetch_committed_offsets = True
        if self._auto_commit_task is not None:
            self._auto_commit_task.reschedule()

    def _look(self, topics: Collection[str] | None) -> ClusterSnapshot:
        with self.lock:
            self._subscription.group_subscribe(topics or ())
        found: ClusterSnapshot = self._client.refresh_until(topics, _METADATA_PATIENCE)
        return found

    # -- committed offsets ----------------------------------------------------------------------------

    def fetch_committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets, without partitions that have none. Retries transient errors."""
        found = self._offsets.committed(list(partitions), _FOR_EVER)
        return {
            tp: OffsetAndMetadata(entry.offset, entry.metadata, entry.leader_epoch)
            for tp, entry in found.items()
            if entry.offset >= 0
        }

    def refresh_committed_offsets_if_needed(self) -> None:
        """After an assignment, look up the committed offsets and note them as ``committed`` of each partition."""
        with self.lock:
            if not self._subscription.needs_fetch_committed_offsets:
                return
            assigned = self._subscription.assigned_partitions()
        found = self.fetch_committed_offsets(assigned)
        with self.lock:
            for tp, entry in found.items():
                if self._subscription.is_assigned(tp):
                    self._subscription.assignment[tp].committed = entry.offset
            self._subscription.needs_fetch_committed_offsets = False

    # -- commits --------------------------------------------------------------------------------------

    def commit_offsets_sync(self, offsets: Offsets, timeout: float | None = None) -> None:
        """Commit, and retry transient errors (for ``timeout`` seconds; None: as long as it takes).

        Raises CommitFailedError when the group has a newer generation, and the broker's typed error when it refuses.
        """
        if not offsets:
            return
        with self._turn:
            self._commit(offsets, self._identity(), timeout)

    def commit_offsets_async(self, offsets: Offsets, callback: Callable[[Offsets, Any], Any] | None = None) -> Future:
        """Commit in a worker, in the order of the calls; the worker calls ``callback(offsets, response)``.

        ``response`` is an exception, or True. The default is ``default_offset_commit_callback``.
        """
        future = Future(self.handler.Event())
        call = callback or self.config["default_offset_commit_callback"]
        future.add_callback(call, offsets).add_errback(call, offsets)
        with self.lock:
            if self._committing is None:
                self._committing = self.handler.spawn(
                    "async-commits", _commit_forever, weakref.WeakMethod(self._commit_in_turn), self._queue
                )
        # The present generation: under a later one the partitions might be another member's.
        self._queue.put((dict(offsets), self._identity(), future))
        return future

    def _identity(self) -> Generation:
        """Return the generation of the assigned partitions: in a newer one they may be another member's."""
        grouped = self._subscription.partitions_auto_assigned() and self._generation.joined
        return self._hand_over.settled_in if grouped else NO_GENERATION

    def _commit_in_turn(self, offsets: Offsets, generation: Generation) -> None:
        with self._turn:
            self._commit(offsets, generation, None)

    def _commit(self, offsets: Offsets, generation: Generation, timeout: float | None) -> None:
        """Commit under ``generation`` while it is the present one."""
        grouped = self._subscription.partitions_auto_assigned()

        def look() -> Wanted:
            hindrance: err.KafkaException | None = None
            if grouped and not generation.joined:
                hindrance = err.UnknownMemberId("not a member at present")
            elif generation.joined and self._generation != generation:
                hindrance = err.IllegalGeneration("the group is in another generation")
            return Wanted(generation, offsets, hindrance=hindrance)

        decision = Committing(
            self.group_id or "",
            look,
            RetryPolicy(timeout, pauses=self._backoff_seconds()),
            self.handler.now(),
            self.handler.random,
            instance_id=self.config["group_instance_id"],
        )
        committed = self.consumer_sensors.committed
        result = self._offsets.carry_out(
            decision, expelled=self._member.fence, measured=lambda seconds, well: committed(seconds, well=well)
        )
        self._note(result.committed)
        problem = failure(self.group_id or "", offsets, result)
        if problem is not None:
            raise problem

    def _note(self, offsets: Offsets) -> None:
        with self.lock:
            for tp, entry in offsets.items():
                if self._subscription.is_assigned(tp):
                    self._subscription.assignment[tp].committed = entry.offset

    def commit_finished(self, why: str) -> None:
        """Commit the finished offsets automatically; never raises. ``why``: for the log. Thread-safe."""
        if self._auto_commit_task is None:
            return
        with self._turn:
            with self.lock:
                offsets, generation = self._subscription.committable_offsets(), self._identity()
            if not offsets:
                return
            problem: err.KafkaException | None = None
            try:
                self._commit(offsets, generation, _LAST_COMMIT)
            except err.KafkaException as error:
                problem = error
            self._auto_commits.ended(self.group_id, why, problem)

    def close(self, autocommit: bool = True, timeout: float = 5.0) -> None:  # type: ignore[override]
        """Commit the finished offsets (unless ``autocommit`` is False), revoke all, leave the group. Idempotent.

        Raises at last the error of ``on_partitions_revoked`` (``on_partitions_lost`` after the loss of the membership).
        """
        if autocommit:
            self.commit_finished("close")
        try:
            if self._subscription.partitions_auto_assigned():
                carry_out(self._hand_over.leave(self._generation, commit=False), self._do)
                self._drop(self._subscription.assigned_partitions())
        finally:
            self._end_workers(timeout)
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _end_workers(self, timeout: float) -> None:
        if self._auto_commit_task is not None:
            self._auto_commit_task.stop(timeout)
        with self.lock:
            committing, self._committing = self._committing, None
        if committing is not None:
            self._queue.put(None)
            committing.join(timeout)
        super().close(timeout)
        self._client.close_idle()


class _Holder:
    """The coordinator's state for a hand-over; it does not keep the coordinator alive."""

    def __init__(self, subscription: Any, lock: Any, client: Any, member: weakref.WeakMethod[Any]) -> None:
        self._subscription, self._lock, self._client = subscription, lock, client
        self._find_member = member

    def _member(self) -> GroupMember | None:
        find = self._find_member()
        return None if find is None else find()

    def owned(self) -> list[TopicPartition]:
        with self._lock:
            return sorted(self._subscription.assigned_partitions())

    def current(self, generation: Generation) -> bool:
        member = self._member()
        return member is not None and member.current(generation)

    def joined(self) -> bool:
        member = self._member()
        return member is not None and member.joined

    def subscribed(self, topic: str) -> bool:
        with self._lock:
            return topic in (self._subscription.subscription or ()) or self._subscription.matches(topic)

    def snapshot(self) -> ClusterSnapshot:
        snapshot: ClusterSnapshot = self._client.snapshot
        return snapshot


def _commit_forever(commit: weakref.WeakMethod[Callable[[Any, Any], None]], queue: Any) -> None:
    """Run the worker of ``commit_offsets_async``; it references its coordinator only while it commits."""
    while (item := queue.get()) is not None:
        offsets, generation, future = item
        call = commit()
        if call is None:
            future.failure(err.CommitFailedError("the coordinator was deleted"))
            return
        try:
            call(offsets, generation)
            future.success(True)
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.failure(error)
        del call


class AutoCommitTask:
    """Commits finished offsets at intervals, in a worker thread or greenlet, from the first :meth:`reschedule` on."""

    def __init__(self, coordinator: Any, interval: float) -> None:
        """``interval`` in seconds."""
        self._coordinator = weakref.ref(coordinator)
        self._handler = coordinator.handler
        self.interval = interval
        self._changed = self._handler.Condition()
        self._at = 0.0
        self._stopped = True
        self._worker: Any = None

    def reschedule(self, at: float | None = None) -> None:
        """Commit next at ``at`` (seconds of the handler's monotonic clock; None: after one interval)."""
        with self._changed:
            self._at = self._handler.now() + self.interval if at is None else at
            self._stopped = False
            if self._worker is None:
                self._worker = self._handler.spawn("auto-commit", self._run)
            self._changed.notify_all()

    def stop(self, timeout: float | None = None) -> None:
        """End the worker."""
        with self._changed:
            self._stopped = True
            worker, self._worker = self._worker, None
            self._changed.notify_all()
        if worker is not None:
            worker.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                left = self._at - self._handler.now()
                if self._stopped:
                    return
                if left > 0:
                    self._changed.wait(left)
                    continue
                self._at = self._handler.now() + self.interval
            coordinator = self._coordinator()
            if coordinator is None:
                return
            coordinator.commit_finished(INTERVAL)
            del coordinator
