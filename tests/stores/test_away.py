"""Storage that cannot be had for a while: it is waited for, never made anew, and never taken for an empty one."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.stores import Store
from tests.stores import kinds
from tests.stores.conftest import TP, messages, slow

# Opens a DuckDB database and keeps it.
KEEPER = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


@contextmanager
def moved(where: Path) -> Iterator[None]:
    """As when a file system is not mounted. Nobody may make the directory anew."""
    beside = where.with_name("elsewhere")
    where.rename(beside)
    yield
    assert not where.exists()
    beside.rename(where)


@contextmanager
def locked(where: Path) -> Iterator[None]:
    """Another process has the catalog's lock."""
    connection = sqlite3.connect(where / "catalog", isolation_level=None)
    connection.execute("begin exclusive")
    yield
    connection.execute("rollback")
    connection.close()


@contextmanager
def being_read(where: Path) -> Iterator[None]:
    """Another process stands still while it reads the catalog: changes are possible, and COMMIT is refused."""
    connection = sqlite3.connect(where / "catalog", isolation_level=None)
    connection.execute("begin")
    connection.execute("select * from iceberg_tables").fetchall()
    yield
    connection.execute("rollback")
    connection.close()


AWAY: dict[str, list[Callable[[Path], Any]]] = {"directory": [moved], "delta": [moved], "iceberg": [moved, locked]}


@pytest.mark.parametrize("kind", ["directory", slow("delta"), slow("iceberg")])
def test_files_that_are_away_for_a_while(kind: str, tmp_path: Path) -> None:
    where = tmp_path / "store"
    kinds.make(kind, str(where))
    store = kinds.open_store(kind, str(where), patience_ms=50)
    store.claim("g", [TP], 1, "m")
    store.save(messages(0, 3), kinds.write)
    end = 3
    for way in AWAY[kind]:
        with way(where):
            for call in (
                lambda: store.load("g", [TP]),
                lambda: store.claim("g", [TP], 2, "n"),
                lambda: store.save(messages(end, end + 2), kinds.write),  # noqa: B023
            ):
                with pytest.raises(Exception) as raised:
                    call()
                assert store.passing(raised.value), raised.value
        store.save(messages(0, end + 2), kinds.write)
        end += 2
    assert sorted(kinds.stored(kind, str(where))) == [(0, n) for n in range(end)]
    assert store.load("g", [TP]) == {TP: end}


@pytest.mark.slow
def test_what_the_catalog_did_not_commit_does_not_count(tmp_path: Path) -> None:
    """A frozen reader: the store waits, and does not take its own open transaction for a committed one."""
    pytest.importorskip("pyiceberg")
    where = tmp_path / "store"
    kinds.make("iceberg", str(where))
    other = kinds.open_store("iceberg", str(where))
    store = kinds.open_store("iceberg", str(where), patience_ms=200, busy=0)
    store.claim("g", [TP], 1, "m")
    store.save(messages(0, 3), kinds.write)
    with being_read(where):
        for call in (
            lambda: store.save(messages(3, 5), kinds.write),
            lambda: store.claim("g", [TP], 2, "n"),
        ):
            with pytest.raises(Exception, match="database is locked"):
                call()
            # No lock is left behind: others can read.
            assert other.load("g", [TP]) == store.load("g", [TP]) == {TP: 3}
    store.save(messages(3, 5), kinds.write)
    store.claim("g", [TP], 2, "n")
    assert sorted(kinds.stored("iceberg", str(where))) == [(0, n) for n in range(5)]
    assert other.load("g", [TP]) == {TP: 5}


@pytest.mark.slow
def test_a_second_process_waits_for_duckdb_and_is_told_who_has_the_file(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    where = str(tmp_path / "duck")
    kinds.make("duckdb", where)
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None and keeper.stdout.readline() == "open\n"
    with pytest.raises(Exception, match=rf"lock.*PID {keeper.pid}"):
        kinds.open_store("duckdb", where, patience_ms=50).claim("g", [TP], 1, "m")
    store: Store = kinds.open_store("duckdb", where)
    waits: list[float] = []
    sleep = store._handler.sleep

    def kill_and_sleep(seconds: float) -> None:
        """It has found the file locked: ``kill -9`` sets it free at once."""
        waits.append(seconds)
        keeper.send_signal(signal.SIGKILL)
        keeper.communicate()
        sleep(seconds)

    store._handler.sleep = kill_and_sleep  # type: ignore[method-assign]
    store.claim("g", [TP], 1, "m")
    store.save(messages(0, 3), kinds.write)
    store.close()
    assert waits and kinds.stored("duckdb", where) == [(0, 0), (0, 1), (0, 2)]
