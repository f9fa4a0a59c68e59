"""The claims of one store object, and its knowledge of the claimed partitions. Pure."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import Iterable, Iterator, Mapping

from managedconsumer import errors as err
from managedconsumer.stores.errors import AlreadyStoredError, FencedStoreError, StoreWentBackError, TopicGoneError
from managedconsumer.stores.rows import NO_GROUP, Move, Row, Span, shown_of, with_topic
from managedconsumer.structs import TopicPartition

_Key = tuple[str, TopicPartition]

# The number of gaps that are remembered for a partition. Each end of a producer's transaction is one.
_MOST_GAPS = 1000


class Claim:
    """One claimed partition. Only the transaction that has it (``Claims.busy``) changes it."""

    __slots__ = ("first", "former", "gaps", "owed", "reached", "row", "topic", "unsure")

    def __init__(self, row: Row, before: Claim | None = None, topic: str = "") -> None:
        """``before``: this object's last claim. ``topic``: the id of the topic that is read now (empty: unknown)."""
        self.row = row
        #: The id of the topic whose messages are stored now (the row's may be older); empty: unknown.
        self.topic = topic
        #: Ids of earlier topics of this name, which were read or stored.
        self.former: set[str] = {row.topic} if topic else set()
        if before is not None:
            if not topic and row.topic in ("", before.topic):
                self.topic = before.topic
            self.former |= before.former | ({before.topic} if topic else set())
            if before.is_of_another(self.topic or row.topic):
                before = None
        self.former -= {"", self.topic}
        #: The offset at which the partition's very first transaction began; None: another object made that one.
        self.first: int | None = None if before is None else before.first
        #: The next offset before the store went back. The store lacks the message before it now, so the next
        #: transaction must begin below it.
        self.reached: int | None = None
        #: The first offset of a transaction that was undone: the next transaction must not begin behind it.
        self.owed: int | None = None
        #: True when it is unknown whether a commit succeeded.
        self.unsure = False
        #: (first, end) of offsets that transactions skipped, the newest last. Kafka may have no messages there.
        self.gaps: deque[tuple[int, int]] = deque(maxlen=_MOST_GAPS)
        if before is not None:
            known = max(before.next or 0, before.reached or 0)
            if known > (self.next or 0):
                self.reached = known

    @property
    def next(self) -> int | None:
        """The next offset in the topic that is read now; None: the store has nothing of that topic."""
        return self.row.next_in(self.topic)

    @property
    def made_anew(self) -> bool:
        """True if the stored offset belongs to another topic than the one that is read now."""
        return self.next != self.row.next

    def is_of_another(self, topic: str) -> bool:
        """True if the known topic is another one than the topic with this id."""
        return bool(topic) and (self.topic or self.row.topic) not in ("", topic)

    def turn_to(self, topic: str) -> None:
        """The topic with this id is read from now on."""
        if self.is_of_another(topic):
            self.first = self.owed = self.reached = None
            self.gaps.clear()
        self.former = (self.former | {self.topic, self.row.topic}) - {"", topic}
        self.topic = topic

    @property
    def begin(self) -> int | None:
        """The offset from which the partition has to be read; None: unknown."""
        if self.owed is not None:
            return self.owed
        return self.first if self.next is None else self.next

    def in_doubt(self, span: Span) -> bool:
        """True if the store has to be asked before ``span`` is stored, or refused as it begins too late."""
        late = (self.owed is not None and span.first > self.owed) or self.is_behind(span)
        return self.unsure or late

    def is_behind(self, span: Span) -> bool:
        """True if the store went back, and ``span`` begins behind the messages that it has lost."""
        return self.reached is not None and span.first >= self.reached

    def owe(self, span: Span) -> None:
        """A transaction of ``span`` was not made, or undone. Nothing is owed of what is stored already."""
        first = max(span.first, self.next or 0)
        if first < span.next and not self.is_behind(span):
            self.owed = first if self.owed is None else min(self.owed, first)

    def move(self, span: Span, move: Move) -> None:
        """A transaction of ``span`` was committed."""
        before = self.next or 0
        if self.next is None:
            self.first = span.first
        if span.first > before:
            self.gaps.append((before, span.first))
        self.stored(self.row._replace(next=move.next, member=move.member))

    def stored(self, row: Row) -> None:
        """The store has all messages before the row's next offset."""
        self.row = row
        self.owed = self.reached = None
        self.unsure = False

    def went_back(self, row: Row | None) -> None:
        self.reached = max(self.next or 0, self.reached or 0)
        self.row = self.row.back_at(row)
        self.owed, self.unsure = None, False
        self.gaps.clear()


