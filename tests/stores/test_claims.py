"""The claims of one store object: where to read on, which transaction follows, and the error where one does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from managedconsumer import TopicPartition
from managedconsumer.errors import IllegalStateError
from managedconsumer.stores import AlreadyStoredError, FencedStoreError, StoreWentBackError
from managedconsumer.stores.claims import Claim, Claims, outranked_by
from managedconsumer.stores.rows import NO_GROUP, Row, Span

GROUP = "billing"
TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def row(offset: int | None, claim: int = 3, member: str = "me", generation: int = 7) -> Row:
    """A row of the store: everything before ``offset`` is stored."""
    return Row(next=offset, claim=claim, generation=generation, member=member)


def claimed(offset: int | None = 10, *, other: int | None = 0) -> Claims:
    """Claims of two partitions."""
    claims = Claims()
    claims.take(GROUP, {TP: row(offset), OTHER: row(other)})
    return claims


def empty(*tps: TopicPartition) -> dict[TopicPartition, Span]:
    """Of a transaction without messages nothing is owed."""
    return dict.fromkeys(tps, Span(0, 0))


def store(claims: Claims, first: int, end: int, tp: TopicPartition = TP) -> None:
    """A transaction that counts."""
    spans = {tp: Span(first, end)}
    with claims.busy(GROUP, spans) as held:
        for each, move in claims.moves(GROUP, held, spans).items():
            held[each].move(spans[each], move)


def undo(claims: Claims, first: int, end: int, *, unsure: bool = False) -> None:
    """A transaction that does not count."""
    spans = {TP: Span(first, end)}
    with claims.busy(GROUP, spans) as held:
        claims.owe(held, spans, unsure=unsure)


def compare(claims: Claims, found: Mapping[TopicPartition, Row], *tps: TopicPartition) -> None:
    """The store was asked."""
    with claims.busy(GROUP, empty(*(tps or [TP]))) as held:
        claims.compare(GROUP, held, found)


def in_doubt(claims: Claims, first: int, end: int) -> bool:
    with claims.busy(GROUP, empty(TP)) as held:
        return held[TP].in_doubt(Span(first, end))


# -- offsets --------------------------------------------------------------------------------------------------------


def test_a_transaction_moves_its_partition_alone() -> None:
    claims = claimed()
    store(claims, 10, 15)
    store(claims, 15, 16)
    assert claims.offsets(GROUP) == claims.begins(GROUP) == {TP: 16, OTHER: 0}


def test_a_transaction_names_the_row_as_it_is_and_the_next_offset() -> None:
    claims = claimed(10, other=4)
    with claims.busy(GROUP, empty(OTHER, TP)) as held:
        moves = claims.moves(GROUP, held, {OTHER: Span(4, 6), TP: Span(12, 15)})
    assert moves == {TP: (row(10), 15), OTHER: (row(4), 6)}
    assert list(moves) == [TP, OTHER], "stores lock rows in one order"
    assert claims.offsets(GROUP) == {TP: 10, OTHER: 4}


def test_a_partition_of_which_nothing_is_stored_begins_where_its_first_transaction_began() -> None:
    claims = claimed(None)
    assert claims.offsets(GROUP) == {TP: None, OTHER: 0}
    assert claims.begins(GROUP) == {OTHER: 0}
    store(claims, 40, 45)
    store(claims, 45, 50)
    assert claims.begins(GROUP)[TP] == 50
    with pytest.raises(StoreWentBackError):
        compare(claims, {TP: row(None)})
    assert claims.offsets(GROUP)[TP] is None
    assert claims.begins(GROUP)[TP] == 40


def test_other_groups_are_apart() -> None:
    claims = claimed()
    claims.take("audit", {TP: row(99)})
    assert claims.offsets("audit") == claims.begins("audit") == {TP: 99}
    assert claims.offsets(GROUP) == claims.begins(GROUP) == {TP: 10, OTHER: 0}
    claims.drop(GROUP, [TP, TopicPartition("never", 0)])
    assert claims.offsets(GROUP) == {OTHER: 0}
    assert claims.offsets("audit") == {TP: 99}


def test_the_group_need_not_be_named_where_there_is_one() -> None:
    claims = Claims()
    assert claims.group("named") == "named"
    with pytest.raises(
        FencedStoreError, match=r"^nothing is claimed by this store object: attach\(\) it to a consumer"
    ):
        claims.group(None)
    claims.take(GROUP, {})
    assert claims.group(None) == GROUP
    claims.take("audit", {})
    with pytest.raises(IllegalStateError, match=r"claims of 2 groups \(billing, audit\): say which one by group="):
        claims.group(None)


# -- transactions that do not follow ----------------------------------------------------------------------------------


def test_what_is_stored_is_not_stored_again() -> None:
    claims = claimed()
    with claims.busy(GROUP, empty(TP, OTHER)) as held, pytest.raises(AlreadyStoredError) as caught:
        claims.moves(GROUP, held, {TP: Span(9, 15), OTHER: Span(0, 5)})
    assert caught.value.next_offsets == {TP: 10}
    assert str(caught.value) == ("group billing: orders-0 is stored up to offset 10, and these messages begin at 9")


def test_one_transaction_of_a_partition_at_a_time() -> None:
    claims = claimed()
    with claims.busy(GROUP, empty(TP)):
        text = r"a transaction of orders-0 is open already.* in order \(with run"
        with pytest.raises(IllegalStateError, match=text), claims.busy(GROUP, empty(OTHER, TP)):
            raise AssertionError("it began")
        store(claims, 0, 1, OTHER)  # it was let go
    store(claims, 10, 11)


def test_a_transaction_of_what_was_never_claimed() -> None:
    claims, away = claimed(), TopicPartition("away", 5)
    with pytest.raises(FencedStoreError) as caught, claims.busy(GROUP, empty(TP, away)):
        raise AssertionError("it began")
    assert caught.value.partitions == (away,)
    assert str(caught.value) == "group billing: away-5 are not claimed by this store object, or not any more"
    store(claims, 10, 11)


def test_behind_an_undone_transaction_nothing_is_stored() -> None:
    claims = claimed()
    undo(claims, 12, 15)
    undo(claims, 13, 20)
    assert claims.begins(GROUP)[TP] == 12
    assert not in_doubt(claims, 12, 15)
    assert in_doubt(claims, 13, 15)
    with pytest.raises(IllegalStateError) as caught:
        store(claims, 13, 20)
    assert str(caught.value) == (
        "the transaction of orders-0 from offset 12 on was undone, and these messages begin at 13: those between "
        "would be lost. Store them first, or call rewind(consumer)"
    )
    store(claims, 12, 13)
    store(claims, 13, 20)
    assert claims.begins(GROUP)[TP] == 20


def test_of_a_refused_transaction_no_other_partition_is_passed_over() -> None:
    """Whatever the reason: the next message of a partition that is still ours comes behind it."""
    claims = claimed()
    away = TopicPartition("away", 5)
    with pytest.raises(FencedStoreError), claims.busy(GROUP, {away: Span(3, 4), TP: Span(12, 15)}):
        raise AssertionError("it began")
    assert claims.begins(GROUP) == {TP: 12, OTHER: 0}
    with pytest.raises(IllegalStateError, match="would be lost"):
        store(claims, 15, 16)
    store(claims, 12, 16)
    with pytest.raises(AlreadyStoredError), claims.busy(GROUP, spans := {TP: Span(14, 18), OTHER: Span(3, 5)}) as held:
        claims.moves(GROUP, held, spans)
    assert claims.begins(GROUP) == {TP: 16, OTHER: 3}  # of TP the first two are stored
    store(claims, 16, 18)
    with pytest.raises(AlreadyStoredError), claims.busy(GROUP, spans := {TP: Span(17, 18)}) as held:
        claims.moves(GROUP, held, spans)
    store(claims, 18, 19)  # of that one nothing was missing


def test_what_a_refusal_names_is_not_owed() -> None:
    """It belongs to another member, or to a topic that is gone."""
    claims = claimed()
    with pytest.raises(FencedStoreError), claims.busy(GROUP, {TP: Span(12, 15), OTHER: Span(2, 5)}):
        raise FencedStoreError("", (TP,))
    assert claims.begins(GROUP) == {TP: 10, OTHER: 2}


def test_behind_what_the_store_has_lost_nothing_is_owed() -> None:
    """Else the consumer would go back to that, and not to what was lost."""
    claims = claimed()
    with pytest.raises(StoreWentBackError):
        compare(claims, {TP: row(4)})
    with pytest.raises(IllegalStateError, match="went back"):
        store(claims, 10, 12)
    assert claims.begins(GROUP)[TP] == 4


def test_what_may_have_been_undone_is_asked_for() -> None:
    claims = claimed()
    assert not in_doubt(claims, 10, 12)
    undo(claims, 10, 12, unsure=True)
    assert in_doubt(claims, 10, 12)
    compare(claims, {TP: row(10)})
    assert not in_doubt(claims, 10, 12)
    assert claims.begins(GROUP)[TP] == 10
    undo(claims, 10, 12, unsure=True)
    compare(claims, {TP: row(12)})  # it had been stored
    assert claims.begins(GROUP)[TP] == 12
    assert not in_doubt(claims, 12, 13)
    undo(claims, 12, 14, unsure=True)
    undo(claims, 12, 14)
    assert not in_doubt(claims, 12, 14)


@pytest.mark.parametrize(("offset", "late"), [(9, False), (12, True), (14, True), (15, False)])
def test_a_message_that_comes_after_later_ones(offset: int, late: bool) -> None:
    claims = claimed()
    store(claims, 10, 12)
    store(claims, 15, 20)
    if not late:
        claims.check_order(GROUP, [(TP, offset), (OTHER, offset)])
        return
    with pytest.raises(IllegalStateError, match=f"^orders-0: the message at offset {offset} comes after .* is at 20"):
        claims.check_order(GROUP, [(TopicPartition("away", 0), offset), (TP, 10), (TP, offset)])


def test_a_message_from_before_the_first_that_was_stored() -> None:
    claims = claimed(None)
    store(claims, 1, 2)
    with pytest.raises(IllegalStateError, match="the message at offset 0 ") as caught:
        claims.check_order(GROUP, [(TP, 0)])
    assert str(caught.value).endswith(
        """. Store a partition's messages in order: read it in one thread, or use run(order="partition")"""
    )


