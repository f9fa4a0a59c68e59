"""Claims: of two batches with the same offsets one counts, whoever was slow, killed or run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.claims.chains import ClaimStore
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.structs import TopicPartition

TP = TopicPartition("page-views", 3)


def test_a_chain_of_claims(tmp_path: Path) -> None:
    store = ClaimStore(tmp_path)
    assert store.end(TP) is None
    assert store.claim(TP, OffsetRange(10, 20), "data/a")
    assert store.claim(TP, OffsetRange(20, 25), "data/b")
    assert [(c.start, c.stop, c.data) for c in store.chain(TP)] == [(10, 20, "data/a"), (20, 25, "data/b")]
    assert (store.end(TP), store.claimed()) == (25, {TP: 15})
    assert ClaimStore(tmp_path.as_uri()).end(TP) == 25


def test_the_second_claim_of_the_same_offsets_fails(tmp_path: Path) -> None:
    owner, zombie = ClaimStore(tmp_path), ClaimStore(tmp_path)
    assert owner.claim(TP, OffsetRange(0, 20), "data/owner")
    assert not zombie.claim(TP, OffsetRange(0, 12), "data/zombie")
    assert owner.winners() == {"data/owner": {TP}}


def test_the_owner_follows_a_zombies_claim_where_it_was_first(tmp_path: Path) -> None:
    owner, zombie = ClaimStore(tmp_path), ClaimStore(tmp_path)
    assert owner.claim(TP, OffsetRange(0, 20), "data/1")
    assert zombie.claim(TP, OffsetRange(20, 26), "data/z")
    assert not owner.claim(TP, OffsetRange(20, 40), "data/2")
    assert owner.end(TP) == 26
    assert owner.winners() == {"data/1": {TP}, "data/z": {TP}}


def test_a_claim_that_the_chain_does_not_reach_does_not_count(tmp_path: Path) -> None:
    store = ClaimStore(tmp_path)
    store.claim(TP, OffsetRange(0, 10), "data/1")
    store.claim(TP, OffsetRange(15, 20), "data/astray")
    assert store.end(TP) == 10
    assert store.winners() == {"data/1": {TP}}


def test_a_batch_that_runs_again_after_its_claims_may_claim_again(tmp_path: Path) -> None:
    store = ClaimStore(tmp_path)
    assert store.claim(TP, OffsetRange(0, 10), "data/1")
    assert store.claim(TP, OffsetRange(0, 10), "data/1")
    assert not store.claim(TP, OffsetRange(0, 10), "data/1-again")


def test_empty_ranges_need_no_claim(tmp_path: Path) -> None:
    assert ClaimStore(tmp_path).claim(TP, OffsetRange(7, 7), "data/1")
    assert ClaimStore(tmp_path).partitions() == []


def test_many_processes_claim_the_same_ranges_and_each_is_won_once(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from managedconsumer.spark.claims.chains import ClaimStore\n"
        "from managedconsumer.spark.ranges import OffsetRange\n"
        "from managedconsumer.structs import TopicPartition\n"
        "store, me = ClaimStore(sys.argv[1]), sys.argv[2]\n"
        "won = [n for n in range(60) if store.claim(TopicPartition('t', 0), OffsetRange(n, n + 1), 'data/' + me)]\n"
        "print(len(won))\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    assert sum(int(worker.communicate(timeout=60)[0]) for worker in workers) == 60
    assert ClaimStore(tmp_path).end(TopicPartition("t", 0)) == 60
    assert not list(tmp_path.rglob(".*")), "no drafts are left over"


def test_only_local_directories() -> None:
    with pytest.raises(ConfigurationError, match="local"):
        ClaimStore("s3a://bucket/views")


@pytest.mark.parametrize("name", ["../../../outside", "..", ".", "a/b", "", "x" * 250, "a\nb"])
def test_a_brokers_topic_name_is_no_way_out_of_the_directory(name: str, tmp_path: Path) -> None:
    """With a pattern the names are the broker's, and nobody has checked them."""
    store = ClaimStore(tmp_path / "a" / "store")
    tp = TopicPartition(name, 0)
    for use in (lambda: store.claim(tp, OffsetRange(0, 5), "data/x"), lambda: store.end(tp), lambda: store.root(tp)):
        with pytest.raises(ConfigurationError, match="is no legal topic name"):
            use()
    assert list(tmp_path.rglob("*.json")) == []


def test_data_is_on_the_disk_before_it_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that survives a power failure without its data would be a hole for good."""
    part = tmp_path / "data" / "000001-ab" / "window=1" / "part-0.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"PAR1")
    done: list[str] = []
    sync, link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        done.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        sync(descriptor)

    def linked(draft: Path, target: Path) -> None:
        done.append(f"claim {target.name}")
        link(draft, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", linked)
    store = ClaimStore(tmp_path)
    assert store.claim(TP, OffsetRange(0, 5), "data/000001-ab")
    claimed = done.index(f"claim {0:019d}.json")
    before, after = done[:claimed], done[claimed:]
    parts = ["data/000001-ab/window=1/part-0.parquet", "data/000001-ab", "data", "."]
    assert [name for name in before if name in parts][: len(parts)] == parts
    assert "_claims/page-views/3" in after
    assert {"_claims/page-views", "_claims"} <= set(done), "the directories of a new topic have names, too"
    seen = len(done)
    assert store.claim(TopicPartition("page-views", 4), OffsetRange(0, 5), "data/000001-ab")
    assert not any("data/" in name for name in done[seen:]), "once for each batch"
