"""Parse the position at which to read: an offset, a time, or an end of the log. Pure: the clock is an argument."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Literal, NamedTuple

from managedconsumer.errors import ConfigurationError
from managedconsumer.structs import OffsetType

_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s+ago")
_EXPECTED = "'earliest', 'latest', an offset, an ISO 8601 time (UTC where it names no zone), or as in '2 hours ago'"


class Moment(NamedTuple):
    """``kind`` "offset": ``value`` is one; "time": ``value`` is in ms since 1970, or -2 (earliest), -1 (latest)."""

    kind: Literal["offset", "time"]
    value: int


EARLIEST = Moment("time", OffsetType.EARLIEST)
LATEST = Moment("time", OffsetType.LATEST)


def parse_time(text: str, now: float) -> int:
    """``text`` in milliseconds since 1970; ``now`` is the wall clock in seconds. Raises ConfigurationError."""
    found = _AGO.fullmatch(text.strip().lower())
    if found is not None and found[2] in _UNITS:
        return max(0, int((now - float(found[1]) * _UNITS[found[2]]) * 1000))
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise ConfigurationError(f"{text!r} is not understood: write {_EXPECTED}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0, int(moment.timestamp() * 1000))


def parse_moment(given: object, now: float) -> Moment:
    """Parse the position ``given`` (times without a zone are UTC); ``now`` in seconds. Raises ConfigurationError."""
    if isinstance(given, datetime):
        return Moment("time", parse_time(given.isoformat(), now))
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return Moment("offset", given)
    if not isinstance(given, str):
        raise ConfigurationError(f"{given!r} is not understood: write {_EXPECTED}")
    text = given.strip().lower()
    if text in ("earliest", "beginning", "start"):
        return EARLIEST
    if text in ("latest", "end"):
        return LATEST
    return Moment("offset", int(text)) if text.isdecimal() else Moment("time", parse_time(given, now))


def iso(milliseconds: int) -> str:
    """A time in ISO 8601, UTC; the number itself beyond the calendar, as producers may write any number."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000.0, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
