"""The row of a partition, the rules for claims, and the offsets that a list of messages covers. Pure.

A *claim* has a number, which grows with every claim of a partition. A transaction names the number and the member of
its claim and the next offset that it starts from; it counts only if the store still holds all three. So no clock is
needed, and it does not matter how late a zombie comes.

Generations decide only who may claim. They order the owners of a partition as long as the group lives: Kafka never
gives one partition to two members in one generation. They do not where a group was deleted and its generations begin
at 1 again, nor where a static member came back (it has the old generation under a new member id). There the claimer
has to *prove* that Kafka counts it as a member now; see :meth:`managedconsumer.stores.Store.claim`.

An offset means something in one topic only, and a topic that is deleted and made anew has another id. The id of the
topic that the next offset is of stands behind the member's name, in the same text: ``m (topic rJq2...)``. A claim takes
it over from the row, a move writes that of its messages. So it changes with the offset and never alone, and where a
process of version 0.2.0 has claimed there is none: then it is not known, and the offset is believed.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Iterable, Iterator, Mapping

from managedconsumer.structs import TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import extents_of, topic_ids_of

#: The generation of a consumer that is in no group.
NO_GROUP = -1

_NAMED = re.compile(r"(.*) \(topic ([A-Za-z0-9_-]{22})\)", re.DOTALL)
# How long a member's text may be: what the column of a database takes. Before that the topic's id is left out.
_LONGEST = 512


class Row(NamedTuple):
    """One partition of one group: the next offset (None: nothing stored yet), and who has claimed it.

    ``member`` may have the id of the offset's topic behind the name.
    """

    next: int | None
    claim: int
    generation: int
    member: str

    @property
    def owner(self) -> str:
        """The member's name alone."""
        return _split(self.member)[0]

    @property
    def topic(self) -> str:
        """The id of the topic that ``next`` is of, as Kafka's tools show it; empty where it is not known."""
        return _split(self.member)[1]

    def same_owner(self, other: Row | None) -> bool:
        """True if ``other`` is of the same claim."""
        return other is not None and (self.claim, self.owner) == (other.claim, other.owner)

    def next_in(self, topic: str) -> int | None:
        """The next offset, if it may be of the topic with that id. Either may be unknown (empty)."""
        return None if topic and self.topic not in ("", topic) else self.next

    def back_at(self, past: Row | None) -> Row:
        """This claim, where the storage has gone back to what was there at ``past``."""
        topic = "" if past is None else past.topic
        return self._replace(next=None if past is None else past.next, member=with_topic(self.owner, topic))


class _Move(NamedTuple):
    row: Row
    next: int


class Move(_Move):
    """One partition of a transaction: the row as it must still be, and the next offset after it.

    ``member``: the row's text for the member after it, which an adapter with ``keeps_topic_ids`` writes, too.
    """

    def __new__(cls, row: Row, next: int, member: str | None = None) -> Move:  # noqa: A002 - as the field
        """``member``: None if it stays as it is."""
        made = super().__new__(cls, row, next)
        made.member = row.member if member is None else member
        return made

    member: str


class Span(NamedTuple):
    """The offsets ``first`` <= offset < ``next`` of the messages of one partition."""

    first: int
    next: int


def outranks(row: Row, generation: int, member: str) -> bool:
    """True if generations alone do not allow this claim over ``row``.

    Of two claims without a group the newer one wins: nobody but the user arbitrates between them.
    """
    if row.owner == member or generation == row.generation == NO_GROUP:
        return row.generation > generation
    return row.generation >= generation


def _split(member: str) -> tuple[str, str]:
    found = _NAMED.fullmatch(member)
    return (member, "") if found is None else (found[1], found[2])


def with_topic(owner: str, topic: str) -> str:
    """A row's text for a member; ``topic``: the id of the topic that its next offset is of, empty: unknown."""
    text = f"{owner} (topic {topic})"
    return text if topic and len(text) <= _LONGEST else owner


