"""DirectoryStore: what NFS, other writers and a power cut do to its files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import Message
from managedconsumer.stores import DirectoryStore
from managedconsumer.stores.objects import LocalObjects
from tests.stores.conftest import OTHER, TP, messages


def write(handle: Path, batch: list[Message]) -> None:
    (handle / "offsets").write_text(" ".join(str(message.offset) for message in batch))


def stored(store: DirectoryStore) -> list[int]:
    return [int(n) for at in store.data() for n in (at / "offsets").read_text().split()]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    made = DirectoryStore(tmp_path / "results", patience_ms=2000)
    made.claim("g", [TP], 1, "m")
    return made


@pytest.mark.parametrize("answer", [errno.EEXIST, errno.EIO, errno.ESTALE])
def test_a_link_whose_answer_was_lost_counts_with_its_results(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    """NFS repeats the call, and the server says EEXIST about the link that the first one has made."""
    link, lose = os.link, [True]

    def linked(source: Any, target: Any) -> None:
        link(source, target)
        if lose and lose.pop():
            raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(os, "link", linked)
    store.save(messages(0, 5), write)
    lose.append(True)
    store.save(messages(5, 10), write)
    lose.append(True)
    store.claim("g", [TP], 2, "m")
    store.save(messages(10, 12), write)
    assert stored(store) == list(range(12))
    assert store.load("g", [TP]) == {TP: 12}


def test_an_empty_transaction_beside_another_writer(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its messages were filtered out, and another process was faster with its change."""
    other = DirectoryStore(tmp_path / "results")
    other.claim("g", [OTHER], 1, "other")
    look, changes = store.look, iter(range(3))

    def looked() -> Any:
        version = look()
        for n in changes:
            with other.transaction({OTHER: (n, n + 1)}, group="g") as directory:
                (directory / "offsets").write_text("")
            break
        return version

    monkeypatch.setattr(store, "look", looked)
    with store.transaction(messages(0, 3)):
        pass
    assert store.load("g", [TP, OTHER]) == {TP: 3, OTHER: 3}
    assert len(store.data()) == 3 == len(list((tmp_path / "results" / "data").iterdir())), "no empty directory is left"


class Disk:
    """Sees what is written through to the disk, and when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        fsync, link = os.fsync, os.link

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            self.events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))

        def linked(source: Any, target: Any) -> None:
            self.events.append(("link", str(target)))
            link(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "link", linked)

    def since(self, call: Callable[[], object]) -> list[tuple[str, str]]:
        self.events.clear()
        call()
        return list(self.events)


def test_all_is_on_the_disk_before_a_transaction_counts(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and their names before the change that makes them count, the change's name before success."""
    disk = Disk(monkeypatch)
    home = store.path
    events = disk.since(lambda: store.save(messages(0, 5), write))
    (results,) = store.data()
    linked = events.index(("link", str(home / "_log" / f"{2:020d}.json")))
    before, after = events[:linked], events[linked + 1 :]
    for name in (results / "offsets", results, home / "data", home):
        assert ("sync", str(name)) in before
    assert before.index(("sync", str(results / "offsets"))) < before.index(("sync", str(results)))
    assert before[-1][0] == "sync" and f"{home}/_log/." in before[-1][1], "the change itself"
    assert after == [("sync", str(home / "_log"))]
    events = disk.since(lambda: store.claim("g", [TP], 2, "m"))
    assert events[-1] == ("sync", str(home / "_log"))


def test_the_names_of_new_directories_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    where = tmp_path / "a" / "b"
    want = {("sync", str(path)) for path in (where, tmp_path / "a", tmp_path)}
    assert want <= set(disk.since(lambda: DirectoryStore(where)))
    assert ("sync", str(where)) in disk.since(lambda: DirectoryStore(where)), (
        "another process may have made it just now"
    )


def test_an_object_that_is_there_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that made it has ended before it wrote the name through."""
    disk = Disk(monkeypatch)
    objects = LocalObjects(tmp_path)
    assert disk.since(lambda: objects.create("x/one", b"1"))[-1] == ("sync", str(tmp_path))
    made: list[bool] = []
    for again in (objects, LocalObjects(tmp_path)):
        events = disk.since(lambda again=again: made.append(again.create("x/one", b"1")))  # type: ignore[misc]
        assert ("sync", str(tmp_path / "x")) in events
    assert made == [False, False]
