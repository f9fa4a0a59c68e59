"""The observation of a simulated program: its messages, its membership, and the calls of its listener."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Callable, Collection

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.config import GroupProtocol
from managedconsumer.consumers.life import GroupLife
from managedconsumer.coordinator.states import MemberState
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.listeners import ConsumerRebalanceListener
from managedconsumer.managedbalancedconsumer import ManagedBalancedConsumer
from managedconsumer.runtime.engine.commits.committer import Committer
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.member import GroupMember
from managedconsumer.structs import NO_GENERATION, Generation, TopicPartition
from managedconsumer.testing.memory.classic_group import ClassicGroup
from managedconsumer.testing.memory.consumer_group import ModernGroup
from managedconsumer.wire.records import RecordChunk
from tests.simulation.contract import Contract
from tests.simulation.handler import VirtualHandler
from tests.simulation.kernel import Process
from tests.simulation.reader import Item, Reader, arrow_items

if TYPE_CHECKING:
    from tests.simulation.simulate import World

#: So long (seconds) may pass until readers hear of what was put into the buffer.
_MOMENT = 0.01


class Listener(ConsumerRebalanceListener):
    def __init__(self, program: Watched, contract: Contract) -> None:
        self._program, self._contract = program, contract

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._program.note(f"revoked {names(revoked)}")
        self._contract.revoked(revoked)
        self._program.in_callback()

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._program.note(f"assigned {names(assigned)}")
        self._contract.assigned(assigned)
        self._program.told_to_read(assigned)
        self._program.in_callback()

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._program.note(f"lost {names(lost)}")
        self._contract.lost(lost)
        self._program.in_callback()


class SimulatedConsumer(ManagedBalancedConsumer):
    """The real consumer, and a view of what is inside."""

    @property
    def engine(self) -> Engine:
        return self._session.engine

    @property
    def committer(self) -> Committer:
        return self._session.committer

    @property
    def member(self) -> GroupMember | None:
        return self._member

    @property
    def protocol(self) -> str:
        return self._lives.protocol

    def begin_with_kip_848(self) -> None:
        """As "auto" does without options that only the classic protocol has: sessions are short here."""
        self._lives.assignors = self._lives.assignors._replace(protocol="consumer", auto=True)

    def watch_lives(self, told: Callable[[GroupLife], None]) -> None:
        """Call ``told`` with each new life, before it begins."""
        make = self._lives.make

        def making() -> GroupLife:
            life = make()
            told(life)
            return life

        self._lives.make = making  # type: ignore[method-assign]


class Watched:
    """A program as the witness sees it."""

    world: World
    name: str
    process: Process
    handler: VirtualHandler
    consumer: SimulatedConsumer | None
    protocol: GroupProtocol

    def __init__(self, world: World) -> None:
        self.knows_loss = False
        #: When the member began to take its present share over.
        self.taking_over_since = 0.0
        self.ended = False
        self.expected: dict[TopicPartition, tuple[Any, int]] = {}
        #: Messages that were handed out in calls that raised, and from where on others may come again for it.
        self.undelivered: dict[TopicPartition, set[int]] = {}
        self.repeats: dict[TopicPartition, int] = {}
        #: Which partitions the user has paused, in which ownership.
        self.paused: dict[TopicPartition, Any] = {}
        self.contract = Contract(self, world.report) if world.plan.listener else None
        #: Error codes that it has been sent, and those of them that may end it.
        self.injected: set[int] = set()
        self.may_end_by: set[int] = set()
        #: By simulated thread or asyncio task, and all of them: the dead ones have their messages in flight for ever.
        self.readers: dict[Any, Reader] = {}
        self.everybody: list[Reader] = []
        self.loop: Any = None
        #: When messages were last put into the buffer.
        self._came_at = 0.0

    def told_to_read(self, tps: Collection[TopicPartition]) -> None:
        raise NotImplementedError

    def in_callback(self) -> None:
        """Do the other things of a user's callback."""
        raise NotImplementedError

    # -- what others ask -------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.world.note(self.name, text)

    @property
    def running(self) -> bool:
        return not self.ended and not self.process.dead

    @property
    def _engine(self) -> Engine | None:
        return None if self.consumer is None else self.consumer.engine

    @property
    def member(self) -> GroupMember | None:
        return None if self.consumer is None else self.consumer.member

    @property
    def cooperative(self) -> bool:
        return self.modern or self.world.plan.assignors == ("cooperative-sticky",)

    @property
    def modern(self) -> bool:
        return self.protocol == "consumer" if self.consumer is None else self.consumer.protocol == "consumer"

    @property
    def bit_by_bit(self) -> bool:
        """True if a generation may bring partitions several times: in a KIP-848 group, for classic members, too."""
        return self.modern or self.world.plan.migrates

    def generation(self) -> Generation:
        return NO_GENERATION if self.member is None else self.member.generation

    def unfenced(self) -> bool:
        """True while the coordinator would take a commit of this member."""
        return accepts(self.world.brokers.group, self.generation())

    def session_over(self) -> bool:
        """True if its own clock says that the coordinator may have given its place away, as after a freeze."""
        return self.member is not None and self.world.kernel.now > self.member.machine.session_end()

    def session_ended(self) -> bool:
        """True if the coordinator has ended the session of this member, which was silent for too long.

        Two moments are left out. The answer to a classic join: only the coordinator knows when it was sent, so the
        session begins when it is read, with a heartbeat at once. A join: while it lasts, a member has no session.
        """
        group, member = self.world.brokers.group, self.member
        if member is None or member.state is MemberState.PREPARING_REBALANCE:
            return False
        member_id = self.generation().member_id
        ended = inf if member_id in group.members else group.ended_sessions.get(member_id, inf)
        return bool(member.machine.heartbeat.last_reset < ended < self.world.kernel.now)

    def may_hand_out(self, tp: TopicPartition) -> bool:
        engine = self._engine
        if not self.running or engine is None:
            return False
        state = engine.subscription.assignment.get(tp)
        return state is not None and state.is_fetchable()

    def assigned(self) -> list[TopicPartition]:
        engine = self._engine
        return [] if engine is None else sorted(engine.subscription.assignment)

    def stable(self) -> bool:
        return self.member is not None and self.member.stable and self.member.state is MemberState.STABLE

    @property
    def loses(self) -> bool:
        """True when the membership is lost; the worker that has found it out may still be on the way to say so."""
        member = self.member
        # A join that waits is given up, and its generation forgotten, as soon as a heartbeat learns of the loss.
        return self.knows_loss or (
            member is not None and (member.state is MemberState.LOSING or not member.generation.joined)
        )

    def describe(self) -> str:
        """For the report of a group that does not settle."""
        member = self.member
        if member is None:
            return "without membership"
        wanted = member.machine.rejoin_reason
        return f"{member.state.value} in generation {member.generation.id}" + (f", wants: {wanted}" if wanted else "")

    # -- observation ----------------------------------------------------------------------------------

    def watch_owner(self, owner: GroupLife) -> None:
        """Learn when the member knows of a loss, and when it takes a new share over."""
        fence, take_over = owner.fence, owner.take_over

        def fenced(event: Any) -> None:
            fence(event)
            self.knows_loss = True
            self.world.witness.commit_failed(self)
            self._check_reason(event)
            if self.contract is not None:
                self.contract.fenced()

        def taking_over(event: Any) -> Any:
            if owner.member.current(event.generation):
                self.knows_loss = False
                self.taking_over_since = self.world.kernel.now
            return take_over(event)

        owner.fence = fenced  # type: ignore[method-assign]
        owner.take_over = taking_over  # type: ignore[method-assign]

    def _check_reason(self, event: Any) -> None:
        """Nobody gives a place up that the coordinator still keeps: an answer must count in its own generation only."""
        code, lost = getattr(event.error, "ERROR_CODE", None), event.generation
        told = code in codes.CLASSIC_EXPELLED | {codes.FENCED_MEMBER_EPOCH} and code not in self.injected
        if self.world.brokers.moves:  # a coordinator that has lost a round may have come back to it since
            return
        if told and accepts(self.world.brokers.group, lost):
            self.world.report(f"{self.name} counts generation {lost.id} as lost ({event.error}), and it is not")

    def watch_commits(self, committer: Committer) -> None:
        """Learn which automatic commits do not happen."""
        commit_finished = committer.commit_finished

        def committing(seconds: float, why: str) -> bool:
            done = commit_finished(seconds, why)
            if not done:
                self.world.witness.commit_failed(self)
            return done

        committer.commit_finished = committing  # type: ignore[method-assign]

    def _watch_engine(self, engine: Engine) -> None:
        collector, accept = engine.collector, engine.buffer.accept

        def accepting(queue: PartitionQueue, version: int, chunk: RecordChunk) -> bool:
            self._came_at = self.world.kernel.now
            return accept(queue, version, chunk)

        engine.buffer.accept = accepting  # type: ignore[method-assign]
        take, take_many, take_columns = collector.take_for_task, collector.take_many, collector.take_columns

        def taking(*args: Any) -> Any:
            message = take(*args)
            self._seen([] if message is None else [_place(message)])
            return message

        def taking_many(*args: Any) -> Any:
            messages = take_many(*args)
            self._seen([_place(message) for message in messages])
            return messages

        def taking_columns(*args: Any) -> Any:
            found = take_columns(*args)
            self._seen([] if found is None else arrow_items(found[0]))
            return found

        collector.take_for_task = taking  # type: ignore[method-assign, assignment]
        collector.take_many = taking_many  # type: ignore[method-assign, assignment]
        collector.take_columns = taking_columns  # type: ignore[method-assign, assignment]

    def _seen(self, items: list[Item]) -> None:
        """The consumer has looked into its buffer for the calling reader, and found these."""
        task = self.world.kernel.current
        slept = 0.0 if task is None else task.woken_by_time()
        # A worker wakes the readers a moment after it has accepted messages; if it was frozen in between, after that.
        here_since = max(self._came_at, self.process.thawed_at)
        if slept and items and self.world.kernel.now - here_since > _MOMENT:
            self.world.report(f"{self.name}: {items[0]} was there, but nobody woke the reader, who slept {slept} s")
        reader = self._reader_here()
        for tp, offset in items:
            self.handing_out(tp, offset)
            if reader is not None:
                reader.pending.append((tp, offset))

    def handing_out(self, tp: TopicPartition, offset: int) -> None:
        """A message is on its way to one of the readers."""
        engine = self._engine
        state = None if engine is None else engine.subscription.assignment.get(tp)
        self.world.witness.handing_out(self, tp, offset, state)

    def _reader_here(self) -> Reader | None:
        if self.loop is None:
            return self.readers.get(self.world.kernel.current)
        import asyncio

        return self.readers.get(asyncio.current_task(self.loop))

    # -- pauses ---------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Another thread of the program pauses partitions, for a while."""
        self.handler.spawn("pauser", self._pause, seconds)

    def _pause(self, seconds: float) -> None:
        consumer, engine = self.consumer, self._engine
        if consumer is None or engine is None:
            return
        chosen = [tp for tp in self.assigned() if self.world.kernel.random.random() < 0.7]
        if not chosen:
            return
        try:
            with engine.lock:
                consumer.pause(*chosen)
                self.paused.update({tp: engine.subscription.assignment[tp] for tp in chosen})
        except (err.KafkaException, LookupError) as error:
            self.note(f"pause() raised {error!r}")
            return
        self.note(f"paused {names(chosen)}")
        self.handler.sleep(seconds)
        try:
            with engine.lock:
                mine = [tp for tp, state in self.paused.items() if engine.subscription.assignment.get(tp) is state]
                self.paused.clear()
                if mine and not engine.life.closed:
                    consumer.resume(*mine)
                    self.note(f"resumed {names(mine)}")
        except err.KafkaException as error:
            self.note(f"resume() raised {error!r}")


def _place(message: Any) -> Item:
    return TopicPartition(message.topic, message.partition_id), message.offset


def names(tps: Collection[TopicPartition]) -> str:
    return "{" + ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps)) + "}"


def accepts(group: ClassicGroup | ModernGroup, generation: Generation) -> bool:
    """True if the group has the member, in this generation."""
    member: Any = group.members.get(generation.member_id)
    if isinstance(group, ClassicGroup):
        return member is not None and generation.id == group.generation
    return member is not None and generation.id == member.epoch
