"""pykafka's offset conventions, row by row of the table that its users know."""

from __future__ import annotations

import datetime as dt
import numbers
from typing import Any

import pytest

from managedconsumer.offset_convention import held_from_position, next_offset_of, target_of
from managedconsumer.structs import OffsetAndMetadata


@pytest.mark.parametrize(("position", "held"), [(None, -2), (0, -2), (1, 0), (11, 10)])
def test_held_is_the_offset_last_consumed(position: int | None, held: int) -> None:
    assert held_from_position(position) == held


@pytest.mark.parametrize("number", [0, 1, 10, 2**62])
def test_an_int_is_the_offset_last_consumed(number: int) -> None:
    assert target_of(number, "x") == ("seek", number + 1)
    assert held_from_position(number + 1) == number


class NumpyLike:
    """An integer that is no int, as numpy's are."""

    def __index__(self) -> int:
        return 10


numbers.Integral.register(NumpyLike)


def test_integers_of_other_kinds_are_ints() -> None:
    kind, number = target_of(NumpyLike(), "x")
    assert (kind, number, type(number)) == ("seek", 11, int)


@pytest.mark.parametrize("special", [-1, -2])
def test_the_ends_of_the_log_are_looked_up(special: int) -> None:
    assert target_of(special, "x") == ("lookup", special)


def test_a_naive_datetime_is_utc() -> None:
    assert target_of(dt.datetime(2024, 1, 1, 0, 0, 0, 250000), "x") == ("lookup", 1704067200250)


def test_an_aware_datetime_is_what_it_says() -> None:
    east = dt.timezone(dt.timedelta(hours=2))
    assert target_of(dt.datetime(2024, 1, 1, 2, tzinfo=east), "x") == ("lookup", 1704067200000)


def test_a_datetime_before_1970_is_no_special_value() -> None:
    """-1 and -2 ms mean the ends of the log to a broker; a time before all records means the first one."""
    kind, stamp = target_of(dt.datetime(1969, 12, 31, 23, 59, 59, 999000), "x")
    assert kind == "lookup"
    assert stamp == 0


@pytest.mark.parametrize("wrong", [True, 1.5, "10", None, b"1", [], dt.date(2024, 1, 1)])
def test_anything_else_is_a_type_error_that_says_what_is_needed(wrong: Any) -> None:
    with pytest.raises(TypeError) as caught:
        target_of(wrong, "orders-3")
    assert str(caught.value) == (
        "orders-3: the target must be an int (the offset last consumed), 'earliest' or 'latest' (also as OffsetType) "
        f"or a datetime, not {type(wrong).__name__}: {wrong!r}"
    )


@pytest.mark.parametrize("wrong", [-3, -1000])
def test_other_negative_numbers_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError) as caught:
        target_of(wrong, "orders-3")
    assert str(caught.value) == (
        f"orders-3: the target must be 0 or more (the offset last consumed), -2 (earliest) or -1 (latest), not {wrong}"
    )


def test_both_ends_have_the_names_that_other_options_have() -> None:
    assert target_of("earliest", "t-0") == ("lookup", -2)
    assert target_of("latest", "t-0") == ("lookup", -1)


def test_milliseconds_of_a_datetime_are_an_int() -> None:
    assert repr(target_of(dt.datetime(1970, 1, 1, 0, 0, 1, 2999), "x")) == "('lookup', 1002)"
    summer = dt.timezone(dt.timedelta(hours=2))
    assert target_of(dt.datetime(1970, 1, 1, 3, tzinfo=summer), "x") == ("lookup", 3600000)


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_a_commit_s_int_is_the_next_offset(offset: int) -> None:
    assert next_offset_of(offset, "t-0") == OffsetAndMetadata(offset)
    assert type(next_offset_of(Number(offset), "t-0").offset) is int


def test_a_commit_keeps_metadata_and_epoch() -> None:
    assert next_offset_of(OffsetAndMetadata(7, "note", 3), "t-0") == OffsetAndMetadata(7, "note", 3)
    assert type(next_offset_of(OffsetAndMetadata(Number(7), "note"), "t-0").offset) is int


class Number(int):
    """An integer of another kind, as numpy has."""


@pytest.mark.parametrize("value", [1.5, "7", None, False])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_commit_s_offset_of_another_kind_is_named(value: Any, wrapped: bool) -> None:
    with pytest.raises(TypeError) as caught:
        next_offset_of(OffsetAndMetadata(value) if wrapped else value, "t-0")
    assert str(caught.value) == (
        "t-0: the offset must be an int (the next offset to read) or an OffsetAndMetadata, "
        f"not {type(value).__name__}: {value!r}"
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_commit_s_negative_offset_is_named(wrapped: bool) -> None:
    with pytest.raises(ValueError, match=r"^t-0: the offset must be the next offset to read \(0 or more\), not -1$"):
        next_offset_of(OffsetAndMetadata(-1) if wrapped else -1, "t-0")
