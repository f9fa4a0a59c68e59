"""The assignment of one consumer: its partitions, their positions, what is fetched of them, and what is in flight."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import Any, Callable, Collection, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.config import ConsumerOptions
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.fetch.plan import recreated, source_node
from managedconsumer.logs import LogFields
from managedconsumer.partition_state import checked_offset
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.engine.life import Life, Locks
from managedconsumer.runtime.engine.troubles import METADATA, Troubles
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.subscription_state import SubscriptionState

log = logging.getLogger(__name__)

# The remedy in errors about a position that ``auto_offset_reset="none"`` does not look up.
_SAY_WHERE = (
    "auto_offset_reset is 'none': seek() to an offset that exists, or call reset_offsets({partition: -2}) (-1 for the "
    "end), or choose 'earliest' or 'latest'"
)
_UNKNOWN: Mapping[TopicPartition, int] = MappingProxyType({})


class Assignment:
    """Suspends, resumes, takes over and drops partitions, and moves their positions.

    Thread-safe: every method takes the engine's lock, unless its docstring says otherwise. The workers of an engine
    see this object, and tell it what happens to a log.
    """

    def __init__(
        self,
        locks: Locks,
        cluster: Cluster,
        options: ConsumerOptions,
        group_id: str | None,
        lane: Any,
        partition_object: Callable[[TopicPartition], Any],
    ) -> None:
        """``lane`` is the :class:`~managedconsumer.wire.records.Lane` of the collector, None: there is no fast path.

        ``partition_object`` makes the object that messages and users get for a partition.
        """
        self.lock, self.mutex, self.not_full, self.recalled = locks.lock, locks.mutex, locks.not_full, locks.recalled
        self.inline = locks.inline
        self.cluster = cluster
        self.handler = cluster.handler
        self.options = options
        self.group_id = group_id
        self.subscription = SubscriptionState(options.auto_offset_reset)
        self.buffer = FetchBuffer(options.queued_max_messages, options.queued_max_bytes)
        self.collector = FetchCollector(self.buffer, lane)
        self.partition_object = partition_object
        #: For ``extra=`` of this consumer's log lines.
        self.log_fields = LogFields(group_id)
        name = group_id or "consumer"
        self.troubles = Troubles(name, self.log_fields)
        self.life = Life(locks, self.collector, name, self.log_fields)
        #: The partitions whose position only the user can set, see :meth:`ask_user`.
        self.undecided: dict[TopicPartition, PartitionQueue] = {}
        #: The metadata of which a broker has said that they are old.
        self.outdated: ClusterSnapshot | None = None
        #: How many consuming threads wait for notifications of the lock.
        self.sitting = 0
        #: Starts missing fetch workers for the current leaders, and cancels outdated long polls. The lock is held.
        self.ensure_workers: Callable[[], None] = lambda: None
        #: Checks whether other fetch requests are needed. The lock is held.
        self.look_again: Callable[[], None] = lambda: None
        #: Wakes the position worker: a position is to be looked up.
        self.wake_positions: Callable[[], None] = lambda: None
        #: True when the position worker has to run again (handler's clock); takes no lock.
        self.positions_due: Callable[[float], bool] = lambda _now: False

    # -- waking -------------------------------------------------------------------------------------------------------

    def wake_fetchers(self) -> None:
        """Wake fetch workers: positions or free memory have changed. The lock is held."""
        self.not_full.notify_all()
        self.look_again()

    def wake_all(self) -> None:
        """Wake all threads and start missing workers: partitions or positions have changed. The lock is held."""
        self.ensure_workers()
        self.lock.notify_all()
        self.not_full.notify_all()

    def refresh_soon(self) -> None:
        """Let the position worker refresh the metadata: the answer may take long, and fetching goes on meanwhile."""
        self.outdated = self.cluster.snapshot
        self.wake_positions()

    def metadata_changed(self, before: ClusterSnapshot) -> None:
        """Fetch partitions that have moved since ``before`` from their new leaders at once."""
        with self.lock:
            for queue in self.buffer:
                if source_node(queue, before) != source_node(queue, self.cluster.snapshot):
                    queue.retry_at = 0.0
            self.wake_all()

    def refresh_metadata(self) -> None:
        """Refresh the metadata of the assigned topics, unless another worker just has; notes trouble, never raises."""
        snapshot = self.cluster.snapshot
        topics: Iterable[str] | None = None
        if self.subscription.subscribed_pattern is None:
            assigned = {tp.topic for tp in self.subscription.assigned_partitions()}
            topics = assigned | self.subscription.group_subscription()
        try:
            self.cluster.refresh_if_same(snapshot, topics)
            self.troubles.over(METADATA)
        except err.FATAL_LOCAL_ERRORS as error:
            self.life.fail(error)
        except err.KafkaException as error:
            if not self.life.closed:
                self.troubles.note(METADATA, str(error))
        if self.cluster.snapshot is not snapshot:
            self.metadata_changed(snapshot)

    # -- positions that the user has to set ---------------------------------------------------------------------------

    def ask_user(self, tp: TopicPartition, error: err.KafkaException) -> None:
        """Make calls that consume raise ``error`` until the user sets the position of ``tp`` by a seek or a reset.

        While the partition is suspended (its assigned-callback may seek) or paused, no call raises it; the other
        partitions continue.
        """
        with self.lock:
            queue = self.buffer.queues.get(tp)
            if queue is None or self.life.closed:
                return
            if queue.undecided is None:
                log.error("%s", error, extra=self.log_fields(tp))
            queue.undecided, queue.fetch_offset = error, -1
            self.undecided[tp] = queue
            self.life.wake_consumers()

    def open_question(self) -> err.KafkaException | None:
        """Return the error that needs the user's decision, or None; the lock is held."""
        for tp, queue in list(self.undecided.items()):
            if self.buffer.queues.get(tp) is not queue or queue.undecided is None:
                del self.undecided[tp]
            elif not queue.state.suspended and not queue.state.paused:
                return queue.undecided
        return None

    def _decided(self, tp: TopicPartition) -> None:
        """Note that the position of ``tp`` is set, or will be looked up; the lock is held."""
        queue = self.undecided.pop(tp, None)
        if queue is not None:
            queue.undecided = None

    # -- partitions ---------------------------------------------------------------------------------------------------

    def position(self, tp: TopicPartition) -> int | None:
        """Return the *next* offset of ``tp``; None while it is not known. Raises PartitionNotAssignedError."""
        with self.lock:
            self.collector.settle_lane()
            return self.subscription.partition_state(tp).position

    def suspend(self, tps: Collection[TopicPartition]) -> None:
        """Suspend these partitions: stop to deliver and to fetch their messages. Buffered messages stay."""
        with self.lock:
            self.collector.shelve()
            self.subscription.suspend(tps)
            self._interrupt_run()

    def _interrupt_run(self) -> None:
        if (run_state := self.collector.in_flight.run_state) is not None:
            run_state.interrupt()

    def fence(self, tps: Collection[TopicPartition]) -> None:
        """After a loss of the membership: deliver no message of these, and disown those in flight."""
        with self.lock:
            self.suspend(tps)
            for tp in tps:
                if (queue := self.buffer.queues.get(tp)) is not None:
                    queue.context.fenced = True

    def release(self, tps: Iterable[TopicPartition]) -> None:
        """Undo :meth:`suspend`."""
        with self.lock:
            self.subscription.release(tps)
            self._interrupt_run()
            self.wake_all()

    def set_paused(self, tps: Iterable[TopicPartition], paused: bool) -> None:
        """Pause or resume. A pause drops the partition's fetched messages; those that ``run()`` has taken wait."""
        with self.lock:
            self.collector.shelve()
            for tp in tps:
                if paused:
                    self.subscription.pause(tp)
                    self.buffer.restart(tp)
                else:
                    self.subscription.resume(tp)
            self._interrupt_run()
            self.lock.notify_all()
            self.wake_fetchers()

    def set_full(self, full: Mapping[TopicPartition, bool]) -> None:
        """Suspend (True) or resume partitions for ``run()``, which has enough in flight. Buffered messages stay."""
        with self.lock:
            self.collector.shelve()
            for tp, enough in full.items():
                if self.subscription.is_assigned(tp):
                    self.subscription.partition_state(tp).full = enough
            self.lock.notify_all()
            self.wake_fetchers()

    def take_over(self, tps: Collection[TopicPartition], *, retain: bool, manual: bool = False) -> list[TopicPartition]:
        """Make ``tps`` the assignment; returns the new partitions, still suspended and without a position."""
        with self.lock:
            self.collector.shelve()
            if manual:
                self.subscription.assign_from_user(tps)
            else:
                self.subscription.assign_from_subscribed(tps, retain=retain)
            after = self.subscription.assignment
            gone = [queue.tp for queue in self.buffer if after.get(queue.tp) is not queue.state]
            self.collector.take_away(set(gone))
            self.buffer.drop(gone)
            self.wake_fetchers()  # there is room
            new = [tp for tp in tps if tp not in self.buffer.queues]
            for tp in new:
                self.buffer.add(tp, after[tp], self.partition_object(tp))
            self.subscription.suspend(new)
            return new

    def drop(self, tps: Collection[TopicPartition]) -> None:
        """Give partitions up: none of their messages reaches the user any more."""
        with self.lock:
            gone = set(tps) & self.subscription.assignment.keys()
            if not gone:
                return
            self.collector.take_away(gone)
            self.buffer.drop(gone)
            self.wake_fetchers()  # there is room
            keep = [tp for tp in self.subscription.assignment if tp not in gone]
            suspended = [tp for tp in keep if self.subscription.assignment[tp].suspended]
            if self.subscription.partitions_auto_assigned():
                self.subscription.assign_from_subscribed(keep, retain=True)
            else:
                self.subscription.assign_from_user(keep)
            self.subscription.suspend(suspended)  # a retaining assignment has resumed them
            self.lock.notify_all()

    def seek(self, offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int] = _UNKNOWN) -> None:
        """Set positions (*next* offsets, and known leader epochs) and drop fetched messages of the partitions."""
        with self.lock:
            for tp, offset in offsets.items():  # all or nothing
                self.subscription.partition_state(tp)
                checked_offset(offset, f"{tp.topic}-{tp.partition}: ")
            self._part_with(set(offsets))
            for tp, offset in offsets.items():
                self._decided(tp)
                self.subscription.seek(tp, offset, epochs.get(tp, -1))
                self.buffer.restart(tp)
            self.wake_all()

    def reset(self, strategies: Mapping[TopicPartition, int]) -> None:
        """Look positions up by their OffsetResetStrategy, in the position worker."""
        with self.lock:
            self._part_with(set(strategies))
            for tp, strategy in strategies.items():
                self._decided(tp)
                self.subscription.need_offset_reset(tp, strategy)
                self.buffer.restart(tp)
        self.wake_positions()

    def _part_with(self, tps: set[TopicPartition]) -> None:
        """Another member reads these now: disown their messages in flight, and set their ``Message.fenced``."""
        self.collector.forget(tps)
        for tp in tps & self.buffer.queues.keys():
            self.buffer.queues[tp].part_with()

    def nothing_committed(self, tps: Iterable[TopicPartition], group: str | None) -> None:
        """Handle ``auto_offset_reset="none"`` without a committed offset: the user has to set the position."""
        whose = "there is no consumer_group" if group is None else f"group {group!r} has committed no offset"
        for tp in tps:
            text = f"{tp.topic}-{tp.partition}: {whose}, and {_SAY_WHERE}"
            self.ask_user(tp, err.NoOffsetForPartitionError(text))

    # -- changes of the log -------------------------------------------------------------------------------------------

    def offset_out_of_range(self, queue: PartitionQueue) -> None:
        """Handle a fetch from an offset that the broker does not have; the lock is held."""
        self.collector.settle_lane()
        if queue.chunks or queue.state.position != queue.fetch_offset:
            return  # deliver first the messages that were fetched before it
        if not self.subscription.has_default_offset_reset_policy():
            gone = f"offset {queue.state.position} of {queue.tp.topic}-{queue.tp.partition} is not in the log"
            self.ask_user(queue.tp, err.OffsetOutOfRangeError(f"{gone}, and {_SAY_WHERE}"))
            return
        text = "offset %s is not in the log (any more); resetting to %s"
        self.log_fields.tell_of(queue.tp, log.warning, text, queue.state.position, self.options.auto_offset_reset)
        # Messages in flight came from the earlier log, and still count.
        self.collector.shelve()
        self.subscription.need_offset_reset(queue.tp, in_flight=True)
        queue.restart()
        self.wake_positions()

    def topic_recreated(self, queue: PartitionQueue, topic_id: bytes | None) -> None:
        """Handle a topic that was deleted and created again: old offsets mean nothing in it. The lock is held."""
        old, position = queue.topic_id, queue.state.position
        queue.topic_id = topic_id
        what = f"topic {queue.tp.topic!r} was deleted and created again (its id changed)"
        gone = f": offset {position} of partition {queue.tp.partition} means nothing any more"
        if self._begin_anew(queue, what if position is None else what + gone):
            text = "%s: partition %d starts at %s instead of offset %d; old id %s, new id %s"
            told = what, queue.tp.partition, self.options.auto_offset_reset, position
            log.warning(text, *told, (old or b"").hex(), (topic_id or b"").hex(), extra=self.log_fields(queue.tp))

    def begin_anew(self, tp: TopicPartition, why: str) -> None:
        """Reset ``tp`` as for a new reader: its position belongs to another topic. ``why``: for the log."""
        with self.lock:
            queue = self.buffer.queues.get(tp)
            if queue is not None:
                self._begin_anew(queue, why)

    def _begin_anew(self, queue: PartitionQueue, why: str) -> bool:
        """Reset the position; False if no look-up is needed: none was known, or the user has to set it."""
        queue.state.committed = None
        self._part_with({queue.tp})
        queue.state.forget_finished()
        if queue.state.position is None and queue.undecided is None:
            return False
        if not self.subscription.has_default_offset_reset_policy():
            queue.restart()
            self.ask_user(queue.tp, err.OffsetOutOfRangeError(f"{why}, and {_SAY_WHERE}"))
            return False
        self.subscription.need_offset_reset(queue.tp)
        queue.restart()
        self.wake_positions()
        return True

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes | None]:
        """Return the known topic ids of the positions of ``tps``. Notices recreated topics."""
        found: dict[TopicPartition, bytes | None] = {}
        with self.lock:
            snapshot = self.cluster.snapshot
            for tp in tps:
                queue = self.buffer.queues.get(tp)
                if queue is not None:
                    if recreated(queue, snapshot):
                        self.topic_recreated(queue, snapshot.topics[tp.topic].topic_id)
                    found[tp] = queue.topic_id
        return found

    def log_truncated(self, queue: PartitionQueue, end_offset: int, epoch: int) -> None:
        """Handle a truncation: from ``end_offset`` on the leader's log differs from the one read. The lock is held.

        Buffered messages beyond it are dropped. Delivered messages beyond it cannot be taken back: the log says so, and
        reading continues at the first offset that differs (KIP-320). Messages in flight below it still count.
        """
        self.collector.shelve()
        tp, position = queue.tp, queue.state.position
        if position is None:
            return
        if end_offset < position:
            if not self.subscription.has_default_offset_reset_policy():
                queue.restart()
                self.ask_user(tp, err.LogTruncationError(tp.topic, tp.partition, position, end_offset))
                return
            what = err.LogTruncationError(*tp, position, end_offset)
            log.warning("%s Reading continues at %d", what, end_offset, extra=self.log_fields(tp))
            self.collector.go_on(queue, end_offset, epoch)
        else:
            text = "the log has changed from offset %d on; nothing of it was handed out"
            self.log_fields.tell_of(tp, log.info, text, end_offset)
            queue.restart()
        queue.last_epoch = epoch
        self.lock.notify_all()
        self.wake_fetchers()