# -- stores that say something else -----------------------------------------------------------------------------------


def test_others_have_claimed() -> None:
    claims = claimed()
    with pytest.raises(FencedStoreError) as caught:
        compare(claims, {TP: row(11, 4, "you", 8), OTHER: row(0, 4, "you", 8)}, TP, OTHER)
    assert not isinstance(caught.value, StoreWentBackError)
    assert caught.value.partitions == (TP, OTHER)
    assert str(caught.value) == (
        "group billing: orders-0, orders-1 were claimed by you in generation 8: nothing was stored"
    )
    assert claims.offsets(GROUP) == {}


def test_the_same_number_of_another_member_is_another_claim() -> None:
    claims = claimed()
    with pytest.raises(FencedStoreError, match="orders-0 were claimed by you"):
        compare(claims, {TP: row(10, member="you"), OTHER: row(0)}, TP, OTHER)
    assert claims.offsets(GROUP) == {OTHER: 0}


def test_a_claim_that_was_lost_does_not_take_a_newer_one_of_ours() -> None:
    claims = claimed()
    with claims.busy(GROUP, empty(TP)) as held:
        claims.take(GROUP, {TP: row(10, claim=5)})
        with pytest.raises(FencedStoreError):
            claims.compare(GROUP, held, {TP: row(10, claim=5)})
    assert claims.offsets(GROUP)[TP] == 10


