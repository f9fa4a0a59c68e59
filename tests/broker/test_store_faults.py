"""Processes that store what they read, on a real broker: every message counts once, whatever happens to them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import DevBroker
from tests.stores import faultkit, kinds
from tests.stores.conftest import PACKAGES
from tests.stores.processes import PARTITIONS

# The longest that a database is away in an ordinary run, and in a long one (seconds).
SHORT, LONG = 4.0, 20.0
# Kind of store and group protocol; those of one line are tried side by side.
TOGETHER = [
    {"sqlite": "classic", "postgresql": "consumer"},
    {"duckdb": "classic", "delta": "consumer"},
    {"directory": "consumer", "iceberg": "classic"},
]


class Places:
    """Makes a new storage for each run, and says how it goes away."""

    def __init__(self, at: Path, server: Callable[[], Any]) -> None:
        self._at, self._server = at, server

    def make(self, kind: str, name: str) -> str:
        if kind == "postgresql":
            where = self._database(name)
        elif kind in ("sqlite", "duckdb"):
            where = str(self._at / name)
        else:
            (self._at / f"{name}.files").mkdir()
            (self._at / name).symlink_to(f"{name}.files")
            where = str(self._at / name)
        kinds.make(kind, where)
        return where

    def _database(self, name: str) -> str:
        import psycopg

        # PostgreSQL cuts names after 63 characters; their end is what tells one run from the other.
        name = "d" + "".join(letter if letter.isalnum() else "_" for letter in name).lower()[-60:]
        with psycopg.connect(self._server().get_uri(), autocommit=True) as admin:
            admin.execute(f"create database {name}")
        return str(self._server().get_uri(database=name))

    def away(self, kind: str, seconds: float) -> Callable[[faultkit.Fleet], None]:
        if kind == "postgresql":
            return partial(faultkit.postgresql_away, server=self._server(), seconds=seconds)
        ways = {"sqlite": faultkit.sqlite_away, "duckdb": faultkit.duckdb_away}
        return partial(ways.get(kind, faultkit.files_away), seconds=seconds)


@pytest.fixture
def places(tmp_path: Path, request: pytest.FixtureRequest) -> Places:
    return Places(tmp_path, lambda: request.getfixturevalue("postgresql"))


def run(
    kind: str, places: Places, kafka: DevBroker, name: str, at: Path, protocol: str, seconds: float
) -> tuple[int, int, int]:
    away = places.away(kind, seconds)
    with faultkit.fleet(kind, places.make(kind, f"store-{name}"), kafka, name, at, protocol) as fleet:
        result = faultkit.go_through(fleet, away)
        assert sum(fleet.offsets().values()) == result[0]
        return result


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("together", TOGETHER, ids="-".join)
def test_every_message_counts_once(
    together: dict[str, str], kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path, places: Places
) -> None:
    """kill -9, SIGSTOP beyond the session, join, database away, leave."""
    for kind in together:
        if kind in PACKAGES:
            pytest.importorskip(PACKAGES[kind])
    if "postgresql" in together:
        places.away("postgresql", SHORT)  # the server is started in this thread
    with ThreadPoolExecutor() as pool:
        calls = {
            kind: pool.submit(
                *(run, kind, places, kafka44, topic(kafka44, partitions=PARTITIONS), tmp_path, protocol, SHORT)
            )
            for kind, protocol in together.items()
        }
    assert {kind: call.result()[1:] for kind, call in calls.items()} == dict.fromkeys(together, (0, 0))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("kind", [kind for line in TOGETHER for kind in line])
def test_every_message_counts_once_in_many_runs(
    kind: str, protocol: str, kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path, places: Places
) -> None:
    for number in range(10):
        name = topic(kafka44, partitions=PARTITIONS)
        found = run(kind, places, kafka44, name, tmp_path, protocol, LONG)
        print(f"{kind} {protocol} run {number}: {found[0]} messages, {found[1]} missing, {found[2]} too many")
        assert found[1:] == (0, 0)


@pytest.mark.slow
def test_without_the_fence_a_zombie_counts_twice(
    kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path, places: Places
) -> None:
    """The control: the same frozen process, with offsets in Kafka. If nothing was in flight: once more."""
    name = topic(kafka44, partitions=PARTITIONS)
    with faultkit.fleet("sqlite-unfenced", places.make("sqlite", "db"), kafka44, name, tmp_path) as fleet:
        for _ in range(2):
            fleet.start()
        fleet.progress()
        for _ in range(5):
            faultkit.freeze(fleet)
            stored = fleet.stored()
            if len(set(stored)) < len(stored):
                break
        assert fleet.end()[2] > 0
