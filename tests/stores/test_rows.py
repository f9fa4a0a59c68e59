"""Which offsets messages cover, and who may claim."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.stores.micro_batches import pieces_of
from managedconsumer.stores.rows import NO_GROUP, Row, Span, below, outranks, spans_of, unstored

ROW = Row(5, 1, 7, "m")


def message(topic: str, partition: int, offset: int) -> Message:
    return Message(b"", offset=offset, topic=topic, partition_id=partition)


def test_spans_of_messages_in_any_order() -> None:
    places = [("a", 0, 5), ("a", 0, 4), ("b", 0, 1), ("a", 0, 9), ("a", 1, 0), ("b", 0, 3), ("a", 0, 3)]
    assert spans_of([message(*place) for place in places]) == {
        TopicPartition("a", 0): (3, 10),
        TopicPartition("b", 0): (1, 4),
        TopicPartition("a", 1): (0, 1),
    }
    assert spans_of(message("a", 0, 5)) == {TopicPartition("a", 0): (5, 6)}
    assert spans_of([]) == {}


def test_what_is_left_of_spans() -> None:
    a, b, c = (TopicPartition(name, 0) for name in "abc")
    spans = {a: (3, 10), b: (0, 5), c: (7, 8)}
    assert unstored(spans, {a: 5, b: 5}) == {a: (5, 10), c: (7, 8)}
    assert unstored(spans, {}) == spans


def arrow(*places: tuple[str, int, int]) -> Any:
    """Arrow data with a column more than is needed."""
    import pyarrow as pa

    topics, partitions, offsets = zip(*places, strict=True)
    return pa.table({"value": topics, "topic": topics, "partition": partitions, "offset": offsets})


PLACES = (("a", 0, 5), ("b", 0, 1), ("a", 0, 9), ("a", 1, 0), ("a", 0, 3))


def test_spans_of_arrow_data_in_any_order() -> None:
    found = spans_of(arrow(*PLACES))
    assert found == {TopicPartition("a", 0): (3, 10), TopicPartition("b", 0): (1, 2), TopicPartition("a", 1): (0, 1)}
    assert all(type(tp) is TopicPartition and type(span) is Span for tp, span in found.items())


def test_spans_that_are_given_are_taken_as_they_are() -> None:
    (found,) = spans_of({("a", 0): (3, 10)}).items()
    assert found == (TopicPartition("a", 0), Span(3, 10))
    assert (found[0].topic, found[1].next) == ("a", 10)


@pytest.mark.parametrize("kind", ["messages", "arrow"])
def test_what_is_stored_already_is_left_out_and_named(kind: str) -> None:
    given: Any = arrow(*PLACES) if kind == "arrow" else [message(*place) for place in PLACES]
    stored = {TopicPartition("a", 0): 9, TopicPartition("b", 0): 2}
    left = unstored(given, stored)
    if kind == "arrow":
        assert left.to_pylist() == arrow(("a", 0, 9), ("a", 1, 0)).to_pylist()
    else:
        assert [(m.topic, m.partition_id, m.offset) for m in left] == [("a", 0, 9), ("a", 1, 0)]
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    assert list(below(given, stored)) == [(a, 5), (b, 1), (a, 3)]
    assert unstored(given, {}) is given
    assert list(below(given, {})) == []


def test_one_message_below_what_is_stored() -> None:
    tp = TopicPartition("a", 0)
    assert list(below(message("a", 0, 5), {tp: 6})) == [(tp, 5)]
    assert list(below(message("a", 0, 6), {tp: 6})) == []
    assert list(below({tp: (3, 10)}, {tp: 6})) == []


def test_of_a_span_only_what_is_not_stored_is_left() -> None:
    tp = TopicPartition("a", 0)
    assert unstored({tp: (3, 10)}, {tp: 10}) == {}
    assert unstored({tp: (3, 10)}, {tp: 9}) == {tp: (9, 10)}
    assert unstored({tp: (0, 2)}, {TopicPartition("b", 0): 9}) == {tp: (0, 2)}


def test_a_row_has_the_same_owner_by_claim_and_member() -> None:
    assert ROW.same_owner(ROW._replace(next=9, generation=8))
    assert not ROW.same_owner(ROW._replace(claim=2))
    assert not ROW.same_owner(ROW._replace(member="n"))
    assert not ROW.same_owner(None)


def test_pieces_have_as_many_offsets_as_they_may() -> None:
    a, b, c = (TopicPartition(name, 0) for name in "abc")
    spans = {b: Span(0, 5), a: Span(3, 10), c: Span(7, 8)}
    assert list(pieces_of(spans, 5)) == [{a: (3, 8)}, {a: (8, 10), b: (0, 3)}, {b: (3, 5), c: (7, 8)}]
    assert list(pieces_of(spans, 100)) == [spans]
    assert list(pieces_of({}, 5)) == []


@pytest.mark.parametrize("wrong", [b"bytes", "text", 5, None])
def test_what_is_no_message(wrong: object) -> None:
    with pytest.raises(TypeError, match="no message"):
        spans_of(wrong)


@pytest.mark.parametrize(
    ("generation", "member", "refused"),
    [
        (6, "n", True),
        (7, "n", True),
        (8, "n", False),
        (7, "m", False),
        (8, "m", False),
        (6, "m", True),
        (NO_GROUP, "n", True),
        (NO_GROUP, "m", True),
    ],
)
def test_who_may_claim_by_generation(generation: int, member: str, refused: bool) -> None:
    assert outranks(ROW, generation, member) is refused


def test_without_a_group_anybody_may() -> None:
    assert not outranks(ROW._replace(generation=NO_GROUP), NO_GROUP, "n")
    assert not outranks(ROW._replace(generation=NO_GROUP), 0, "n")
