"""A topic that is deleted and created again: a store's offsets of the one before do not count for it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.errors import IllegalStateError
from managedconsumer.stores import AlreadyStoredError, ConflictError, FencedStoreError, Move, Row, SQLStore, Store
from managedconsumer.stores.rows import topic_bytes, topic_text, with_topic
from managedconsumer.testing import check_store
from tests.stores import conftest, kinds
from tests.stores.conftest import TP, Storage

OLD, NEW = bytes(range(16)), bytes(range(200, 216))


def messages(first: int, end: int, topic_id: bytes | None = OLD) -> list[Message]:
    return conftest.messages(first, end, TP, topic_id)


def claimed(store: Store, generation: int, topic_id: bytes | None = None) -> Store:
    if topic_id is not None:
        store.tell_topics("g", {TP: topic_id})
    store.claim("g", [TP], generation, f"m{generation}")
    return store


# -- the text -------------------------------------------------------------------------------------------------------


def test_the_id_stands_behind_the_members_name() -> None:
    text = topic_text(OLD)
    assert (len(text), topic_bytes(text)) == (22, OLD)
    row = Row(5, 1, 7, with_topic("m (x) ", text))
    assert (row.owner, row.topic) == ("m (x) ", text)
    assert row.member == f"m (x)  (topic {text})"
    assert (row.next_in(text), row.next_in(""), row.next_in(topic_text(NEW))) == (5, 5, None)
    plain = row._replace(member="m (x) ")
    assert (plain.topic, plain.next_in(text)) == ("", 5)
    assert row.same_owner(plain)
    assert not row.same_owner(row._replace(member="m"))
    assert topic_text(None) == ""


def test_a_name_without_room_for_the_id_is_left_alone() -> None:
    """The column of a database takes 512 characters."""
    text = topic_text(OLD)
    assert Row(0, 1, 1, with_topic("m" * 481, text)).topic == text
    assert len(with_topic("m" * 481, text)) == 512
    assert with_topic("m" * 482, text) == "m" * 482


def test_a_move_is_what_it_was() -> None:
    row = Row(5, 1, 7, "m")
    old, end = move = Move(row, 9)
    assert (old, end, move.member) == (row, 9, "m")
    assert Move(row, 9, "m (topic)").member == "m (topic)"


# -- stores ---------------------------------------------------------------------------------------------------------


def test_what_is_stored_of_a_topic_that_is_gone_does_not_count(storage: Storage) -> None:
    first = claimed(storage.open(), 1, OLD)
    first.save(messages(0, 5), kinds.write)
    again = claimed(storage.open(), 2, OLD)
    assert (again.claimed("g"), again.made_anew("g", [TP])) == ({TP: 5}, {})

    dies = claimed(storage.open(), 3, NEW)  # a claim alone changes nothing
    assert dies.claimed("g") == {TP: None}
    store = claimed(storage.open(), 4, NEW)
    assert (store.claimed("g"), store.begins("g")) == ({TP: None}, {})
    text = store.made_anew("g", [TP])[TP]
    assert f"the store has messages up to offset 5 of orders-0, of the topic with id {topic_text(OLD)}" in text
    assert f"has id {topic_text(NEW)} now" in text
    store.save(messages(0, 3, NEW), kinds.write)
    assert (store.claimed("g"), store.made_anew("g", [TP])) == ({TP: 3}, {})
    store.save(messages(0, 4, NEW), kinds.write)
    with pytest.raises(FencedStoreError, match=f"of the topic with id {topic_text(OLD)}, which was deleted"):
        store.save(messages(4, 6, OLD), kinds.write)
    with pytest.raises(FencedStoreError, match="were claimed by"):
        again.save(messages(5, 7, OLD), kinds.write)
    last = claimed(storage.open(), 5, NEW)
    assert last.claimed("g") == {TP: 4}
    assert storage.rows() == sorted([*range(5), *range(4)])


@pytest.mark.parametrize("end", [3, 5, 8])
def test_it_is_noticed_by_the_messages(storage: Storage, end: int) -> None:
    """The topic is made anew while the store is used: also where the new one is as far as the old one was."""
    store = claimed(storage.open(), 1)
    store.save(messages(0, 5), kinds.write)
    with store.transaction(messages(0, end, NEW)) as handle:
        kinds.write(handle, messages(0, end, NEW))
    assert store.load("g", [TP]) == {TP: end}
    heir = claimed(storage.open(), 2, NEW)
    assert heir.claimed("g") == {TP: end}
    assert storage.rows() == sorted([*range(5), *range(end)])


def test_a_row_without_an_id_is_believed(storage: Storage) -> None:
    """As version 0.2.0 has written it, or a consumer whose brokers tell no ids. The next commit says which topic."""
    old = claimed(storage.open(), 1)
    old.save(messages(0, 5, None), kinds.write)
    assert old.rows("g", [TP])[TP].topic == ""
    store = claimed(storage.open(), 2, NEW)
    assert (store.begins("g"), store.made_anew("g", [TP])) == ({TP: 5}, {})
    store.save(messages(3, 7, NEW), kinds.write)
    row = store.rows("g", [TP])[TP]
    assert (row.next, row.topic, row.owner) == (7, topic_text(NEW), store.member_name("m2"))
    # Version 0.2.0 comes back: it claims without an id, and stores of whatever topic there is.
    old.swap("g", {TP: (row, Row(None, row.claim + 1, 3, old.member_name("m3")))})
    assert (old.rows("g", [TP])[TP].next, old.rows("g", [TP])[TP].topic) == (7, "")
    last = claimed(storage.open(), 4, OLD)
    assert last.begins("g") == {TP: 7}
    assert storage.rows() == list(range(7))


def test_what_is_stored_without_an_id_is_of_no_known_topic(storage: Storage) -> None:
    store = claimed(storage.open(), 1)
    store.save(messages(0, 5, OLD), kinds.write)
    other = claimed(storage.open(), 2)
    assert other.rows("g", [TP])[TP].topic == topic_text(OLD), "a claim keeps it"
    other.save({TP: (5, 8)}, lambda *_: None)
    row = other.rows("g", [TP])[TP]
    assert (row.next, row.topic) == (8, "")


# -- transactions ---------------------------------------------------------------------------------------------------


class Deaf(SQLStore):
    """The answers to its commits get lost, or the commits themselves."""

    lost = ""

    @contextmanager
    def writing(self, group: str, moves: Any) -> Iterator[Any]:
        if not self.lost:
            with super().writing(group, moves) as handle:
                yield handle
            return
        if self.lost == "the answer":
            with super().writing(group, moves) as handle:
                yield handle
        else:
            with closing(self.connect()) as connection:
                yield connection
        self.lost = ""
        raise OSError("lost")


@pytest.mark.parametrize("lost", ["the answer", "the commit"])
def test_a_commit_whose_end_is_not_known(tmp_path: Path, lost: str) -> None:
    """The new topic's messages end where the old ones did: the offset is the same before the commit and after it."""
    where = str(tmp_path / "db")
    kinds.make("sqlite", where)
    store = Deaf(lambda: sqlite3.connect(where))
    claimed(store, 1).save(messages(0, 5), kinds.write)
    store.lost = lost
    store.save(messages(0, 5, NEW), kinds.write)
    store.save(messages(0, 6, NEW), kinds.write)
    store.close()
    assert sorted(offset for _, offset in kinds.stored("sqlite", where)) == sorted([*range(5), *range(6)])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLStore]:
    kinds.make("sqlite", str(tmp_path / "db"))
    made = SQLStore(lambda: sqlite3.connect(tmp_path / "db"))
    claimed(made, 1, OLD).save(messages(0, 5), kinds.write)
    yield made
    made.close()


