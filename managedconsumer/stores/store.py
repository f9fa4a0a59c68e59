"""Store: results and next offsets in one transaction, fenced by claims. What all adapters have in common.

Who may claim, what happens when a commit fails, and how a store and its consumers go together.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Mapping
from weakref import WeakSet

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.logs import LogFields
from managedconsumer.results import check_result
from managedconsumer.stores import attaching
from managedconsumer.stores.claims import Held
from managedconsumer.stores.errors import (
    AlreadyStoredError,
    ConflictError,
    FencedStoreError,
    StoreWentBackError,
    TopicGoneError,
)
from managedconsumer.stores.fence import FIRST_PAUSE, LONGEST_PAUSE, Fence
from managedconsumer.stores.micro_batches import check_size, micro_batch
from managedconsumer.stores.rows import (
    NO_GROUP,
    Move,
    Span,
    below,
    first_of,
    shown_of,
    spans_of,
    topics_of,
    unstored,
)
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)


class Store(Fence):
    """Next offsets beside results. Thread-safe: one transaction of a partition at a time, any number side by side.

    One object is one owner: what it has claimed is known to it alone. Make one in each process.
    """

    def __init__(self, *, patience_ms: int = 60_000, use_greenlets: bool = False) -> None:
        """``patience_ms``: how long trouble that passes (a locked or restarting database) is waited for, in ms.

        ``use_greenlets``: the store is used by greenlets; then waiting lets the others run.
        """
        super().__init__(patience_ms, use_greenlets)
        self._attached: WeakSet[attaching.Taking] = WeakSet()

    # -- transactions -----------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, messages: Any, *, group: str | None = None) -> Iterator[Any]:
        """Results and the offsets of ``messages``: both or neither. Gives what the adapter writes with.

        ``messages``: a message, a list of them, Arrow data with the columns topic, partition and offset, or
        ``{TopicPartition: (first, next)}``. ``group`` is needed only where this object has claims of several.

        An exception in the block undoes everything. Raises FencedStoreError when a partition is not ours any more,
        AlreadyStoredError when some of the messages are stored already, IllegalStateError when messages would be passed
        over (an earlier transaction of the partition was undone), or have been (they come after later ones), or another
        transaction of the partition is open, StoreWentBackError when the store has lost what was stored.
        """
        group = self._claims.group(group)
        try:
            with self._transaction(messages, group) as handle:
                yield handle
        except StoreWentBackError as error:
            for taking in list(self._attached):
                taking.go_back(group, error, spans_of(messages))
            raise

    @contextmanager
    def _transaction(self, messages: Any, group: str) -> Iterator[Any]:
        spans = spans_of(messages)
        topics = self._topics(group, messages, spans)
        with self._claims.busy(group, spans) as held:
            self._turn(group, held, messages, topics)
            self._refresh(group, held, spans)
            try:
                moves = self._claims.moves(group, held, spans, ids=self.keeps_topic_ids)
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
                    self._claims.owe(held, spans, unsure=finished)
                    raise
                self._settle(group, spans, moves, held, error)
            for tp in moves:
                held[tp].move(spans[tp], moves[tp])

    def save(self, messages: Any, write: Callable[[Any, Any], object], *, group: str | None = None) -> None:
        """Store ``messages`` by ``write(handle, messages)``, again as long as trouble passes.

        ``write`` is called in a transaction, perhaps several times: what it did before was undone. Messages that
        are stored already are left out, so this may be called again with the same ones. ``messages``: a list, Arrow
        data, or ``{TopicPartition: (first, next)}``. Raises what :meth:`transaction` and ``write`` raise, passing
        trouble after ``patience_ms``.
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
                continue  # what was uncertain is known now
            except Exception as error:
                if not self.passing(error) or deadline.expired(self._handler.now()):
                    raise
                log.warning("group %s: not stored yet, trying again: %s", known, error, extra=LogFields(group)())
                self._handler.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    # -- consumers --------------------------------------------------------------------------------------

    def attach(self, consumer: Any, *, group: str | None = None) -> None:
        """Let ``consumer`` claim its partitions here and go on from the offsets that are stored here.

        Call it before the first ``consume()``. A group member does so at each assignment, through its listener (a
        listener that it has already is called afterwards); a SimpleConsumer does so now, for all that it reads.
        ``group``: the name under which the store keeps the offsets (the consumer's group). From here on the consumer's
        ``run()`` takes ``order="partition"`` alone.

        Raises FencedStoreError when Kafka does not confirm a claim that another one outranks.
        """
        self._attached.add(attaching.attach(self, consumer, group, self._handler.new_id()))

    def rewind(self, consumer: Any) -> None:
        """Let ``consumer`` hand out again what was not stored, for a loop that goes on after a transaction was undone.

        Call it in the thread that consumes.
        """
        attaching.rewind(consumer, self.begins)

    def foreach_batch(
        self, write: Callable[[Any, Any], object], *, group: str, max_offsets: int | None = None
    ) -> Callable[[Any, int], None]:
        """A function for Spark's ``foreachBatch``: stores each micro-batch by ``write(handle, table)``, exactly once.

        The data frame needs the columns topic, partition and offset; it is collected to the driver as a
        ``pyarrow.Table``. Rows that are stored already (the batch runs again, or another query had the partition
        meanwhile) are left out. Give each stream a ``group`` of its own.

        ``max_offsets`` bounds the driver's memory: ``write`` is called for one piece of the micro-batch after the
        other, all of them in one transaction, and no piece is of more offsets. Each call must add to what the calls
        before have written: a file, for one, needs another name for each piece.
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
                        fenced, extra = error, LogFields(group)()
                        log.info(
                            "group %s, batch %d: another query was faster: %s", group, batch_id, error, extra=extra
                        )
                if fenced is not None:
                    raise fenced
                return None

        return store_batch

    # -- what went wrong --------------------------------------------------------------------------------

    def _topics(self, group: str, messages: Any, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[str]]:
        """The ids of the messages' topics, the newest last. Arrow data does not tell them, attached consumers do."""
        if not self.keeps_topic_ids:
            return {}
        found = topics_of(messages)
        for tp in set(tps) - found.keys():
            for taking in list(self._attached):
                if topic := taking.handed_out(group, tp):
                    found[tp] = [topic]
        return found

    def _turn(
        self,
        group: str,
        held: Mapping[TopicPartition, Held],
        messages: Any,
        topics: Mapping[TopicPartition, list[str]],
    ) -> None:
        """Messages may be of a topic that was made anew. Raises TopicGoneError for those of the one before."""
        news = [tp for tp, ids in topics.items() if ids != [held[tp].topic]]
        if not news:
            return
        present: dict[TopicPartition, str] = {}
        for taking in list(self._attached):
            present |= taking.topics(group, news)
        for text in self._claims.turn(group, held, {tp: topics[tp] for tp in news}, present).values():
            log.warning("%s", text, extra=LogFields(group)())
        for tp in news:
            if len(topics[tp]) > 1:
                if held[tp].owed is None:
                    held[tp].owed = first_of(messages, tp, topics[tp][-1])
                raise TopicGoneError(
                    f"group {group}: these messages of {tp.topic}-{tp.partition} are of several topics, with ids "
                    f"{', '.join(topics[tp])}: it was deleted and created again. Nothing was stored. Store those of "
                    "the last one alone, or call rewind(consumer)",
                    (tp,),
                )

    def _refresh(self, group: str, held: Mapping[TopicPartition, Held], spans: Mapping[TopicPartition, Span]) -> None:
        """Ask the store about the partitions of which the last commit's end, or the owner, is not known."""
        unsure = [tp for tp, each in held.items() if each.in_doubt(spans[tp])]
        if unsure:
            found = self.patiently(lambda: self.rows(group, unsure))
            self._claims.compare(group, {tp: held[tp] for tp in unsure}, found)

    def _settle(
        self,
        group: str,
        spans: Mapping[TopicPartition, Span],
        moves: Mapping[TopicPartition, Move],
        held: Mapping[TopicPartition, Held],
        error: Exception,
    ) -> None:
        """A commit has failed: ask the store how it ended. Returns if it counts, raises otherwise."""
        if isinstance(error, err.IllegalStateError):  # the block has done what it must not do
            self._claims.owe(held, spans, unsure=True)
            raise error
        try:
            found = self.patiently(lambda: self.rows(group, moves))
        except Exception:  # noqa: BLE001 - the first error is the one that matters; the next transaction asks again
            found = None
        if found is None:
            self._claims.owe(held, spans, unsure=True)
            raise error
        ours = all(move.row.same_owner(found.get(tp)) for tp, move in moves.items())
        counts = ours and all((found[tp].next, found[tp].member) == (moves[tp].next, moves[tp].member) for tp in moves)
        if counts and not isinstance(error, ConflictError):
            fields = LogFields(group)()
            log.info(
                "group %s: a commit has succeeded although it was reported to fail: %s", group, error, extra=fields
            )
            return
        self._claims.owe(held, spans)
        self._claims.compare(group, held, found, error)
        before = {tp: (move.row.next, move.row.topic) for tp, move in moves.items()}
        moved = [tp for tp, row in found.items() if (row.next, row.topic) != before[tp]]
        stored = {tp: end for tp in moved if (end := found[tp].next_in(held[tp].topic)) is not None}
        if stored:
            raise AlreadyStoredError(
                f"group {group}: messages of {shown_of(stored)} are stored already: {stored}", stored
            ) from error
        if isinstance(error, ConflictError):
            raise err.IllegalStateError(
                f"group {group}: the store does not move the offsets of {shown_of(moves)}, though nobody else has "
                "changed them: does a trigger, a rule or a policy of the database forbid it?"
            ) from error
        raise error
