"""Claims in Delta and Iceberg tables: several writers at once, fewer files, what others read. More: test_claims.py."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.errors import MissingPackageError
from managedconsumer.spark.claims.places import log_at
from managedconsumer.spark.claims.tables import schema
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.structs import TopicPartition
from tests.spark.test_claims import PACKAGES, TOPIC, place_of

pytestmark = pytest.mark.slow
T0 = TopicPartition(TOPIC, 0)


@pytest.fixture(params=["delta", "iceberg"])
def place(request: Any, tmp_path: Path) -> str:
    pytest.importorskip(PACKAGES[request.param])
    return place_of(request.param, tmp_path)


def test_a_log_that_is_only_read_makes_no_table(place: str, tmp_path: Path) -> None:
    log = log_at(place)
    assert not list(tmp_path.iterdir()), "nothing is opened before the first call"
    assert (log.ends(), log.ends([T0]), log.winners()) == ({}, {}, {})
    assert not list(tmp_path.rglob("*.parquet"))
    assert log.claim({T0: OffsetRange(0, 3)}, "a")
    assert log_at(place).ends() == {T0: 3}, "a reader in another process"


def test_writers_at_once_win_each_range_once(place: str) -> None:
    won: list[str] = []
    failed: list[BaseException] = []

    def write(name: str) -> None:
        log = log_at(place)
        try:
            for n in range(8):
                won.extend(f"{tp.partition}:{n}" for tp in log.claim({T0: OffsetRange(n, n + 1)}, f"{name}-{n}"))
        except BaseException as error:
            failed.append(error)
            raise

    writers = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert not failed
    assert sorted(won) == [f"0:{n}" for n in range(8)], "they also made the table at once"
    assert log_at(place).ends() == {T0: 8}
    assert sum(entry.size for ranges in log_at(place).winners().values() for entry in ranges.values()) == 8


def test_vacuum_leaves_one_file_and_all_that_counts(place: str, tmp_path: Path) -> None:
    log: Any = log_at(place)
    want = {f"d{n}": {T0: OffsetRange(n, n + 1)} for n in range(6)}
    for data, ranges in want.items():
        assert log.claim(ranges, data)
    assert log.vacuum(7200) == 0, "young files stay"
    assert log.winners() == want
    assert log.vacuum(-1) >= 6
    data = [file for file in tmp_path.rglob("*.parquet") if file.parent.name != "_delta_log"]
    assert len(data) == 1
    for reader in (log, log_at(place)):
        assert reader.winners() == want
        assert reader.ends() == {T0: 6}
    assert log.claim({T0: OffsetRange(2, 3)}, "zombie") == {}
    assert log.claim({T0: OffsetRange(2, 3)}, "d2") == {T0: OffsetRange(2, 3)}
    assert log.claim({T0: OffsetRange(6, 7)}, "d6")


def test_others_read_the_claims_as_any_table(place: str) -> None:
    """In SQL, to join the results with them."""
    log: Any = log_at(place)
    log.claim({T0: OffsetRange(4, 9)}, "batch-1")
    version = log._open(make=False).look()
    table = version.to_pyarrow_table() if hasattr(version, "to_pyarrow_table") else version.scan().to_arrow()
    (row,) = table.to_pylist()
    assert row.pop("made").year >= 2026
    assert row == {"topic": TOPIC, "partition": 0, "start": 4, "stop": 9, "data": "batch-1"}
    assert table.column_names == schema().names


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_missing_package_is_named_with_its_extra(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.stores.versioned.find_spec", lambda _name: None)
    with pytest.raises(MissingPackageError, match=rf"pip install 'managedconsumer\[{kind}\]'"):
        log_at(place_of(kind, tmp_path))
