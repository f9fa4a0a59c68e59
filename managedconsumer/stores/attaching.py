"""A consumer and its store: it claims partitions as they are assigned, and reads on from the store's offsets."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Any, Collection, Iterable, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.logs import LogFields
from managedconsumer.stores.errors import FencedStoreError, StoreWentBackError, TopicGoneError
from managedconsumer.stores.fence import Fence
from managedconsumer.stores.rows import NO_GROUP, Row, spans_of, topic_text
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import PartitionNotAssignedError

log = logging.getLogger(__name__)

# How often to retry a claim because the group went on to its next generation, or another claim was faster.
_TRIES = 5


class UnconfirmedError(FencedStoreError):
    """Kafka does not confirm that we are a member of the generation that assigned the partitions to us."""


def attach(store: Fence, consumer: Any, group: str | None, own_id: str) -> StoreClaimer:
    """See :meth:`managedconsumer.stores.Store.attach`. ``own_id``: the member id of a consumer without a group."""
    own = consumer.group
    name = own if group is None else group
    if name is None:
        raise err.ConfigurationError(
            "attach: this consumer has no consumer_group: say under which name its offsets are kept, by group="
        )
    claimer = StoreClaimer(store, consumer, name, own_id, confirmed=own is not None)
    consumer.keep_order(
        "a store is attached to this consumer. It keeps one next offset for each partition, so a message that is "
        "stored before an earlier one would move the offset beyond that one, which would be lost",
        claimer.moved_on,
    )
    if not hasattr(consumer, "listener"):
        if not consumer.partitions:
            raise err.IllegalStateError("attach: start() the consumer first, so that it has its partitions")
        claimer.take(partitions_of(consumer))
        return claimer
    claimer.inner, consumer.listener = consumer.listener, claimer
    assigned = partitions_of(consumer)
    if assigned:  # it has joined already, and the listener hears only of later assignments
        claimer.take(assigned)
        claimer.drop_revoked()
    return claimer


def partitions_of(consumer: Any) -> list[TopicPartition]:
    return sorted(TopicPartition(*each.key) for each in consumer.partitions.values())


class StoreClaimer:
    """A consumer's listener: claims its partitions, moves its positions, and calls the user's listener (``inner``)."""

    def __init__(self, store: Fence, consumer: Any, group: str, own_id: str, *, confirmed: bool) -> None:
        """``confirmed``: Kafka can be asked whether the consumer may commit for its group."""
        self.store = store
        self.group = group
        self.inner: Any = None
        self._consumer = consumer
        self._own_id = own_id
        self._confirmed = confirmed
        # The source of the topics' ids: a consumer's TopicIds.
        self._ids: Any = getattr(consumer, "topic_ids", None)
        self._claimed: set[TopicPartition] = set()
        # Partitions whose handler was interrupted by a loss or a new claim, once for each claim.
        self._interrupted: set[TopicPartition] = set()

    def drop_revoked(self) -> None:
        """Give up partitions that were revoked while the store was being attached: the listener was not told."""
        gone = self._claimed.difference(partitions_of(self._consumer))
        if gone:
            self.give_up(gone)

    def give_up(self, tps: Collection[TopicPartition]) -> None:
        self._claimed.difference_update(tps)
        self._interrupted.difference_update(tps)
        self.store.give_up(self.group, tps)

    def take(self, tps: Collection[TopicPartition]) -> None:
        """Claim ``tps`` and read on from what the store has of them."""
        known = {} if self._ids is None else self._ids.of(tps)
        self._claim(tps, known)
        if self.store.made_anew(self.group, tps) and (now := self._ids.look_again(tps)) != known:
            self._claim(tps, now)  # only the consumer's metadata was old
        self._claimed.update(tps)
        self._interrupted.difference_update(tps)
        self._seek(tps)

    def topics(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The ids of the topics that the consumer reads from now on, for those of ``tps`` that it owns."""
        mine = self._claimed.intersection(tps) if group == self.group and self._ids is not None else ()
        return {tp: text for tp, each in self._ids.of(mine).items() if (text := topic_text(each))} if mine else {}

    def handed_out(self, group: str, tp: TopicPartition) -> str:
        """The id of the topic of the message that the consumer handed out last; empty: unknown."""
        mine = group == self.group and self._ids is not None and tp in self._claimed
        return topic_text(self._ids.handed_out(tp)) if mine else ""

    def _claim(self, tps: Collection[TopicPartition], topic_ids: Mapping[TopicPartition, bytes | None]) -> None:
        for left in reversed(range(_TRIES)):
            me = self._identity()
            if topic_ids:
                self.store.tell_topics(self.group, topic_ids)
            try:
                self.store.claim(
                    self.group, tps, *me, proof=partial(self._prove, tps, topic_ids, me) if self._confirmed else None
                )
                break
            except UnconfirmedError:
                if not left or self._identity() == me:
                    raise
            except FencedStoreError:  # another claim was faster; Kafka decides which of us is a member
                if not left or not self._confirmed:
                    raise

    def _seek(self, tps: Collection[TopicPartition]) -> None:
        assigned = set(partitions_of(self._consumer)).intersection(tps)
        for tp, offset in self.store.begins(self.group).items():
            # Seek also to the present position: a commit of an earlier run() without the store may list messages behind
            # its offset as finished, which the store does not have.
            if tp in assigned:
                self._consumer.seek(tp, offset)
                assigned.discard(tp)
        for tp, why in self.store.made_anew(self.group, assigned).items():
            log.warning("%s. It is read from where auto_offset_reset says", why, extra=LogFields(self.group)())
            self._ids.begin_anew(tp, why)

    def go_back(self, group: str, error: StoreWentBackError, tps: Iterable[TopicPartition]) -> None:
        """The store lost transactions: claim again, and read all of ``tps`` again from its present offsets."""
        lost = self._claimed.intersection(error.partitions)
        if group != self.group or not lost:
            return
        try:
            self.take(sorted(lost))
            self._seek(self._claimed.intersection(tps) - lost)
            log.warning("claimed again, and read on from there: %s", error, extra=LogFields(self.group)())
        except Exception as problem:  # noqa: BLE001 - the caller raises the error that matters
            # The group gives them to others, or Kafka or the store is away.
            log.warning("the consumer is not back at the store's offsets: %s", problem, extra=LogFields(self.group)())

    def read_again(self, group: str, tps: Collection[TopicPartition]) -> None:
        """Go back to the messages of ``tps`` that a refused transaction had. ``run()`` does so by itself."""
        if group != self.group or not tps:
            return
        with suppress(err.KafkaException):  # stopped, or given up meanwhile: the caller raises the error that matters
            if self._consumer.health()["run"] is None:
                self._seek(self._claimed.intersection(tps))

    def moved_on(self, error: BaseException, messages: Sequence[Any]) -> bool:
        """True if the store refused ``messages`` as their partitions went to another member, or their topic is gone.

        False: the messages' own failure. The store may know the next owner before this member knows of its eviction, so
        this asks Kafka, by a commit that ends before the first of ``messages``. If Kafka confirms us, the claim came
        from outside of the group.
        """
        if not isinstance(error, FencedStoreError):
            return False
        if isinstance(error, TopicGoneError):
            return True
        firsts = {tp: span.first for tp, span in spans_of(messages).items()}
        while not self._given_up(firsts):
            try:
                self._consumer.commit_offsets(firsts)
            except err.CommitFailedError as refused:
                if refused.retriable:  # the coordinator is away, so the answer is not known yet
                    continue
                return True
            except (PartitionNotAssignedError, err.ConsumerStoppedException):
                return True
            except err.KafkaException:  # such as a user without the right to commit: the cause stays unknown
                return False
            break
        # Once for each claim: a handler that stores by another object than this one would otherwise run again for ever.
        if not self._given_up(firsts) or self._interrupted.issuperset(firsts):
            return False
        self._interrupted.update(firsts)
        return True

    def _given_up(self, tps: Iterable[TopicPartition]) -> bool:
        """True if we have given up one of ``tps``, or have claimed all of them again since."""
        return not self._claimed.issuperset(tps) or self.store.claimed(self.group).keys() >= set(tps)

    def _identity(self) -> tuple[int, str]:
        member = getattr(self._consumer, "consumer_id", b"").decode()
        return (self._consumer.generation_id, member) if member else (NO_GROUP, self._own_id)

    def _prove(
        self,
        tps: Collection[TopicPartition],
        topic_ids: Mapping[TopicPartition, bytes | None],
        me: tuple[int, str],
        rows: Mapping[TopicPartition, Row],
    ) -> None:
        """Let Kafka confirm us, by a commit of the present offsets: it takes commits only from members."""
        offsets = {}
        for tp in tps:
            stored = rows[tp].next_in(topic_text(topic_ids.get(tp))) if tp in rows else None
            offsets[tp] = self._consumer.position(tp) if stored is None else stored
        try:
            self._consumer.commit_offsets(offsets)
        except err.CommitFailedError as error:
            if error.retriable:  # the coordinator is away
                raise
            # This process may have stood still, and was evicted.
            raise UnconfirmedError(
                f"group {self.group}: Kafka does not confirm generation {me[0]}: {error}", tuple(tps)
            ) from error
        if self._identity() != me:
            raise UnconfirmedError(f"group {self.group}: generation {me[0]} has ended", tuple(tps))

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> Any:
        """Claim them, and read on from the store. If the group has moved on, the consumer hands out none of them."""
        self.drop_revoked()
        try:
            if assigned:
                self.take(assigned)
        except UnconfirmedError as error:
            log.info("not claimed, as the group has moved on: %s", error, extra=LogFields(self.group)())
        return None if self.inner is None else self.inner.on_partitions_assigned(assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> Any:
        """Give them up after the user's callback, which may still store results; an async one is not waited for."""
        try:
            return None if self.inner is None else self.inner.on_partitions_revoked(revoked)
        finally:
            self.give_up(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> Any:
        """Give them up first: other members may have claimed them already."""
        self.give_up(lost)
        if self.inner is None:
            return None
        return (getattr(self.inner, "on_partitions_lost", None) or self.inner.on_partitions_revoked)(lost)
