"""KafkaStore: results and next offsets in one transaction of another library's Kafka producer (KIP-447).

The rows of this store are the group's committed offsets, with the member's name (and the topic's id) as their metadata.
The coordinator is the fence: it takes offsets only from a member of the present generation. So a claim is a note in
memory, which ends when the partition is revoked.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, NoReturn, Sequence
from weakref import ref

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.stores.attaching import partitions_of
from managedconsumer.stores.errors import AlreadyStoredError, FencedStoreError, TopicGoneError
from managedconsumer.stores.producers import producing
from managedconsumer.stores.rows import NO_GROUP, Move, Row, shown_of, spans_of, with_topic
from managedconsumer.stores.store import Store
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)

# The owner of a partition that was revoked, or whose offset another client has committed.
_NOBODY = "another member"
# How long (seconds) this member may take to learn what its coordinator knows already, and the pause between two checks.
_NEWS, _LOOK = 10.0, 0.02
_ORDER = (
    "a KafkaStore is attached to this consumer. A group has one next offset for each partition, so a message that is "
    "stored before an earlier one would move the offset beyond that one, which would be lost"
)


class _Claim(NamedTuple):
    """This object's claim of a partition: its number, the member, and the group's committed offset at that time."""

    number: int
    member: str
    next: int | None


class _RefusedError(FencedStoreError):
    """The coordinator has refused the membership ``sent`` (None: there was none), or partitions were revoked."""

    sent: Any = None
    claims: Mapping[TopicPartition, _Claim | None] = {}


class KafkaStore(Store):
    """Results into Kafka: the records that a block produces and the offsets of its messages are one transaction.

    The producer is the user's: ``confluent_kafka.Producer`` or kafka-python's ``KafkaProducer``, with a transactional
    id of its own. A store has one producer and one consumer, a member of a group. Transactions of several threads run
    one after the other. A failed transaction is aborted, and the consumer hands out its messages again, in order.
    Readers of the results need ``isolation_level="read_committed"``.
    """

    keeps_topic_ids = True

    def __init__(self, producer: Any, *, patience_ms: int = 120_000, use_greenlets: bool = False) -> None:
        """``producer``: :meth:`attach` initialises its transactions; the store never closes it.

        ``patience_ms``: how long to wait for a call of the producer, and for the transaction of a producer that died
        (which ends after its ``transaction.timeout.ms`` and 10 s). Raises TypeError for an object that is no
        transactional producer, ConfigurationError for a producer for asyncio.
        """
        super().__init__(patience_ms=patience_ms, use_greenlets=use_greenlets)
        self.producer = producer
        self._producing = producing(producer, self._handler, self._patience)
        self._prepared = False
        self._group: str | None = None
        self._consumer: Callable[[], Any] = lambda: None
        self._mine: dict[TopicPartition, _Claim] = {}
        # One transaction of the producer at a time, and its thread.
        self._one_at_a_time = self._handler.Lock()
        self._whose: int | None = None
        # The call that has to end the last transaction, after a first attempt has failed.
        self._left: Callable[[], None] | None = None
        self._saving: set[int] = set()

    def __repr__(self) -> str:
        return f"<KafkaStore of {type(self.producer).__module__}.{type(self.producer).__name__}, group {self._group}>"

    def attach(self, consumer: Any, *, group: str | None = None) -> None:
        """See :meth:`Store.attach`. Also initialises the producer's transactions, which ends those of a dead producer.

        Raises ConfigurationError for a consumer that is no member of a group, for one with ``auto_commit_enable``,
        while another attached consumer runs, and for a producer without a transactional id; also what the producer
        raises.
        """
        if not hasattr(consumer, "group_metadata"):
            raise err.ConfigurationError(
                f"attach: {type(consumer).__name__} is no member of a group, so Kafka cannot tell who may move its "
                "offsets. Use ManagedBalancedConsumer"
            )
        if group not in (None, consumer.group):
            raise err.ConfigurationError(f"group={group!r}: a KafkaStore keeps the offsets of the consumer's own group")
        other = self._consumer()
        if other is not None and other is not consumer and other.health()["running"]:
            raise err.ConfigurationError(
                "attach: another consumer is attached, and runs. A producer has one transaction at a time: make a "
                "producer and a KafkaStore for each consumer"
            )
        consumer.keep_order(_ORDER, commits=False)
        if not self._prepared:
            self._producing.prepare()
            self._prepared = True
        self._group, self._consumer = consumer.group, ref(consumer)
        super().attach(consumer)
        consumer.keep_order(_ORDER, self._moved_on, commits=False)

    def foreach_batch(
        self, write: Callable[[Any, Any], object], *, group: str, max_offsets: int | None = None
    ) -> NoReturn:
        """Raise ConfigurationError: a Spark query is no member of a group, and keeps its own offsets."""
        del write, group, max_offsets
        raise err.ConfigurationError(
            "a KafkaStore has no foreach_batch: a query of Spark is no member of a group, so Kafka cannot refuse the "
            "offsets of one that was replaced"
        )

    def give_up(self, group: str, tps: Iterable[TopicPartition]) -> None:
        tps = list(tps)
        for tp in tps:
            if tp in self._mine:
                self._mine[tp] = _Claim(self._mine[tp].number + 1, _NOBODY, None)
        super().give_up(group, tps)

    def rows(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        """See :meth:`Store.rows`. Waits for open transactions with offsets of these partitions."""
        consumer = self._consumer()
        if consumer is None or group != self._group:
            raise err.IllegalStateError(
                f"a KafkaStore asks the attached consumer what its group has committed: attach() a consumer of {group}"
            )
        wanted = list(tps)
        try:
            committed = consumer.group_offsets.committed(wanted, self._patience)
        except err.UnstableOffsetCommit as error:
            raise err.UnstableOffsetCommit(
                f"group {group}: a transaction with offsets of these partitions has not ended for "
                f"{self._patience:.0f} s. Its producer has died, or has lost its brokers. It is aborted after that "
                "producer's transaction.timeout.ms, at once when a producer with the same transactional.id starts. "
                f"Give KafkaStore a patience_ms that is longer: {shown_of(wanted)}"
            ) from error
        return {tp: row for tp in wanted if (row := self._row(tp, committed.get(tp))) is not None}

    def _row(self, tp: TopicPartition, entry: OffsetAndMetadata | None) -> Row | None:
        mine = self._mine.get(tp)
        if entry is None:
            return None if mine is None else Row(None, mine.number, NO_GROUP, mine.member)
        told = Row(entry.offset, 0, NO_GROUP, entry.metadata)
        if mine is None:
            return told._replace(member=with_topic(_NOBODY, told.topic))
        ours = told.owner == mine.member or entry.offset == mine.next
        number, member = (mine.number, mine.member) if ours else (mine.number + 1, _NOBODY)
        return Row(entry.offset, number, NO_GROUP, with_topic(member, told.topic))

    def swap(self, group: str, changes: Mapping[TopicPartition, tuple[Row | None, Row]]) -> bool:
        """See :meth:`Store.swap`. A note in memory: the group has assigned us the partitions."""
        del group  # there is one
        for tp, (old, new) in changes.items():
            self._mine[tp] = _Claim(new.claim, new.owner, None if old is None else old.next)
        return True

    @contextmanager
    def transaction(self, messages: Any, *, group: str | None = None) -> Iterator[Any]:
        """See :meth:`Store.transaction`; yields the producer, whose records in the block belong to the transaction.

        After a failure it is aborted, and the consumer goes back to the first of ``messages`` in the partitions that it
        still has (in ``run()`` its retries decide). Raises FencedStoreError also when Kafka refuses the membership,
        ProducerFenced when another producer with the same transactional id has begun, or the transaction has taken
        longer than its ``transaction.timeout.ms``: then the producer cannot be used any more.
        """
        begun = False
        try:
            with super().transaction(messages, group=group) as moves:
                begun = True
                yield self.producer
                self._send_offsets(moves)
        except BaseException as error:
            if begun or not isinstance(error, (AlreadyStoredError, err.IllegalStateError)):
                self._go_back(messages)
            raise

    def save(self, messages: Any, write: Callable[[Any, Any], object], *, group: str | None = None) -> None:
        """See :meth:`Store.save`. Retries also after a new generation of the group in which all partitions are ours."""
        me = self._handler.ident()
        self._saving.add(me)
        try:
            super().save(messages, write, group=group)
        except BaseException as error:
            self._saving.discard(me)
            if not isinstance(error, err.IllegalStateError):
                self._go_back(messages)
            raise
        finally:
            self._saving.discard(me)

    @contextmanager
    def writing(self, group: str, moves: Mapping[TopicPartition, Move]) -> Iterator[Any]:
        """See :meth:`Store.writing`; yields the moves, whose offsets the block must send before it ends."""
        self._wait_for_turn()
        try:
            self._begin()
            ending = False
            try:
                yield moves
                ending = True
                self._producing.commit()
            except BaseException as error:
                self._undo(ending=ending)
                if ending and isinstance(error, Exception):
                    self._complain(error)
                raise
        finally:
            self._whose = None
            self._one_at_a_time.release()
        consumer = self._consumer()
        if consumer is not None and group == self._group:
            consumer.group_offsets.note({tp: move.next for tp, move in moves.items()})

    def passing(self, error: BaseException) -> bool:
        """True also after a new generation of the group in which all partitions are ours."""
        return super().passing(error) or (isinstance(error, _RefusedError) and self._still_ours(error))

    def _wait_for_turn(self) -> None:
        me = self._handler.ident()
        if self._whose == me:
            raise err.IllegalStateError(
                "a transaction of this producer is open in this thread, and it can have one at a time. Tasks of an "
                "event loop store by `await asyncio.to_thread(store.save, messages, write)`"
            )
        if not self._one_at_a_time.acquire(timeout=self._patience):
            raise err.IllegalStateError(
                f"another thread's transaction of this producer has been open for {self._patience:.0f} s, and it can "
                "have one at a time"
            )
        self._whose = me

    def _begin(self) -> None:
        if self._left is not None:  # if it does not end now, the next transaction cannot begin
            for end in (self._left, self._producing.abort):
                with suppress(Exception):
                    end()
                    break
        try:
            self._producing.begin()
        except Exception as error:
            self._complain(error)
            raise
        self._left = None

    def _send_offsets(self, moves: Mapping[TopicPartition, Move]) -> None:
        try:
            # Before the check of the claims: a later revocation gives partitions to others in a later generation.
            membership = self._consumer().group_metadata()
        except (err.KafkaException, AttributeError) as error:
            raise self._refused(moves, None) from error
        lost = [tp for tp, move in moves.items() if not self._has(tp, move.row)]
        if lost:
            raise self._refused(lost, None)
        offsets = {tp: OffsetAndMetadata(move.next, move.member) for tp, move in moves.items()}
        try:
            self._producing.send_offsets(offsets, membership)
        except Exception as error:
            if self._producing.refused(error):
                raise self._refused(moves, membership) from error
            self._complain(error)
            raise

    def _has(self, tp: TopicPartition, row: Row) -> bool:
        mine = self._mine.get(tp)
        return mine is not None and (mine.number, mine.member) == (row.claim, row.owner)

    def _undo(self, *, ending: bool) -> None:
        """The transaction has failed: abort it, or remember the call that has to end it."""
        try:
            self._producing.abort()
        except Exception as problem:  # noqa: BLE001 - the caller raises the first error
            log.info("the transaction could not be aborted: %s", problem)
            # A commit that has begun may have to be completed.
            self._left = self._producing.commit if ending else self._producing.abort

    def _complain(self, problem: Exception) -> None:
        if self._producing.fenced(problem):
            raise err.ProducerFenced(
                "the producer is fenced: another one with the same transactional.id has begun (each process needs an "
                "id of its own), or its transaction has taken longer than transaction.timeout.ms. It cannot be used "
                f"any more: {problem}"
            ) from problem

    # -- what went wrong --------------------------------------------------------------------------------

    def _refused(self, tps: Iterable[TopicPartition], sent: Any) -> _RefusedError:
        error = _RefusedError(
            f"group {self._group}: it has a new generation without this member, or has given {shown_of(tps)} to "
            "others: nothing was stored",
            tuple(tps),
        )
        error.sent, error.claims = sent, {tp: self._mine.get(tp) for tp in tps}
        return error

    def _still_ours(self, error: _RefusedError) -> bool:
        """True once the member is in a later generation and has all its partitions there; waits until it knows that."""
        deadline = Deadline(self._handler.now(), _NEWS)
        while error.sent is not None and not deadline.expired(self._handler.now()):
            try:
                if self._consumer().group_metadata() != error.sent:
                    return all(self._mine.get(tp) == claim for tp, claim in error.claims.items())
            except (err.KafkaException, AttributeError):
                return False
            self._handler.sleep(_LOOK)
        return False

    def _moved_on(self, error: BaseException, messages: Sequence[Any]) -> bool:
        """As :meth:`StoreClaimer.moved_on`, but asks Kafka by no commit, which would move the store's offsets."""
        if not isinstance(error, FencedStoreError):
            return False
        if isinstance(error, TopicGoneError) or (isinstance(error, _RefusedError) and self._still_ours(error)):
            return True
        deadline = Deadline(self._handler.now(), _NEWS)
        while not any(message.fenced for message in messages):
            if deadline.expired(self._handler.now()):
                return False
            self._handler.sleep(_LOOK)
        return True

    def _read_again(self, group: str, tps: Collection[TopicPartition]) -> None:
        """Do nothing: :meth:`transaction` goes back after every failure, and :meth:`save` tries again before that."""

    def _go_back(self, messages: Any) -> None:
        """Seek the consumer back to the undone messages of its partitions. ``run()`` does so by itself."""
        consumer = self._consumer()
        if consumer is None or self._handler.ident() in self._saving:
            return
        with suppress(err.KafkaException):
            if consumer.health()["run"] is not None:
                return
            begins, held = self.begins(self._group or ""), set(partitions_of(consumer))
            for tp, span in spans_of(messages).items():
                if tp in held:
                    consumer.seek(tp, begins.get(tp, span.first))
