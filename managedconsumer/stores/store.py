"""Store: results and next offsets in one transaction, fenced by claims; the part that all adapters share."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping
from weakref import WeakSet

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.logs import LogFields
from managedconsumer.results import check_result
from managedconsumer.stores import attaching
from managedconsumer.stores.claims import Claim
from managedconsumer.stores.errors import (
    AlreadyStoredError,
    ConflictError,
    FencedStoreError,
    StoreWentBackError,
    TopicGoneError,
)
from managedconsumer.stores.fence import FIRST_PAUSE, LONGEST_PAUSE, Fence
from managedconsumer.stores.micro_batches import check_size, micro_batch
from managedconsumer.stores.rows import NO_GROUP, Move, Span, below, first_of, shown_of, spans_of, topics_of, unstored
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)


class Store(Fence):
    """Next offsets beside results. Thread-safe; a partition has one transaction at a time.

    One object is one owner of partitions, and only it knows its claims. Make one in each process.
    """

    def __init__(self, *, patience_ms: int = 60_000, use_greenlets: bool = False) -> None:
        """``patience_ms``: how long (ms) to retry after transient errors (a locked or restarting database).

        ``use_greenlets``: greenlets use the store; a wait lets other greenlets run.
        """
        super().__init__(patience_ms, use_greenlets)
        self._attached: WeakSet[attaching.StoreClaimer] = WeakSet()

    @contextmanager
    def transaction(self, messages: Any, *, group: str | None = None) -> Iterator[Any]:
        """Commit results and the offsets of ``messages`` together. Yields the handle to write results with.

        ``messages``: a message, a list of them, Arrow data with the columns topic, partition and offset, or
        ``{TopicPartition: (first, next)}``. ``group`` is needed only if this object has claims of several groups.

        An exception in the block undoes everything. Raises FencedStoreError when a partition is not ours any more,
        AlreadyStoredError when some of the messages are stored already, IllegalStateError when the transaction would
        skip messages (an earlier one of the partition was undone), when its messages come after later ones, or while
        another transaction of the partition is open, StoreWentBackError when the store has lost stored messages.
        """
        group = self._claims.group(group)
        try:
            with self._transaction(messages, group) as handle:
                yield handle
        except StoreWentBackError as error:
            for claimer in list(self._attached):
                claimer.go_back(group, error, spans_of(messages))
            raise
        except FencedStoreError as error:
            self._read_again(group, set(spans_of(messages)).difference(error.partitions))
            raise

    @contextmanager
    def _transaction(self, messages: Any, group: str) -> Iterator[Any]:
        spans = spans_of(messages)
        topics = self._topics(group, messages, spans)
        with self._claims.busy(group, spans) as claimed:
            self._turn(group, claimed, messages, topics)
            self._refresh(group, claimed, spans)
            try:
                moves = self._claims.moves(group, claimed, spans, ids=self.keeps_topic_ids)
            except AlreadyStoredError as error:
                self._claims.check_order(group, below(messages, error.next_offsets))
                raise
            begun = finished = False
            try:
                with self.writing(group, moves) as handle:
                    begun = True
                    yield handle
                    finished = True
            except BaseException as error:
                refused = isinstance(error, ConflictError) and not begun
                if not (finished or refused) or not isinstance(error, Exception):
                    self._claims.owe(claimed, spans, unsure=finished)
                    raise
                self._settle(group, spans, moves, claimed, error)
            for tp in moves:
                claimed[tp].move(spans[tp], moves[tp])

    def save(self, messages: Any, write: Callable[[Any, Any], object], *, group: str | None = None) -> None:
        """Store ``messages`` by ``write(handle, messages)``, with retries after transient errors for ``patience_ms``.

        ``write`` is called in a transaction. A retry calls it again, after its earlier work was undone. Messages that
        are stored already are left out, so a second call with the same messages is safe. ``messages``: a list, Arrow
        data, or ``{TopicPartition: (first, next)}``. Raises what :meth:`transaction` and ``write`` raise.
        """
        known = self._claims.group(group)
        deadline, pause = Deadline(self._handler.now(), self._patience), FIRST_PAUSE
        while True:
            spans = spans_of(messages)
            offsets = self._claims.ends(known, self._topics(known, messages, spans))
            stored = {tp: end for tp, span in spans.items() if (end := offsets.get(tp)) and end > span.first}
            self._claims.check_order(known, below(messages, stored) if stored else ())
            messages = unstored(messages, stored)
            if not len(messages):
                return
            try:
                with self.transaction(messages, group=known) as handle:
                    check_result("write", write(handle, messages))
                return
            except AlreadyStoredError:
                continue  # the claim knows the store's offset now
            except Exception as error:
                if not self.passing(error) or deadline.expired(self._handler.now()):
                    raise
                log.warning("group %s: not stored yet, trying again: %s", known, error, extra=LogFields(group)())
                self._handler.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def attach(self, consumer: Any, *, group: str | None = None) -> None:
        """Let ``consumer`` claim its partitions in this store and read on from the stored offsets.

        Call it before the first ``consume()``. A group member claims at each assignment, through its listener (it calls
        the listener that the consumer has after that); a SimpleConsumer claims its partitions now. ``group``: the name
        under which the store keeps the offsets (the consumer's group). The consumer's ``run()`` takes only
        ``order="partition"`` and ``"time"`` then.

        Raises FencedStoreError when another claim outranks this one and Kafka does not confirm the member.
        """
        self._attached.add(attaching.attach(self, consumer, group, self._handler.new_id()))

    def rewind(self, consumer: Any) -> None:
        """Seek ``consumer`` back to the first messages that are not stored; in the thread that consumes."""
        listener = getattr(consumer, "listener", None)
        group = listener.group if isinstance(listener, attaching.StoreClaimer) else consumer.group
        assigned = attaching.partitions_of(consumer)
        for tp, offset in self.begins(group).items():
            if tp in assigned:
                consumer.seek(tp, offset)

    def foreach_batch(
        self, write: Callable[[Any, Any], object], *, group: str, max_offsets: int | None = None
    ) -> Callable[[Any, int], None]:
        """A function for Spark's ``foreachBatch``: stores each micro-batch by ``write(handle, table)``, exactly once.

        The data frame needs the columns topic, partition and offset; the driver collects it as a ``pyarrow.Table``.
        Rows that are stored already (the batch runs again, or another query had the partition) are left out. Give each
        stream a ``group`` of its own.

        ``max_offsets`` bounds the driver's memory: ``write`` gets the micro-batch in pieces of at most so many offsets,
        one after the other, all in one transaction. Each call must add to the earlier calls' results: a file, for
        example, needs another name for each piece.
        """
        check_size(max_offsets)
        member = self._handler.new_id()

        def store_batch(frame: Any, batch_id: int) -> None:
            with micro_batch(frame, write, max_offsets) as (messages, put):
                spans, fenced = spans_of(messages), None
                for _ in self.tries() if spans else ():
                    # A query has no generation for each batch: the newest claim counts, and the offsets decide.
                    self.claim(group, spans, NO_GROUP, member)
                    try:
                        return self.save(messages, put, group=group)
                    except StoreWentBackError:
                        raise
                    except FencedStoreError as error:
                        fenced, text = error, "group %s, batch %d: another query was faster: %s"
                        log.info(text, group, batch_id, error, extra=LogFields(group)())
                if fenced is not None:
                    raise fenced
                return None

        return store_batch

    # -- what went wrong --------------------------------------------------------------------------------

    def _read_again(self, group: str, tps: Collection[TopicPartition]) -> None:
        """Let attached consumers hand out again the undone messages of ``tps``, as far as these are still ours."""
        for claimer in list(self._attached):
            claimer.read_again(group, tps)

    def _topics(self, group: str, messages: Any, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[str]]:
        """The ids of the messages' topics, the newest last; for Arrow data from the attached consumers."""
        if not self.keeps_topic_ids:
            return {}
        found = topics_of(messages)
        for tp in set(tps) - found.keys():
            for claimer in list(self._attached):
                if topic := claimer.handed_out(group, tp):
                    found[tp] = [topic]
        return found

    def _turn(
        self,
        group: str,
        claimed: Mapping[TopicPartition, Claim],
        messages: Any,
        topics: Mapping[TopicPartition, list[str]],
    ) -> None:
        """Notice messages of a topic that was created again. Raises TopicGoneError for those of the deleted topic."""
        news = [tp for tp, ids in topics.items() if ids != [claimed[tp].topic]]
        if not news:
            return
        present: dict[TopicPartition, str] = {}
        for claimer in list(self._attached):
            present |= claimer.topics(group, news)
        for text in self._claims.turn(group, claimed, {tp: topics[tp] for tp in news}, present).values():
            log.warning("%s", text, extra=LogFields(group)())
        for tp in news:
            if len(topics[tp]) > 1:
                if claimed[tp].owed is None:
                    claimed[tp].owed = first_of(messages, tp, topics[tp][-1])
                raise TopicGoneError(
                    f"group {group}: these messages of {tp.topic}-{tp.partition} are of several topics, with ids "
                    f"{', '.join(topics[tp])}: it was deleted and created again. Nothing was stored. Store those of "
                    "the last one alone, or call rewind(consumer)",
                    (tp,),
                )

    def _refresh(
        self, group: str, claimed: Mapping[TopicPartition, Claim], spans: Mapping[TopicPartition, Span]
    ) -> None:
        """Ask the store for the partitions whose last commit, or whose owner, is uncertain."""
        unsure = [tp for tp, each in claimed.items() if each.in_doubt(spans[tp])]
        if unsure:
            found = self.patiently(lambda: self.rows(group, unsure))
            self._claims.compare(group, {tp: claimed[tp] for tp in unsure}, found)

    def _settle(
        self,
        group: str,
        spans: Mapping[TopicPartition, Span],
        moves: Mapping[TopicPartition, Move],
        claimed: Mapping[TopicPartition, Claim],
        error: Exception,
    ) -> None:
        """A commit has failed: ask the store for its outcome. Returns if it was committed, raises otherwise."""
        if isinstance(error, err.IllegalStateError):  # the block ended the transaction itself
            self._claims.owe(claimed, spans, unsure=True)
            raise error
        try:
            found = self.patiently(lambda: self.rows(group, moves))
        except Exception:  # noqa: BLE001 - the first error is the one that matters; the next transaction asks again
            found = None
        if found is None:
            self._claims.owe(claimed, spans, unsure=True)
            raise error
        ours = all(move.row.same_owner(found.get(tp)) for tp, move in moves.items())
        counts = ours and all((found[tp].next, found[tp].member) == (moves[tp].next, moves[tp].member) for tp in moves)
        if counts and not isinstance(error, ConflictError):
            text = "group %s: a commit has succeeded although it was reported to fail: %s"
            log.info(text, group, error, extra=LogFields(group)())
            return
        self._claims.compare(group, claimed, found, error)
        before = {tp: (move.row.next, move.row.topic) for tp, move in moves.items()}
        moved = [tp for tp, row in found.items() if (row.next, row.topic) != before[tp]]
        stored = {tp: end for tp in moved if (end := found[tp].next_in(claimed[tp].topic)) is not None}
        if stored:
            raise AlreadyStoredError(
                f"group {group}: messages of {shown_of(stored)} are stored already: {stored}", stored
            ) from error
        if isinstance(error, ConflictError):
            raise err.IllegalStateError(
                f"group {group}: the store does not move the offsets of {shown_of(moves)}, though no other process "
                "has changed them: does a trigger, a rule or a policy of the database forbid it?"
            ) from error
        raise error
