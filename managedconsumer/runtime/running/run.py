"""The common part of the drivers of ``run()``: moves messages between consumer and workers, under the consumer's lock.

A run takes messages in batches and gives them to workers in blocks: a worker takes the lock once per block. A block has
about a millisecond's work, so slow handlers get one message at a time, and quick ones do not wait for the lock. An idle
worker takes over messages that a slow one has not begun.

A worker notes each finished message at once, without a lock, in its key queue. So a commit, a hand-over or the end of
the run sees all finished messages at any moment (:meth:`Run.collect`), not only at the end of a block.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING, Any, Callable, Container, Iterator, Sequence

from managedconsumer import errors as err
from managedconsumer.fetch.in_flight import RUN_OWNER
from managedconsumer.partition_state import log_end
from managedconsumer.processing import offset_map
from managedconsumer.processing.key_queues import KeyQueue, PartitionWork
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.processing.pace import NotYet
from managedconsumer.processing.values import Plan
from managedconsumer.processing.work import Work
from managedconsumer.processing.worker_slots import WorkerSlot
from managedconsumer.results import UnusedResultError
from managedconsumer.runtime.running.calls import Calls, place_of
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from managedconsumer.runtime.engine.engine import Engine

log = logging.getLogger(__name__)

# A block takes about this long (seconds), and has at most so many messages.
_BLOCK_S, _LARGEST_BLOCK = 0.001, 128
# At most so many messages are taken from the consumer at once.
_LARGEST_LOT = 256
# After this time (seconds) idle workers may take over messages that a worker has not begun.
_STUCK_S = 0.005
# If a worker needs longer (seconds) for a block, another worker notes the finished messages of that block.
_SLOW_S = 0.05
# A missed wake-up can cost a worker at most this much (seconds).
_LONGEST_WAIT = 1.0
# While there is work: how often (seconds) workers check for new messages, as no notification wakes them for these.
_LOOK_S = 0.002
# While messages come: how often (seconds), at least, the run updates the messages in flight.
_SETTLE_S = 0.1
# Workers take from the consumer when this fraction (1/n) of ``max_in_flight`` is free.
_LOT_PART = 16
# How a new measurement of the handler's time changes the mean.
_WEIGHT = 0.2


class Run:
    """One ``run()``; a :class:`managedconsumer.fetch.in_flight.RunState`. The engine's lock guards everything."""

    def __init__(self, engine: Engine, plan: Plan, calls: Calls, workers: int) -> None:
        self.engine = engine
        self.calls = calls
        self.work = Work(plan, sources=self._sources)
        self.lists = plan.batch is not None
        self.slots = [WorkerSlot() for _ in range(workers)]
        #: The message whose failure ended the run and its error, or None and the error that ended the run.
        self.failure: tuple[Any, BaseException] | None = None
        #: True at the end: workers end.
        self.over = False
        #: True if the workers are tasks of an event loop.
        self.inside = False
        #: True if an error cancels the worker, and not what the handler waited for.
        self.is_cancelled: Callable[[BaseException], bool] = lambda _error: False
        #: Wakes so many waiting workers. The engine's lock is held; any thread may call it.
        self.notify: Callable[[int], None] = engine.work.notify
        #: Number of waiting workers.
        self.idle = 0
        #: Total time (seconds) of handlers, and the number of their messages.
        self.handler_seconds, self.handled = 0.0, 0
        self.began = engine.handler.now()
        self._mean = 0.0
        self._torn = self._abandoned = False
        self._batch = plan.batch[0] if plan.batch is not None else 1
        # Messages (with batches: batches) per block; and the number of ready ones below which the run takes more.
        self._block = 1
        self._low = 2 * workers * self._batch
        self._lot = max(1, plan.max_in_flight // _LOT_PART)
        # True: the consumer had no message at the last check; and when a worker with work checks again.
        self._dry, self._look_at = False, 0.0
        self._settle_at = 0.0

    # -- from the consumer ------------------------------------------------------------------------------

    def take_in(self, who: int) -> bool | None:
        """Take buffered messages for the workers; true when the caller has an event to handle."""
        work = self.work
        if work.ending:
            return True
        work.wake(self.engine.handler.now())
        self._dry = False  # there may be new messages
        came = self._take_lot(who)
        self.wake_workers()
        return came

    def wants_more(self) -> bool:
        """True if the run would take new messages at once."""
        with self.engine.lock:
            return self.work.capacity() > 0 and self.work.ready < self._low

    def _take_lot(self, who: int) -> bool | None:
        work, collector = self.work, self.engine.collector
        limit = min(work.capacity(), _LARGEST_LOT * self._batch)
        if limit <= 0 or work.ready >= self._low:
            return None
        try:
            messages = collector.take_many(who, max(1, limit // 2))
            now = self.engine.handler.now()
            self._dry, self._look_at = not messages, now + _LOOK_S
            if not messages:
                return None
            hand = collector.in_flight[who]
            states = {queue.tp: queue.state for queue, _ in hand}
            lots: Sequence[tuple[TopicPartition, list[Any]]]
            if len(hand) == 1:
                lots = [(hand[0][0].tp, messages)]
            else:
                lots = [(TopicPartition(*place), list(lot)) for place, lot in groupby(messages, place_of)]
            collector.in_flight.adopt(who)
            for tp, lot in lots:
                part = work.parts.get(tp)
                if part is None:
                    part = work.open(tp, states[tp], self._finished_before(tp, states[tp]))
                if part.skip is not None:
                    part.believe(states[tp].newer_than(part.skip.epoch))
                work.offer(part, lot, now)
        except err.CorruptRecordError:
            raise
        except BaseException:
            # A signal in the middle: the messages in flight are unknown now, so the run commits nothing more.
            self._torn = True
            raise
        if now >= self._settle_at:  # without a group no commit settles them, and their list would grow
            self._settle_at = now + _SETTLE_S
            self.settle()
        self._turn()
        return True

    def _sources(self) -> Iterator[tuple[TopicPartition, bool]]:
        """See :data:`managedconsumer.processing.merge.Sources`."""
        isolation = self.engine.options.isolation
        for tp, state in self.engine.subscription.assignment.items():
            if not (state.paused or state.suspended):
                position, end = state.position, log_end(state, isolation)
                yield tp, position is not None and end is not None and position >= end

    def _finished_before(self, tp: TopicPartition, state: Any) -> OffsetMap | None:
        """Return the map of finished messages in the commit at which the assignment began, if the log is the same."""
        if state.found_map is None:
            return None
        base, text = state.found_map
        known, info = offset_map.decode(text, base), self.engine.cluster.snapshot.partition(tp)
        if known is None:
            problem = (
                "is not one of this commit (a tool has moved the offset, or managedconsumer 0.2.0 has written it): it "
                "does not count, they are handed out again"
            )
        elif known.of_log(self._log_of(tp), -1 if info is None else info.leader_epoch, state.highwater):
            return known
        else:
            problem = "is of another log (the topic was made anew, or its log was cut): it does not count"
        text = "%s-%d: the map of finished messages beside the committed offset %d %s"
        log.warning(text, *tp, base, problem, extra=self.engine.log_fields(tp))
        return None

    def _log_of(self, tp: TopicPartition) -> bytes:
        """Return the id of the log of the partition's messages; empty: unknown."""
        queue = self.engine.buffer.queues.get(tp)
        return b"" if queue is None else offset_map.log_id(queue.topic_id, tp.partition)

    def _map_of(self, part: PartitionWork, state: Any, room: int) -> str:
        """Return a map for a commit; empty while another thread has a message of the partition in flight."""
        queue = self.engine.buffer.queues.get(part.tp)
        if queue is None or self.engine.collector.in_flight.lowest(queue, but=RUN_OWNER) is not None:
            return ""
        return part.text(state.finished, room, state.epoch_before(part.top), self._log_of(part.tp))

    def _turn(self) -> None:
        """Suspend or resume fetching of some partitions."""
        work = self.work
        if work.turned:
            parts = {tp: work.parts.get(tp) for tp in work.turned}
            work.turned.clear()
            self.engine.assignment.set_full({tp: part is not None and part.full for tp, part in parts.items()})
            self._dry = False

    # -- to the workers -----------------------------------------------------------------------------------

    def _measure(self, seconds: float, finished: int) -> None:
        """Note the handlers' time for so many messages, to choose the size of the next blocks."""
        self.handler_seconds += seconds
        if not finished:
            return
        self.handled += finished
        mean = seconds / finished
        mean = self._mean = self._mean + (mean - self._mean) * _WEIGHT if self._mean else mean
        if not self.lists and mean > 0.0:
            self._block = 1 if mean >= _BLOCK_S else min(_LARGEST_BLOCK, int(_BLOCK_S / mean))
            self._low = 2 * len(self.slots) * self._block

    def wake_workers(self) -> None:
        """Wake as many workers as there is work for; the lock is held."""
        work = self.work
        if self.idle and (work.ready or work.sooner):
            self.notify(max(1, min(self.idle, -(-work.ready // (self._batch * self._block)))))
            work.sooner = False

    def claim(self, slot: WorkerSlot, who: int) -> bool:
        """Give ``slot`` its next block; False: there is none at present. The lock is held."""
        work, now = self.work, self.engine.handler.now()
        slot.until = self.engine.delivery.hand_out_until()
        if work.ending or now > slot.until:
            return False
        ready = work.ready
        if 2 * ready < self._low and (not ready or now >= self._look_at or self._has_capacity()):
            self._take_more(who)
        block = self._block
        if block > 1 < len(self.slots):  # share the ready messages among the workers
            block = max(1, min(block, -(-work.ready // len(self.slots))))
        key_queues = work.take(block, now)
        while not key_queues and work.held_up and self._take_more(who):
            key_queues = work.take(block, now)
        if not key_queues and self._collect_slow(slot, now):
            key_queues = work.take(block, now)
        if not key_queues:
            if work.turned:
                self._turn()
            return self._take_over(slot, now)
        slot.todo.extend(key_queues)
        slot.era, slot.since = work.era, now
        if self.idle:
            self.wake_workers()
        return True

    def _take_more(self, who: int) -> bool | None:
        try:
            return self.engine.delivery.take_in_passing(self._take_lot, who)
        except err.KafkaException:
            self.engine.lock.notify_all()  # the thread that called run() raises it again
            return None

    def _has_capacity(self) -> bool:
        """True if enough capacity is free to take messages from the consumer."""
        return not self._dry and self.work.capacity() >= self._lot

    def _take_over(self, slot: WorkerSlot, now: float) -> bool:
        """Take over messages that a slow worker has not begun."""
        for other in self.slots:
            if other.todo and other.era == self.work.era and now - other.since > _STUCK_S:
                try:
                    slot.todo.append(other.todo.pop())
                except IndexError:  # the worker has just begun it
                    continue
                slot.era, slot.since = self.work.era, now
                return True
        return False

    def _collect_slow(self, slot: WorkerSlot, now: float) -> bool:
        """Note finished messages in the blocks of slow workers: others of the same keys may start."""
        slow = [other for other in self.slots if other.through and other is not slot and now - other.since > _SLOW_S]
        self.collect(slow)
        return bool(slow)

    def patience(self) -> float:
        """The longest wait (seconds) of a worker without work; the lock is held."""
        longest = _LONGEST_WAIT
        for other in self.slots:
            if other.todo:
                longest = 2 * _STUCK_S
                break
            if other.through:
                longest = _SLOW_S
        due = self.work.next_deadline()
        return longest if due is None else max(0.0, min(longest, due - self.engine.handler.now()))

    def wait_for_work(self) -> None:
        """Wait until there may be work for the calling worker; the lock is held."""
        self.idle += 1
        try:
            self.engine.work.wait(self.patience())
        finally:
            self.idle -= 1

    # -- what the workers do: in threads nothing is awaited, see ``waiting.at_once`` -------------------------

    async def hand_list(self, key_queue: KeyQueue) -> None:
        """Call the handler with all of the key queue's messages as one list."""
        calls, messages = self.calls, key_queue.running
        raw = [(message.value, message.partition_key) for message in messages] if calls.deserialize else []
        try:
            wanted = [message for message in messages if calls.deserialize is None or calls.deserialize(message)]
            if wanted:
                result = calls.handler(wanted)
                calls.check("the handler", await result if self.inside else result, wanted[0])
            key_queue.place = len(messages)
        except BaseException as error:  # the user's code may raise anything
            for message, (value, key) in zip(messages, raw, strict=False):
                message.value, message.partition_key = value, key
            await self.goes_on(key_queue, 0, len(messages), error)

    async def goes_on(self, key_queue: KeyQueue, place: int, end: int, error: BaseException) -> bool:
        """Handle the handler's ``error`` for these messages. True: they are dead, and the worker continues."""
        messages = key_queue.running[place:end]
        if self.is_cancelled(error):
            raise error
        if isinstance(error, NotYet):
            key_queue.until, key_queue.failed = error.due, True
        elif not self.calls.of_message(error):
            self.fail(None, error)  # it ends the run, which raises it
        elif not await self._not_ours(messages, error):
            if self.work.again(key_queue, place, error):
                key_queue.failed = True
            elif await self._died(messages, error):
                self._bury(key_queue, end)
                return True
        return False

    async def _not_ours(self, messages: list[Any], error: BaseException) -> bool:
        """See :meth:`Calls.not_ours`, which may wait for a broker."""
        if not self.inside or self.calls.moved_on is None:
            return self.calls.not_ours(messages, error)
        import asyncio  # here: the import is slow, and few users consume from a loop

        return await asyncio.to_thread(self.calls.not_ours, messages, error)

    async def _died(self, messages: list[Any], error: BaseException) -> bool:
        """Give these messages to ``on_dead``; False: there is none, or it raised, and the run ends."""
        on_dead = self.calls.on_dead
        for message in messages:
            if on_dead is None:
                self.fail(message, error)
                return False
            try:
                result = on_dead(message, error)
                if self.inside and hasattr(type(result), "__await__"):
                    result = await result
                self.calls.check("on_dead", result, message)
            except BaseException as problem:  # it ends the run, which raises it
                if self.is_cancelled(problem):
                    raise
                problem.__context__ = error
                self.fail(None if isinstance(problem, UnusedResultError) else message, problem)
                return False
        return True

    def _bury(self, key_queue: KeyQueue, place: int) -> None:
        """Note that ``on_dead`` has taken the messages of ``key_queue`` up to ``place``."""
        with self.engine.lock:
            dead = place - key_queue.place
            key_queue.place = place
            self.work.note(key_queue, dead)

    # -- back from the workers ----------------------------------------------------------------------------

    def take_reports(self, slot: WorkerSlot) -> None:
        """Note that a worker has finished its block; the lock is held."""
        work, engine = self.work, self.engine
        if slot.through or slot.count:
            self.collect((slot,))
            self._measure(engine.handler.now() - slot.since, slot.count)
            slot.count = 0
        slot.current = None
        if work.turned:
            self._turn()
        if engine.delivery.draining or work.ending:
            engine.lock.notify_all()

    def collect(self, slots: Sequence[WorkerSlot] | None = None) -> None:
        """Note all messages that the workers (None: all) have finished by now; the lock is held."""
        slots = self.slots if slots is None else slots
        self.work.collect(slots, self.engine.handler.now(), self.engine.handler.random)
        self.wake_workers()

    def leave(self, slot: WorkerSlot) -> None:
        """Remove the worker of ``slot``, which ends."""
        with self.engine.lock:
            slot.current = None
            self.engine.lock.notify_all()

    def fail(self, message: Any, error: BaseException) -> None:
        """End the run because of ``error``; ``message``: the failed one, or None."""
        with self.engine.lock:
            if self.failure is None and not self._abandoned:
                self.failure = message, error
            self.end()

    def end(self) -> None:
        """Start no more messages; running ones may finish."""
        with self.engine.lock:
            if not self.work.ending:
                self.work.end()
                self._call_back()
            self.engine.lock.notify_all()

    def abandon(self) -> None:
        """Give up the running messages; their results do not count."""
        with self.engine.lock:
            self.settle()
            self._abandoned = True
            self.work.abandon()

    def disown(self) -> None:
        """In the child of a fork: the parent processes all messages. A handler that returns here gets no more."""
        self._abandoned = self.over = self.work.ending = True
        self.work.era += 1
        for slot in self.slots:
            slot.todo.clear()
        for queue in self.engine.buffer:
            queue.context.fenced = True

    def finish(self) -> None:
        """End the workers as soon as they ask for work."""
        with self.engine.lock:
            self.over = True
            self.notify(len(self.slots))

    # -- calls of the consumer (RunState) -------------------------------------------------------------------

    def settle(self) -> None:
        """Update the messages in flight; the lock is held."""
        if not (self._torn or self._abandoned):
            self.collect()
            parts = self.work.parts

            def lowest(tp: TopicPartition) -> int | None:
                part = parts.get(tp)
                return None if part is None else part.lowest()

            self.engine.collector.in_flight.settle_run(lowest)
            self._turn()

    def busy(self, tps: Container[TopicPartition] | None) -> bool:
        """True while a handler works on a message of ``tps``."""
        if self._abandoned:
            return False
        return any(slot.current is not None and slot.current.touches(tps) for slot in self.slots)

    def interrupt(self) -> None:
        """Note suspended, paused or resumed partitions: messages of the first two do not start."""
        self.work.interrupt()
        self.work.wake(self.engine.handler.now())
        self._call_back()

    def forget(self, tps: Container[TopicPartition], beyond: int = 0) -> None:
        """Note partitions that were revoked or moved, or whose logs differ from ``beyond`` on."""
        self.collect()
        self.work.forget(tps, beyond)
        self._call_back()

    def _call_back(self) -> None:
        """Take back the messages that the workers have not begun."""
        now = self.engine.handler.now()
        for slot in self.slots:
            while slot.todo:
                try:
                    key_queue = slot.todo.pop()
                except IndexError:
                    break
                self.work.take_back([key_queue], now)
        self.wake_workers()

    def finished(self, metadata: str, limit: int) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return finished offsets to commit, with ``metadata`` and maps in ``limit`` characters; the lock is held."""
        self.settle()
        room = self.work.map_room = offset_map.room_for_map(metadata, limit)
        found = {}
        for tp, state in self.engine.subscription.assignment.items():
            if state.finished is None:
                continue
            part = self.work.parts.get(tp)
            if part is not None:
                text = self._map_of(part, state, room)
            else:
                text = state.finished_map if state.finished == state.committed else ""
            if state.finished != state.committed or text != state.finished_map:
                epoch = state.epoch_before(state.finished)
                found[tp] = OffsetAndMetadata(state.finished, offset_map.with_map(metadata, text), epoch)
        return found

    # -- for operators ----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the state in plain values; ages and times in seconds. Takes the lock."""
        with self.engine.lock:
            self.collect()
            work, oldest = self.work, self.work.oldest()
            return {
                "in_flight": work.in_flight,
                "running": sum(slot.current is not None for slot in self.slots),
                "waiting_keys": work.parked,
                "done": work.done,
                "retried": work.retried,
                "dead": work.dead,
                "oldest_unfinished_s": None if oldest is None else self.engine.handler.now() - oldest,
                "handler_s": self.handler_seconds / self.handled if self.handled else None,
                "full_partitions": sum(part.full for part in work.parts.values()),
            }
