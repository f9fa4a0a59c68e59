"""The hand-over of partitions as one decision object: what is given up, in which order, whose share it is. Pure.

A rebalance is a list of steps. :class:`HandOver` decides which one is next; its driver carries the step out
(:func:`carry_out`) and sends back what became of it. Every member of this package drives one of these: the managed
consumer (``consumers.life``), ``ConsumerCoordinator`` and the Spark source's query. What differs between them is in
:class:`Rules`.

The order: stop handing out and wait for what is in hand, commit what is finished, revoked-callback, join, sync, take
the new share over (positions), assigned-callback, hand out. After a lost membership: lost-callback, no commit.
Source: KIP-429 (cooperative), KIP-814 (a static leader that is back), KIP-848.
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
#: How often the group is asked what it has, if the connection breaks.
_DESCRIPTIONS = 2


class Rules(NamedTuple):
    """The rules in which members that hand partitions over differ.

    ``keeps``: what an eager assignor takes back before a join stays, on hold, until the next share is known; it goes on
    where it was if the next generation follows directly. Otherwise it is dropped before the join.
    ``commits_after_callback``: the thread that comes for a callback has finished its message by coming, so there is
    more to commit after it.
    """

    keeps: bool = False
    commits_after_callback: bool = False


# -- the steps, and what the driver sends back ------------------------------------------------------------------


class Hold(NamedTuple):
    """Hand out nothing more of these, and wait (for a bounded time) until nobody has a message of them in hand."""

    partitions: Partitions
    generation: Generation


class Commit(NamedTuple):
    """Commit what is finished, if commits are automatic; for a bounded time, without raising what may pass."""

    partitions: Partitions


class Tell(NamedTuple):
    """Call ``method`` of the listener; ``begin()`` right before, in the same thread: from then on it counts as told.

    The call is not begun when ``generation`` is over (None: it is always made). Answer: False when it did not run.
    """

    method: str
    partitions: Partitions
    generation: Generation | None
    begin: Callable[[], None]


class Drop(NamedTuple):
    """These are not ours any more: forget what is known of them."""

    partitions: Partitions


class TakeOver(NamedTuple):
    """``share`` is ours from here on: find positions for what has none. ``fresh`` of it is on hold until HandOut.

    Nothing is changed if ``generation`` is over. May raise: what passes asks for another rebalance.
    """

    share: Partitions
    fresh: Partitions
    generation: Generation


class HandOut(NamedTuple):
    """Messages of the share may be handed out. Answer: False if ``generation`` was over before."""

    share: Partitions
    generation: Generation


class Look(NamedTuple):
    """Answer: fresh metadata of ``topics``, or None when our generation is over before. (None: of all that we read.)"""

    topics: Collection[str] | None


class Describe(Value):
    """Answer: the coordinator's answer to a DescribeGroups of our group. May raise any KafkaException."""


class Note(NamedTuple):
    """For the history, see :mod:`managedconsumer.coordinator.history`."""

    kind: str
    generation: Generation
    partitions: Partitions
    reason: str = ""


class Trouble(NamedTuple):
    """For the log: the hand-over cannot go on yet, and why."""

    text: str


Step = Hold | Commit | Tell | Drop | TakeOver | HandOut | Look | Describe | Note | Trouble
T = TypeVar("T")
Steps = Generator[Step, Any, T]


