"""The running consumer below both facades: its life, its assignment, its delivery, and the workers that serve them.

Threads: the user's (``Delivery.next_message``), the fetch workers, a position worker (resets, metadata age) and a
commit worker from the first commit on. Pure objects make all decisions under ``lock``; no I/O and no user code runs
under it.
"""

from __future__ import annotations

from typing import Any, Callable, Collection

from managedconsumer.config import ConsumerOptions
from managedconsumer.coordinator.history import History
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.delivery import Delivery
from managedconsumer.runtime.engine.fetching.fetch_pool import FetchPool
from managedconsumer.runtime.engine.life import Locks
from managedconsumer.runtime.engine.positions import PositionWorker
from managedconsumer.runtime.engine.progress_tracker import ProgressTracker
from managedconsumer.runtime.waiting import process
from managedconsumer.runtime.waiting.async_waiters import AsyncWaiters
from managedconsumer.runtime.waiting.greenlet_yield import GreenletYield
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Lane


def _lane(handler: Handler) -> Lane:
    here = handler.here
    return Lane(None if here else handler.current, here, None if handler.real else handler.now)


class Engine:
    """The engine of one consumer. Thread-safe; :meth:`close` may be called from any place, also a signal handler.

    It puts the parts together: they hold each other, and what they share is at hand here too.
    """

    fetchers: FetchPool
    positions: PositionWorker
    link: CoordinatorLink | None
    offsets: OffsetClient

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        group_id: str | None,
        partition_object: Callable[[TopicPartition], Any] = lambda tp: tp,
    ) -> None:
        """``partition_object`` makes the object that messages and users get for a partition."""
        self.cluster, self.options, self.group_id, self.handler = cluster, options, group_id, cluster.handler
        locks = Locks(self.handler)
        self.lock, self.mutex, self.not_full, self.inline = locks.lock, locks.mutex, locks.not_full, locks.inline
        self.commits, self.recalled, self.work = locks.commits, locks.recalled, locks.work
        self.assignment = Assignment(locks, cluster, options, group_id, _lane(self.handler), partition_object)
        self.life = self.assignment.life
        self._greenlet_yield = None if self.handler.native or not self.handler.real else GreenletYield(self.handler)
        self.delivery = Delivery(locks, self.assignment, self._greenlet_yield)
        self.subscription, self.buffer = self.assignment.subscription, self.assignment.buffer
        self.collector, self.troubles = self.assignment.collector, self.assignment.troubles
        self.log_fields = self.assignment.log_fields
        #: The events of the membership, for the log, ``events()`` and the recorder.
        self.history = History(group_id or "", self.handler.now, self.handler.wall_time)
        self.progress_tracker = ProgressTracker(self.assignment)
        self.async_waiters = AsyncWaiters(self.delivery)
        #: What the position worker starts now and then; it returns when it is to be called again (handler's clock).
        self.attend: Callable[[float], float] = lambda _now: float("inf")
        process.in_children.add(self)
        self._build()

    def _build(self) -> None:
        options, assignment = self.options, self.assignment
        limits = FetchLimits(
            min_bytes=options.fetch_min_bytes,
            max_wait_ms=options.fetch_wait_max_ms,
            partition_max_bytes=options.fetch_message_max_bytes,
            isolation_level=options.isolation,
            rack=options.client_rack or "",
            beside=None if self._greenlet_yield is None else self._greenlet_yield.beside,
        )
        self.link = CoordinatorLink(self.cluster, self.group_id) if self.group_id is not None else None
        self.offsets = OffsetClient(self.cluster, self.link, self.group_id, options.isolation)
        if options.use_rdkafka:
            from managedconsumer.runtime.rdkafka.pool import RdkafkaPool

            self.fetchers = RdkafkaPool(assignment, limits)
        else:
            self.fetchers = FetchPool(assignment, limits, options.num_consumer_fetchers)
        self.positions = PositionWorker(
            *(assignment, self.offsets, self.fetchers, self.close, self.progress_tracker.sample),
            attend=lambda now: self.attend(now),
        )
        assignment.ensure_workers, assignment.look_again = self.fetchers.ensure_workers, self.fetchers.look_again
        assignment.wake_positions, assignment.positions_due = self.positions.wake, self.positions.is_due
        self.delivery.inline_ready = self.fetchers.inline_receive.ready

    def disown(self) -> None:
        """In the child of a fork: make every call raise. Threads that do not exist here may hold the locks."""
        locks = Locks(self.handler)
        for part in (self, self.life, self.assignment, self.delivery):
            locks.replace_in(part)
        self.collector.lane.cut()
        self.life.forbid(self.life.forked())

    def open(self) -> None:
        """Start (again): fresh connections, no assignment, workers running."""
        self.life.check_process()
        self.cluster.reopen()
        self._build()
        self.cluster.join()
        with self.lock:
            self.life.begin()
            self.troubles.clear()
            self.delivery.drop_tasks()
        self.positions.start()

    def close(self, timeout: float) -> None:
        """Stop the workers and close every socket. Idempotent; never raises."""
        with self.lock:
            self.life.close()
            self.delivery.drop_tasks()
            self.life.wake_consumers()
            self.assignment.wake_fetchers()
            self.commits.notify_all()
            self.recalled.notify_all()
        if self.link is not None:
            self.link.close()
        self.cluster.close()
        self.fetchers.join(timeout)
        self.positions.join(timeout)
        self.cluster.close_idle()
        with self.lock:
            self.assignment.drop(list(self.buffer.queues))
            self.collector.in_flight.forget_taken()

    def set_paused(self, tps: Collection[TopicPartition], paused: bool) -> None:
        """Pause or resume partitions; the progress of those that are paused is noted, as their messages are dropped."""
        with self.lock:
            looks = self.progress_tracker.look(tps) if paused else []
            self.assignment.set_paused(tps, paused)
        self.progress_tracker.note_pause(looks)
