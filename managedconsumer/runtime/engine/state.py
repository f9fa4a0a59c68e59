"""The state that the workers and calls of one consumer share: one lock, the data it guards, and how it ends.

:class:`~managedconsumer.runtime.engine.engine.Engine` is this with the workers, which see only what they need of it.
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
from managedconsumer.runtime.waiting import forks, owners
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
    """How long messages may be handed out (:class:`managedconsumer.runtime.lease.Lease`)."""

    def until(self) -> float:
        """Until when (handler's clock); after that its task runs first. No lock."""


class Inline(Protocol):
    """The connections that workers have lent (:class:`managedconsumer.runtime.engine.inline.InlineReceive`)."""

    def ready(self) -> bool:
        """True if the calling thread may receive from them. The lock is held."""


class Fetchers(Protocol):
    """The workers that fetch (:class:`managedconsumer.runtime.engine.fetch_pool.FetchPool`)."""

    #: The connections that workers have lent.
    lending: Inline

    @property
    def parking(self) -> Sized:
        """The partitions that were left to the client's watch."""

    def ensure_workers(self) -> None:
        """Start what is missing for the current leaders, and let none wait for another answer; the lock is held."""

    def look_again(self) -> None:
        """Something else is to be fetched, perhaps; the lock is held."""


class Positions(Protocol):
    """The worker that looks positions up (:class:`managedconsumer.runtime.engine.positions.PositionWorker`)."""

    def wake(self) -> None:
        """There is something to look up."""

    def is_due(self, now: float) -> bool:
        """True when a worker that rests has something to do; no lock."""


class EngineState(forks.OwnProcess):
    """One consumer's state. Thread-safe: every method takes the lock, unless it says otherwise."""

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
        #: True when it was started at least once.
        self.opened = False
        #: True when no more messages are wanted: consuming calls finish what is in hand and give nothing.
        self.ending = False
        #: When (handler's clock) the stop that goes on should be over.
        self.stop_by = 0.0
        #: How long (seconds) the stop that is wanted may take; None: its default.
        self.stop_timeout: float | None = None
        #: Ids of the threads that are inside ``consume()`` or a callback; a ``stop()`` called on one of them is put off
        #: until it has returned.
        self.inside: set[int] = set()
        #: How many consuming threads wait for the lock's notifications.
        self.sitting = 0
        self._draining = 0
        #: How long messages may be handed out; None: as long as they are ours.
        self.lease: Lease | None = None
        #: The partitions of which only the user can say where to go on, see :meth:`AssignmentPart.ask_user`.
        self._undecided: dict[TopicPartition, PartitionQueue] = {}
        #: How often a consuming thread has come (the lane's messages are counted there).
        self.visits = 0
        self.error: BaseException | None = None
        self._cause: TracebackType | None = None
        #: For ``extra=`` of this consumer's log lines.
        self.log_fields = LogFields(group_id)
        self.troubles = Troubles(group_id or "consumer", self.log_fields)
        self._raise_once: deque[BaseException] = deque()
        self._tasks: deque[Task] = deque()
        #: The event loop that consumes, or has consumed last.
        self.loop: Any = None
        #: True when the consumer was deleted without ``stop()``: the last worker closes everything.
        self.abandoned = False

    def _make_locks(self) -> None:
        shared = self.handler.RLock()
        #: The connections from which a consuming thread receives by itself; None: it does not, here.
        self.inline = inline_fetch(self.handler)
        wake = None if self.inline is None else self.inline.wake
        # The user waits here for messages.
        self.lock = self.handler.Condition(shared) if wake is None else self.handler.WakingCondition(shared, wake)
        self.not_full = self.handler.Condition(shared)  # the fetchers wait here for room in the buffer
        self.commits = self.handler.Condition(shared)  # the commit worker and threads that commit wait here
        self.loans = self.handler.Condition(shared)  # fetch workers wait here that have lent their connection
        self.work = self.handler.Condition(shared)  # the workers of run() wait here
        #: The same lock, for what takes it very often and neither waits nor wakes: a condition makes two calls of it.
        self.mutex = shared

    def disown(self) -> None:
        """In the child of a fork: every call raises from here on. Threads that do not exist here may hold the locks."""
        self._make_locks()
        self.collector.lane.cut()
        self.error, self._cause = self._forked(), None

    # -- the end ----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """An error that ends the consumer: raised by every later call."""
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
        """An error of the user's code: raised once, by the next call that consumes."""
        with self.lock:
            self._raise_once.append(error)
            self.wake_consumers()

    def want_stop(self, timeout: float | None = None) -> None:
        """The next call that consumes stops. No lock, and no waiting: this may run in the middle of anything.

        ``timeout``: how long (seconds) that stop may take; None: its default.
        """
        self.stop_timeout = timeout
        self.stop_wanted = True
        self.collector.lane.leave()

    def end_soon(self) -> None:
        """Calls that consume finish what is in hand and give nothing any more; otherwise like :meth:`want_stop`."""
        self.ending = True
        self.collector.lane.leave()

    def raise_if_over(self) -> None:
        """Raise what has ended the consumer, or what the user has to know once."""
        if self.error is not None:
            raise self.error.with_traceback(self._cause)  # or it would grow with every call
        if self._raise_once:
            raise self._raise_once.popleft()
        if self.closing or self.stopping:
            raise self.not_running()

    def not_running(self) -> err.ConsumerStoppedException:
        """The error for a call that needs a running consumer: never started, or stopped (by any thread)."""
        if not self.opened:
            return err.ConsumerStoppedException("the consumer is not running: call start() first")
        return err.ConsumerStoppedException("the consumer was stopped; start() starts it again")

    @property
    def draining(self) -> bool:
        """True while somebody waits for what is in hand."""
        return bool(self._draining)

    # -- the consuming threads ----------------------------------------------------------------------------------------

    def tell_users(self) -> None:
        """Wake the threads that consume or commit after :meth:`want_stop` or :meth:`end_soon`."""
        with self.lock:
            self.wake_consumers()
            self.commits.notify_all()

    def wake_consumers(self) -> None:
        """Wake the consuming threads and end the fast path: each of them comes to the lock. The lock is held."""
        self.collector.settle_lane()
        self.lock.notify_all()

    def wake_fetchers(self) -> None:
        """There may be something else to fetch, or room for it. The lock is held."""
        self.not_full.notify_all()
        self.fetchers.look_again()

    def caller(self) -> int:
        """On whose behalf the calling thread acts: its own, or that of the asyncio task that called."""
        me = self.handler.ident()
        with self.lock:
            return me if me in self.collector.hands else owners.acting.get() or me

    def leave_dead_hands(self) -> None:
        """Threads that ended with messages in hand never come back; the lock is held."""
        for who in self.collector.owners():
            if not self.handler.is_alive(who):
                for tp, offset in self.collector.leave_behind(who):
                    log.warning(
                        "%s: a thread (greenlet, task) ended with offset %d of %s-%d in hand, which is not finished: "
                        "nothing beyond it is committed until another member or another start reads it again",
                        *(self.group_id or "consumer", offset, *tp),
                        extra=self.log_fields(tp),
                    )

    # -- what brokers are asked ----------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """Return the transient trouble of this moment, or None."""
        return self.troubles.text

    def refresh_metadata(self) -> None:
        """Ask for the metadata of what is assigned, unless another worker just has; trouble is noted, not raised."""
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
