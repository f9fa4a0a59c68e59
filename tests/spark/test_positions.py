"""Which position wins, and why: checkpoint, the group's commit, startingOffsets, claims. No broker, no Spark."""

from __future__ import annotations

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.positions import Author, Choice, Known, Query, choose, left_to_read, lines, start_word
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

OURS, OTHER = "aaaa", "bbbb"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def commit(offset: int, query: str = "", batch: int = 3, start: str = "") -> OffsetAndMetadata:
    """A commit of a query; "": of a plain consumer, or a tool."""
    return OffsetAndMetadata(offset, Author(query, batch, start).text() if query else "")


def resumed(done: int | None, there: OffsetAndMetadata | None, conflict: str = "auto", batch: int = 3) -> Choice:
    return choose(Known(done=done, committed=there), Query(Author(OURS, batch), False, False, False, conflict))


def fresh(
    begin: int, there: OffsetAndMetadata | None, conflict: str = "auto", *, explicit: bool = True, shared: bool = False
) -> Choice:
    return choose(
        Known(begin=begin, committed=there), Query(Author(OURS, 0, "earliest"), True, explicit, shared, conflict)
    )


def test_metadata_names_query_and_batch() -> None:
    assert Author("6f1c", 17).text() == "managedconsumer query=6f1c batch=17"
    assert Author.of(Author("6f1c", 0, "earliest").text()) == Author("6f1c", 0, "earliest")
    assert Author.of(Author("6f1c", 17, "earliest").text()) == Author("6f1c", 17), "only told until something was read"
    assert Author.of("") is Author.of(None) is Author.of("anybody's text") is None


def test_a_start_is_known_again_by_a_short_word() -> None:
    assert start_word("earliest") == "earliest"
    assert start_word('{"t": {"0": 5}}') == start_word('{"t": {"0": 5}}') != start_word('{"t": {"0": 6}}')
    text = Author("6f1c", 0, start_word('{"t": {"0": 5}}')).text()
    assert Author.of(text) == Author("6f1c", 0, start_word('{"t": {"0": 5}}'))


@pytest.mark.parametrize("there", [None, commit(50, OURS), commit(40, OURS)])
def test_the_checkpoint_is_followed_without_a_word_where_the_group_agrees_or_lags(
    there: OffsetAndMetadata | None,
) -> None:
    assert resumed(50, there, "fail") == Choice(50)


@pytest.mark.parametrize(
    ("there", "conflict", "want"),
    [
        (commit(900, OURS, 17), "auto", 50),  # the checkpoint was put back: every row again
        (commit(900, OURS, 17), "checkpoint", 50),
        (commit(900, OURS, 17), "group", 900),
        (commit(900, OTHER), "auto", 900),  # somebody else has worked meanwhile
        (commit(900), "auto", 900),
        (commit(900, OTHER), "checkpoint", 50),
        (commit(20, OTHER), "auto", 50),
        (commit(20), "group", 20),  # what kafka-consumer-groups --reset-offsets says
    ],
)
def test_a_conflict_is_decided_and_told(there: OffsetAndMetadata, conflict: str, want: int) -> None:
    choice = resumed(50, there, conflict)
    assert choice.offset == want
    assert choice.said


@pytest.mark.parametrize("there", [commit(900, OURS, 17), commit(900, OTHER), commit(20)])
def test_a_conflict_can_end_the_query(there: OffsetAndMetadata) -> None:
    with pytest.raises(ConfigurationError, match=r"at 50 and the group at \d+: .* offsetConflict decides"):
        resumed(50, there, "fail")


def test_a_partition_that_comes_from_another_member_goes_on_where_the_group_is() -> None:
    assert resumed(None, commit(70, OTHER)).offset == 70
    assert resumed(None, commit(70, OURS, batch=2)).offset == 70, "it was ours before"
    assert resumed(None, None) == Choice(None, resumed(None, None).said)


def test_a_partition_that_the_restored_checkpoint_does_not_know_is_read_from_its_start() -> None:
    choice = resumed(None, commit(70, OURS, batch=17), batch=3)
    assert (choice.offset, choice.group) == (None, 70)


@pytest.mark.parametrize(
    ("there", "explicit", "shared", "conflict", "want"),
    [
        (None, True, False, "fail", 5),
        (None, False, False, "auto", 5),
        (commit(70, OTHER), True, False, "auto", 5),  # the user said where
        (commit(70, OTHER), False, False, "auto", 70),  # or has not
        (commit(70, OTHER), True, True, "auto", 70),  # others are at work: what they have done is not done again
        (commit(70, OTHER), True, True, "checkpoint", 5),
        (commit(70, OTHER), True, False, "group", 70),
        (commit(70, OTHER, 0, "earliest"), True, False, "auto", 70),  # begun like this before, nothing read since
        (commit(70, OTHER, 0, "latest"), True, False, "auto", 5),
        (commit(5, OTHER), True, False, "fail", 5),
    ],
)
def test_a_fresh_checkpoint_begins_where_the_user_said(
    there: OffsetAndMetadata | None, explicit: bool, shared: bool, conflict: str, want: int
) -> None:
    assert fresh(5, there, conflict, explicit=explicit, shared=shared).offset == want


def test_claims_outrank_everything_and_with_a_store_the_group_counts_for_nothing() -> None:
    query = Query(Author(OURS, 3), False, True)
    assert choose(Known(claimed=8, done=50, committed=commit(900)), query, has_store=True) == Choice(8)
    assert choose(Known(done=50, committed=commit(900)), query, has_store=True) == Choice(50)


def test_the_log_has_one_line_for_each_reason() -> None:
    there = commit(900, OURS, 17)
    choices = {P0: resumed(50, there), P1: resumed(60, there)}
    (line,) = lines(choices, {P0: 50, P1: 60})
    assert line.startswith("read from t-0 at 50 (group: 900), t-1 at 60 (group: 900): that is not where the group is;")
    assert lines({P0: Choice(5)}, {P0: 5}) == []
    many = {TopicPartition("t", number): resumed(50, there) for number in range(40)}
    (line,) = lines(many, dict.fromkeys(many, 50))
    assert "and 28 more" in line


def test_a_batch_that_is_run_again_leaves_out_what_others_have_done_since() -> None:
    ranges = {P0: OffsetRange(10, 20), P1: OffsetRange(10, 20)}
    left = left_to_read(ranges, {P0: commit(15, OTHER), P1: commit(99)}, OURS)
    assert left == {P0: (15, 20), P1: (20, 20)}
    assert left_to_read(ranges, {P0: commit(10, OTHER), P1: commit(20, OURS)}, OURS) == ranges
    assert left_to_read(ranges, {}, OURS) == ranges
