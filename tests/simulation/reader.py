"""The user's loops around a simulated consumer: threads and asyncio tasks that read, work, commit, and die."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Callable, Iterable

from managedconsumer import errors as err
from managedconsumer.structs import TopicPartition
from tests.simulation.steps import ANYWHERE, RECEIVING, TAKING, Steps

if TYPE_CHECKING:
    from tests.simulation.program import Program

#: How long (ms) a reader waits for a message.
PATIENCE_MS = 900
#: How many of the interruptions come while the reader itself receives an answer, if it does.
_WHILE_RECEIVING = 0.4
_ARROW_COLUMNS = ("topic", "partition", "offset")

Item = tuple[TopicPartition, int]


class SimulatedError(Exception):
    """Raised by a callback of the simulated user."""


class SimulatedInterrupt(KeyboardInterrupt):
    """Ctrl-C, which the user survives."""


class SimulatedMemoryError(MemoryError):
    """No memory just then."""


class ReaderDied(Exception):
    """The user's code had a bug: its thread ends with what it has in flight."""


_INTERRUPTIONS: tuple[type[BaseException], ...] = (SimulatedInterrupt, SimulatedMemoryError)


class Reader:
    """One thread (or task) of the user's that reads from the program's consumer."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.world = program.world
        self._plan = program.world.plan
        #: The messages that the consumer has handed out in the present call.
        self.pending: list[Item] = []
        #: The messages that the user works on, and how many of them are done.
        self.hand: list[Item] = []

    @property
    def _random(self) -> Any:
        return self.world.kernel.random

    # -- the loops ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read and work until the program is told to stop; raises ReaderDied."""
        while self._goes_on():
            try:
                items = self._read()
                self.received(items)
                self._work(items)
                self._maybe_commit(bool(items))
            except Exception as error:  # noqa: BLE001 (looked at there)
                self._failed(error)
            except SimulatedInterrupt as error:
                self._failed(error)

    def _goes_on(self) -> bool:
        return not self.program.stop_asked and not self.program.over

    async def run_async(self) -> None:
        """The same as an asyncio task."""
        import asyncio

        program = self.program
        program.readers[asyncio.current_task()] = self
        while self._goes_on():
            try:
                async for message in program.running_consumer():
                    items = [_item(message)]
                    self.received(items)
                    self.hand = items
                    if self._plan.processing:
                        await asyncio.sleep(self._plan.processing * self._random.random())
                    self._maybe_die()
                    program.finish(*items[0])
                    self._maybe_commit(True)
                    if not self._goes_on():
                        break
                else:  # it has waited in vain, and what it had is finished by that
                    self.hand = []
                    self._maybe_commit(False)
            except ReaderDied:
                program.reader_died(self)
                raise
            except Exception as error:  # noqa: BLE001 (looked at there)
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Something was raised: whatever had been handed out in that call has not come to the user."""
        program = self.program
        pending, self.pending = self.pending, []
        for tp, offset in pending:
            self.world.witness.undelivered(program, tp, offset)
        if isinstance(error, ReaderDied):
            program.reader_died(self)
            raise error
        if isinstance(error, _INTERRUPTIONS):
            program.note(f"interrupted by {type(error).__name__}")
        elif isinstance(error, SimulatedError):
            program.callback_surfaced()
        elif isinstance(error, err.CorruptRecordError):
            program.note(f"cannot be read: {error}")
            self._decide_damage(error)
        elif isinstance(error, err.ConsumerStoppedException):
            program.check_stopped(error)
        elif isinstance(error, err.KafkaException):
            program.note(f"consume() raised {error!r}")
            program.check_error(error)
        else:
            raise error

    # -- reading --------------------------------------------------------------------------------------

    def _read(self) -> list[Item]:
        consumer, kinds = self.program.running_consumer(), self._plan.reading
        kind = kinds[0] if len(kinds) == 1 else self._random.choice(kinds)
        task = self.world.kernel.current
        if task is not None:
            task.missed_wake_up = None
        with self._disturbed():
            if kind == "consume":
                return _items([consumer.consume()])
            if kind == "iterate":
                return _items([next(iter(consumer), None)])
            if kind == "batch":
                return _items(consumer.consume_batch(self._plan.batch or 3, PATIENCE_MS))
            found = consumer.consume_arrow(PATIENCE_MS, _ARROW_COLUMNS)
        return [] if found is None else arrow_items(found)

    def received(self, items: list[Item]) -> None:
        """A call has come back with ``items``."""
        for tp, offset in items:
            # A message that came past the lock: nothing happened between its hand-out and this.
            if (tp, offset) not in self.pending:
                self.program.handing_out(tp, offset)
        self.pending = []
        self.hand = []

    def _disturbed(self) -> AbstractContextManager[Any]:
        """Return the disturbance of a call besides the network: a signal, or an exception at any line."""
        plan, random = self._plan, self._random
        task = self.world.kernel.current
        if task is None or self.world.calm:
            return nullcontext()
        if plan.signals and self.program.signal_due:
            return Steps(task, ANYWHERE, 1 + int(random.random() ** 2 * 150), self._signalled)
        if plan.signals and random.random() < plan.signals:
            return Steps(task, ANYWHERE, 1 + int(random.random() ** 2 * 150), self._look_around)
        if plan.interruptions and random.random() < plan.interruptions:
            kind = random.choice(_INTERRUPTIONS)
            modules = RECEIVING if random.random() < _WHILE_RECEIVING else TAKING
            return Steps(task, modules, 1 + int(random.random() ** 2 * 60), lambda where: self._interrupt(kind, where))
        return nullcontext()

    def _interrupt(self, kind: type[BaseException], where: str) -> None:
        self.program.note(f"{kind.__name__} in {where}")
        self.world.disturbances += 1
        raise kind

    def _signalled(self, where: str) -> None:
        """The handler of SIGTERM: it stops the consumer."""
        self.program.note(f"signal in {where}: stop()")
        self.world.disturbances += 1
        self.program.signal_due = False
        self.program.ask("elsewhere")
        self._handle(self.program.running_consumer().stop)

    def _look_around(self, where: str) -> None:
        """Another signal's handler: it looks at the consumer."""
        consumer = self.program.running_consumer()
        self.world.disturbances += 1
        call = self._random.choice((consumer.health, lambda: consumer.held_offsets, lambda: consumer.partitions))
        self.program.note(f"signal in {where}: looks at the consumer")
        self._handle(call)

    def _handle(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (none of these calls may raise)
            self.world.report(f"{self.program.name}: a signal's handler got {error!r}")

    # -- working --------------------------------------------------------------------------------------

    def _work(self, items: list[Item]) -> None:
        plan, random, program = self._plan, self._random, self.program
        self.hand = items
        for tp, offset in items:
            if plan.slow_processing and random.random() < plan.slow_processing:
                program.note("takes its time with a message")
                program.handler.sleep(random.uniform(0.5, 1.5) * plan.rebalance)
            elif plan.processing:
                program.handler.sleep(plan.processing * random.random())
            self._maybe_die()
            program.finish(tp, offset)

    def _maybe_die(self) -> None:
        if self._plan.dying and not self.world.calm and self._random.random() < self._plan.dying:
            self.program.note(f"a reader dies with {len(self.hand)} messages in flight")
            self.world.disturbances += 1
            raise ReaderDied

    def _decide_damage(self, error: err.CorruptRecordError) -> None:
        """Try it again, or go on behind the batch: as long as it is where it was, and nobody else's by now."""
        program = self.program
        tp = TopicPartition(error.topic, error.partition)
        engine = program.running_consumer().engine
        if self._random.random() < 0.5:
            program.handler.sleep(0.05)
            return
        with engine.lock:
            state = engine.subscription.assignment.get(tp)
            log, before = self.world.brokers.logs[tp], program.expected.get(tp)
            lost = before is not None and before[0] is state and program.undelivered.get(tp)
            if state is None or state.position is None or lost or error.offset not in log.damaged:
                return
            only = self._plan.isolation == "read_committed"
            between = range(state.position, error.offset + 1)
            if between and all(at in log.damaged or log.never_seen(at, only) for at in between):  # still there
                behind = next(end for start, end, _ in log.batches if start <= error.offset < end)
                program.note(f"gives up {tp.topic}-{tp.partition}@{error.offset} to {behind}")
                program.running_consumer().seek(tp, behind)
                self.world.witness.moved(program, tp, behind, state)

    # -- commits --------------------------------------------------------------------------------------

    def _maybe_commit(self, worked: bool) -> None:
        plan, program = self._plan, self.program
        chance = plan.explicit_commit if worked or plan.auto_commit else 1.0
        if not chance or self._random.random() >= chance:
            return
        engine = program.running_consumer().engine
        positions = {tp: state.position for tp, state in engine.subscription.assignment.items()}
        mine = self._covered()
        try:
            with self._disturbed() if plan.signals else nullcontext():
                program.running_consumer().commit_offsets()
        except err.KafkaException as error:
            program.note(f"commit_offsets() raised {error!r}")
            return
        program.note(f"commit_offsets() returned with {len(self.hand)} in flight")
        witness, states = self.world.witness, engine.subscription.assignment
        witness.commit_returned(program, mine, "what was in flight,")
        if len(program.readers) == 1:
            still = {tp: p for tp, p in positions.items() if p and tp in states and states[tp].position == p}
            witness.commit_returned(program, still, "the position")

    def _covered(self) -> dict[TopicPartition, int]:
        """Return the offsets that a commit of this thread must cover: its messages in flight, up to those of others."""
        mine: dict[TopicPartition, int] = {}
        for tp, offset in self.hand:
            mine[tp] = max(mine.get(tp, 0), offset + 1)
        for other in self.program.everybody:
            if other is not self:
                for tp, offset in (*other.hand, *other.pending):
                    if tp in mine:
                        mine[tp] = min(mine[tp], offset)
        return mine


def _item(message: Any) -> Item:
    return TopicPartition(message.topic, message.partition_id), message.offset


def _items(messages: Iterable[Any]) -> list[Item]:
    return [_item(message) for message in messages if message is not None]


def arrow_items(batch: Any) -> list[Item]:
    found = batch.to_pydict()
    return [
        (TopicPartition(topic, partition), offset)
        for topic, partition, offset in zip(found["topic"], found["partition"], found["offset"], strict=True)
    ]
