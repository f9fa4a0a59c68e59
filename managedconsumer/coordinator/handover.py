"""The steps of a rebalance, and their order, as one decision object. Pure.

:class:`HandOver` decides on the next step; its driver carries the step out (:func:`carry_out`) and sends the result
back. The drivers are the managed consumer (``consumers.life``), ``ConsumerCoordinator`` and the Spark source's query;
:class:`Rules` has their differences.

The order: stop delivery and wait for messages in flight, commit finished offsets, revoked-callback, join, sync, take
the new assignment over (positions), assigned-callback, start delivery. After a lost membership: lost-callback, no
commit. Source: KIP-429 (cooperative), KIP-814 (a static leader that is back), KIP-848.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Generator, Protocol, TypeVar

from managedconsumer import errors as err
from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.events import Assigned, Elected, MembershipLost, PrepareJoin
from managedconsumer.coordinator.negotiation import Negotiation, assigned_in_group
from managedconsumer.logs import LogFields
from managedconsumer.shown import line
from managedconsumer.structs import NO_GENERATION, ClusterSnapshot, Generation, TopicPartition
from managedconsumer.values import NamedTuple, Value

log = logging.getLogger(__name__)

Partitions = Collection[TopicPartition]
REVOKED, ASSIGNED, LOST = "on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost"
#: How often DescribeGroups is sent, if the connection breaks.
_DESCRIPTIONS = 2


class Rules(NamedTuple):
    """The differences between members.

    ``keeps``: partitions that an eager assignor revokes before a join stay on hold until the next assignment is known,
    and go on where they were if the next generation follows directly. Otherwise they are dropped before the join.
    ``commits_after_callback``: the thread that runs a callback has finished its message by that, so there is more to
    commit after it.
    """

    keeps: bool = False
    commits_after_callback: bool = False


# -- the steps, and the driver's responses -----------------------------------------------------------------------


class Suspend(NamedTuple):
    """Deliver no more messages of these, and wait (for a bounded time) until none of theirs is in flight."""

    partitions: Partitions
    generation: Generation


class Commit(NamedTuple):
    """Commit finished offsets, if commits are automatic; for a bounded time, without raising transient errors."""

    partitions: Partitions


class CallListener(NamedTuple):
    """Call ``method`` of the listener, and ``begin()`` right before in the same thread: the call counts from then on.

    There is no call when ``generation`` is over (None: always call). Response: False if there was none.
    """

    method: str
    partitions: Partitions
    generation: Generation | None
    begin: Callable[[], None]


class Drop(NamedTuple):
    """These are not ours any more: drop their state."""

    partitions: Partitions


class TakeOver(NamedTuple):
    """``share`` is ours from here on: find missing positions. Its ``fresh`` part is on hold until Deliver.

    Nothing changes if ``generation`` is over. May raise: a transient error leads to another rebalance.
    """

    share: Partitions
    fresh: Partitions
    generation: Generation


class Deliver(NamedTuple):
    """Messages of the assignment may be delivered. Response: False if ``generation`` was over before."""

    share: Partitions
    generation: Generation


class RefreshMetadata(NamedTuple):
    """Response: fresh metadata of ``topics`` (None: of all that we read), or None if our generation is over before."""

    topics: Collection[str] | None


class Describe(Value):
    """Response: the coordinator's response to a DescribeGroups of our group. May raise any KafkaException."""


class Record(NamedTuple):
    """An entry for the :mod:`history <managedconsumer.coordinator.history>`."""

    kind: str
    generation: Generation
    partitions: Partitions
    reason: str = ""


class LogProblem(NamedTuple):
    """Log why the hand-over cannot go on yet."""

    text: str


Step = Suspend | Commit | CallListener | Drop | TakeOver | Deliver | RefreshMetadata | Describe | Record | LogProblem
T = TypeVar("T")
Steps = Generator[Step, Any, T]


def carry_out(steps: Steps[T], do: Callable[[Step], Any]) -> T:
    """Let ``do`` carry each step out, and return the decision's result.

    An exception of ``do`` is raised in the decision, which cleans up, and mostly lets it through.
    """
    try:
        step = next(steps)
        while True:
            try:
                answer = do(step)
            except BaseException as error:  # noqa: BLE001 - the decision raises it again
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class MemberView(Protocol):
    """The member as its hand-over sees it, without waiting."""

    def owned(self) -> Partitions:
        """Return the present assignment."""

    def current(self, generation: Generation) -> bool:
        """Return False if ``generation`` is over, or the member stops."""

    def joined(self) -> bool:
        """Return True while the group counts us as a member."""

    def subscribed(self, topic: str) -> bool:
        """Return True if we subscribe to ``topic``."""

    def snapshot(self) -> ClusterSnapshot:
        """Return the newest metadata."""


