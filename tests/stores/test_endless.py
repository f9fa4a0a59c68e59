"""Errors that only look as if another writer had been faster: they are raised, and nothing goes round for ever."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import TopicPartition
from managedconsumer.errors import ConfigurationError, IllegalStateError
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.spark.claims import tables
from managedconsumer.spark.claims.places import log_at
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.stores import FencedStoreError, SQLStore
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import VersionedStore
from tests.stores import kinds
from tests.stores.conftest import TP, messages, slow

COLUMNS = (
    "consumer_group text, topic text, kafka_partition integer, next_offset bigint, claim_number bigint, "
    "generation bigint, member text"
)
TRIGGER = "create trigger t before insert on managedconsumer_offsets begin select raise(abort, 'not you'); end"
KEY = "primary key (consumer_group, topic, kafka_partition)"


@pytest.mark.slow
def test_claims_at_once_in_duckdb_are_no_refusal(tmp_path: Path) -> None:
    """It says "Duplicate key" about a row that nobody can see yet."""
    duckdb = pytest.importorskip("duckdb")
    won: list[str] = []
    failed: list[Exception] = []
    with duckdb.connect(tmp_path / "db"):
        stores = [SQLStore(lambda: duckdb.connect(tmp_path / "db"), "duckdb") for _ in range(2)]
        for number in range(60):
            together = threading.Barrier(len(stores))

            def claim(store: SQLStore, member: str, number: int = number, together: Any = together) -> None:
                together.wait(60)
                try:
                    store.claim(f"g{number}", [TopicPartition("orders", n) for n in range(3)], 1, member)
                    won.append(member)
                except FencedStoreError:
                    pass
                except Exception as error:  # noqa: BLE001 - the test's own thread looks at it
                    failed.append(error)

            threads = [threading.Thread(target=claim, args=(store, f"m{n}")) for n, store in enumerate(stores)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    assert (failed, len(won)) == ([], 60)


def counted(store: Any, name: str) -> list[int]:
    """How often a method was called."""
    calls, real = [0], getattr(store, name)

    def call(*args: Any) -> Any:
        calls[0] += 1
        return real(*args)

    setattr(store, name, call)
    return calls


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        (
            f"create table managedconsumer_offsets ({COLUMNS}, tenant text not null, {KEY})",
            "NOT NULL constraint failed",
        ),
        (f"create table managedconsumer_offsets ({COLUMNS}, check (generation > 5), {KEY})", "CHECK constraint failed"),
        (f"create table managedconsumer_offsets ({COLUMNS}, {KEY}); {TRIGGER}", "not you"),
    ],
)
def test_a_table_of_the_user_s_own_refuses_a_claim(tmp_path: Path, ddl: str, problem: str) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.executescript(ddl)
    store = SQLStore(lambda: sqlite3.connect(tmp_path / "db"), patience_ms=50)
    calls = counted(store, "swap")
    with pytest.raises(ConfigurationError, match=rf"refuses a claim.*{problem}.*managedconsumer_offsets have a column"):
        store.claim("g", [TP], 1, "m")
    assert calls == [1]
    store.close()


@pytest.mark.parametrize("event", ["insert", "update"])
def test_a_trigger_that_leaves_the_rows_as_they_are(tmp_path: Path, event: str) -> None:
    store = SQLStore(lambda: sqlite3.connect(tmp_path / "db"))
    store.load("g", [TP])
    if event == "update":
        store.claim("g", [TP], 1, "m")
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.executescript(
            f"create trigger t before {event} on managedconsumer_offsets begin select raise(ignore); end"
        )
    with pytest.raises(IllegalStateError, match="does a trigger"):
        store.claim("g", [TP], 2, "m")
    if event == "update":
        with pytest.raises(IllegalStateError, match=r"does not move the offsets.*does a trigger"):
            store.save(messages(0, 1), lambda handle, batch: None)
    store.close()


class Clock(ThreadingHandler):
    """Time passes by sleeping alone, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Contended(VersionedStore):
    """Another writer is faster each time; ``stranger``: it claims the same partition."""

    def __init__(self, *, stranger: bool) -> None:
        super().__init__(patience_ms=50)
        self._handler = Clock()
        self.stranger, self.version, self.looks = stranger, 0, 0

    def look(self) -> int:
        self.looks += 1
        self.version += 1
        return self.version

    def read(self, version: int, group: str, tps: Any) -> dict[TopicPartition, Row]:
        return {tp: Row(None, version if self.stranger else 1, 0, "another") for tp in tps}

    def append(self, *_: Any) -> bool:
        return False

    def output(self) -> Any:
        return None


