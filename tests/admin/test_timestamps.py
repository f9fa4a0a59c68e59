"""Places in a log as people write them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from managedconsumer.admin.timestamps import Moment, iso, parse_moment, parse_time
from managedconsumer.errors import ConfigurationError

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc).timestamp()
HOUR = 3_600_000


def ms(*fields: int) -> int:
    return int(datetime(*fields, tzinfo=timezone.utc).timestamp() * 1000)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("earliest", Moment("time", -2)),
        (" Latest ", Moment("time", -1)),
        ("42", Moment("offset", 42)),
        (0, Moment("offset", 0)),
        ("2 hours ago", Moment("time", int(NOON * 1000) - 2 * HOUR)),
        ("1 day ago", Moment("time", int(NOON * 1000) - 24 * HOUR)),
        ("90s ago", Moment("time", int(NOON * 1000) - 90_000)),
        ("1.5 h ago", Moment("time", int(NOON * 1000) - 5_400_000)),
        ("2026-11-22", Moment("time", ms(2026, 11, 22))),
        ("2026-11-22T10:30", Moment("time", ms(2026, 11, 22, 10, 30))),
        ("2026-11-22 10:30:15.250Z", Moment("time", ms(2026, 11, 22, 10, 30, 15) + 250)),
        ("2026-11-22T10:30+02:00", Moment("time", ms(2026, 11, 22, 8, 30))),
        (datetime(2026, 11, 22, 10), Moment("time", ms(2026, 11, 22, 10))),  # it counts as UTC
        (datetime(2026, 11, 22, 10, tzinfo=timezone(timedelta(hours=1))), Moment("time", ms(2026, 11, 22, 9))),
    ],
)
def test_what_is_understood(given: Any, expected: Moment) -> None:
    assert parse_moment(given, NOON) == expected


@pytest.mark.parametrize("given", ["yesterday", "2 moons ago", "-5", -5, True, None, 1.5, "", "2026-13-01"])
def test_what_is_not_understood_is_named_with_what_is(given: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_moment(given, NOON)
    assert repr(given) in str(caught.value)
    assert "'2 hours ago'" in str(caught.value)


def test_what_is_printed_is_understood() -> None:
    assert iso(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert parse_time(iso(1_700_000_000_123), NOON) == 1_700_000_000_123
