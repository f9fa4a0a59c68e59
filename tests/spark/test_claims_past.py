"""A claim log that has lost its last claims (a restored backup, a copied directory): each row counts once all the same.

A query asks the log where to go on after each batch, so the log has to tell what it has, not what it had.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.claiming import LogClaiming
from managedconsumer.spark.claims.log import ClaimLog, claimed
from managedconsumer.spark.claims.places import log_at
from managedconsumer.spark.ranges import OffsetRange, Ranges, StreamOffset
from managedconsumer.spark.topics import Offsets
from managedconsumer.structs import TopicPartition
from tests.spark.test_claims import PLACES, T0, T1, place_for
from tests.stores.pasts import keep


class Place:
    """Where claims are kept, and how they come back."""

    def __init__(self, kind: str, url: str, home: Path) -> None:
        self.kind, self.url, self.home = kind, url, home

    def log(self) -> ClaimLog:
        return log_at(self.url)

    def keep(self) -> Callable[[], None]:
        if self.kind == "postgresql":
            return self._keep_rows()
        if self.kind == "iceberg":
            return keep("sqlite", str(self.home / "catalog.db"))
        copy = self.home.with_name("kept")
        shutil.copytree(self.home, copy)

        def put_back() -> None:
            shutil.rmtree(self.home)
            shutil.copytree(copy, self.home)

        return put_back

    def _keep_rows(self) -> Callable[[], None]:
        import psycopg

        tables = ("managedconsumer_ends", "managedconsumer_claims")
        with psycopg.connect(self.url) as connection:
            kept = {table: connection.execute(f"select * from {table}").fetchall() for table in tables}  # type: ignore[arg-type]

        def put_back() -> None:
            with psycopg.connect(self.url) as connection:
                for table, rows in kept.items():
                    connection.execute(f"delete from {table}")  # type: ignore[arg-type]
                    for row in rows:
                        connection.execute(f"insert into {table} values ({', '.join(['%s'] * len(row))})", row)  # type: ignore[arg-type]

        return put_back


@pytest.fixture(params=PLACES)
def place(request: Any, tmp_path: Path) -> Place:
    home = tmp_path / "home"
    home.mkdir()
    return Place(request.param, place_for(request, home), home)


def batch(first: int, stop: int) -> Ranges:
    return {T0: OffsetRange(first, stop)}


def test_the_log_says_what_it_has(place: Place) -> None:
    log = place.log()
    assert log.claim({**batch(0, 10), T1: OffsetRange(0, 5)}, "a")
    assert log.ends() == {T0: 10, T1: 5}
    put_back = place.keep()
    for n in range(10, 30, 10):
        assert log.claim(batch(n, n + 10), f"lost-{n}")
        assert log.ends([T0]) == {T0: n + 10}
    put_back()
    assert log.ends([T0, T1]) == {T0: 10, T1: 5}
    for n in range(10, 40, 10):
        assert log.claim(batch(n, n + 10), f"again-{n}") == batch(n, n + 10)
        assert log.ends([T0]) == {T0: n + 10}
    for each in (log, place.log()):
        assert claimed(each) == {T0: 40, T1: 5}
        assert sorted(each.winners()) == ["a", "again-10", "again-20", "again-30"]


def test_others_have_claimed_since(place: Place) -> None:
    """As many claims as were lost, by a query that has seen only the older log."""
    log = place.log()
    assert log.claim(batch(0, 10), "a")
    put_back = place.keep()
    assert log.claim(batch(10, 20), "lost")
    assert log.ends() == {T0: 20}
    put_back()
    other = place.log()
    assert other.ends() == {T0: 10}
    assert other.claim(batch(10, 15), "other")
    assert other.claim(batch(15, 18), "other, too")
    assert log.ends([T0]) == {T0: 18}
    assert log.claim(batch(10, 20), "late") == {}
    assert log.claim(batch(18, 25), "b") == batch(18, 25)
    assert claimed(place.log()) == {T0: 25}


def ran(claiming: LogClaiming, ranges: Ranges, data: str) -> Offsets:
    """A batch is planned and done; where the query goes on."""
    planned = StreamOffset(ranges, data=data)
    claiming.planned(planned)
    return claiming.done(planned, {tp: entry.stop for tp, entry in ranges.items()}, here=True)


def test_a_query_goes_back_with_its_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    claiming = LogClaiming(place.log(), lambda: "driver")
    assert ran(claiming, batch(0, 10), "a") == {T0: 10}
    put_back = place.keep()
    assert ran(claiming, batch(10, 20), "b") == {T0: 20}
    put_back()
    with caplog.at_level("WARNING"):
        assert ran(claiming, batch(20, 30), "c") == {T0: 10}
    assert "views-0 went back from 20 to 10" in caplog.text


def test_a_log_that_has_lost_a_partition_is_told(place: Place) -> None:
    """Where nothing is claimed the next claim would be the first: what lies before it would count for nothing."""
    claiming = LogClaiming(place.log(), lambda: "driver")
    other: Ranges = {TopicPartition("other", 0): OffsetRange(0, 1)}
    assert place.log().claim(other, "o")
    put_back = place.keep()
    ran(claiming, batch(0, 10), "a")
    put_back()
    with pytest.raises(ConfigurationError, match="the claims of views-0 up to offset 10 are gone"):
        ran(claiming, batch(10, 20), "b")
    assert claimed(place.log()) == {TopicPartition("other", 0): 1}