@pytest.mark.parametrize("stranger", [False, True])
def test_the_patience_ends(stranger: bool) -> None:
    store = Contended(stranger=stranger)
    with pytest.raises((TimeoutError, FencedStoreError), match=r"were faster each time|again and again"):
        store.claim("g", [TP], 1, "m")
    assert_it_pauses(store)


def assert_it_pauses(store: Contended) -> None:
    """Six or seven pauses of about 1, 2, 4 ... ms, until 50 ms are over; a claim of a stranger looks twice in each."""
    assert 0.05 <= store._handler.now() < 0.15
    assert 5 <= store.looks <= 16


def new_features(path: Path, name: str) -> None:
    """Another engine switches on what deltalake cannot write."""
    number = len(list((path / "_delta_log").glob("*.json")))
    action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [name]}}
    (path / "_delta_log" / f"{number:020d}.json").write_text(json.dumps(action))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rowTracking", "identityColumns"])
def test_a_delta_table_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    pytest.importorskip("deltalake")
    from deltalake.exceptions import CommitFailedError

    store = kinds.open_store("delta", str(tmp_path / "results"))
    store.claim("g", [TP], 1, "m")
    log = log_at(f"delta://{tmp_path}/claims")
    assert log.claim({TP: OffsetRange(0, 5)}, "a")
    for path in ("results", "claims"):
        new_features(tmp_path / path, name)
    calls = counted(store, "append")
    with pytest.raises(CommitFailedError, match="Unsupported table features"):
        store.claim("g", [TP], 2, "m")
    with pytest.raises(CommitFailedError, match="Unsupported table features"):
        store.save(messages(0, 2), kinds.write, group="g")
    assert calls == [2]
    with pytest.raises(CommitFailedError, match="Unsupported table features"):
        log.claim({TP: OffsetRange(5, 9)}, "b")


@pytest.fixture(params=[slow("iceberg")])
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """After it is called, the catalog refuses each commit."""
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    from pyiceberg.exceptions import CommitFailedException

    def refuse(*_: Any, **__: Any) -> None:
        raise CommitFailedException("the table is read-only")

    yield lambda: monkeypatch.setattr(catalogs.SqlCatalog, "commit_table", refuse)


def test_an_iceberg_table_that_cannot_be_written(refusing: Callable[[], None], tmp_path: Path) -> None:
    from pyiceberg.exceptions import CommitFailedException

    kinds.make("iceberg", str(tmp_path / "results"))
    store = kinds.open_store("iceberg", str(tmp_path / "results"))
    store.claim("g", [TP], 1, "m")
    at = tmp_path / "claims"
    log = log_at(f"iceberg://lake/views.claims?type=sql&uri=sqlite:///{at}.db&warehouse=file://{at}")
    assert log.claim({TP: OffsetRange(0, 5)}, "a")
    refusing()
    for call in (
        lambda: store.claim("g", [TP], 2, "m"),
        lambda: store.save(messages(0, 2), kinds.write, group="g"),
        lambda: log.claim({TP: OffsetRange(5, 9)}, "b"),
    ):
        with pytest.raises(CommitFailedException, match="read-only"):
            call()


class ContendedTable(tables.TableClaims):
    """A table in which other writers are faster each time."""

    def __init__(self) -> None:
        self.contended = Contended(stranger=False)

    def _find(self, *, make: bool) -> VersionedStore:
        return self.contended

    def _columns(self, *_: Any) -> Any:
        raise AssertionError("nothing was won, so nothing is looked up")

    def vacuum(self, older_than: float) -> int:
        raise AssertionError


def test_a_claim_in_a_table_ends_with_its_patience() -> None:
    log = ContendedTable()
    with pytest.raises(TimeoutError, match="other writers were faster each time"):
        log.claim({TP: OffsetRange(0, 5)}, "a")
    assert_it_pauses(log.contended)
