"""The row of a partition, the rules for claims, and the offsets that a list of messages covers. Pure.

Each claim of a partition has a higher number than the one before. A transaction names the number and the member of its
claim and the next offset that it starts from; it commits only if the store still holds all three. So no clock is
needed, and a zombie may come as late as it likes.

Generations decide only who may claim. They order the owners of a partition as long as the group lives: Kafka never
gives one partition to two members in one generation. They do not order them after a group was deleted (its generations
begin at 1 again), nor after a static member came back (it has the same generation and a new member id). Then the member
has to *prove* that Kafka counts it as one; see :meth:`managedconsumer.stores.Store.claim`.

An offset belongs to one topic, and a topic that was deleted and created again has another id. The row keeps the id of
the offset's topic behind the member's name, in the same text: ``m (topic rJq2...)``. A claim keeps the row's id, a move
writes the id of its messages, so the id changes only with the offset. Version 0.2.0 wrote no id: the topic is unknown
then, and the offset counts.
"""

from __future__ import annotations

import base64
import re
from itertools import compress
from typing import Any, Iterable, Iterator, Mapping

from managedconsumer.structs import TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import extents_of, topic_ids_of

#: The generation of a consumer that is in no group.
NO_GROUP = -1

_NAMED = re.compile(r"(.*) \(topic ([A-Za-z0-9_-]{22})\)", re.DOTALL)
# The longest text of a member: the column of a database takes no more. A topic's id that does not fit is left out.
_LONGEST = 512
# The columns of Arrow data that say which message a row is.
_PLACE = ["topic", "partition", "offset"]


class Row(NamedTuple):
    """A group's next offset in one partition (None: none yet), and the claim; ``member`` may end with a topic id."""

    next: int | None
    claim: int
    generation: int
    member: str

    @property
    def owner(self) -> str:
        return _split(self.member)[0]

    @property
    def topic(self) -> str:
        """The id of the topic of ``next``, as Kafka's tools show it; empty: unknown."""
        return _split(self.member)[1]

    def same_owner(self, other: Row | None) -> bool:
        """True if ``other`` belongs to the same claim."""
        return other is not None and (self.claim, self.owner) == (other.claim, other.owner)

    def next_in(self, topic: str) -> int | None:
        """The next offset, if it may belong to the topic with this id; either id may be empty (unknown)."""
        return None if topic and self.topic not in ("", topic) else self.next

    def back_at(self, past: Row | None) -> Row:
        """This claim with the offset of ``past``, to which the storage went back."""
        topic = "" if past is None else past.topic
        return self._replace(next=None if past is None else past.next, member=with_topic(self.owner, topic))


class _Move(NamedTuple):
    row: Row
    next: int


class Move(_Move):
    """One partition of a transaction: the row that the store must still have, and the next offset after it.

    ``member``: the row's text for the member after it; an adapter with ``keeps_topic_ids`` writes it, too.
    """

    def __new__(cls, row: Row, next: int, member: str | None = None) -> Move:  # noqa: A002 - as the field
        """``member``: None keeps the row's."""
        made = super().__new__(cls, row, next)
        made.member = row.member if member is None else member
        return made

    member: str


class Span(NamedTuple):
    """The offsets ``first`` <= offset < ``next`` of the messages of one partition."""

    first: int
    next: int


def outranks(row: Row, generation: int, member: str) -> bool:
    """True if generations do not allow this claim over ``row``. Of two claims without a group the newer wins."""
    if row.owner == member or generation == row.generation == NO_GROUP:
        return row.generation > generation
    return row.generation >= generation


def _split(member: str) -> tuple[str, str]:
    found = _NAMED.fullmatch(member)
    return (member, "") if found is None else (found[1], found[2])


def with_topic(owner: str, topic: str) -> str:
    """A row's text for a member; ``topic``: the id of the topic of its next offset, empty: unknown."""
    text = f"{owner} (topic {topic})"
    return text if topic and len(text) <= _LONGEST else owner


def shown_of(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in tps)


def topic_text(topic_id: bytes | None) -> str:
    """A topic's id as Kafka's tools show it; empty: unknown."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if topic_id else ""


def topic_bytes(text: str) -> bytes:
    """The id that :func:`topic_text` shows."""
    return base64.urlsafe_b64decode(f"{text}==")


def topics_of(messages: Any) -> dict[TopicPartition, list[str]]:
    """The topic ids that the messages carry, by partition and in the messages' order; Arrow data has none."""
    if isinstance(messages, Mapping) or hasattr(messages, "schema"):
        return {}
    found = topic_ids_of(_listed(messages))
    return {TopicPartition(*place): [topic_text(each) for each in ids] for place, ids in found.items()}


def first_of(messages: Iterable[Any], tp: TopicPartition, topic: str) -> int:
    """The lowest offset of the partition's messages that carry this topic id."""
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
    found = extents_of(_listed(messages))
    return {TopicPartition(*place): Span(first, last + 1) for place, (first, last) in found.items()}


def _listed(messages: Any) -> Iterable[Any]:
    if hasattr(messages, "offset"):
        return (messages,)
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes):
        raise TypeError(f"messages: {messages!r} is no message, no list of messages, and no Arrow data")
    return messages


def _spans_of_arrow(data: Any) -> dict[TopicPartition, Span]:
    import pyarrow as pa

    table = pa.table([data.column(name) for name in _PLACE], names=_PLACE)
    grouped = table.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
    return {
        TopicPartition(str(row["topic"]), row["partition"]): Span(row["offset_min"], row["offset_max"] + 1)
        for row in grouped.to_pylist()
    }


def _places(messages: Any) -> Iterator[tuple[TopicPartition, int]]:
    """Partition and offset of each of ``messages``, which are no ``{TopicPartition: (first, next)}``."""
    if hasattr(messages, "schema"):
        columns = zip(*(messages.column(name).to_pylist() for name in _PLACE), strict=True)
        return ((TopicPartition(topic, number), offset) for topic, number, offset in columns)
    return ((TopicPartition(m.topic, m.partition_id), m.offset) for m in _listed(messages))


def below(messages: Any, stored: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, int]]:
    """Partition and offset of those of ``messages`` that are below the next offsets ``stored``.

    Nothing for ``{TopicPartition: (first, next)}``: it does not say which offsets there are.
    """
    places = iter(()) if isinstance(messages, Mapping) else _places(messages)
    return ((tp, offset) for tp, offset in places if offset < stored.get(tp, 0))


def unstored(messages: Any, stored: Mapping[TopicPartition, int]) -> Any:
    """``messages`` (of any kind that :func:`spans_of` takes) without those below the next offsets ``stored``."""
    if not stored:
        return messages
    if isinstance(messages, Mapping):
        left = {tp: Span(max(span.first, stored.get(tp, 0)), span.next) for tp, span in spans_of(messages).items()}
        return {tp: span for tp, span in left.items() if span.first < span.next}
    new = [offset >= stored.get(tp, 0) for tp, offset in _places(messages)]
    if hasattr(messages, "schema"):
        import pyarrow as pa

        return messages.filter(pa.array(new))
    return list(compress(messages, new))
