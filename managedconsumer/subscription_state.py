"""A consumer's subscription, its assignment, and its position in each partition.

The public names are those of kafka-python's ``SubscriptionState`` and ``TopicPartitionState``. The differences:

* A partition's fetch state is an enum with a transition table; illegal calls raise where kafka-python asserts.
* Every change of the assignment starts a new :class:`Era`. The ``TopicPartitionState`` of a partition that is not in it
  is dead (``active`` is False) for good. Fetch buffers and commits keep the state object and check it, so nothing of a
  partition that was lost, and perhaps assigned again, reaches the user or the group.
* ``assign_from_subscribed(..., retain=True)`` keeps the state objects of partitions that stay.
* A partition that is not assigned raises :class:`PartitionNotAssignedError`, which is a ``KeyError`` too.

Offsets are *next* offsets. Pure, and not thread-safe: the consumer's lock guards every call and every use of a
``TopicPartitionState``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from managedconsumer.config import duration_of
from managedconsumer.errors import IllegalStateError
from managedconsumer.partition_state import TRANSITIONS as TRANSITIONS
from managedconsumer.partition_state import FetchState as FetchState
from managedconsumer.partition_state import MissingPreconditionError as MissingPreconditionError
from managedconsumer.partition_state import TopicPartitionState as TopicPartitionState
from managedconsumer.structs import ClusterSnapshot, OffsetAndMetadata, OffsetResetStrategy, TopicPartition
from managedconsumer.subscription_input import (
    RebalanceListener,
    check_listener,
    checked_partitions,
    checked_pattern,
    checked_topics,
)
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)

#: Kafka's own topics, for brokers that do not mark them in the metadata.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_STRATEGIES = {
    "EARLIEST": OffsetResetStrategy.EARLIEST,
    "LATEST": OffsetResetStrategy.LATEST,
    "NONE": OffsetResetStrategy.NONE,
}


class PartitionNotAssignedError(IllegalStateError, KeyError):
    """The partition is not part of the current assignment."""

    def __str__(self) -> str:  # KeyError would show the repr of the text
        return str(self.args[0]) if self.args else ""


class Era(NamedTuple):
    """One assignment, from its take-over to the next change; ``number`` only rises."""

    number: int
    partitions: frozenset[TopicPartition]


class SubscriptionState:
    """The topics, partitions and offsets of one consumer.

    Partitions are assigned either by the user (:meth:`assign_from_user`) or by the group, for the topics or the pattern
    of :meth:`subscribe`; these exclude each other until :meth:`unsubscribe`, as topics and pattern do.

    Attributes, as in kafka-python: ``subscription`` (set of topics, None without :meth:`subscribe`),
    ``subscribed_pattern`` (compiled, or None), ``assignment`` ({TopicPartition: TopicPartitionState}),
    ``needs_partition_assignment``, ``needs_fetch_committed_offsets``, ``listener``; and ``era``.
    """

    _SUBSCRIPTION_EXCEPTION_MESSAGE = (
        "You must choose only one way to configure your consumer: (1) subscribe to specific topics by name, "
        "(2) subscribe to topics matching a regex pattern, (3) assign itself specific topic-partitions."
    )

    def __init__(self, offset_reset_strategy: str = "earliest", *, exclude_internal_topics: bool = True) -> None:
        """``offset_reset_strategy``: 'earliest', 'latest', 'by_duration:P1D' or 'none' (all else, with a warning).

        Under 'none' a partition without a usable offset is an error for the user to handle.
        """
        name = str(offset_reset_strategy).upper()
        strategy = _STRATEGIES.get(name, duration_of(name))
        if strategy is None:
            log.warning("Unrecognized offset_reset_strategy %r, using NONE", offset_reset_strategy)
        self._default_offset_reset_strategy = strategy or OffsetResetStrategy.NONE
        #: A pattern matches no topics of Kafka's own.
        self.exclude_internal_topics = exclude_internal_topics
        self.subscription: set[str] | None = None
        self.subscribed_pattern: re.Pattern[str] | None = None
        self._group_subscription: set[str] = set()
        self._user_assignment: set[TopicPartition] = set()
        self.assignment: dict[TopicPartition, TopicPartitionState] = {}
        self.era = Era(0, frozenset())
        self.needs_partition_assignment = False
        self.listener: RebalanceListener | None = None
        # True from the start: a consumer begins with its committed offsets.
        self.needs_fetch_committed_offsets = True

    # -- what is subscribed ---------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to all topics whose names a pattern matches from their beginning (``re.match``).

        Replaces the earlier topics (or pattern) and listener. A pattern takes effect with the next
        :meth:`update_pattern_subscription`. Nothing changes when this raises: IllegalStateError if the user assigned
        partitions, or both or the other of topics and pattern are in use; MissingPreconditionError for neither;
        TypeError or ValueError for an invalid listener, topic name or pattern.
        """
        topics = checked_topics(topics)
        if self._user_assignment or (topics and pattern):
            raise IllegalStateError(self._SUBSCRIPTION_EXCEPTION_MESSAGE)
        if not topics and not pattern:
            raise MissingPreconditionError("Must provide topics or pattern")
        if self.subscription is not None and (self.subscribed_pattern is None) != (not pattern):
            raise IllegalStateError(f"{self._SUBSCRIPTION_EXCEPTION_MESSAGE} Call unsubscribe() to change the way.")
        check_listener(listener)
        if pattern:
            compiled = checked_pattern(pattern)
            log.info("Subscribing to pattern: /%s/", compiled.pattern)
            self.subscription = set()
            self.subscribed_pattern = compiled
        else:
            self.change_subscription(topics)
        self.listener = listener

    def change_subscription(self, topics: Iterable[str]) -> None:
        """Replace the topics (for a pattern: the topics it matches now); partitions of others leave the assignment.

        Raises IllegalStateError if the user assigned partitions.
        """
        names = checked_topics(topics)
        if self._user_assignment:
            raise IllegalStateError(self._SUBSCRIPTION_EXCEPTION_MESSAGE)
        if self.subscription == names:
            if self.subscribed_pattern is None:
                log.warning("subscription unchanged by change_subscription(%s)", sorted(names))
            return
        log.info("Updating subscribed topics to: %s", sorted(names))
        self.subscription = names
        self._group_subscription.update(names)
        self.needs_partition_assignment = True
        kept = {tp: state for tp, state in self.assignment.items() if tp.topic in names}
        if len(kept) < len(self.assignment):
            self._start_era(kept)

    def update_pattern_subscription(self, cluster: ClusterSnapshot) -> bool:
        """Apply the pattern, if there is one, to the topics of ``cluster``, at each change of the metadata.

        Returns True if other topics match now, so that the member has to join again. Internal topics match only with
        ``exclude_internal_topics=False``; topics with an error and without partitions do not count.
        """
        if self.subscribed_pattern is None:
            return False
        matching = {
            info.name
            for info in cluster.topics.values()
            if self.matches(info.name, info.is_internal) and (info.partitions or not info.error_code)
        }
        changed = matching != self.subscription
        self.change_subscription(matching)
        return changed

    def matches(self, topic: str, is_internal: bool = False) -> bool:
        """Return True if there is a pattern and it matches ``topic``."""
        if self.subscribed_pattern is None:
            return False
        if self.exclude_internal_topics and (is_internal or topic in INTERNAL_TOPICS):
            return False
        return self.subscribed_pattern.match(topic) is not None

    def group_subscribe(self, topics: Iterable[str]) -> None:
        """Add topics of other members: the leader needs the metadata of all topics of the group."""
        if self._user_assignment:
            raise IllegalStateError(self._SUBSCRIPTION_EXCEPTION_MESSAGE)
        self._group_subscription.update(topics)

    def group_subscription(self) -> set[str]:
        """Return the topics whose metadata are needed: the member's own, for the leader those of the whole group."""
        return self._group_subscription

    def mark_for_reassignment(self) -> None:
        """Mark the group for another join, and forget the other members' topics until then."""
        if self._user_assignment:
            raise IllegalStateError(self._SUBSCRIPTION_EXCEPTION_MESSAGE)
        if self.subscription is None:
            raise MissingPreconditionError("Subscription required")
        self._group_subscription.intersection_update(self.subscription)
        self.needs_partition_assignment = True

    def unsubscribe(self) -> None:
        """Forget topics, pattern and assignment; any way of subscribing is possible again."""
        self.subscription = None
        self.subscribed_pattern = None
        self._group_subscription.clear()
        self._user_assignment.clear()
        self._start_era({})
        self.needs_partition_assignment = True

    # -- what is assigned -----------------------------------------------------------------------------------------

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment by the user's own, without a group; partitions that stay keep position and pause.

        Raises IllegalStateError after ``subscribe()``, TypeError or ValueError for something that is no partition.
        """
        wanted = checked_partitions(partitions)
        if self.subscription is not None:
            raise IllegalStateError(self._SUBSCRIPTION_EXCEPTION_MESSAGE)
        self._user_assignment = set(wanted)
        self._assign(wanted, retain=True)
        self.needs_partition_assignment = False

    def assign_from_subscribed(self, assignments: Iterable[TopicPartition], *, retain: bool = False) -> None:
        """Take over the group's assignment.

        ``retain=False``, as in kafka-python: all partitions start anew, without position, resumed. ``retain=True``:
        partitions that were assigned before keep their state object, and are not on hold any more.

        Raises IllegalStateError without a subscription, and ValueError if a partition's topic is not subscribed. The
        leader may know topics earlier than we do: those that our pattern matches join the subscription.
        """
        wanted = checked_partitions(assignments)
        if self.subscription is None:
            raise IllegalStateError(self._SUBSCRIPTION_EXCEPTION_MESSAGE)
        strangers = {tp.topic for tp in wanted} - self.subscription
        for tp in wanted:
            if tp.topic in strangers and not self.matches(tp.topic):
                raise ValueError(f"Assigned partition {tp} for non-subscribed topic.")
        self.subscription = self.subscription | strangers  # a new set: others read it without a lock
        self._group_subscription |= strangers
        self._assign(wanted, retain)
        self.needs_partition_assignment = False
        log.info("Updated partition assignment: %s", [f"{topic}-{number}" for topic, number in sorted(wanted)])

    def _assign(self, wanted: list[TopicPartition], retain: bool) -> None:
        kept = {tp: self.assignment[tp] for tp in wanted if tp in self.assignment} if retain else {}
        for state in kept.values():
            state.suspended = False
        if retain and self.assignment.keys() == set(wanted):
            return
        number = self.era.number + 1
        self._start_era({tp: kept.get(tp) or TopicPartitionState(number) for tp in wanted})

    def _start_era(self, assignment: dict[TopicPartition, TopicPartitionState]) -> None:
        for tp, state in self.assignment.items():
            if assignment.get(tp) is not state:
                state.active = False
        self.assignment = assignment
        self.era = Era(self.era.number + 1, frozenset(assignment))

    def suspend(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver nothing of these for now: they are about to be revoked, or their assigned-callback is not done.

        Independent of the user's pause. Ends with :meth:`release`, or when a retaining assignment keeps them.
        Ignores partitions that are not assigned.
        """
        for tp in self.assignment.keys() & set(partitions):
            self.assignment[tp].suspended = True

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo :meth:`suspend`."""
        for tp in self.assignment.keys() & set(partitions):
            self.assignment[tp].suspended = False

    # -- where we are ---------------------------------------------------------------------------------------------

    def partition_state(self, partition: TopicPartition) -> TopicPartitionState:
        """Return the state object of an assigned partition; raises PartitionNotAssignedError."""
        try:
            return self.assignment[partition]
        except KeyError:
            raise PartitionNotAssignedError(
                f"{partition!r} is not assigned to this consumer (assigned: {sorted(self.assignment)})"
            ) from None

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Set the offset of the next message; also ends a reset in progress.

        Raises PartitionNotAssignedError, TypeError (not an int) or ValueError (negative).
        """
        self.partition_state(partition).seek(offset, leader_epoch)

    def need_offset_reset(
        self, partition: TopicPartition, offset_reset_strategy: int | None = None, *, in_flight: bool = False
    ) -> None:
        """Have the position looked up by this strategy (an OffsetResetStrategy; default: the consumer's).

        ``in_flight``: messages that were delivered before still count.
        """
        if offset_reset_strategy is None:
            offset_reset_strategy = self._default_offset_reset_strategy
        self.partition_state(partition).await_reset(offset_reset_strategy, in_flight=in_flight)

    def pause(self, partition: TopicPartition) -> None:
        """Stop fetching a partition without touching its position."""
        self.partition_state(partition).pause()

    def resume(self, partition: TopicPartition) -> None:
        """Undo :meth:`pause`."""
        self.partition_state(partition).resume()

    def all_consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return ``{partition: OffsetAndMetadata}`` of every position; the message in flight counts as consumed."""
        return {
            tp: OffsetAndMetadata(state.position, "", state.leader_epoch)
            for tp, state in self.assignment.items()
            if state.position is not None
        }

    def committable_offsets(self, metadata: str = "") -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a background commit may commit: ``finished`` where it is not committed yet."""
        return {
            tp: OffsetAndMetadata(state.finished, metadata, state.epoch_before(state.finished))
            for tp, state in self.assignment.items()
            if state.finished is not None and state.finished != state.committed
        }

    # -- questions ------------------------------------------------------------------------------------------------

    def assigned_partitions(self) -> set[TopicPartition]:
        """Return the current assignment's partitions."""
        return set(self.assignment)

    def paused_partitions(self) -> set[TopicPartition]:
        """Return those that the user has paused."""
        return {tp for tp, state in self.assignment.items() if state.paused}

    def fetchable_partitions(self) -> set[TopicPartition]:
        """Return those with a position that are neither paused nor on hold."""
        return {tp for tp, state in self.assignment.items() if state.is_fetchable()}

    def partitions_in(self, state: FetchState) -> set[TopicPartition]:
        """Return those in a fetch state, such as INITIALIZING: their committed offsets have to be looked up."""
        return {tp for tp, its in self.assignment.items() if its.state is state}

    def missing_fetch_positions(self) -> set[TopicPartition]:
        """Return those without a position."""
        return {tp for tp, state in self.assignment.items() if not state.has_valid_position}

    def has_all_fetch_positions(self) -> bool:
        """Return True if no partition lacks a position."""
        return all(state.has_valid_position for state in self.assignment.values())

    def has_default_offset_reset_policy(self) -> bool:
        """Return True if the consumer's own strategy is not 'none'."""
        return self._default_offset_reset_strategy != OffsetResetStrategy.NONE

    def partitions_auto_assigned(self) -> bool:
        """Return True after :meth:`subscribe`."""
        return self.subscription is not None

    def is_offset_reset_needed(self, partition: TopicPartition) -> bool:
        """Return True while a reset looks the position up; raises PartitionNotAssignedError."""
        return self.partition_state(partition).awaiting_reset

    def is_assigned(self, partition: TopicPartition) -> bool:
        """Return True if the partition is assigned."""
        return partition in self.assignment

    def is_paused(self, partition: TopicPartition) -> bool:
        """Return True if it is assigned and the user has paused it."""
        return partition in self.assignment and self.assignment[partition].paused

    def is_fetchable(self, partition: TopicPartition) -> bool:
        """Return True if it is assigned, has a position, and is neither paused nor on hold."""
        return partition in self.assignment and self.assignment[partition].is_fetchable()
