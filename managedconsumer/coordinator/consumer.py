"""The coordinator of a consumer: kafka-python's ``ConsumerCoordinator`` on our own machine.

Assignment, commits and committed offsets of one member of a consumer group, for whoever fetches by other means. The
consumers of this package do not need it: they drive the same machine, negotiation and offset requests by themselves.
"""

from __future__ import annotations

import logging
import random
import weakref
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from managedconsumer.coordinator.base import BaseCoordinator
from managedconsumer.coordinator.commit_workers import AutoCommitTask as AutoCommitTask
from managedconsumer.coordinator.commit_workers import commit_forever
from managedconsumer.coordinator.committing import Committing, Patience, Wanted, failure
from managedconsumer.coordinator.events import Assigned, Elected
from managedconsumer.coordinator.futures import Future
from managedconsumer.coordinator.metrics import ConsumerCoordinatorMetrics as ConsumerCoordinatorMetrics
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.coordinator.protocol import ConsumerProtocol
from managedconsumer.runtime.offsets import OffsetClient
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

# How long (seconds) a leader tries to get the metadata that it assigns by.
_METADATA_PATIENCE = 60.0
# How long (seconds) a commit at a rebalance or a close may take.
_LAST_COMMIT = 5.0
_FOR_EVER = float("inf")


def _ignore(_offsets: Offsets, _response: Any) -> None:
    return None