def carry_out(steps: Steps[T], do: Callable[[Step], Any]) -> T:
    """Let ``do`` carry each step out, and return what the decision was.

    What ``do`` raises is raised in the decision: it cleans up, and mostly lets it through.
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


class Holder(Protocol):
    """The view of its member that a hand-over needs. It answers at once, from memory."""

    def held(self) -> Partitions:
        """Return the present assignment."""

    def current(self, generation: Generation) -> bool:
        """False when ``generation`` is over, or the member goes."""

    def joined(self) -> bool:
        """True while the group counts us as a member."""

    def subscribed(self, topic: str) -> bool:
        """True if ``topic`` is one that we asked the group for."""

    def snapshot(self) -> ClusterSnapshot:
        """The metadata as last seen."""


class HandOver:
    """The decisions of one member about its partitions. Not thread-safe; one hand-over at a time."""

    def __init__(self, group_id: str, negotiation: Negotiation, holder: Holder, rules: Rules) -> None:
        self._group_id = group_id
        self._negotiation = negotiation
        self._holder = holder
        self._rules = rules
        self._announced: set[TopicPartition] = set()
        # As the leader: the partitions that the group has shared out, by topic.
        self._leader_snapshot: dict[str, set[int]] | None = None
        # As the leader: whether the group goes on with an assignment that we have not made (KIP-814).
        self._inherits = False
        #: The generation that the share which we hold is from; NO_GENERATION after a loss.
        self.settled_in = NO_GENERATION

    @property
    def announced(self) -> list[TopicPartition]:
        """The partitions that the listener has been told are assigned, and not yet that they are not."""
        return sorted(self._announced)

    def settled(self, generation: Generation) -> bool:
        """False while ``generation`` is new and what is held is still the share of the one before.

        With a cooperative assignor what is held stays ours until we give it up.
        """
        return self._negotiation.cooperative or self.settled_in == generation

    # -- a rebalance ------------------------------------------------------------------------------------

    def prepare_join(self, event: PrepareJoin) -> Steps[bool]:
        """Before a join, in the old generation; returns True if partitions are kept through the rebalance.

        Under an eager assignor everything is given up.
        """
        held = self._holder.held()
        if self._negotiation.cooperative:
            return bool(held)
        yield from self._give_up(held, self.announced, event.generation, drop=not self._rules.keeps)
        return False

    def elect(self, event: Elected) -> Steps[dict[str, bytes]]:
        """We lead: returns the assignment, from fresh metadata of every topic that a member subscribes to.

        Empty if it is not wanted (KIP-814: a static leader is back), or the generation is over.
        """
        topics = self._negotiation.topics_of(event)
        snapshot: ClusterSnapshot | None = yield Look(topics)
        if snapshot is None:
            return {}
        self._leader_snapshot, self._inherits = _partitions(snapshot, topics), event.skip_assignment
        return {} if event.skip_assignment else self._negotiation.assign(event, snapshot)

    def take_over(self, event: Assigned) -> Steps[str | None]:
        """Our share is here; returns why another rebalance is wanted, None: it is not."""
        generation = event.generation
        if not event.is_leader:
            self._leader_snapshot = None
        share, unnamed = yield from self._share(event)
        again = yield from self._let_go(event, share)
        if not self._holder.current(generation):
            return None
        # Not only what is new: an earlier attempt may have ended before it had found positions, or told the listener.
        fresh = [tp for tp in share if tp not in self._announced]
        try:
            yield TakeOver(share, fresh, generation)
        except err.FATAL_LOCAL_ERRORS:
            raise
        except err.KafkaException as error:
            if not self._holder.current(generation):
                return None
            if classify(error) is Verdict.FATAL:
                raise
            yield Trouble(f"committed offsets cannot be had yet: {error}")
            return "committed offsets could not be fetched"
        if not self._holder.current(generation):
            return None
        assigned = fresh if self._negotiation.cooperative else share
        yield Tell(ASSIGNED, assigned, generation, lambda: self._announced.update(assigned))
        yield Note("assigned", generation, assigned)
        if (yield HandOut(share, generation)) is False:
            return None
        if unnamed:
            return "topics of the assignment are not in the metadata yet"
        if again is None and self._leader_snapshot is not None and self._inherits:
            again = yield from self._inherit(generation)
        return again or self.outgrown()

    def lost(self, event: MembershipLost) -> Steps[None]:
        """The membership is lost: the listener hears of it, nothing is committed."""
        self._leader_snapshot, self.settled_in = None, NO_GENERATION
        told, heard = self.announced, True
        try:
            if told:
                heard = (yield Tell(LOST, told, None, self._announced.clear)) is not False
        finally:
            if heard:  # otherwise a stop was faster, which tells it
                self._announced.clear()
                held = self._holder.held()
                yield Note("lost", event.generation, held, event.reason)
                yield Drop(held)

    def leave(self, generation: Generation, *, commit: bool = True) -> Steps[None]:
        """We go: everything is given up in ``generation``, if it lasts so long."""
        held = self._holder.held()
        yield Hold(held, generation)
        if commit:
            yield Commit(held)
        # Asked after the commit, which may have learnt that the membership is lost.
        joined = self._holder.joined()
        told = self.announced
        self._announced.clear()
        try:
            if told:
                yield Tell(REVOKED if joined else LOST, told, None, lambda: None)
        finally:
            yield Note("revoked" if joined else "lost", generation, held, "stop")

    # -- the leader -------------------------------------------------------------------------------------

    def outgrown(self) -> str | None:
        """Why the leader has to assign again: topics have other partitions than the group has shared out.

        It is said once.
        """
        led = self._leader_snapshot
        if led is None:
            return None
        now = _partitions(self._holder.snapshot(), led)
        changed = sorted(topic for topic in led if led[topic] != now[topic])
        if not changed:
            return None
        self._leader_snapshot = None
        return f"partitions of {', '.join(changed)} changed"

    def _inherit(self, generation: Generation) -> Steps[str | None]:
        """Watch what the group goes on with. It may be older than the topics are: nobody has watched them.

        Returns why another round is wanted if the group does not say what it has; None: it has said it. In that round
        we make the assignment, so there is no third one.
        """
        problem: err.KafkaException | None = None
        for _ in range(_DESCRIPTIONS):
            try:
                assigned = assigned_in_group((yield Describe()))
            except err.KafkaException as error:
                if not self._holder.current(generation):
                    return None
                problem = error
                if isinstance(error, (err.ProtocolClientError, err.RequestTimedOut)):
                    break  # it was refused, or has taken long enough
            else:
                self._leader_snapshot = {topic: assigned.get(topic, set()) for topic in self._leader_snapshot or ()}
                return None
        text = "group %s: a static leader is back, and assigns anew in another round; no description of the group: %s"
        log.warning(text, self._group_id, problem, extra=LogFields(self._group_id).of(generation))
        return "it is not known what the group has shared out"

    # -- parts of a rebalance ---------------------------------------------------------------------------

    def _share(self, event: Assigned) -> Steps[tuple[list[TopicPartition], bool]]:
        """Our share, and whether some of it cannot be named yet.

        A leader of another program may assign topics that we never asked for: they are left out.
        """
        share, unknown = self._negotiation.accept(event, self._holder.snapshot())
        if unknown:
            yield Look(None)
            share, unknown = self._negotiation.accept(event, self._holder.snapshot())
        ours = {topic for topic in {tp.topic for tp in share} if self._holder.subscribed(topic)}
        for tp in share:
            if tp.topic not in ours:
                log.error(
                    "group %s: ignoring %s-%d: the leader assigned a topic that we did not subscribe to",
                    self._group_id,
                    line(tp.topic),
                    tp.partition,
                    extra=LogFields(self._group_id).of(event.generation, tp),
                )
        return [tp for tp in share if tp.topic in ours], bool(unknown)

    def _let_go(self, event: Assigned, share: Partitions) -> Steps[str | None]:
        """Let go of what we held and do not hold any more; returns why the group has to go through another round."""
        held, kept = self._holder.held(), set(share)
        if not self._negotiation.cooperative:
            # Before the join everything was revoked; others may have owned it unless we missed no generation.
            gone = [tp for tp in held if not event.continuous or tp not in kept]
            if gone:
                yield Drop(gone)
            self.settled_in = event.generation
            return None
        self.settled_in = event.generation
        gone = [tp for tp in held if tp not in kept]
        # Partitions of a deleted topic leave the assignment by themselves; the listener has still to hear of it.
        told = [tp for tp in self.announced if tp not in kept]
        if not gone and not told:
            return None
        yield from self._give_up(gone, told, event.generation, drop=True)
        # KIP-429: what was given up can be assigned in a second round. The KIP-848 broker needs no asking.
        return f"gave up {len(gone)} partitions" if gone and event.target is None else None

    def _give_up(self, gone: Partitions, told: Partitions, generation: Generation, *, drop: bool) -> Steps[None]:
        """Commit, tell the listener, and let go (``drop``); ``generation`` is still valid while this runs.

        When it ends meanwhile, by a loss or a stop, the partitions stay: :meth:`lost` or :meth:`leave` gives them up,
        and only a partition that is still held is committed there.
        """
        yield Hold(gone, generation)
        if gone and generation.joined and self._holder.current(generation):
            yield Commit(gone)
        if generation.joined and not self._holder.current(generation):
            return
        try:
            if generation.joined:
                if told or not self._negotiation.cooperative:
                    yield Tell(REVOKED, told, generation, lambda: self._announced.difference_update(told))
                if gone and self._rules.commits_after_callback and self._holder.current(generation):
                    yield Commit(gone)
                yield Note("revoked", generation, gone)
        finally:
            if gone and drop:
                yield Drop(gone)


def _partitions(snapshot: ClusterSnapshot, topics: Collection[str]) -> dict[str, set[int]]:
    return {topic: snapshot.partitions_for_topic(topic) or set() for topic in topics}
