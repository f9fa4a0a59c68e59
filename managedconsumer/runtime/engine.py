"""The running consumer below both facades: subscription, buffer, dispenser, workers, and one lock around them.

Threads: the user's (``next_message``), the fetch workers, a position worker (resets, metadata age) and, where offsets
are committed automatically, a commit worker. Everything that is decided is decided under ``lock`` by pure objects; no
I/O and no user code runs under it.
"""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, TypeVar

from managedconsumer import errors as err
from managedconsumer.config import ConsumerOptions
from managedconsumer.coordinator.history import History
from managedconsumer.fetch.buffer import FetchBuffer
from managedconsumer.fetch.collect import Dispenser
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.runtime import forks
from managedconsumer.runtime.cluster import Cluster
from managedconsumer.runtime.consuming_part import ConsumingPart, Task
from managedconsumer.runtime.coordinator_link import CoordinatorLink
from managedconsumer.runtime.fetch_pool import FetchPool
from managedconsumer.runtime.news import News
from managedconsumer.runtime.offsets import OffsetClient
from managedconsumer.runtime.patience import Patience
from managedconsumer.runtime.positions import PositionWorker
from managedconsumer.runtime.troubles import METADATA, Troubles
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import SubscriptionState
from managedconsumer.wire._lane_py import Lane as PythonLane
from managedconsumer.wire.records import Lane

if TYPE_CHECKING:
    from managedconsumer.runtime.rdkafka_pool import RdkafkaPool

log = logging.getLogger(__name__)

T = TypeVar("T")


