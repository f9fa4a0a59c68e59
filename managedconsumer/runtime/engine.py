"""The running consumer below both facades: subscription, buffer, dispenser, workers, and one lock around them.

Threads: the user's (``next_message``), the fetch workers, a position worker (resets, metadata age) and, where offsets
are committed automatically, a commit worker. Everything that is decided is decided under ``lock`` by pure objects; no
I/O and no user code runs under it.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Protocol, Sequence, TypeVar

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.config import ConsumerOptions
from managedconsumer.coordinator.history import History
from managedconsumer.fetch.buffer import FetchBuffer
from managedconsumer.fetch.collect import Dispenser
from managedconsumer.fetch.plan import FetchLimits
from managedconsumer.runtime import forks
from managedconsumer.runtime.assignment_part import AssignmentPart
from managedconsumer.runtime.cluster import Cluster
from managedconsumer.runtime.coordinator_link import CoordinatorLink
from managedconsumer.runtime.fetch_pool import FetchPool
from managedconsumer.runtime.offsets import OffsetClient
from managedconsumer.runtime.patience import Patience
from managedconsumer.runtime.positions import PositionWorker
from managedconsumer.runtime.troubles import METADATA, Troubles
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import SubscriptionState
from managedconsumer.wire._lane_py import Lane as PythonLane
from managedconsumer.wire.records import Lane, Message

if TYPE_CHECKING:
    from managedconsumer.runtime.rdkafka_pool import RdkafkaPool

log = logging.getLogger(__name__)

T = TypeVar("T")


class Task(Protocol):
    """A callback for the consuming thread (:class:`managedconsumer.runtime.callbacks.UserTask`)."""

    def run(self) -> None:
        """Run it in a thread."""

    async def run_async(self) -> None:
        """Run it on an event loop."""


# A missed wake-up can cost a blocked consumer at most this much (seconds).
_LONGEST_NAP = 1.0


class Engine(AssignmentPart):
    """One consumer's machinery. Thread-safe; :meth:`close` may be called from anywhere, also from a signal handler."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions, group_id: str | None) -> None:
        self.cluster = cluster
        self.options = options
        self.group_id = group_id
        self.handler = cluster.handler
        shared = self.handler.RLock()
        self.lock = self.handler.Condition(shared)  # the user waits here for messages
        self.room = self.handler.Condition(shared)  # the fetchers wait here for room
        self.commits = self.handler.Condition(shared)  # the commit worker waits here, and who waits for it
        #: What happened to the membership, for the log, ``events()`` and the recorder.
        self.history = History(group_id or "", self.handler.now, time.time)
        self.subscription = SubscriptionState(options.auto_offset_reset)
        self.buffer = FetchBuffer(options.queued_max_messages, options.queued_max_bytes)
        # A greenlet on the short way gives no turns, however long a deserializer takes.
        short = self.handler.native or options.deserializer is None
        make = PythonLane if options.use_rdkafka else Lane  # librdkafka's messages become ours in Python
        lane = make(self.handler.current, self.handler.native, self.handler.Lock()) if short else None
        self.dispenser = Dispenser(self.buffer, lane)
        self._patience = None if self.handler.native else Patience(self.handler)
        self.partition_object: Callable[[TopicPartition], Any] = lambda tp: tp
        self.closing = True
        self.stopping = self.stop_wanted = False
        #: When (handler's clock) the stop that goes on should be over.
        self.stop_by = 0.0
        #: How long (seconds) the stop that is wanted may take; None: its default.
        self.stop_timeout: float | None = None
        #: Threads that are inside ``consume()`` or a callback of it: a ``stop()`` there waits until they are out.
        self.inside: set[int] = set()
        self._draining = 0
        #: How often a consuming thread has come (the lane's messages are counted there).
        self.visits = 0
        self.error: BaseException | None = None
        self._cause: TracebackType | None = None
        self.troubles = Troubles(group_id or "consumer")
        self._raise_once: deque[BaseException] = deque()
        self._tasks: deque[Task] = deque()
        #: The event loop that consumes, while one does.
        self.loop: Any = None
        self._pid = os.getpid()
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
        with self.lock:
            self.closing = self.stopping = self.stop_wanted = False
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
            self.dispenser.forget_taken()

    @property
    def tasks_waiting(self) -> bool:
        """True when a callback waits for the consuming thread."""
        return bool(self._tasks)

    def in_own_process(self) -> bool:
        """False in a child of the process that made this consumer."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raise ForkedProcessError in a child of the process that made this consumer."""
        if not self.in_own_process():
            raise self._forked()

    def _forked(self) -> err.ForkedProcessError:
        return err.ForkedProcessError(
            f"this consumer was created in process {self._pid} and is used in its child {os.getpid()}: threads and "
            "sockets do not survive a fork. Create the consumer in the process that uses it"
        )

    def disown(self) -> None:
        """In the child of a fork: every call raises from here on. Threads that are not here may hold its locks."""
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
        log.error("%s: the consumer ends: %s", self.group_id or "consumer", error, exc_info=error)

    def raise_later(self, error: BaseException) -> None:
        """An error of the user's code: raised once, by the next call that consumes."""
        with self.lock:
            self._raise_once.append(error)
            self.call_user()

    def call_user(self) -> None:
        """There is something that the consuming threads must look at before they get another message; lock held."""
        self.dispenser.settle_lane()
        self.lock.notify_all()

    @property
    def trouble(self) -> str | None:
        """What does not work at the moment and heals by itself; None when all is well."""
        return self.troubles.text

    def raise_if_over(self) -> None:
        """Raise what has ended the consumer, or what the user has to know once."""
        if self.error is not None:
            raise self.error.with_traceback(self._cause)  # or it would grow with every call
        if self._raise_once:
            raise self._raise_once.popleft()
        if self.closing or self.stopping:
            raise err.ConsumerStoppedException("the consumer is not running: call start() first")

    # -- messages -------------------------------------------------------------------------------------

    def next_message(self, timeout: float | None) -> Message | None:
        """The next message; None after ``timeout`` seconds without one (None: wait for ever, 0: do not wait)."""
        return self._wait_for(self.dispenser.take, timeout)

    def next_batch(self, limit: int, timeout: float | None) -> list[Message]:
        """What is there, up to ``limit`` messages, as soon as there is one; empty after ``timeout`` seconds."""
        return self._wait_for(lambda who: self.dispenser.take_many(who, limit), timeout) or []

    def next_columns(self, columns: Sequence[str], timeout: float | None) -> Any:
        """What is there of one partition as Arrow columns; None after ``timeout`` seconds."""
        found = self._wait_for(lambda who: self.dispenser.take_columns(who, columns), timeout)
        return None if found is None else found[0]

    def attempt(self, take: Callable[[int], T | None], who: int) -> tuple[T | None, Task | None]:
        """One look without waiting: what ``take`` gives, or a callback to run first, outside the lock.

        Raises what ended the consumer. Neither: nothing is there, or a stop is wanted.
        """
        with self.lock:
            self.visits += 1
            if self.error is not None or self._raise_once or self.closing or self.stopping or self.stop_wanted:
                self._on_return(who)
                if not self.stop_wanted:
                    self.raise_if_over()
                return None, None
            if self._tasks:
                self._on_return(who)
                return None, self._tasks.popleft()
            return self._take(take, who), None

    def wait_for_news(self, seconds: float) -> None:
        """Block until there may be something for :meth:`attempt`, or ``seconds``; for event loops' waiting threads."""
        with self.lock:
            over = self.error is not None or self.closing or self.stopping or self.stop_wanted
            if not (over or self._raise_once or self._tasks or self.buffer.ready()):
                self.lock.wait(seconds)

    def wait_for_end(self, seconds: float) -> None:
        """Block until a :meth:`close` that has begun elsewhere is through, or ``seconds``."""
        with self.lock:
            if not self.closing:
                self.lock.wait(seconds)

    def _wait_for(self, take: Callable[[int], T | None], timeout: float | None) -> T | None:
        """Call ``take`` until it gives something; runs the consuming thread's callbacks first, outside the lock."""
        who = self.handler.ident()
        deadline: Deadline | None = None
        while True:
            if self._patience is not None:
                self._patience.give_turn()
            self.inside.add(who)
            try:
                with self.lock:
                    taken, task = self.attempt(take, who)
                    if taken or self.stop_wanted:
                        return taken
                    if task is None:
                        deadline = deadline or Deadline(self.handler.now(), timeout)
                        if deadline.expired(self.handler.now()):
                            return None
                        remaining = deadline.remaining(self.handler.now())
                        self.lock.wait(_LONGEST_NAP if remaining is None else min(remaining, _LONGEST_NAP))
            finally:
                self.inside.discard(who)
            if task is not None:
                self._run_task(task, who)
            else:
                self.check_process()

    def _run_task(self, task: Task, who: int) -> None:
        """A callback that calls ``stop()`` gets what a signal handler gets: the stop follows when it has come back."""
        self.inside.add(who)
        try:
            task.run()
        finally:
            self.inside.discard(who)

    def _take(self, take: Callable[[int], T | None], who: int) -> T | None:
        queued = self.buffer.pops
        try:
            return take(who) if self._patience is None else self._patience.call(take, who)
        finally:
            if self.buffer.pops != queued:
                self.room.notify_all()
            if self._draining:
                self.lock.notify_all()

    def _on_return(self, who: int) -> None:
        """The thread came back without getting a message: what it had is finished."""
        self.dispenser.finish(who)
        self.lock.notify_all()

    def run_in_user_thread(self, task: Task) -> None:
        """Queue ``task`` for the thread that consumes."""
        with self.lock:
            self._tasks.append(task)
            self.call_user()

    def cancel_task(self, task: Task) -> bool:
        """Forget ``task`` if no thread has come for it; False when one has."""
        with self.lock:
            if task not in self._tasks:
                return False
            self._tasks.remove(task)
            return True

    def push_back(self, messages: Sequence[Message]) -> None:
        """The calling thread could not use ``messages``: they are handed out again, the position stays before them."""
        with self.lock:
            self.dispenser.push_back(self.handler.ident(), messages)
            self.lock.notify_all()

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

    def skip_corrupt(self, tp: TopicPartition) -> None:
        """Go on behind a batch that cannot be read."""
        with self.lock:
            self.dispenser.skip_corrupt(tp)

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
