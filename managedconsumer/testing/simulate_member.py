"""One simulated program: a real ManagedBalancedConsumer, the user's loop around it, and what is observed of both."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Collection

from managedconsumer import errors as err
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.states import MemberState
from managedconsumer.group_owner import GroupOwner
from managedconsumer.listeners import ConsumerRebalanceListener
from managedconsumer.managedbalancedconsumer import ManagedBalancedConsumer
from managedconsumer.runtime.engine import Engine
from managedconsumer.runtime.member import GroupMember
from managedconsumer.structs import NO_GENERATION, Generation, TopicPartition
from managedconsumer.testing.simulate_checks import Contract
from managedconsumer.testing.simulate_handler import VirtualHandler
from managedconsumer.testing.simulate_kernel import Process
from managedconsumer.testing.simulate_network import SimulatedCluster

if TYPE_CHECKING:
    from managedconsumer.testing.simulate import World

#: How long ``stop()`` may take (seconds): its own default timeout for each of the things that it waits for.
_LONGEST_STOP = 25.0
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _FENCED, _FENCED_EPOCH, _UNRELEASED = 22, 25, 82, 110, 111


class SimulatedError(Exception):
    """Raised by a callback of the simulated user."""


class _Listener(ConsumerRebalanceListener):
    def __init__(self, program: Program, contract: Contract) -> None:
        self._program, self._contract = program, contract

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._program.note(f"revoked {names(revoked)}")
        self._contract.revoked(revoked)
        self._program.in_callback()

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._program.note(f"assigned {names(assigned)}")
        self._contract.assigned(assigned)
        self._program.in_callback()

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._program.note(f"lost {names(lost)}")
        self._contract.lost(lost)
        self._program.in_callback()


class _Consumer(ManagedBalancedConsumer):
    """The real consumer; only tells its program when a new member is made."""

    program: Program

    def _setup_membership(self) -> None:
        super()._setup_membership()
        if isinstance(self._member, GroupMember) and isinstance(self._member.machine, ConsumerGroupMembership):
            self._member.machine._new_id = self.program.world.next_id  # noqa: SLF001 (not a random one)
        if self._owner is not None:
            self.program.watch_owner(self._owner)


class Program:
    """A process that runs a consumer until it is told to stop, or dies."""

    def __init__(self, world: World, name: str, instance: str | None) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.process = Process(world.kernel, name)
        self.handler = VirtualHandler(self.process)
        self.knows_loss = False
        self.expected: dict[TopicPartition, tuple[Any, int]] = {}
        self.contract = Contract(self, world.report) if world.plan.listener else None
        self.injected: set[int] = set()
        self.ended = False
        self.stop_asked: str = ""
        self.unsurfaced = 0
        self._seen: Any = None
        self.consumer: _Consumer | None = None
        self.handler.spawn(name, self._main)

    # -- what others ask -------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A line of the trace."""
        self.world.note(self.name, text)

    @property
    def running(self) -> bool:
        """True until the program has ended or was killed."""
        return not self.ended and not self.process.dead

    @property
    def _engine(self) -> Engine | None:
        return None if self.consumer is None else self.consumer._engine  # noqa: SLF001

    @property
    def member(self) -> GroupMember | None:
        """The group member of the consumer while it has one."""
        return None if self.consumer is None else self.consumer._member  # noqa: SLF001

    @property
    def cooperative(self) -> bool:
        """True when partitions are kept through rebalances."""
        return self.modern or self.world.plan.assignors == ("cooperative-sticky",)

    @property
    def modern(self) -> bool:
        """True under KIP-848."""
        return self.world.plan.protocol == "consumer"

    def generation(self) -> Generation:
        """The generation as the member knows it."""
        return NO_GENERATION if self.member is None else self.member.generation

    def unfenced(self) -> bool:
        """True while the coordinator would take a commit of this member."""
        generation = self.generation()
        return self.world.brokers.group.accepts(generation.member_id, generation.id)

    def may_hand_out(self, tp: TopicPartition) -> bool:
        """True if messages of ``tp`` could reach the user now."""
        engine = self._engine
        if not self.running or engine is None:
            return False
        state = engine.subscription.assignment.get(tp)
        return state is not None and state.is_fetchable()

    def assigned(self) -> list[TopicPartition]:
        """What the consumer holds."""
        engine = self._engine
        return [] if engine is None else sorted(engine.subscription.assignment)

    def stable(self) -> bool:
        """True when the member is in the group and no rebalance is wanted."""
        return self.member is not None and self.member.stable and self.member.state is MemberState.STABLE

    @property
    def loses(self) -> bool:
        """True when the membership is lost; whoever has found it out may still be on the way to say so."""
        return self.knows_loss or (self.member is not None and self.member.state is MemberState.LOSING)

    def describe(self) -> str:
        """For the report of a group that does not settle."""
        member = self.member
        if member is None:
            return "without membership"
        wanted = member.machine.rejoin_reason
        return f"{member.state.value} in generation {member.generation.id}" + (f", wants: {wanted}" if wanted else "")

    # -- observation ----------------------------------------------------------------------------------

    def watch_owner(self, owner: GroupOwner) -> None:
        """Learn when the member knows of a loss, and when it takes a new share over."""
        fence, take_over = owner.fence, owner.take_over

        def fenced(event: Any) -> None:
            fence(event)
            self.knows_loss = True
            self._check_reason(event)
            if self.contract is not None:
                self.contract.fenced()

        def taking_over(event: Any) -> Any:
            if owner.member.current(event.generation):
                self.knows_loss = False
            return take_over(event)

        owner.fence = fenced  # type: ignore[method-assign]
        owner.take_over = taking_over  # type: ignore[method-assign]

    def _check_reason(self, event: Any) -> None:
        """Nobody gives a place up that the coordinator still keeps: an answer must count in its own generation only."""
        code, lost = getattr(event.error, "ERROR_CODE", None), event.generation
        told = code in (_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _FENCED_EPOCH) and code not in self.injected
        if self.world.brokers.moves:  # a coordinator that has lost a round may have come back to it since
            return
        if told and self.world.brokers.group.accepts(lost.member_id, lost.id):
            self.world.report(f"{self.name} counts generation {lost.id} as lost ({event.error}), and it is not")

    def _watch_engine(self, engine: Engine) -> None:
        dispenser, witness = engine.dispenser, self.world.witness
        take, take_many = dispenser.take, dispenser.take_many

        def taking(who: int) -> Any:
            message = take(who)
            if message is not None:
                self._seen = message
                tp = TopicPartition(message.topic, message.partition_id)
                witness.handing_out(self, tp, message.offset, engine.subscription.assignment.get(tp))
            return message

        def taking_many(who: int, limit: int) -> Any:
            messages = take_many(who, limit)
            for message in messages:
                tp = TopicPartition(message.topic, message.partition_id)
                witness.handing_out(self, tp, message.offset, engine.subscription.assignment.get(tp))
            return messages

        dispenser.take = taking  # type: ignore[method-assign]
        dispenser.take_many = taking_many  # type: ignore[method-assign]

    def _watch_lane(self, consumer: _Consumer, message: Any) -> None:
        """A message that came past the lock: nothing happened between its hand-out and this."""
        if message is not self._seen:
            tp = TopicPartition(message.topic, message.partition_id)
            state = consumer._engine.subscription.assignment.get(tp)  # noqa: SLF001
            self.world.witness.handing_out(self, tp, message.offset, state)

    # -- the user's code ------------------------------------------------------------------------------

    def _make(self) -> _Consumer:
        plan = self.world.plan
        consumer = _Consumer(
            re.compile("t[0-9]+") if plan.pattern else sorted(plan.topics),
            SimulatedCluster(self.world.network, self.process),
            b"group",
            auto_start=False,
            auto_commit_enable=plan.auto_commit is not None,
            auto_commit_interval_ms=int(1000 * (plan.auto_commit or 1.0)),
            queued_max_messages=plan.queued_messages,
            fetch_wait_max_ms=3000,
            consumer_timeout_ms=900,
            heartbeat_interval_ms=int(plan.session * 333),
            session_timeout_ms=int(plan.session * 1000),
            rebalance_timeout_ms=int(plan.rebalance * 1000),
            revoke_drain_ms=int(plan.drain * 1000),
            group_protocol=plan.protocol,
            membership_protocol=list(plan.assignors) if plan.protocol == "classic" else "uniform",
            group_instance_id=self.instance,
            listener=None if self.contract is None else _Listener(self, self.contract),
        )
        consumer.program = self
        consumer._engine._patience = None  # noqa: SLF001 (gevent's hub, and with it real time, has no part in this)
        return consumer

    def _main(self) -> None:
        self.consumer = consumer = self._make()
        self._watch_engine(consumer._engine)  # noqa: SLF001
        while self._start(consumer):
            self._consume_until_told(consumer)
            self._stop(consumer)
            if self.stop_asked != "restart":
                break
            self.stop_asked = ""
            self.handler.sleep(self.world.kernel.random.uniform(0.0, 2.0))
        self.handler.sleep(0.2)  # what stop() has closed may need a moment to end
        self._check_workers()
        self.ended = True

    def _start(self, consumer: _Consumer) -> bool:
        """True when the consumer runs; False if the program is to end."""
        while not self.ended and self.stop_asked in ("", "restart"):
            try:
                consumer.start()
                self.note("started")
                return True
            except err.KafkaException as error:
                self.note(f"start() raised {error!r}")
                self._check_error(error, starting=True)
                self.handler.sleep(0.5)
        return False

    def _consume_until_told(self, consumer: _Consumer) -> None:
        while not self.stop_asked:
            try:
                if self.world.plan.batch:
                    messages = consumer.consume_batch(self.world.plan.batch, 900)
                else:
                    message = consumer.consume()
                    messages = [] if message is None else [message]
                    if message is not None:
                        self._watch_lane(consumer, message)
                for one in messages:
                    self._process(one)
                self._maybe_commit(consumer, bool(messages))
            except SimulatedError:
                self.unsurfaced -= 1
                if self.unsurfaced < 0:
                    self.world.report(f"{self.name}: an exception of a callback surfaced twice")
            except err.ConsumerStoppedException as error:
                self._check_stopped(error)
                return
            except err.KafkaException as error:
                self.note(f"consume() raised {error!r}")
                self._check_error(error)
                return

    def _process(self, message: Any) -> None:
        plan, random = self.world.plan, self.world.kernel.random
        if plan.slow_processing and random.random() < plan.slow_processing:
            self.note("takes its time with a message")
            self.handler.sleep(random.uniform(0.5, 1.5) * plan.rebalance)
        elif plan.processing:
            self.handler.sleep(plan.processing * random.random())
        tp = TopicPartition(message.topic, message.partition_id)
        self.note(f"finished {tp.topic}-{tp.partition}@{message.offset}")
        self.world.witness.finished(tp, message.offset)

    def _maybe_commit(self, consumer: _Consumer, worked: bool) -> None:
        plan = self.world.plan
        chance = plan.explicit_commit if worked or plan.auto_commit else 1.0
        if not chance or self.world.kernel.random.random() >= chance:
            return
        engine = consumer._engine  # noqa: SLF001
        positions = {tp: state.position for tp, state in engine.subscription.assignment.items()}
        try:
            consumer.commit_offsets()
        except err.KafkaException as error:
            self.note(f"commit_offsets() raised {error!r}")
            return
        states = engine.subscription.assignment
        expected = {tp: p for tp, p in positions.items() if p and tp in states and states[tp].position == p}
        self.world.witness.commit_returned(self, expected)

    def in_callback(self) -> None:
        """What the user's callbacks do besides."""
        plan, random = self.world.plan, self.world.kernel.random
        if plan.slow_callback and random.random() < plan.slow_callback:
            self.note("takes its time in a callback")
            self.handler.sleep(random.uniform(0.5, 2.0) * plan.session)
        if plan.raising_callback and random.random() < plan.raising_callback and not self.stop_asked:
            self.note("raises in a callback")
            self.unsurfaced += 1
            raise SimulatedError

    def _stop(self, consumer: _Consumer) -> None:
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

    def _check_error(self, error: BaseException, starting: bool = False) -> None:
        """The consumer has ended: only for a reason that was put into its way."""
        code = getattr(error, "ERROR_CODE", None)
        if code in self.injected or (code in (_FENCED, _UNRELEASED) and self.instance is not None):
            self.ended = self.ended or not starting or not getattr(error, "retriable", False)
        elif not starting:
            self.ended = True
            self.world.report(f"{self.name}: the consumer ended: {error!r}")
        elif isinstance(error, err.IllegalStateError):
            self.world.report(f"{self.name}: start() raised {error!r}")

    def _check_stopped(self, error: BaseException) -> None:
        """``consume()`` says that the consumer was stopped: somebody else in the program must have done it."""
        if self.stop_asked != "elsewhere":
            self._check_error(error)

    def _check_workers(self) -> None:
        mine = self.world.kernel.current
        left = sorted(task.name for task in self.process.tasks.values() if task is not mine and task.name not in _OURS)
        if left:
            self.world.report(f"{self.name}: these workers are still there after stop(): {left}")

    # -- what is done to it ---------------------------------------------------------------------------

    def stop_elsewhere(self) -> None:
        """Another thread of the program calls ``stop()``."""
        self.stop_asked = "elsewhere"
        if self.consumer is not None:
            self.handler.spawn("signal", self.consumer.stop)

    def kill(self) -> None:
        """-9."""
        self.process.kill()

    def discard(self) -> None:
        """The simulation is over: leave no engine waiting for its consumer's finalizer."""
        self.kill()
        if self.consumer is not None:
            self.consumer._consumer._finalizer.detach()  # noqa: SLF001


#: Workers of the simulated program itself.
_OURS = frozenset({"managedconsumer.signal"})


def names(tps: Collection[TopicPartition]) -> str:
    """Partitions, short."""
    return "{" + ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps)) + "}"
