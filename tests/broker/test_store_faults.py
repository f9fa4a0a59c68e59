"""Processes that store what they read, on a real broker: every message counts once, whatever happens to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import DevBroker
from tests.stores import faultkit
from tests.stores.conftest import postgresql as postgresql

# The longest that a database is away in an ordinary run, and in a long one (seconds).
SHORT, LONG = 4.0, 20.0


def sqlite(path: Path) -> str:
    connection = sqlite3.connect(path)
    connection.execute("create table results (partition integer, place bigint)")
    connection.close()
    return str(path)


def database(server: Any, name: str) -> str:
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
    uri = str(server.get_uri(database=name))
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("create table results (partition integer, place bigint)")
    return uri


def run(kind: str, where: str, kafka: DevBroker, name: str, at: Path, away: Any, protocol: str) -> tuple[int, int, int]:
    with faultkit.fleet(kind, where, kafka, name, at, protocol) as fleet:
        result = faultkit.go_through(fleet, away)
        assert sum(fleet.offsets().values()) == result[0]
        return result


@pytest.mark.slow
def test_every_message_counts_once(
    kafka43: DevBroker, topic: Callable[..., str], tmp_path: Path, postgresql: Any
) -> None:
    """SQLite and PostgreSQL side by side; kill -9, SIGSTOP beyond the session, join, database away, leave."""
    stores = {
        "sqlite": (sqlite(tmp_path / "db"), partial(faultkit.sqlite_away, seconds=SHORT), "classic"),
        "postgresql": (
            database(postgresql, "faults"),
            partial(faultkit.postgresql_away, server=postgresql, seconds=SHORT),
            "consumer",
        ),
    }

    def go(kind: str, name: str) -> tuple[int, int, int]:
        where, away, protocol = stores[kind]
        return run(kind, where, kafka43, name, tmp_path, away, protocol)

    with ThreadPoolExecutor() as pool:
        calls = {kind: pool.submit(go, kind, topic(kafka43, partitions=faultkit.PARTITIONS)) for kind in stores}
    assert {kind: call.result()[1:] for kind, call in calls.items()} == dict.fromkeys(stores, (0, 0))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "directory"])
def test_every_message_counts_once_in_many_runs(
    kind: str, protocol: str, kafka43: DevBroker, topic: Callable[..., str], tmp_path: Path, postgresql: Any
) -> None:
    for number in range(10):
        name = topic(kafka43, partitions=faultkit.PARTITIONS)
        if kind == "postgresql":
            where = database(postgresql, f"soak_{protocol}_{number}")
            away: Any = partial(faultkit.postgresql_away, server=postgresql, seconds=LONG)
        else:
            where = sqlite(tmp_path / f"{number}") if kind == "sqlite" else str(tmp_path / f"{number}")
            away = partial(faultkit.sqlite_away, seconds=LONG) if kind == "sqlite" else faultkit.Fleet.progress
        found = run(kind, where, kafka43, name, tmp_path, away, protocol)
        print(f"{kind} {protocol} run {number}: {found[0]} messages, {found[1]} missing, {found[2]} too many")
        assert found[1:] == (0, 0)


@pytest.mark.slow
def test_without_the_fence_a_zombie_counts_twice(kafka43: DevBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    """The control: the same frozen process, with offsets in Kafka. It may have had nothing in hand: then once more."""
    name = topic(kafka43, partitions=faultkit.PARTITIONS)
    with faultkit.fleet("sqlite-unfenced", sqlite(tmp_path / "db"), kafka43, name, tmp_path) as fleet:
        for _ in range(2):
            fleet.start()
        fleet.progress()
        for _ in range(5):
            faultkit.freeze(fleet)
            stored = fleet.stored()
            if len(set(stored)) < len(stored):
                break
        assert fleet.end()[2] > 0
