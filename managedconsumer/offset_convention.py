"""Converts pykafka's offsets into Kafka's and back.

============================================================  =========================================
where                                                         what the number means
============================================================  =========================================
``held_offsets``, a callback's ``old`` and ``new``, what it   the offset *last consumed*; the next
returns, the ints of ``reset_offsets``                        message is that one plus 1
``commit_offsets``, ``fetch_offsets``, ``seek``,              the *next* offset, as in Kafka itself
``position``, ``committed``, listeners
-2 and -1                                                     the log's start and end; -2 also: nothing
                                                              consumed yet
============================================================  =========================================
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from managedconsumer.config import wrong_kind, wrong_value
from managedconsumer.structs import Ago, OffsetAndMetadata, OffsetType

#: As ``auto_offset_reset`` and ``read()`` say it.
_NAMED = {"earliest": OffsetType.EARLIEST, "latest": OffsetType.LATEST}


def held_from_position(position: int | None) -> int:
    """Return the *last consumed* offset for a *next* offset; -2 if nothing can have been consumed.

    A position of 0 gives -2, too: pykafka's -1 would mean "the end of the log" when a callback returns it, and skip
    everything.
    """
    return OffsetType.EARLIEST if not position else position - 1


def target_of(value: Any, what: str) -> tuple[str, int]:
    """Read an entry of ``reset_offsets`` or of a callback's result.

    Returns ``("seek", next offset)``, or ``("lookup", -2, -1 or a timestamp in ms)``. Raises TypeError or ValueError
    with ``what`` in the text.
    """
    import datetime as dt  # here, as it takes two milliseconds

    if isinstance(value, Ago):
        return "lookup", value
    if isinstance(value, dt.datetime):
        # Naive datetimes are UTC, as in pykafka.
        tuple_ = value.utctimetuple() if value.tzinfo else value.timetuple()
        # Before 1970 there are no records, and negative numbers have meanings of their own.
        import calendar

        return "lookup", max(0, calendar.timegm(tuple_) * 1000 + value.microsecond // 1000)
    if isinstance(value, str) and value in _NAMED:
        return "lookup", _NAMED[value]
    if isinstance(value, bool) or not isinstance(value, Integral):
        allowed = "an int (the offset last consumed), 'earliest' or 'latest' (also as OffsetType) or a datetime"
        raise wrong_kind(f"{what}: the target", value, allowed)
    number = int(value)
    if number in (OffsetType.EARLIEST, OffsetType.LATEST):
        return "lookup", number
    if number < 0:
        allowed = "0 or more (the offset last consumed), -2 (earliest) or -1 (latest)"
        raise wrong_value(f"{what}: the target", number, allowed)
    return "seek", number + 1


def next_offset_of(value: Any, what: str) -> OffsetAndMetadata:
    """Read an entry of ``commit_offsets``; raises TypeError or ValueError with ``what`` in the text."""
    if isinstance(value, OffsetAndMetadata):
        return value._replace(offset=next_offset_of(value.offset, what).offset)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_kind(f"{what}: the offset", value, "an int (the next offset to read) or an OffsetAndMetadata")
    if value < 0:
        raise wrong_value(f"{what}: the offset", int(value), "the next offset to read (0 or more)")
    return OffsetAndMetadata(int(value))
