"""The state that the workers and calls of one consumer share: one lock, the data it guards, and its end.

:class:`~managedconsumer.runtime.engine.engine.Engine` adds the workers, which see only the parts that they need.
"""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Any, Callable, Iterable, Protocol, Sized

from managedconsumer import errors as err
from managedconsumer.config import ConsumerOptions
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.logs import LogFields
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.engine.accelerator import inline_fetch
from managedconsumer.runtime.engine.troubles import METADATA, Troubles
from managedconsumer.runtime.waiting import forks, thread_ids
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import SubscriptionState

log = logging.getLogger(__name__)


class Task(Protocol):
    """A callback for the consuming thread (:class:`managedconsumer.runtime.engine.callbacks.UserTask`)."""

    def run(self) -> None:
        """Run it in a thread."""

    async def run_async(self) -> None:
        """Run it on an event loop."""


class Lease(Task, Protocol):
    """How long messages may be delivered (:class:`managedconsumer.runtime.lease.Lease`)."""

    def until(self) -> float:
        """Until when (handler's clock); after that its task runs first. No lock."""


class Inline(Protocol):
    """The connections that workers have lent (``engine.fetching.inline.InlineReceive``)."""

    def ready(self) -> bool:
        """True if the calling thread may receive from them. The lock is held."""


class Fetchers(Protocol):
    """The fetch workers (:class:`managedconsumer.runtime.engine.fetching.fetch_pool.FetchPool`)."""

    #: The connections that workers have lent.
    inline_receive: Inline

    @property
    def quiet_fetches(self) -> Sized:
        """The partitions that the client's long poll has taken over."""

    def ensure_workers(self) -> None:
        """Start missing workers for the current leaders, and cancel outdated long polls; the lock is held."""

    def look_again(self) -> None:
        """Check whether other requests are needed; the lock is held."""


class Positions(Protocol):
    """The position worker (:class:`managedconsumer.runtime.engine.positions.PositionWorker`)."""

    def wake(self) -> None:
        """Wake the worker: a position is to be looked up."""

    def is_due(self, now: float) -> bool:
        """True when the worker has to run again; no lock."""