def test_messages_of_two_topics_are_not_stored_together(store: SQLStore) -> None:
    both = [*messages(5, 9), *messages(0, 2, NEW)]
    for _ in range(2):
        with pytest.raises(FencedStoreError, match="are of several topics") as raised:
            store.save(both, kinds.write)
    assert raised.value.partitions == (TP,)
    with pytest.raises(IllegalStateError, match="would be lost"):  # those that were refused come first
        store.save(messages(2, 4, NEW), kinds.write)
    assert store.begins("g") == {TP: 0}
    store.save(messages(0, 4, NEW), kinds.write)
    assert store.load("g", [TP]) == {TP: 4}


def test_what_was_undone_of_the_old_topic_is_not_owed(store: SQLStore) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction(messages(5, 7)):
        raise ZeroDivisionError
    assert store.begins("g") == {TP: 5}
    store.save(messages(20, 22, NEW), kinds.write)
    assert store.claimed("g") == {TP: 22}


def test_gaps_of_the_old_topic_are_not_those_of_the_new_one(store: SQLStore) -> None:
    store.save(messages(8, 9), kinds.write)
    with pytest.raises(IllegalStateError, match="comes after later ones"):
        store.save(messages(6, 7), kinds.write)
    store.save(messages(0, 9, NEW), kinds.write)
    store.save(messages(6, 7, NEW), kinds.write)  # again
    with pytest.raises(AlreadyStoredError), store.transaction(messages(6, 7, NEW)):
        pass