class ConsumerCoordinator(BaseCoordinator):
    """Coordinates one consumer: ``subscription`` is a :class:`~managedconsumer.SubscriptionState`.

    Callbacks of the subscription's listener run inside :meth:`ensure_active_group`, in the thread that calls it.
    Automatic commits cover what is *finished* (``TopicPartitionState.finish``), never more. The workers take
    ``self.lock`` around every use of the subscription; so should whoever changes it while they run.
    """

    DEFAULT_CONFIG: Mapping[str, Any] = {
        **BaseCoordinator.DEFAULT_CONFIG,
        "assignors": (RangePartitionAssignor, RoundRobinPartitionAssignor),
        "enable_auto_commit": True,
        "auto_commit_interval_ms": 5000,
        "default_offset_commit_callback": _ignore,
        "exclude_internal_topics": True,
        "metric_group_prefix": "consumer",
        # An addition to kafka-python's:
        "client_rack": None,
    }

    def __init__(self, client: Any, subscription: Any, metrics: Any, **configs: Any) -> None:
        """Raises ConfigurationError for assignors without a common rebalance protocol, or none at all."""
        super().__init__(client, metrics, **configs)
        self._subscription = subscription
        subscription._exclude_internal_topics = bool(self.config["exclude_internal_topics"])  # noqa: SLF001
        assignors = [made() if isinstance(made, type) else made for made in self.config["assignors"]]
        self._negotiation = Negotiation(assignors, self.config["client_rack"])
        self.consumer_sensors = ConsumerCoordinatorMetrics(
            metrics, self.config["metric_group_prefix"], subscription, {"group": self.group_id}
        )
        self._offsets = OffsetClient(self._client, self._link, self.group_id, 0)
        self._elected: Elected | None = None
        self._assigned: Assigned | None = None
        self._led: dict[str, set[int]] | None = None
        # The generation that the assigned partitions are from: commits are made in its name. (The membership may be
        # one round ahead of them, where the same partitions are somebody else's.)
        self._era = NO_GENERATION
        self._metadata_seen: Any = None
        # One commit after the other, each with what is finished when its turn comes.
        self._turn = self._handler.RLock()
        self._queue: Any = self._handler.Queue()
        self._committing: Any = None
        self._auto_commit_task: AutoCommitTask | None = None
        if self.config["enable_auto_commit"]:
            self._auto_commit_task = AutoCommitTask(self, self.config["auto_commit_interval_ms"] / 1000.0)

    # -- membership -----------------------------------------------------------------------------------

    def protocol_type(self) -> str:
        """``consumer``."""
        return ConsumerProtocol.PROTOCOL_TYPE

    def group_protocols(self) -> Sequence[tuple[str, Any]]:
        """``[(assignor's name, subscription blob), ...]`` in the order of the ``assignors``."""
        with self.lock:
            topics = set(self._subscription.subscription or ())
            owned = self._subscription.assigned_partitions()
        return self._negotiation.protocols(topics, owned, self.generation)

    def need_rejoin(self) -> bool:
        """True if partitions come from the group and it has to be joined: see the base, and a changed subscription."""
        with self.lock:
            if not self._subscription.partitions_auto_assigned():
                return False
            self._look_at_metadata()
            return super().need_rejoin() or bool(self._subscription.needs_partition_assignment)

    def ensure_active_group(self, timeout: float | None = None) -> bool:
        """See :meth:`BaseCoordinator.ensure_active_group`; nothing to do when the user assigns the partitions."""
        if not self._subscription.partitions_auto_assigned():
            return True
        if self._subscription.subscribed_pattern is not None and self._metadata_seen is None:
            self._client.refresh(None)
        if self.need_rejoin() and not super().need_rejoin():
            self.request_rejoin("the subscription has changed")
        return super().ensure_active_group(timeout)

    def _look_at_metadata(self) -> None:
        """New topics for a pattern, new partitions for a leader."""
        snapshot = self._client.snapshot
        if snapshot is self._metadata_seen:
            return
        self._metadata_seen = snapshot
        self._subscription.update_pattern_subscription(snapshot)
        led = self._led
        if led is not None and any((snapshot.partitions_for_topic(t) or set()) != led[t] for t in led):
            self._led = None
            self.request_rejoin("the partitions of a topic have changed")

    def _on_join_prepare(self, generation: int, member_id: str) -> bool | None:
        joined = generation >= 0 and bool(member_id)
        with self.lock:
            held = self._subscription.assigned_partitions()
        if self._negotiation.cooperative:
            return bool(held)
        if joined:
            self._commit_finished("rebalance")
            self._tell("on_partitions_revoked", held)
        with self.lock:
            self._subscription.mark_for_reassignment()
        return False

    def _perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> Mapping[str, Any]:
        event = self._elected
        if event is None:
            return {}
        topics = self._negotiation.topics_of(event)
        with self.lock:
            self._subscription.group_subscribe(topics)
        log.debug("group %s: %s assigns by %s to %d members", self.group_id, leader_id, protocol, len(members))
        snapshot = self._client.refresh_until(topics, _METADATA_PATIENCE)
        self._led = {topic: snapshot.partitions_for_topic(topic) or set() for topic in topics}
        return self._negotiation.assign(event, snapshot)

    def _on_join_complete(
        self,
        generation: int,
        member_id: str,
        protocol: str | None,
        member_assignment_bytes: bytes,  # noqa: ARG002 (the event has it too)
    ) -> str | None:
        event = self._assigned
        log.debug("group %s: %s in generation %d, assigned by %s", self.group_id, member_id, generation, protocol)
        if event is None:
            return None
        if not event.is_leader:
            self._led = None
        share, _ = self._negotiation.accept(event, self._client.snapshot)
        cooperative = self._negotiation.cooperative
        with self.lock:
            wanted = self._subscription.subscription or set()
            share = [tp for tp in share if tp.topic in wanted or self._subscription.matches(tp.topic)]
            held = self._subscription.assigned_partitions()
            self._era = event.generation if cooperative else NO_GENERATION
        gone = sorted(held - set(share)) if cooperative else []
        if gone:
            self._commit_finished("rebalance")
            self._tell("on_partitions_revoked", gone)
        with self.lock:
            self._subscription.assign_from_subscribed(share, retain=cooperative)
            self._era = event.generation
            self._subscription.needs_fetch_committed_offsets = True
        if self._auto_commit_task is not None:
            self._auto_commit_task.reschedule()
        self._tell("on_partitions_assigned", sorted(set(share) - held) if cooperative else share)
        return f"gave up {len(gone)} partitions" if gone else None

    def _on_membership_lost(self, error: BaseException | None) -> None:
        log.warning("group %s: membership lost: %s", self.group_id, error)
        with self.lock:
            self._era = NO_GENERATION
            held = sorted(self._subscription.assigned_partitions())
        try:
            # Eager members that were about to join again have given everything up by on_partitions_revoked.
            if held and not self._subscription.needs_partition_assignment:
                self._tell("on_partitions_lost", held)
        finally:
            with self.lock:
                self._subscription.assign_from_subscribed([])
                self._subscription.needs_partition_assignment = True

    def _tell(self, method: str, tps: Collection[TopicPartition]) -> None:
        listener = self._subscription.listener
        if listener is None:
            return
        call = getattr(listener, method, None)
        if call is None and method == "on_partitions_lost":  # listeners made for kafka-python do not know it
            call = listener.on_partitions_revoked
        if call is not None:
            call(set(tps))

    # -- committed offsets ----------------------------------------------------------------------------

    def fetch_committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, without the partitions for which that is nothing. Retries what may heal."""
        found = self._offsets.committed(list(partitions), _FOR_EVER)
        return {
            tp: OffsetAndMetadata(entry.offset, entry.metadata, entry.leader_epoch)
            for tp, entry in found.items()
            if entry.offset >= 0
        }

    def refresh_committed_offsets_if_needed(self) -> None:
        """After an assignment: look the committed offsets up and note them as ``committed`` of each partition."""
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
        """Commit, and retry what may heal (for ``timeout`` seconds; None: as long as it takes).

        Raises CommitFailedError when the group has moved on without us, and the broker's typed error when it refuses.
        """
        if not offsets:
            return
        with self._turn:
            self._commit(offsets, self._identity(), timeout)

    def commit_offsets_async(self, offsets: Offsets, callback: Callable[[Offsets, Any], Any] | None = None) -> Future:
        """Commit in a worker, in the order of the calls; ``callback(offsets, response)`` is called there.

        ``response`` is an exception, or True. Without a callback, ``default_offset_commit_callback`` is called.
        """
        future = Future(self._handler.Event())
        call = callback or self.config["default_offset_commit_callback"]
        future.add_callback(call, offsets).add_errback(call, offsets)
        with self.lock:
            if self._committing is None:
                self._committing = self._handler.spawn("async-commits", commit_forever, weakref.ref(self), self._queue)
        # The generation of now: under a later one the offsets might be another member's.
        self._queue.put((dict(offsets), self._identity(), future))
        return future

    def _identity(self) -> Generation:
        return self._era if self._subscription.partitions_auto_assigned() else NO_GENERATION

    def _commit(self, offsets: Offsets, generation: Generation, timeout: float | None) -> None:
        """Commit under ``generation`` as long as it is ours."""
        grouped = self._subscription.partitions_auto_assigned()

        def look() -> Wanted:
            hindrance: err.KafkaException | None = None
            if grouped and not generation.joined:
                hindrance = err.UnknownMemberId("not a member at present")
            elif generation.joined and self._generation.id != generation.id:
                hindrance = err.IllegalGeneration("the group has gone on to another generation")
            return Wanted(generation, offsets, hindrance=hindrance)

        decision = Committing(
            self.group_id or "",
            look,
            Patience(timeout, pauses=self._backoff_seconds()),
            self._handler.now(),
            random.random,
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

    def _commit_finished(self, why: str) -> None:
        """An automatic commit: of what is finished, without raising."""
        if self._auto_commit_task is None:
            return
        with self._turn:
            with self.lock:
                offsets, generation = self._subscription.committable_offsets(), self._identity()
            if not offsets:
                return
            try:
                self._commit(offsets, generation, _LAST_COMMIT)
            except err.KafkaException as error:
                log.warning("group %s: auto-commit (%s) did not happen: %s", self.group_id, why, error)

    def close(self, autocommit: bool = True, timeout: float = 5.0) -> None:  # type: ignore[override]
        """Commit what is finished (unless ``autocommit`` is False), give everything up, leave the group. Idempotent.

        What ``on_partitions_revoked`` (``on_partitions_lost`` for one that is no longer a member) raises surfaces here,
        after all of it.
        """
        if autocommit:
            self._commit_finished("close")
        try:
            if self._subscription.partitions_auto_assigned():
                self._give_up_all()
        finally:
            self._end_workers(timeout)

    def _give_up_all(self) -> None:
        with self.lock:
            held, joined = self._subscription.assigned_partitions(), self._era.joined
            told = self._subscription.needs_partition_assignment
        if held and not told:
            try:
                self._tell("on_partitions_revoked" if joined else "on_partitions_lost", held)
            finally:
                with self.lock:
                    self._subscription.assign_from_subscribed([])
                    self._subscription.needs_partition_assignment = True

    def _end_workers(self, timeout: float) -> None:
        if self._auto_commit_task is not None:
            self._auto_commit_task.stop(timeout)
        with self.lock:
            committing, self._committing = self._committing, None
        if committing is not None:
            self._queue.put(None)
            committing.join(timeout)
        super().close(timeout)
        self._era = NO_GENERATION
        self._offsets.close()
        self._offsets = OffsetClient(self._client, self._link, self.group_id, 0)