@pytest.mark.parametrize(
    ("found", "has", "left"),
    [
        ({}, "no messages", None),
        ({TP: row(None, claim=2)}, "no messages", None),
        ({TP: row(7, claim=2, member="you")}, "messages up to offset 7", 7),
        ({TP: row(7)}, "messages up to offset 7", 7),
        ({TP: row(None)}, "no messages", None),
    ],
)
def test_a_store_that_went_back(found: dict[TopicPartition, Row], has: str, left: int | None) -> None:
    claims = claimed()
    store(claims, 12, 15)
    cause = RuntimeError("the row is not there")
    with claims.busy(GROUP, empty(TP)) as held, pytest.raises(StoreWentBackError) as caught:
        claims.compare(GROUP, held, found, cause)
    assert caught.value.__cause__ is cause
    assert caught.value.next_offsets == {TP: left}
    text = f"group billing: the store went back. It has {has} of orders-0, and had them up to offset 15, with "
    assert str(caught.value).startswith(text)
    rest = "Nothing was stored, as the messages between would be lost. Claim again, and read on from what the store "
    assert str(caught.value).endswith(rest + "has; an attached consumer does so by itself")
    assert claims.offsets(GROUP)[TP] == left
    claims.check_order(GROUP, [(TP, 11)])  # these are read again
    # What begins behind the loss is refused; what goes on where the store is counts.
    assert in_doubt(claims, 15, 16) and not in_doubt(claims, 14, 16)
    with pytest.raises(IllegalStateError) as refused:
        store(claims, 15, 16)
    text = f"the store went back: it has {has} of orders-0, and had them up to offset 15. These begin at 15: those "
    assert str(refused.value).startswith(text)
    rest = " Read on from what the store has (rewind(consumer); of a Spark query put the checkpoint back). Where Kafka "
    assert str(refused.value).endswith(
        rest + "does not have those messages any more, a new store object goes on behind them"
    )
    store(claims, left or 0, 15)
    store(claims, 15, 16)
    assert claims.begins(GROUP)[TP] == 16


