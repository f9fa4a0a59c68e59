"""Which offsets messages cover, and who may claim."""

from __future__ import annotations

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.stores.micro_batches import pieces_of
from managedconsumer.stores.rows import NO_GROUP, Row, Span, outranks, spans_of, unstored

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
        (6, "m", True),
        (NO_GROUP, "n", True),
    ],
)
def test_who_may_claim_by_generation(generation: int, member: str, refused: bool) -> None:
    assert outranks(ROW, generation, member) is refused


def test_without_a_group_anybody_may() -> None:
    assert not outranks(ROW._replace(generation=NO_GROUP), NO_GROUP, "n")
    assert not outranks(ROW._replace(generation=NO_GROUP), 0, "n")