class HandOver:
    """The decisions of one member about its partitions. Not thread-safe; one hand-over at a time."""

    def __init__(self, group_id: str, negotiation: Negotiation, member: MemberView, rules: Rules) -> None:
        self._group_id = group_id
        self._negotiation = negotiation
        self._member = member
        self._rules = rules
        self._announced: set[TopicPartition] = set()
        # As the leader: the partitions that the group has assigned, by topic.
        self._leader_snapshot: dict[str, set[int]] | None = None
        # As the leader: True if the group keeps an assignment that we have not made (KIP-814).
        self._inherits = False
        #: The generation of our assignment; NO_GENERATION after a loss.
        self.settled_in = NO_GENERATION

    @property
    def announced(self) -> list[TopicPartition]:
        """The partitions that the listener counts as assigned."""
        return sorted(self._announced)

    def settled(self, generation: Generation) -> bool:
        """Return False while our partitions are still those of the generation before ``generation``.

        Under a cooperative assignor partitions stay ours until we give them up.
        """
        return self._negotiation.cooperative or self.settled_in == generation

    # -- a rebalance ------------------------------------------------------------------------------------

    def prepare_join(self, event: PrepareJoin) -> Steps[bool]:
        """Give everything up (eager) before a join, in the old generation; return True if partitions are kept."""
        owned = self._member.owned()
        if self._negotiation.cooperative:
            return bool(owned)
        yield from self._give_up(owned, self.announced, event.generation, drop=not self._rules.keeps)
        return False

    def elect(self, event: Elected) -> Steps[dict[str, bytes]]:
        """Return the leader's assignment, from fresh metadata of every topic that a member subscribes to.

        It is empty if none is wanted (KIP-814: a static leader is back), or the generation is over.
        """
        topics = self._negotiation.topics_of(event)
        snapshot: ClusterSnapshot | None = yield RefreshMetadata(topics)
        if snapshot is None:
            return {}
        self._leader_snapshot, self._inherits = _partitions(snapshot, topics), event.skip_assignment
        return {} if event.skip_assignment else self._negotiation.assign(event, snapshot)

    def take_over(self, event: Assigned) -> Steps[str | None]:
        """Take our assignment over; return why another rebalance is wanted, or None."""
        generation = event.generation
        if not event.is_leader:
            self._leader_snapshot = None
        share, unnamed = yield from self._share(event)
        again = yield from self._let_go(event, share)
        if not self._member.current(generation):
            return None
        # Also what an earlier attempt took over if it ended before it found positions, or called the listener.
        fresh = [tp for tp in share if tp not in self._announced]
        try:
            yield TakeOver(share, fresh, generation)
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            if not self._member.current(generation):
                return None
            if classify(error) is Verdict.FATAL:
                raise
            yield LogProblem(f"committed offsets cannot be fetched yet: {error}")
            return "committed offsets could not be fetched"
        if not self._member.current(generation):
            return None
        assigned = fresh if self._negotiation.cooperative else share
        yield CallListener(ASSIGNED, assigned, generation, lambda: self._announced.update(assigned))
        yield Record("assigned", generation, assigned)
        if (yield Deliver(share, generation)) is False:
            return None
        if unnamed:
            return "topics of the assignment are not in the metadata yet"
        if again is None and self._leader_snapshot is not None and self._inherits:
            again = yield from self._inherit(generation)
        return again or self.outgrown()

    def lost(self, event: MembershipLost) -> Steps[None]:
        """The membership is lost: call the listener, commit nothing."""
        self._leader_snapshot, self.settled_in = None, NO_GENERATION
        told, heard = self.announced, True
        try:
            if told:
                heard = (yield CallListener(LOST, told, None, self._announced.clear)) is not False
        finally:
            if heard:  # otherwise a stop was faster, and calls the listener
                self._announced.clear()
                owned = self._member.owned()
                yield Record("lost", event.generation, owned, event.reason)
                yield Drop(owned)

    def leave(self, generation: Generation, *, commit: bool = True) -> Steps[None]:
        """The member stops: give everything up in ``generation``, if it lasts so long."""
        owned = self._member.owned()
        yield Suspend(owned, generation)
        if commit:
            yield Commit(owned)
        # After the commit, which may have found that the membership is lost.
        joined = self._member.joined()
        told = self.announced
        self._announced.clear()
        try:
            if told:
                yield CallListener(REVOKED if joined else LOST, told, None, lambda: None)
        finally:
            yield Record("revoked" if joined else "lost", generation, owned, "stop")

    # -- the leader -------------------------------------------------------------------------------------

    def outgrown(self) -> str | None:
        """Return, once, why the leader has to assign again: partitions were added that it has not assigned."""
        led = self._leader_snapshot
        if led is None:
            return None
        now = _partitions(self._member.snapshot(), led)
        changed = sorted(topic for topic in led if led[topic] != now[topic])
        if not changed:
            return None
        self._leader_snapshot = None
        return f"partitions of {', '.join(changed)} changed"

    def _inherit(self, generation: Generation) -> Steps[str | None]:
        """Find out which partitions an inherited assignment has: topics may have got more since.

        Returns why another round is wanted if the group cannot be described, else None. In that round we make the
        assignment, so there is no third one.
        """
        problem: err.KafkaException | None = None
        for _ in range(_DESCRIPTIONS):
            try:
                assigned = assigned_in_group((yield Describe()))
            except err.KafkaException as error:
                if not self._member.current(generation):
                    return None
                problem = error
                if isinstance(error, (err.ProtocolClientError, err.RequestTimedOut)):
                    break
            else:
                self._leader_snapshot = {topic: assigned.get(topic, set()) for topic in self._leader_snapshot or ()}
                return None
        text = "group %s: a static leader is back, and assigns anew in another round; no description of the group: %s"
        log.warning(text, self._group_id, problem, extra=LogFields(self._group_id).of(generation))
        return "the partitions that the group has assigned are not known"

    # -- parts of a rebalance ---------------------------------------------------------------------------

    def _share(self, event: Assigned) -> Steps[tuple[list[TopicPartition], bool]]:
        """Return our assignment in topics that we subscribe to, and whether some topics have no name yet."""
        share, unknown = self._negotiation.accept(event, self._member.snapshot())
        if unknown:
            yield RefreshMetadata(None)
            share, unknown = self._negotiation.accept(event, self._member.snapshot())
        ours = {topic for topic in {tp.topic for tp in share} if self._member.subscribed(topic)}
        for tp in share:
            if tp.topic not in ours:
                text = "group %s: ignoring %s-%d: the leader assigned a topic that we did not subscribe to"
                fields = LogFields(self._group_id).of(event.generation, tp)
                log.error(text, self._group_id, line(tp.topic), tp.partition, extra=fields)
        return [tp for tp in share if tp.topic in ours], bool(unknown)

    def _let_go(self, event: Assigned, share: Partitions) -> Steps[str | None]:
        """Give up partitions that are not in ``share``; return why the group needs another round, or None."""
        owned, kept = self._member.owned(), set(share)
        if not self._negotiation.cooperative:
            # Everything was revoked before the join; if we missed a generation, others may have owned it since.
            gone = [tp for tp in owned if not event.continuous or tp not in kept]
            if gone:
                yield Drop(gone)
            self.settled_in = event.generation
            return None
        self.settled_in = event.generation
        gone = [tp for tp in owned if tp not in kept]
        # Partitions of a deleted topic leave the assignment by themselves; the listener has still to be called.
        told = [tp for tp in self.announced if tp not in kept]
        if not gone and not told:
            return None
        yield from self._give_up(gone, told, event.generation, drop=True)
        # KIP-429: a second round can assign what was given up. A KIP-848 broker does so by itself.
        return f"gave up {len(gone)} partitions" if gone and event.target is None else None

    def _give_up(self, gone: Partitions, told: Partitions, generation: Generation, *, drop: bool) -> Steps[None]:
        """Commit, call the listener, and drop the partitions (``drop``) while ``generation`` is still valid.

        If a loss or a stop ends it meanwhile, the partitions stay: :meth:`lost` or :meth:`leave` gives them up.
        """
        yield Suspend(gone, generation)
        if gone and generation.joined and self._member.current(generation):
            yield Commit(gone)
        if generation.joined and not self._member.current(generation):
            return
        try:
            if generation.joined:
                if told or not self._negotiation.cooperative:
                    yield CallListener(REVOKED, told, generation, lambda: self._announced.difference_update(told))
                if gone and self._rules.commits_after_callback and self._member.current(generation):
                    yield Commit(gone)
                yield Record("revoked", generation, gone)
        finally:
            if gone and drop:
                yield Drop(gone)


def _partitions(snapshot: ClusterSnapshot, topics: Collection[str]) -> dict[str, set[int]]:
    return {topic: snapshot.partitions_for_topic(topic) or set() for topic in topics}