def test_a_store_that_went_back_again_is_behind_the_highest_offset_it_had() -> None:
    claims = claimed(15)
    for offset in (12, 9):
        undo(claims, 20, 21, unsure=True)
        with pytest.raises(StoreWentBackError, match="had them up to offset 15"):
            compare(claims, {TP: row(offset)})
        assert claims.begins(GROUP)[TP] == offset
        assert not in_doubt(claims, offset, 15)
        assert in_doubt(claims, 15, 16)


def test_some_partitions_went_back_and_others_are_lost() -> None:
    claims = claimed(10, other=5)
    with pytest.raises(FencedStoreError) as caught:
        compare(claims, {TP: row(3), OTHER: row(5, 9, "you")}, TP, OTHER)
    assert caught.value.partitions == (OTHER,)
    assert claims.offsets(GROUP) == {TP: 3}
    assert in_doubt(claims, 10, 11)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize(("now", "behind"), [(None, True), (9, True), (10, False), (11, False)])
def test_a_new_claim_shows_that_the_store_went_back(now: int | None, behind: bool, dropped: bool) -> None:
    claims = claimed()
    if dropped:
        claims.drop(GROUP, [TP])
    claims.take(GROUP, {TP: row(now, claim=4)})
    assert in_doubt(claims, 11, 12) is behind
    assert in_doubt(claims, 10, 12) is behind
    assert not in_doubt(claims, 9, 12)
    claims.take(GROUP, {TP: row(now, claim=5)})  # it stays so until the loss is stored again
    assert in_doubt(claims, 11, 12) is behind


def test_the_first_message_of_a_partition_was_lost() -> None:
    claims = claimed(None)
    store(claims, 0, 1)
    claims.take(GROUP, {TP: row(None, claim=4)})
    assert in_doubt(claims, 1, 2) and not in_doubt(claims, 0, 2)
    assert claims.begins(GROUP)[TP] == 0, "nobody else knows where the lost messages begin"


def test_where_nothing_was_stored_nothing_was_lost() -> None:
    claims = claimed(None)
    claims.take(GROUP, {TP: row(None, claim=4)})
    assert not in_doubt(claims, 40, 41)
    undo(claims, 0, 1, unsure=True)
    compare(claims, {TP: row(1, claim=4)})  # it had been stored
    assert claims.begins(GROUP)[TP] == 1


def test_gaps_of_a_long_life_are_bounded() -> None:
    """Each transaction of a producer leaves one; the oldest are forgotten."""
    claims = claimed(0)
    for offset in range(1, 10_000, 2):
        store(claims, offset, offset + 1)
    with claims.busy(GROUP, empty(TP)) as held:
        assert 100 < len(held[TP].gaps) < 2000
    with pytest.raises(IllegalStateError):
        claims.check_order(GROUP, [(TP, 9998)])


def test_a_new_store_object_knows_of_no_past() -> None:
    held = Claim(row(None))
    assert held.begin is None
    assert not held.in_doubt(Span(0, 1)) and not held.in_doubt(Span(1000, 1001))


def test_a_claim_that_is_refused_names_the_owner() -> None:
    error = outranked_by(GROUP, {TP: row(5, member="you"), OTHER: row(5)}, 6, "me")
    assert error.partitions == (TP, OTHER)
    assert str(error) == (
        "group billing: orders-0 was claimed by you in generation 7, so me cannot claim it in generation 6"
    )
    error = outranked_by(GROUP, {TP: row(5, member="you")}, NO_GROUP, "me")
    assert error.partitions == (TP,)
    assert str(error) == (
        "group billing: orders-0 belongs to you, a member of the group in generation 7; a consumer outside of the "
        "group cannot claim it. Use another name for its offsets"
    )
