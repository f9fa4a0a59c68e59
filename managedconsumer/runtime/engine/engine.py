"""The running consumer below both facades: subscription, buffer, collector, workers, and one lock around them.

Threads: the user's (``next_message``), the fetch workers, a position worker (resets, metadata age) and a commit worker
from the first commit on. Pure objects make all decisions under ``lock``; no I/O and no user code runs under it.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

from managedconsumer.config import ConsumerOptions
from managedconsumer.coordinator.history import History
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.engine.consuming_part import ConsumingPart
from managedconsumer.runtime.engine.fetching.fetch_pool import FetchPool
from managedconsumer.runtime.engine.positions import PositionWorker
from managedconsumer.runtime.engine.progress_tracker import ProgressTracker
from managedconsumer.runtime.waiting import forks
from managedconsumer.runtime.waiting.async_waiters import AsyncWaiters
from managedconsumer.runtime.waiting.greenlet_yield import GreenletYield
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Lane


def _lane(handler: Handler) -> Lane:
    here = handler.here
    return Lane(None if here else handler.current, here, None if handler.real else handler.now)


class Engine(ConsumingPart):
    """The engine of one consumer. Thread-safe; :meth:`close` may be called from any place, also a signal handler."""

    fetchers: FetchPool  # type: ignore[assignment]
    positions: PositionWorker

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        group_id: str | None,
        partition_object: Callable[[TopicPartition], Any] = lambda tp: tp,
    ) -> None:
        """``partition_object`` makes the object that messages and users get for a partition."""
        super().__init__(cluster, options, group_id, _lane(cluster.handler), partition_object)
        #: The events of the membership, for the log, ``events()`` and the recorder.
        self.history = History(group_id or "", self.handler.now, self.handler.wall_time)
        self.progress_tracker = ProgressTracker(self)
        self._greenlet_yield = None if self.handler.native or not self.handler.real else GreenletYield(self.handler)
        self.async_waiters = AsyncWaiters(self)
        forks.watch(self)
        self._build()

    def _build(self) -> None:
        options = self.options
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
        slots = options.num_consumer_fetchers
        if options.use_rdkafka:
            from managedconsumer.runtime.rdkafka.pool import RdkafkaPool

            self.fetchers = RdkafkaPool(self, limits)
        else:
            self.fetchers = FetchPool(self, limits, slots)
        self.positions = PositionWorker(self, self.offsets, self.close, self.progress_tracker.sample)

    # -- lifecycle ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start (again): fresh connections, no assignment, workers running."""
        self.check_process()
        self.cluster.reopen()
        self._build()
        self.cluster.join()
        self.opened = True
        with self.lock:
            self.closing = self.stopping = self.stop_wanted = self.ending = False
            self.error = None
            self.troubles.clear()
            self._raise_once.clear()
            self._tasks.clear()
        self.positions.start()

    def close(self, timeout: float) -> None:
        """Stop the workers and close every socket. Idempotent; never raises."""
        with self.lock:
            self.closing = True
            self._tasks.clear()
            self.wake_consumers()
            self.wake_fetchers()
            self.commits.notify_all()
            self.recalled.notify_all()
        if self.link is not None:
            self.link.close()
        self.cluster.close()
        self.fetchers.join(timeout)
        self.positions.join(timeout)
        self.offsets.close()
        with self.lock:
            self.drop(list(self.buffer.queues))
            self.collector.in_flight.forget_taken()

    def consume_on(self, loop: Any) -> None:
        """Note the event loop that consumes: the last callback of a stop runs on it."""
        self.loop = loop

    def begin_stop(self, timeout: float) -> None:
        """Begin a stop that may take ``timeout`` seconds: consuming calls raise, and a new start is refused."""
        with self.lock:
            self.stop_by = self.handler.now() + timeout
            self.stopping = True
            self.wake_consumers()

    def abandon(self) -> None:
        """End the workers of a consumer that was deleted without ``stop()``. The GC calls it: no lock, no I/O."""
        self.abandoned = self.closing = True

    @property
    def tasks_waiting(self) -> bool:
        """True when a callback waits for the consuming thread."""
        return bool(self._tasks)

    def set_paused(self, tps: Iterable[TopicPartition], paused: bool) -> None:
        """Pause or resume. A pause drops the partition's fetched messages; those that ``run()`` has taken wait."""
        tps = list(tps)
        with self.lock:
            self.collector.shelve()
            looks = self.progress_tracker.look(tps) if paused else []
            for tp in tps:
                if paused:
                    self.subscription.pause(tp)
                    self.buffer.restart(tp)
                else:
                    self.subscription.resume(tp)
            if self.collector.in_flight.run_state is not None:
                self.collector.in_flight.run_state.interrupt()
            self.lock.notify_all()
            self.wake_fetchers()
        self.progress_tracker.note_pause(looks)

    def position(self, tp: TopicPartition) -> int | None:
        """Return the *next* offset of ``tp``; None while it is not known. Raises PartitionNotAssignedError."""
        with self.lock:
            self.collector.settle_lane()
            return self.subscription.partition_state(tp).position
