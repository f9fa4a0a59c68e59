"""A store that has lost its last transactions: nothing is passed over, and after a new claim nothing is missing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from managedconsumer.errors import IllegalStateError
from managedconsumer.stores import FencedStoreError, StoreWentBackError
from tests.stores import kinds
from tests.stores.conftest import OTHER, TP, Storage, messages, slow
from tests.stores.pasts import keep


class Shop:
    """A storage with one store object that lives through all of it."""

    def __init__(self, storage: Storage) -> None:
        self.kind, self.where, self.rows = storage.kind, storage.where, storage.rows
        self.open = partial(storage.open, patience_ms=2000)
        self.store = self.open()
        # DuckDB's file is closed with its last connection.
        self.store.load("g", [TP])

    def put(self, how: str, first: int, end: int) -> None:
        batch = messages(first, end)
        if how == "save":
            self.store.save(batch, kinds.write, group="g")
        else:
            with self.store.transaction(batch, group="g") as handle:
                kinds.write(handle, batch)


@pytest.fixture
def shop(storage: Storage) -> Shop:
    return Shop(storage)


@pytest.mark.parametrize("how", ["save", "transaction"])
@pytest.mark.parametrize("lost", ["transactions", "the claim, too", "all"])
def test_no_message_is_passed_over(shop: Shop, how: str, lost: str) -> None:
    """The object knows 20, and the store is at 10, or at nothing."""
    store = shop.store
    back = keep(shop.kind, shop.where)
    store.claim("g", [TP], 1, "m")
    if lost != "all":
        shop.put(how, 0, 10)
        back = keep(shop.kind, shop.where)
    if lost == "the claim, too":
        store.claim("g", [TP], 2, "m")
    shop.put(how, 10 if lost != "all" else 0, 20)
    back()
    begin = None if lost == "all" else 10
    with pytest.raises(StoreWentBackError, match="the store went back") as raised:
        shop.put(how, 20, 30)
    assert raised.value.next_offsets == {TP: begin}
    for first in (20, 30):  # a loop that goes on all the same
        with pytest.raises((FencedStoreError, IllegalStateError), match="the store went back"):
            shop.put(how, first, first + 10)
    assert shop.rows() == list(range(begin or 0))
    store.claim("g", [TP], 3, "m")
    assert store.claimed("g") == {TP: begin}
    with pytest.raises(IllegalStateError, match="would be lost"):  # in the hand of another thread
        shop.put(how, 30, 40)
    shop.put(how, begin or 0, 20)
    shop.put(how, 20, 40)
    assert shop.rows() == list(range(40))
    assert shop.open().load("g", [TP]) == {TP: 40}


def test_a_claim_finds_it_and_what_is_in_flight_is_refused(shop: Shop) -> None:
    """The partition was given up and came back, and the store has lost what it had in between."""
    store = shop.store
    store.claim("g", [TP, OTHER], 1, "m")
    shop.put("save", 0, 10)
    back = keep(shop.kind, shop.where)
    shop.put("save", 10, 20)
    store.give_up("g", [TP])
    back()
    store.claim("g", [TP], 2, "m")
    with pytest.raises(IllegalStateError, match="had them up to offset 20"):
        shop.put("save", 20, 30)
    shop.put("save", 10, 30)
    store.save(messages(0, 3, OTHER), kinds.write, group="g")  # of which nothing was lost
    assert shop.rows() == sorted([*range(30), 0, 1, 2])


def test_an_heir_goes_on_where_the_store_is(shop: Shop) -> None:
    """And who had the partition before is fenced, whatever it knew."""
    store = shop.store
    store.claim("g", [TP], 1, "m")
    shop.put("save", 0, 10)
    back = keep(shop.kind, shop.where)
    shop.put("save", 10, 20)
    back()
    heir = shop.open()
    heir.claim("g", [TP], 2, "heir")
    assert heir.claimed("g") == {TP: 10}
    heir.save(messages(10, 15), kinds.write, group="g")
    with pytest.raises(FencedStoreError, match="claimed by"):
        shop.put("save", 20, 30)
    heir.save(messages(15, 30), kinds.write, group="g")
    assert shop.rows() == list(range(30))


def test_other_changes_after_the_loss(shop: Shop) -> None:
    """Another process was at work on the old state before this one noticed."""
    store = shop.store
    store.claim("g", [TP], 1, "m")
    shop.put("save", 0, 10)
    back = keep(shop.kind, shop.where)
    shop.put("save", 10, 20)
    back()
    other = shop.open()
    other.claim("g", [OTHER], 1, "other")
    for first in range(0, 6, 2):  # as many changes as were lost, and more
        other.save(messages(first, first + 2, OTHER), kinds.write, group="g")
    with pytest.raises(StoreWentBackError):
        shop.put("save", 20, 30)
    store.claim("g", [TP], 2, "m")
    shop.put("save", 10, 30)
    other.save(messages(6, 8, OTHER), kinds.write, group="g")
    assert shop.rows() == sorted([*range(30), *range(8)])
    assert shop.open().load("g", [TP, OTHER]) == {TP: 30, OTHER: 8}


def restore(kind: str, where: str, rows: int) -> None:
    """As an engineer puts a table back by its own means: to where it had so many rows."""
    if kind == "delta":
        from deltalake import DeltaTable

        newest = DeltaTable(where).version()
        for number in range(newest, -1, -1):
            table = DeltaTable(where, version=number)
            if table.to_pyarrow_table().num_rows == rows:
                DeltaTable(where).restore(number)
                return
    else:
        store: Any = kinds.open_store(kind, where)
        table = store.look()
        for snapshot in reversed(table.metadata.snapshots):
            if table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == rows:
                table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
                return
    raise AssertionError("there was no such version")


tables = pytest.mark.parametrize("storage", [slow("delta"), slow("iceberg")], indirect=True)


@tables
@pytest.mark.parametrize("who", ["the owner", "a new process"])
def test_a_table_that_was_put_back_takes_its_offsets_with_it(shop: Shop, who: str) -> None:
    """RESTORE of Delta and rollback of Iceberg put rows back, and neither transactions nor properties."""
    store = shop.store
    store.claim("g", [TP, OTHER], 1, "m")
    shop.put("save", 0, 10)
    store.save(messages(0, 5, OTHER), kinds.write, group="g")
    shop.put("save", 10, 20)
    store.save(messages(5, 9, OTHER), kinds.write, group="g")
    restore(shop.kind, shop.where, 15)
    if who == "the owner":
        with pytest.raises(StoreWentBackError):
            shop.put("save", 20, 30)
    else:
        shop.store = store = shop.open()
    store.claim("g", [TP], 2, "m")  # and the other one later
    assert store.load("g", [TP, OTHER]) == {TP: 10, OTHER: 5}
    shop.put("save", 10, 30)
    store.claim("g", [OTHER], 2, "m")
    assert store.claimed("g") == {TP: 30, OTHER: 5}
    store.save(messages(5, 9, OTHER), kinds.write, group="g")
    assert shop.rows() == sorted([*range(30), *range(9)])
    assert shop.open().load("g", [TP, OTHER]) == {TP: 30, OTHER: 9}
    restore(shop.kind, shop.where, 15)  # once more, to before the first one
    fresh = shop.open()
    assert fresh.load("g", [TP, OTHER]) == {TP: 10, OTHER: 5}


@tables
def test_a_table_that_was_put_back_to_before_all(shop: Shop) -> None:
    store = shop.store
    store.claim("g", [TP], 1, "m")
    shop.put("save", 0, 10)
    restore(shop.kind, shop.where, 0)
    with pytest.raises(StoreWentBackError) as raised:
        shop.put("save", 10, 20)
    assert raised.value.next_offsets == {TP: None}
    store.claim("g", [TP], 2, "m")
    shop.put("save", 0, 20)
    assert shop.rows() == list(range(20))