class Engine(forks.OwnProcess, ConsumingPart):
    """One consumer's machinery. Thread-safe; :meth:`close` may be called from anywhere, also from a signal handler."""

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        group_id: str | None,
        partition_object: Callable[[TopicPartition], Any] = lambda tp: tp,
    ) -> None:
        """``partition_object`` makes what messages and users get for a partition."""
        super().__init__()
        self.cluster = cluster
        self.options = options
        self.group_id = group_id
        self.handler = cluster.handler
        shared = self.handler.RLock()
        self.lock = self.handler.Condition(shared)  # the user waits here for messages
        self.room = self.handler.Condition(shared)  # the fetchers wait here for room
        self.commits = self.handler.Condition(shared)  # the commit worker waits here, and who waits for it
        #: What happened to the membership, for the log, ``events()`` and the recorder.
        self.history = History(group_id or "", self.handler.now, self.handler.wall_time)
        self.subscription = SubscriptionState(options.auto_offset_reset)
        self.buffer = FetchBuffer(options.queued_max_messages, options.queued_max_bytes)
        # A greenlet on the short way gives no turns, however long a deserializer takes.
        short = self.handler.native or options.deserializer is None
        make = PythonLane if options.use_rdkafka else Lane  # librdkafka's messages become ours in Python
        here = self.handler.here
        lane = make(None if here else self.handler.current, here) if short else None
        self.dispenser = Dispenser(self.buffer, lane)
        self._patience = None if self.handler.native else Patience(self.handler)
        self.partition_object = partition_object
        self.closing = True
        self.stopping = self.stop_wanted = self._opened = False
        #: True when no more messages are wanted: consuming calls finish what is in hand and give nothing.
        self.ending = False
        #: When (handler's clock) the stop that goes on should be over.
        self.stop_by = 0.0
        #: How long (seconds) the stop that is wanted may take; None: its default.
        self.stop_timeout: float | None = None
        #: Threads that are inside ``consume()`` or a callback of it: a ``stop()`` there waits until they are out.
        self.inside: set[int] = set()
        self._draining = 0
        self._undecided = {}
        #: How often a consuming thread has come (the lane's messages are counted there).
        self.visits = 0
        self.error: BaseException | None = None
        self._cause: TracebackType | None = None
        self.troubles = Troubles(group_id or "consumer")
        self._raise_once: deque[BaseException] = deque()
        self._tasks: deque[Task] = deque()
        #: The event loop that consumes, or has consumed last.
        self.loop: Any = None
        self.news = News(self)
        self.abandoned = False
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
            beside=None if self._patience is None else self._patience.beside,
        )
        self.link = CoordinatorLink(self.cluster, self.group_id) if self.group_id is not None else None
        self.offsets = OffsetClient(self.cluster, self.link, self.group_id, options.isolation)
        slots = options.num_consumer_fetchers
        self.fetchers: FetchPool | RdkafkaPool
        if options.use_rdkafka:
            from managedconsumer.runtime.rdkafka_pool import RdkafkaPool

            self.fetchers = RdkafkaPool(self, limits)
        else:
            self.fetchers = FetchPool(self, limits, slots)
        self.positions = PositionWorker(self)

    # -- lifecycle ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start (again): fresh connections, no assignment, workers running."""
        self.check_process()
        self.cluster.reopen()
        self._build()
        self._opened = True
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
            self.call_user()
            self.room.notify_all()
            self.commits.notify_all()
        if self.link is not None:
            self.link.close()
        self.cluster.close()
        self.fetchers.join(timeout)
        self.positions.join(timeout)
        self.offsets.close()
        with self.lock:
            self.drop(list(self.buffer.queues))
            self.dispenser.hands.forget_taken()

    def consume_on(self, loop: Any) -> None:
        """``loop`` consumes: the last callback of a stop runs on it."""
        self.loop = loop

    def begin_stop(self, timeout: float) -> None:
        """A stop begins that may take ``timeout`` seconds: consuming calls raise, and no other life begins."""
        with self.lock:
            self.stop_by = self.handler.now() + timeout
            self.stopping = True
            self.call_user()

    def abandon(self) -> None:
        """The consumer was collected without ``stop()``: the workers end. No lock, no I/O: this runs inside the GC."""
        self.abandoned = self.closing = True

    @property
    def tasks_waiting(self) -> bool:
        """True when a callback waits for the consuming thread."""
        return bool(self._tasks)

    def disown(self) -> None:
        """In the child of a fork: every call raises from here on. Threads that do not exist here may hold the locks."""
        shared = self.handler.RLock()
        self.lock, self.room = self.handler.Condition(shared), self.handler.Condition(shared)
        self.commits = self.handler.Condition(shared)
        self.dispenser.lane.cut()
        self.error, self._cause = self._forked(), None

    def fail(self, error: BaseException) -> None:
        """An error that ends the consumer: raised by every later call."""
        with self.lock:
            if self.closing or self.error is not None:
                return
            self.error, self._cause = error, error.__traceback__
            self.call_user()
        # What a broker refuses, or a network, is said in one line; a traceback is for what should not have happened.
        expected = isinstance(error, err.KafkaException) and not isinstance(error, err.IllegalStateError)
        trace = None if expected else error
        log.error("%s: the consumer ends: %s", self.group_id or "consumer", error, exc_info=trace)

    def raise_later(self, error: BaseException) -> None:
        """An error of the user's code: raised once, by the next call that consumes."""
        with self.lock:
            self._raise_once.append(error)
            self.call_user()

    def want_stop(self, timeout: float | None = None) -> None:
        """The next call that consumes stops. No lock, and no waiting: this may run in the middle of anything.

        ``timeout``: how long (seconds) that stop may take; None: its default.
        """
        self.stop_timeout = timeout
        self.stop_wanted = True
        self.dispenser.lane.leave()

    def end_soon(self) -> None:
        """Calls that consume finish what is in hand and give nothing any more; otherwise like :meth:`want_stop`."""
        self.ending = True
        self.dispenser.lane.leave()

    def tell_users(self) -> None:
        """Wake the threads that consume or commit after :meth:`want_stop` or :meth:`end_soon`."""
        with self.lock:
            self.call_user()
            self.commits.notify_all()

    def call_user(self) -> None:
        """There is something that the consuming threads must look at before they get another message; lock held."""
        self.dispenser.settle_lane()
        self.lock.notify_all()

    @property
    def trouble(self) -> str | None:
        """What does not work at the moment and heals by itself; None when all is well."""
        return self.troubles.text

    def set_paused(self, tps: Iterable[TopicPartition], paused: bool) -> None:
        """Pause or resume; what was fetched of a paused partition is dropped at once."""
        with self.lock:
            self.dispenser.shelve()
            for tp in tps:
                if paused:
                    self.subscription.pause(tp)
                    self.buffer.restart(tp)
                else:
                    self.subscription.resume(tp)
            self.lock.notify_all()
            self.room.notify_all()

    def position(self, tp: TopicPartition) -> int | None:
        """The *next* offset of ``tp``; None while it is not known. Raises PartitionNotAssignedError."""
        with self.lock:
            self.dispenser.settle_lane()
            return self.subscription.partition_state(tp).position

    def refresh_metadata(self) -> None:
        """Ask for the metadata of what is assigned, unless another worker just has; trouble is noted, not raised."""
        snapshot = self.cluster.snapshot
        assigned = {tp.topic for tp in self.subscription.assigned_partitions()}
        pattern = self.subscription.subscribed_pattern
        topics = None if pattern is not None else assigned | self.subscription.group_subscription()
        try:
            self.cluster.refresh_if_same(snapshot, topics)
            self.troubles.over(METADATA)
        except err.FATAL_LOCAL_ERRORS as error:
            self.fail(error)
        except err.KafkaException as error:
            if not self.closing:
                self.troubles.note(METADATA, str(error))
        with self.lock:
            self.fetchers.ensure_workers()
            self.room.notify_all()
