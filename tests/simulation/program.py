"""One simulated program: a real ManagedBalancedConsumer, its readers, and what is done to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Collection

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.config import GroupProtocol
from managedconsumer.partition_state import TopicPartitionState
from managedconsumer.structs import TopicPartition
from tests.simulation.handler import VirtualHandler
from tests.simulation.kernel import Killed, Process, Task
from tests.simulation.network import SimulatedCluster
from tests.simulation.reader import PATIENCE_MS, Reader, ReaderDied, SimulatedError
from tests.simulation.watch import Listener, SimulatedConsumer, Watched

if TYPE_CHECKING:
    from tests.simulation.simulate import World

#: How long ``stop()`` may take (seconds): its own default timeout for each of the things that it waits for.
_LONGEST_STOP = 25.0
#: ``queued_max_bytes`` by ``queued_max_messages``: one answer at a time, a few, or as many as there are.
_QUEUED_BYTES = {1: 400, 5: 20_000}


class Program(Watched):
    """A process that runs a consumer until it is told to stop, or dies."""

    def __init__(self, world: World, name: str, instance: str | None) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        plan = world.plan
        self.protocol: GroupProtocol = world.kernel.random.choice(plan.protocols) if plan.protocols else plan.protocol
        self.process = Process(world.kernel, name)
        self.handler = VirtualHandler(self.process)
        super().__init__(world)
        self.stop_asked: str = ""
        self.over = False
        self.signal_due = self.dead_hands = False
        self.unsurfaced = 0
        #: The ownerships that were announced without a position; those that are kept are announced again.
        self._unplaced: dict[TopicPartition, TopicPartitionState] = {}
        self._threads: list[Task] = []
        self.consumer: SimulatedConsumer | None = None
        self._told = self.handler.Event()
        self.handler.spawn(name, self._main)

    # -- the user's code ------------------------------------------------------------------------------

    def _make(self) -> SimulatedConsumer:
        plan = self.world.plan
        consumer = SimulatedConsumer(
            re.compile("t[0-9]+") if plan.pattern else sorted(plan.topics),
            self._client(),
            b"group",
            auto_start=False,
            auto_commit_enable=plan.auto_commit is not None,
            auto_commit_interval_ms=int(1000 * (plan.auto_commit or 1.0)),
            queued_max_messages=plan.queued_messages,
            queued_max_bytes=_QUEUED_BYTES.get(plan.queued_messages, 64 << 20),
            # Some leave it to the consumer to be patient when nothing comes, which a seek or a rebalance has to end.
            fetch_wait_max_ms=400 if self.world.plan.queued_messages % 2 else 3000,
            consumer_timeout_ms=PATIENCE_MS,
            auto_offset_reset=plan.reset,
            isolation_level=plan.isolation,
            on_error=plan.on_error,
            heartbeat_interval_ms=int(plan.session * 333),
            session_timeout_ms=int(plan.session * 1000),
            rebalance_timeout_ms=int(plan.rebalance * 1000),
            revoke_drain_ms=int(plan.drain * 1000),
            group_protocol=self.protocol,
            membership_protocol="uniform" if self.protocol == "consumer" else list(plan.assignors),
            group_instance_id=self.instance,
            listener=None if self.contract is None else Listener(self, self.contract),
        )
        if self.protocol == "auto":
            consumer.begin_with_kip_848()
        consumer.watch_lives(self.watch_owner)
        return consumer

    def _client(self) -> SimulatedCluster:
        """Return the client of the consumer; with a second consumer of it that does nothing, if the plan says so."""
        client = SimulatedCluster(self.world.network, self.process)
        self._beside = client.clone()
        if self.world.plan.shared and self._beside.shared is not None:
            self._beside.shared.quiet_after = 0.5
            self._beside.join()
        return client

    def _main(self) -> None:
        self.consumer = consumer = self._make()
        self._watch_engine(consumer.engine)
        self.watch_commits(consumer.committer)
        while self._start(consumer):
            self._read(consumer)
            if self.stop_asked != "restart":
                break
            self.stop_asked, self.over = "", False
            self._told.clear()
            self.handler.sleep(self.world.kernel.random.uniform(0.0, 2.0))
        self.handler.sleep(0.2)  # what stop() has closed may need a moment to end
        if self.world.kernel.now - self.process.thawed_at < 0.2:  # it stood still meanwhile
            self.handler.sleep(0.2)
        self._check_nothing_left()
        self.ended = True

    def _read(self, consumer: SimulatedConsumer) -> None:
        """All readers until the consumer has stopped."""
        plan = self.world.plan
        self.readers.clear()
        self.everybody.clear()
        self._threads.clear()
        if plan.tasks:
            self._run_tasks(plan.readers)
            self._stop(consumer)
        elif plan.readers == 1 and not plan.dying:
            reader = Reader(self)
            self.readers[self.world.kernel.current] = reader
            self.everybody.append(reader)
            reader.run()
            self._stop(consumer)
        else:
            for _ in range(plan.readers):
                self._start_reader()
            while not self.stop_asked and not self.over:
                self._told.wait(1.0)
            self._stop(consumer)  # while they are reading
            for thread in self._threads:
                thread.join()

    def _run_tasks(self, count: int) -> None:
        from tests.simulation.loop import VirtualLoop

        try:
            while not self.stop_asked and not self.over:  # dead tasks are followed by others
                readers = [Reader(self) for _ in range(count)]
                self.everybody += readers
                self.loop = VirtualLoop(self.handler)
                for error in self.loop.run([reader.run_async() for reader in readers]):
                    if not isinstance(error, (ReaderDied, Killed)):
                        self.world.report(f"{self.name}: a task ended by {error!r}")
        finally:
            self.loop = None

    def _start_reader(self) -> None:
        reader = Reader(self)
        self.everybody.append(reader)
        task = Task(self.process, _READER, self._run_reader, (reader,))
        self.readers[task] = reader
        self._threads.append(task)

    def _run_reader(self, reader: Reader) -> None:
        try:
            reader.run()
        except Exception as error:  # noqa: BLE001 (nothing else may come up in a user's thread)
            if not isinstance(error, ReaderDied):
                self.world.report(f"{self.name}: a reader ended by {error!r}")
            if not self.stop_asked and not self.over:
                self._start_reader()

    def reader_died(self, reader: Reader) -> None:
        """A reader ends with messages in flight: they are unfinished for good in this life of the consumer."""
        self.dead_hands = self.dead_hands or bool(reader.hand)

    def running_consumer(self) -> SimulatedConsumer:
        if self.consumer is None:
            raise RuntimeError("there is no consumer yet")
        return self.consumer

    def _start(self, consumer: SimulatedConsumer) -> bool:
        """True when the consumer runs; False if the program is to end."""
        while not self.ended and self.stop_asked in ("", "restart"):
            try:
                consumer.start()
                self.note("started")
                self._started(consumer)
                return True
            except err.KafkaException as error:
                self.note(f"start() raised {error!r}")
                self.check_error(error, starting=True)
                self.handler.sleep(0.5)
        return False

    def _started(self, consumer: SimulatedConsumer) -> None:
        """``start()`` has returned: what it holds is read from now on, unless a listener has to be told first."""
        self.dead_hands = False
        task = self.world.kernel.current
        if task is not None:
            task.missed_wake_up = None  # of a nap in start(), which is no reader's
        if self.contract is None:
            self.told_to_read(consumer.engine.subscription.assignment)

    def told_to_read(self, tps: Collection[TopicPartition]) -> None:
        """The program knows that it reads ``tps``: this is the worst moment for a message to be produced."""
        assignment = self.running_consumer().engine.subscription.assignment
        for tp in sorted(tps):
            state = assignment.get(tp)
            if state is not None and state.has_valid_position:
                self.world.witness.promise(self, tp, state)
            elif state is not None and self._unplaced.get(tp) is not state:
                self._unplaced[tp] = state
                self._check_patience(tp)
            if self.world.plan.reset == "latest" and not self.world.calm:
                self.world.brokers.append(tp, 1)

    def _check_patience(self, tp: TopicPartition) -> None:
        """``tp`` is announced without a position: only after its leader has been asked for long enough."""
        plan, took = self.world.plan, self.world.kernel.now - self.taking_over_since
        if plan.reset == "latest" and took < min(5.0, 0.3 * plan.rebalance) and not (self.loses or self.stop_asked):
            self.world.report(f"{self.name} reads {tp} from now on, and does not know from where after {took:.1f} s")

    def finish(self, tp: TopicPartition, offset: int) -> None:
        self.note(f"finished {tp.topic}-{tp.partition}@{offset}")
        self.world.witness.finished(tp, offset)

    def callback_surfaced(self) -> None:
        """An exception of a callback came out of a call."""
        self.unsurfaced -= 1
        if self.unsurfaced < 0:
            self.world.report(f"{self.name}: an exception of a callback surfaced twice")

    def in_callback(self) -> None:
        plan, random = self.world.plan, self.world.kernel.random
        task = self.world.kernel.current
        if task is not None:
            task.missed_wake_up = None
        if plan.slow_callback and random.random() < plan.slow_callback:
            self.note("takes its time in a callback")
            self.handler.sleep(random.uniform(0.5, 2.0) * plan.session)
        if plan.raising_callback and random.random() < plan.raising_callback and not self.stop_asked:
            self.note("raises in a callback")
            self.unsurfaced += 1
            raise SimulatedError

    def _stop(self, consumer: SimulatedConsumer) -> None:
        began = self.world.kernel.now
        try:
            consumer.stop()
        except Exception as error:  # noqa: BLE001 (stop() must not raise anything)
            self.world.report(f"{self.name}: stop() raised {error!r}")
        took = self.world.kernel.now - began
        self.note(f"stopped after {took:.1f} s")
        if took > _LONGEST_STOP + 2 * self.world.plan.slow_seconds:
            self.world.report(f"{self.name}: stop() took {took:.1f} s")
        if self.contract is not None:
            self.contract.stopped()
        self.knows_loss = False
        self.unsurfaced = 0
        self.paused.clear()

    def check_error(self, error: BaseException, starting: bool = False) -> None:
        """The consumer has ended: only for a reason that was put into its way."""
        code = getattr(error, "ERROR_CODE", None)
        if code in (self.injected if starting else self.may_end_by) or (
            code in (codes.FENCED_INSTANCE_ID, codes.UNRELEASED_INSTANCE_ID) and self.instance is not None
        ):
            self.over = self.over or not starting
            self._told.set()
            self.ended = self.ended or not starting or not getattr(error, "retriable", False)
        elif not starting:
            self.ended = self.over = True
            self.world.report(f"{self.name}: the consumer ended: {error!r}")
        elif isinstance(error, err.IllegalStateError):
            self.world.report(f"{self.name}: start() raised {error!r}")

    def check_stopped(self, error: BaseException) -> None:
        """``consume()`` says that the consumer was stopped: somebody else in the program must have done it."""
        self.over = True
        if not self.stop_asked:
            self.check_error(error)

    def _check_nothing_left(self) -> None:
        if self.process.dead:
            return  # it was killed in the middle of the stop, and its stacks are unwound
        mine = self.world.kernel.current
        left = sorted(task.name for task in self.process.tasks.values() if task is not mine and task.name not in _OURS)
        if left:
            self.world.report(f"{self.name}: these workers are still there after stop(): {left}")
        held = sum(lock.taken for lock in self.handler.locks)
        if held and not left:
            self.world.report(f"{self.name}: {held} locks are still taken after stop()")

    # -- what is done to it ---------------------------------------------------------------------------

    def ask(self, what: str) -> None:
        """The program is to "stop", to "restart", or is being stopped "elsewhere"."""
        self.stop_asked = self.stop_asked or what
        self._told.set()

    def ask_to_end(self) -> None:
        """The simulation is over: stop, whatever else had been asked."""
        self.stop_asked = self.stop_asked if self.stop_asked == "elsewhere" else "stop"
        self._told.set()

    def stop_elsewhere(self) -> None:
        self.ask("elsewhere")
        if self.consumer is not None:
            self.handler.spawn("signal", self.consumer.stop)

    def kill(self) -> None:
        self.process.kill()


#: Workers of the simulated program itself.
_READER = "managedconsumer.reader"
_OURS = frozenset({"managedconsumer.signal", "managedconsumer.pauser", _READER})
