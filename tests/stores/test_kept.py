"""Places that earlier releases have left are read and gone on with: each offset counts once, and its owner is known."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.spark.claims.log import claimed
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.stores import FencedStoreError
from tests.stores import make_kept
from tests.stores.conftest import PACKAGES, slow
from tests.stores.make_kept import COUNT, GROUP, T0, T1, TOPIC_ID

KEPT = Path(__file__).parent / "kept"
OTHER_ID = bytes(range(1, 17))


@pytest.fixture(params=["directory", "sqlite", slow("delta"), slow("iceberg")])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


@pytest.fixture(params=["0.2.0", "two_fences"])
def release(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The working directory is as that release has left it."""
    with tarfile.open(KEPT / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def results(kind: str, store: Any) -> list[int]:
    if kind == "directory":
        return [int((at / "place").read_text()) for at in store.data()]
    if kind == "sqlite":
        with closing(sqlite3.connect("store.db")) as connection:
            return [place for (place,) in connection.execute("select place from results")]
    version = store.look()
    table = version.to_pyarrow_table() if kind == "delta" else version.scan().to_arrow()
    return sorted(table.column("place").to_pylist())


def test_a_store_goes_on(kind: str, release: str) -> None:
    store, zombie, count = make_kept.open_store(kind), make_kept.open_store(kind), COUNT[kind]
    assert store.load(GROUP, [T0, T1]) == {T0: 2 * count, T1: 9}
    assert results(kind, store) == list(range(count))
    with pytest.raises(FencedStoreError, match="in generation 3"):
        store.claim(GROUP, [T0], 2, "late")
    zombie.claim(GROUP, [T0], 3, "m")
    store.claim(GROUP, [T0, T1], 4, "heir")
    with pytest.raises(FencedStoreError), zombie.transaction({T0: (2 * count, 2 * count + 1)}, group=GROUP):
        pass
    with store.transaction({T0: (2 * count, 2 * count + 2), T1: (9, 10)}, group=GROUP) as handle:
        make_kept.write(handle, count)
    assert store.load(GROUP, [T0, T1]) == {T0: 2 * count + 2, T1: 10}
    assert results(kind, store) == list(range(count + 1))
    store.close()
    zombie.close()


def test_a_store_s_offsets_are_of_the_topic_that_they_were_of(kind: str, release: str) -> None:
    """Release 0.2.0 did not keep that, so its offsets are believed."""
    for topic_id, anew in ((TOPIC_ID, False), (OTHER_ID, release != "0.2.0")):
        store = make_kept.open_store(kind)
        store.tell_topics(GROUP, {T0: topic_id})
        store.claim(GROUP, [T0], 4, "m")
        assert bool(store.made_anew(GROUP, [T0])) == anew
        assert store.begins(GROUP) == ({} if anew else {T0: 2 * COUNT[kind]})
        store.close()


# Release 0.2.0 had no claims in tables.
LOGS: list[Any] = [("directory", "0.2.0"), ("sqlite", "0.2.0"), ("directory", "two_fences"), ("sqlite", "two_fences")]
LOGS += [pytest.param(kind, "two_fences", marks=pytest.mark.slow) for kind in ("delta", "iceberg")]


@pytest.mark.parametrize(("kind", "release"), LOGS, indirect=True)
def test_a_claim_log_goes_on(kind: str, release: str) -> None:
    log, count = make_kept.open_claims(kind), COUNT[kind]
    ranges = {n: {T0: OffsetRange(10 * n, 10 * n + 10)} for n in range(count + 1)}
    want = {f"b{n}": dict(ranges[n]) for n in range(count)}
    want["b0"][T1] = OffsetRange(5, 8)
    assert log.ends() == {T0: 10 * count, T1: 8}
    assert log.winners() == want
    assert (log.repeated("planned"), log.repeated("b0")) == (release != "0.2.0", False)
    for n in (0, count - 1):
        assert log.claim(ranges[n], f"b{n}") == ranges[n], "run again after its claim"
        assert log.claim(ranges[n], "zombie") == {}
    assert log.claim({T0: OffsetRange(10 * count, 10 * count + 5), T1: OffsetRange(5, 9)}, "new") == {
        T0: OffsetRange(10 * count, 10 * count + 5)
    }
    assert log.claim(ranges[count], "too late") == {}
    log.repeat("b0", "b0-driver")
    again = make_kept.open_claims(kind)
    assert again.repeated("b0")
    assert again.ends() == {T0: 10 * count + 5, T1: 8}
    assert claimed(again) == {T0: 10 * count + 5, T1: 3}
    assert again.vacuum(-1) > 0
    if kind != "sqlite":  # which forgets
        assert sorted(again.winners()) == sorted([*want, "new"])