def shown_of(tps: Iterable[TopicPartition]) -> str:
    """``orders-0, orders-1``."""
    return ", ".join(f"{topic}-{number}" for topic, number in tps)


def topic_text(topic_id: bytes | None) -> str:
    """A topic's id as Kafka's tools show it; empty where it is not known."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if topic_id else ""


def topic_bytes(text: str) -> bytes:
    """The id that :func:`topic_text` shows."""
    return base64.urlsafe_b64decode(f"{text}==")


def topics_of(messages: Any) -> dict[TopicPartition, list[str]]:
    """The ids of the topics that the messages say they are of, by partition and in their order."""
    if isinstance(messages, Mapping) or hasattr(messages, "schema"):
        return {}
    some = (messages,) if hasattr(messages, "offset") else messages
    return {TopicPartition(*place): [topic_text(each) for each in ids] for place, ids in topic_ids_of(some).items()}


def first_of(messages: Iterable[Any], tp: TopicPartition, topic: str) -> int:
    """The lowest offset of the partition's messages that are of that topic."""
    mine = (m for m in messages if (m.topic, m.partition_id) == tp)
    return int(min(m.offset for m in mine if topic_text(getattr(m, "topic_id", None)) == topic))


def spans_of(messages: Any) -> dict[TopicPartition, Span]:
    """Return the offsets of ``messages``: one, an iterable of them, Arrow data with topic, partition and offset, or
    ``{TopicPartition: (first, next)}``. Raises TypeError for anything else.
    """
    if isinstance(messages, Mapping):
        return {TopicPartition(*tp): Span(*span) for tp, span in messages.items()}
    if hasattr(messages, "schema"):
        return _spans_of_arrow(messages)
    if hasattr(messages, "offset"):
        messages = (messages,)
    elif not isinstance(messages, Iterable) or isinstance(messages, str | bytes):
        raise TypeError(f"messages: {messages!r} is no message, no list of messages, and no Arrow data")
    return {TopicPartition(*place): Span(first, last + 1) for place, (first, last) in extents_of(messages).items()}


def _spans_of_arrow(data: Any) -> dict[TopicPartition, Span]:
    import pyarrow as pa

    columns = [data.column(name) for name in ("topic", "partition", "offset")]
    table = pa.table(columns, names=["topic", "partition", "offset"])
    grouped = table.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
    return {
        TopicPartition(str(row["topic"]), row["partition"]): Span(row["offset_min"], row["offset_max"] + 1)
        for row in grouped.to_pylist()
    }


def below(messages: Any, stored: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, int]]:
    """Partition and offset of those of ``messages`` that are below the next offsets ``stored``.

    None of ``{TopicPartition: (first, next)}``: it does not say which offsets there are.
    """
    if isinstance(messages, Mapping):
        return
    if hasattr(messages, "schema"):
        places = zip(*(messages.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    else:
        some = (messages,) if hasattr(messages, "offset") else messages
        places = ((m.topic, m.partition_id, m.offset) for m in some)  # type: ignore[assignment]
    for topic, number, offset in places:
        tp = TopicPartition(topic, number)
        if offset < stored.get(tp, 0):
            yield tp, offset


def unstored(messages: Any, stored: Mapping[TopicPartition, int]) -> Any:
    """``messages`` (of any kind that :func:`spans_of` takes) without those below the next offsets ``stored``."""
    if not stored:
        return messages
    if isinstance(messages, Mapping):
        left = {tp: Span(max(span.first, stored.get(tp, 0)), span.next) for tp, span in spans_of(messages).items()}
        return {tp: span for tp, span in left.items() if span.first < span.next}
    if hasattr(messages, "schema"):
        import pyarrow as pa

        rows = zip(*(messages.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        return messages.filter(pa.array([offset >= stored.get((t, p), 0) for t, p, offset in rows]))  # type: ignore[call-overload]
    return [m for m in messages if m.offset >= stored.get((m.topic, m.partition_id), 0)]  # type: ignore[call-overload]
