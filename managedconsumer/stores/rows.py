"""What a store keeps for a partition, who may claim it, and which offsets a list of messages covers. Pure.

A *claim* has a number, which grows with every claim of a partition. A transaction names the number and the member of
its claim and the next offset that it starts from; it counts only if the store still holds all three. So no clock is
needed, and it does not matter how late a zombie comes.

Generations decide only who may claim. They order the owners of a partition as long as the group lives: Kafka never
gives one partition to two members in one generation. They do not where a group was deleted and its generations begin
at 1 again, nor where a static member came back (it has the old generation under a new member id). There the claimer
has to *prove* that Kafka counts it as a member now; see :meth:`managedconsumer.stores.Store.claim`.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping

from managedconsumer.structs import TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import extents_of

#: The generation of a consumer that is in no group.
NO_GROUP = -1


class Row(NamedTuple):
    """One partition of one group: the next offset (None: nothing stored yet), and who has claimed it."""

    next: int | None
    claim: int
    generation: int
    member: str

    def same_owner(self, other: Row | None) -> bool:
        """True if ``other`` is of the same claim."""
        return other is not None and (self.claim, self.member) == (other.claim, other.member)


class Move(NamedTuple):
    """One partition of a transaction: the row as it must still be, and the next offset after it."""

    row: Row
    next: int


class Span(NamedTuple):
    """The offsets ``first`` <= offset < ``next`` of the messages of one partition."""

    first: int
    next: int


def outranks(row: Row, generation: int, member: str) -> bool:
    """True if generations alone do not allow this claim over ``row``.

    Of two claims without a group the newer one wins: nobody but the user arbitrates between them.
    """
    if row.member == member or generation == row.generation == NO_GROUP:
        return row.generation > generation
    return row.generation >= generation


def spans_of(messages: Any) -> dict[TopicPartition, Span]:
    """What ``messages`` cover: a message, an iterable of them, Arrow data with topic, partition and offset, or
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