def test_a_new_claim_remembers_nothing_of_the_old_topic(store: SQLStore) -> None:
    """Otherwise the smaller offset would look as if the store had lost something."""
    heir = claimed(SQLStore(store.connect), 2, NEW)
    heir.save(messages(0, 2, NEW), kinds.write)
    heir.close()
    claimed(store, 3, NEW)
    assert store.begins("g") == {TP: 2}
    store.save(messages(30, 31, NEW), kinds.write)


def test_a_past_with_the_old_topic_comes_back(store: SQLStore, tmp_path: Path) -> None:
    """What was stored of the new topic is read again, from where that began."""
    with sqlite3.connect(tmp_path / "db") as kept:
        dump = "\n".join(kept.iterdump())
    kept.close()
    store.save(messages(3, 5, NEW), kinds.write)
    store.close()
    (tmp_path / "db").unlink()
    with sqlite3.connect(tmp_path / "db") as back:
        back.executescript(dump)
    back.close()
    claimed(store, 2, NEW)
    assert store.begins("g") == {TP: 3}
    with pytest.raises(IllegalStateError, match="the store went back: it has no messages"):
        store.save(messages(5, 7, NEW), kinds.write)
    store.save(messages(3, 7, NEW), kinds.write)
    assert store.claimed("g") == {TP: 7}


# -- a store of the user's own -----------------------------------------------------------------------------------------


class OwnStore(Store):
    """As one was written for version 0.2.0: it unpacks rows and moves, and knows no ids."""

    kept: dict[Any, tuple[Any, ...]]

    def __init__(self, kept: dict[Any, tuple[Any, ...]], results: list[bytes], lock: Any) -> None:
        super().__init__()
        self.kept, self.results, self.lock = kept, results, lock

    def rows(self, group: str, tps: Any) -> dict[TopicPartition, Row]:
        with self.lock:
            return {tp: Row(*self.kept[group, tp]) for tp in tps if (group, tp) in self.kept}

    def swap(self, group: str, changes: Any) -> bool:
        with self.lock:
            for tp, (old, _) in changes.items():
                if self.kept.get((group, tp), (None, None, None, None))[1::2] != (
                    (None, None) if old is None else (old.claim, old.member)
                ):
                    return False
            for tp, (_, (_, *owner)) in changes.items():
                self.kept[group, tp] = (self.kept.get((group, tp), (None,))[0], *owner)
            return True

    @contextmanager
    def writing(self, group: str, moves: Any) -> Iterator[Any]:
        out: list[bytes] = []
        yield out
        with self.lock:
            for tp, (row, _) in moves.items():
                if self.kept.get((group, tp)) != tuple(row):
                    raise ConflictError("not ours")
            changed = {(group, tp): (end, *self.kept[group, tp][1:]) for tp, (_, end) in moves.items()}
            self.kept |= changed
            self.results += out


def test_a_store_that_knows_no_ids_works_as_before() -> None:
    kept: dict[Any, tuple[Any, ...]] = {}
    found: list[bytes] = []
    lock = threading.Lock()

    def write(handle: list[bytes], batch: list[Message]) -> None:
        handle += [m.value for m in batch]

    check_store(lambda: OwnStore(kept, found, lock), write, lambda: list(found), walks=2, steps=20)
    store = claimed(OwnStore(kept, found, lock), 1, OLD)
    store.save(messages(0, 5), write)
    assert kept["g", TP] == (5, 1, 1, "m1")
    heir = claimed(OwnStore(kept, found, lock), 2, NEW)
    assert (heir.begins("g"), heir.made_anew("g", [TP])) == ({TP: 5}, {})
    with pytest.raises(AlreadyStoredError), heir.transaction(messages(0, 2, NEW)):
        pass
    heir.save(messages(5, 6, NEW), write)