class Claims:
    """Thread-safe without a lock: each change is one step of a dict."""

    def __init__(self) -> None:
        self._claims: dict[_Key, Claim] = {}
        # Partitions that were given up: their rows show whether the store has gone back meanwhile.
        self._past: dict[_Key, Claim] = {}
        self._busy: dict[_Key, object] = {}
        # The known ids of the topics that are read, for the next claim.
        self._topics: dict[_Key, str] = {}
        self._groups: dict[str, None] = {}

    def take(self, group: str, rows: Mapping[TopicPartition, Row]) -> None:
        """These partitions are ours, with the rows that the store has."""
        self._groups[group] = None
        for tp, row in rows.items():
            key = group, tp
            self._claims[key] = Claim(row, self._claims.get(key) or self._past.get(key), self._topics.pop(key, ""))

    def tell_topics(self, group: str, topics: Mapping[TopicPartition, str]) -> None:
        """Set the ids of the topics that are read (empty: unknown), for the next claim."""
        self._topics.update({(group, tp): topic for tp, topic in topics.items()})

    def made_anew(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The partitions whose stored offset belongs to a topic that was deleted, with a text for the log."""
        claimed = {tp: self._claims.get((group, tp)) for tp in tps}
        return {tp: _made_anew(group, tp, each) for tp, each in claimed.items() if each is not None and each.made_anew}

    def turn(
        self,
        group: str,
        claimed: Mapping[TopicPartition, Claim],
        topics: Mapping[TopicPartition, list[str]],
        present: Mapping[TopicPartition, str],
    ) -> dict[TopicPartition, str]:
        """Messages of these topics come (the newest last). Returns :meth:`made_anew` of those that changed topic.

        ``present``: the known present ids of the topics. Raises TopicGoneError for messages of a deleted topic.
        """
        news = {tp: ids[-1] for tp, ids in topics.items() if ids[-1] != claimed[tp].topic}
        for tp, topic in news.items():
            known = present.get(tp)
            if topic != known if known else topic in claimed[tp].former:
                raise TopicGoneError(
                    f"group {group}: these messages of {tp.topic}-{tp.partition} are of the topic with id {topic}, "
                    f"which was deleted. The topic of that name has id {known or claimed[tp].topic} now, and the store "
                    "keeps its messages: nothing was stored. Go on with the next messages",
                    (tp,),
                )
        for tp, topic in news.items():
            claimed[tp].turn_to(topic)
        return {tp: _made_anew(group, tp, claimed[tp]) for tp in news if claimed[tp].made_anew}

    def ends(self, group: str, topics: Mapping[TopicPartition, list[str]]) -> dict[TopicPartition, int]:
        """The next offsets of the claimed partitions, for messages of these topics."""
        claimed = self._of(group)
        ends = {tp: each.row.next_in(topics[tp][-1] if tp in topics else each.topic) for tp, each in claimed.items()}
        return {tp: end for tp, end in ends.items() if end is not None}

    def drop(self, group: str, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            claimed = self._claims.pop((group, tp), None)
            if claimed is not None:
                self._past[group, tp] = claimed

    def offsets(self, group: str) -> dict[TopicPartition, int | None]:
        """Return the claimed partitions with their next offsets (None: unknown)."""
        return {tp: claimed.next for tp, claimed in self._of(group).items()}

    def begins(self, group: str) -> dict[TopicPartition, int]:
        """The offset from which each claimed partition has to be read again, where it is known."""
        return {tp: claimed.begin for tp, claimed in self._of(group).items() if claimed.begin is not None}

    def _of(self, group: str) -> dict[TopicPartition, Claim]:
        return {tp: claimed for (name, tp), claimed in list(self._claims.items()) if name == group}

    def group(self, group: str | None) -> str:
        """Return ``group``, or the only one with claims. Raises IllegalStateError if there are several."""
        if group is not None:
            return group
        groups = list(self._groups)
        if not groups:
            raise FencedStoreError("nothing is claimed by this store object: attach() it to a consumer first")
        if len(groups) > 1:
            raise err.IllegalStateError(
                f"this store has claims of {len(groups)} groups ({', '.join(groups)}): say which one by group="
            )
        return groups[0]

    @contextmanager
    def busy(self, group: str, spans: Mapping[TopicPartition, Span]) -> Iterator[dict[TopicPartition, Claim]]:
        """Yield the claims of a transaction's partitions, which no other transaction has meanwhile.

        If the block raises, or a partition is not claimed, the others' messages are owed.
        """
        token, taken = object(), []
        try:
            for tp in spans:
                if self._busy.setdefault((group, tp), token) is not token:
                    raise err.IllegalStateError(
                        f"a transaction of {tp.topic}-{tp.partition} is open already: its messages are stored "
                        'one transaction after the other, in order (with run(): order="partition")'
                    )
                taken.append(tp)
            found = {tp: self._claims.get((group, tp)) for tp in taken}
            claimed = {tp: each for tp, each in found.items() if each is not None}
            try:
                if len(claimed) < len(found):
                    raise _not_ours(group, tuple(tp for tp in taken if tp not in claimed))
                yield claimed
            except BaseException as error:
                refused = error.partitions if isinstance(error, FencedStoreError) else ()
                for tp, each in claimed.items():
                    if tp not in refused:
                        each.owe(spans[tp])
                raise
        finally:
            for tp in taken:
                del self._busy[group, tp]

    def moves(
        self,
        group: str,
        claimed: Mapping[TopicPartition, Claim],
        spans: Mapping[TopicPartition, Span],
        *,
        ids: bool = False,
    ) -> dict[TopicPartition, Move]:
        """The moves; raises if the messages do not follow the stored ones. ``ids``: the store keeps topic ids."""
        stored = {tp: end for tp, span in spans.items() if (end := claimed[tp].next) is not None and span.first < end}
        if stored:
            (topic, number), end = next(iter(stored.items()))
            raise AlreadyStoredError(
                f"group {group}: {topic}-{number} is stored up to offset {end}, and these messages begin "
                f"at {spans[TopicPartition(topic, number)].first}",
                stored,
            )
        for tp, span in spans.items():
            owed = claimed[tp].owed
            if claimed[tp].is_behind(span):
                raise err.IllegalStateError(
                    f"the store went back: it has {_has(claimed[tp].next)} of {tp.topic}-{tp.partition}, and had them "
                    f"up to offset {claimed[tp].reached}. These begin at {span.first}: those between would be lost. "
                    "Read on from what the store has (rewind(consumer); of a Spark query put the checkpoint back). "
                    "Where Kafka does not have those messages any more, a new store object goes on behind them"
                )
            if owed is not None and span.first > owed:
                raise err.IllegalStateError(
                    f"the transaction of {tp.topic}-{tp.partition} from offset {owed} on was undone, and these "
                    f"messages begin at {span.first}: those between would be lost. "
                    "Store them first, or call rewind(consumer)"
                )
        members = {tp: with_topic(claimed[tp].row.owner, claimed[tp].topic) if ids else None for tp in spans}
        return {tp: Move(claimed[tp].row, spans[tp].next, members[tp]) for tp in sorted(spans)}

    def check_order(self, group: str, places: Iterable[tuple[TopicPartition, int]]) -> None:
        """Raise IllegalStateError for a message that a transaction of later ones skipped: it only looks stored."""
        for tp, offset in places:
            claimed = self._claims.get((group, tp))
            if claimed is not None and any(first <= offset < end for first, end in claimed.gaps):
                raise err.IllegalStateError(
                    f"{tp.topic}-{tp.partition}: the message at offset {offset} comes after later ones, and the store "
                    f"is at {claimed.next} already: it was not stored, and cannot be stored in order any more. "
                    'Store a partition\'s messages in order: read it in one thread, or use run(order="partition")'
                )

    def owe(
        self,
        claimed: Mapping[TopicPartition, Claim],
        spans: Mapping[TopicPartition, Span],
        *,
        unsure: bool,
    ) -> None:
        """The transaction was undone, perhaps (``unsure``) or for certain."""
        for tp, span in spans.items():
            claimed[tp].owe(span)
            claimed[tp].unsure = unsure

    def compare(
        self,
        group: str,
        claimed: Mapping[TopicPartition, Claim],
        found: Mapping[TopicPartition, Row],
        error: Exception | None = None,
    ) -> None:
        """Take the store's rows as the truth. Raises FencedStoreError, StoreWentBackError (older rows)."""
        lost: list[TopicPartition] = []
        back: dict[TopicPartition, Row | None] = {}
        for tp, each in claimed.items():
            row = found.get(tp)
            if row is None or row.claim < each.row.claim:  # claim numbers only grow
                back[tp] = row
            elif not each.row.same_owner(row):
                lost.append(tp)
                if self._claims.get((group, tp)) is each:
                    self.drop(group, [tp])
            elif (now := row.next_in(each.topic)) == each.next:
                each.unsure = False
            elif now is not None and now > (each.next or 0):
                each.stored(row)
            else:
                back[tp] = row
        for tp, older in back.items():
            claimed[tp].went_back(older)
        if lost:
            raise _not_ours(group, tuple(lost), found) from error
        if back:
            raise _went_back(group, {tp: claimed[tp].next for tp in back}, claimed) from error


def _made_anew(group: str, tp: TopicPartition, claimed: Claim) -> str:
    return (
        f"group {group}: the store has {_has(claimed.row.next)} of {tp.topic}-{tp.partition}, of the topic with id "
        f"{claimed.row.topic}. The topic of that name has id {claimed.topic} now, as it was deleted and created again "
        "(or this is another cluster): these offsets do not count"
    )


def _went_back(
    group: str, back: Mapping[TopicPartition, int | None], claimed: Mapping[TopicPartition, Claim]
) -> StoreWentBackError:
    (topic, number), offset = next(iter(back.items()))
    return StoreWentBackError(
        f"group {group}: the store went back. It has {_has(offset)} of {topic}-{number}, and had them up to offset "
        f"{claimed[TopicPartition(topic, number)].reached}, with this object's claim (a restored backup, or a "
        "fail-over that lost the last transactions?). Nothing was stored, as the messages between would be lost. Claim "
        "again, and read on from what the store has; an attached consumer does so by itself",
        back,
    )


def _has(offset: int | None) -> str:
    return "no messages" if offset is None else f"messages up to offset {offset}"


def _not_ours(
    group: str, tps: tuple[TopicPartition, ...], found: Mapping[TopicPartition, Row] | None = None
) -> FencedStoreError:
    names = shown_of(tps)
    row = None if found is None else found.get(tps[0])
    if row is None:
        return FencedStoreError(f"group {group}: {names} are not claimed by this store object, or not any more", tps)
    return FencedStoreError(
        f"group {group}: {names} were claimed by {row.owner} in generation {row.generation}: nothing was stored", tps
    )


def outranked_by(group: str, refused: Mapping[TopicPartition, Row], generation: int, member: str) -> FencedStoreError:
    tp, row = next(iter(refused.items()))
    if generation == NO_GROUP:
        return FencedStoreError(
            f"group {group}: {tp.topic}-{tp.partition} belongs to {row.owner}, a member of the group in generation "
            f"{row.generation}; a consumer outside of the group cannot claim it. Use another name for its offsets",
            tuple(refused),
        )
    return FencedStoreError(
        f"group {group}: {tp.topic}-{tp.partition} was claimed by {row.owner} in generation {row.generation}, so "
        f"{member} cannot claim it in generation {generation}",
        tuple(refused),
    )