class EngineState(forks.OwnProcess):
    """One consumer's state. Thread-safe: every method takes the lock, unless its docstring says otherwise."""

    fetchers: Fetchers
    positions: Positions

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        group_id: str | None,
        lane: Any,
        partition_object: Callable[[TopicPartition], Any],
    ) -> None:
        """``lane`` is the :class:`~managedconsumer.wire.records.Lane` of the collector, None: there is no fast path."""
        super().__init__()
        self.cluster = cluster
        self.options = options
        self.group_id = group_id
        self.handler = cluster.handler
        self._make_locks()
        self.subscription = SubscriptionState(options.auto_offset_reset)
        self.buffer = FetchBuffer(options.queued_max_messages, options.queued_max_bytes)
        self.collector = FetchCollector(self.buffer, lane)
        if self.inline is not None:
            timeout_ms = options.consumer_timeout_ms
            self.collector.draw_from(self.inline, float("inf") if timeout_ms < 0 else timeout_ms / 1000.0)
        self.partition_object = partition_object
        self.closing = True
        self.stopping = self.stop_wanted = False
        #: True after the first start.
        self.opened = False
        #: True when no more messages are wanted: consuming calls finish the messages in flight and return none.
        self.ending = False
        #: When (handler's clock) the stop in progress should be over.
        self.stop_by = 0.0
        #: How long (seconds) the requested stop may take; None: its default.
        self.stop_timeout: float | None = None
        #: Ids of the threads inside ``consume()`` or a callback; a ``stop()`` called in one of them happens after it
        #: has returned.
        self.inside: set[int] = set()
        #: How many consuming threads wait for notifications of the lock.
        self.sitting = 0
        self._draining = 0
        #: How long messages may be delivered; None: as long as their partitions are assigned.
        self.lease: Lease | None = None
        #: The partitions whose position only the user can set, see :meth:`AssignmentPart.ask_user`.
        self._undecided: dict[TopicPartition, PartitionQueue] = {}
        #: How often a consuming thread has asked for messages (the lane counts its own).
        self.visits = 0
        self.error: BaseException | None = None
        self._cause: TracebackType | None = None
        #: For ``extra=`` of this consumer's log lines.
        self.log_fields = LogFields(group_id)
        self.troubles = Troubles(group_id or "consumer", self.log_fields)
        self._raise_once: deque[BaseException] = deque()
        self._tasks: deque[Task] = deque()
        #: The event loop that consumed last.
        self.loop: Any = None
        #: True when the consumer was deleted without ``stop()``: the last worker closes everything.
        self.abandoned = False

    def _make_locks(self) -> None:
        shared = self.handler.RLock()
        #: The connections from which a consuming thread receives by itself; None: it cannot do so here.
        self.inline = inline_fetch(self.handler)
        wake = None if self.inline is None else self.inline.wake
        # The user waits here for messages.
        self.lock = self.handler.Condition(shared) if wake is None else self.handler.WakingCondition(shared, wake)
        self.not_full = self.handler.Condition(shared)  # fetch workers wait here for memory
        self.commits = self.handler.Condition(shared)  # the commit worker and threads that commit wait here
        self.recalled = self.handler.Condition(shared)  # fetch workers that have lent their connection wait here
        self.work = self.handler.Condition(shared)  # the workers of run() wait here
        #: The same lock for frequent users that neither wait nor notify: a condition needs two calls instead of one.
        self.mutex = shared

    def disown(self) -> None:
        """In the child of a fork: make every call raise. Threads that do not exist here may hold the locks."""
        self._make_locks()
        self.collector.lane.cut()
        self.error, self._cause = self._forked(), None

    # -- the end ----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """End the consumer with an error, which every later call raises."""
        with self.lock:
            if self.closing or self.error is not None:
                return
            self.error, self._cause = error, error.__traceback__
            self.wake_consumers()
        # Refusals by a broker or a network are logged in one line; tracebacks are for errors that should not happen.
        expected = isinstance(error, err.KafkaException) and not isinstance(error, err.IllegalStateError)
        trace = None if expected else error
        log.error(
            "%s: the consumer ends: %s", self.group_id or "consumer", error, exc_info=trace, extra=self.log_fields()
        )

    def raise_later(self, error: BaseException) -> None:
        """Keep an error of the user's code: the next consuming call raises it, once."""
        with self.lock:
            self._raise_once.append(error)
            self.wake_consumers()

    def want_stop(self, timeout: float | None = None) -> None:
        """Make the next consuming call stop. Takes no lock and never waits: a signal may run it at any line.

        ``timeout``: how long (seconds) that stop may take; None: its default.
        """
        self.stop_timeout = timeout
        self.stop_wanted = True
        self.collector.lane.leave()

    def end_soon(self) -> None:
        """Like :meth:`want_stop`, but consuming calls finish the messages in flight and return none."""
        self.ending = True
        self.collector.lane.leave()

    def raise_if_over(self) -> None:
        """Raise the error that ended the consumer, or a kept error of the user's code."""
        if self.error is not None:
            raise self.error.with_traceback(self._cause)  # else the traceback would grow with every call
        if self._raise_once:
            raise self._raise_once.popleft()
        if self.closing or self.stopping:
            raise self.not_running()

    def not_running(self) -> err.ConsumerStoppedException:
        """Return the error for a call that needs a running consumer: never started, or stopped (by any thread)."""
        if not self.opened:
            return err.ConsumerStoppedException("the consumer is not running: call start() first")
        return err.ConsumerStoppedException("the consumer was stopped; start() starts it again")

    @property
    def draining(self) -> bool:
        """True while a thread waits until messages in flight are finished."""
        return bool(self._draining)

    # -- the consuming threads ----------------------------------------------------------------------------------------

    def tell_users(self) -> None:
        """Wake the threads that consume or commit after :meth:`want_stop` or :meth:`end_soon`."""
        with self.lock:
            self.wake_consumers()
            self.commits.notify_all()

    def wake_consumers(self) -> None:
        """Wake the consuming threads and end the fast path: each of them takes the lock. The lock is held."""
        self.collector.settle_lane()
        self.lock.notify_all()

    def wake_fetchers(self) -> None:
        """Wake fetch workers: positions or free memory have changed. The lock is held."""
        self.not_full.notify_all()
        self.fetchers.look_again()

    def caller(self) -> int:
        """Return the number of the asyncio task that called, or of the calling thread."""
        me = self.handler.ident()
        with self.lock:
            return me if me in self.collector.in_flight else thread_ids.acting.get() or me

    def leave_dead_owners(self) -> None:
        """Disown messages in flight of threads that have ended; the lock is held."""
        for who in self.collector.owners():
            if not self.handler.is_alive(who):
                for tp, offset in self.collector.leave_behind(who):
                    log.warning(
                        "%s: a thread (greenlet, task) ended with offset %d of %s-%d in hand, which is not finished: "
                        "nothing beyond it is committed until another member or another start reads it again",
                        *(self.group_id or "consumer", offset, *tp),
                        extra=self.log_fields(tp),
                    )

    # -- requests to brokers -------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """Return the present transient trouble, or None."""
        return self.troubles.text

    def refresh_metadata(self) -> None:
        """Refresh the metadata of the assigned topics, unless another worker just has; notes trouble, never raises."""
        snapshot = self.cluster.snapshot
        assigned = {tp.topic for tp in self.subscription.assigned_partitions()}
        pattern = self.subscription.subscribed_pattern
        topics: Iterable[str] | None = None
        if pattern is None:
            topics = assigned | self.subscription.group_subscription()
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
            self.not_full.notify_all()
