"""Every store goes through check_store, and does what its users are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.errors import ConfigurationError, IllegalStateError, MissingPackageError
from managedconsumer.stores import AlreadyStoredError, FencedStoreError, SQLStore, Store
from managedconsumer.stores.rows import NO_GROUP
from managedconsumer.testing import check_store
from tests.stores import kinds
from tests.stores.conftest import OTHER, TP, Storage, messages
from tests.stores.pasts import keep

#: Commits of a table take a while, and so does looking at its results.
SIZES = {"DeltaStore": (1, 2), "IcebergStore": (1, 0)}


def test_check_store_finds_nothing(store_factory: Callable[[], Store]) -> None:
    walks, steps = SIZES.get(type(store_factory()).__name__, (1, 15))
    check_store(store_factory, walks=walks, steps=steps)


def test_check_store_finds_nothing_where_transactions_get_lost(storage: Storage) -> None:
    numbers: dict[bytes, tuple[int, int]] = {}  # a result is two numbers there

    def write(handle: Any, batch: list[Message]) -> None:
        rows = [Message(m.value, offset=number_of(m), topic="t", partition_id=0) for m in batch]
        kinds.write(handle, rows)

    def number_of(message: Message) -> int:
        return numbers.setdefault(bytes(message.value), (0, len(numbers)))[1]

    def read() -> list[bytes]:
        values = {place: value for value, place in numbers.items()}
        return [values[place] for place in kinds.stored(storage.kind, storage.where)]

    walks, steps = (1, 2) if storage.kind in ("delta", "iceberg") else (2, 15)
    check_store(storage.open, write, read, keep=lambda: keep(storage.kind, storage.where), walks=walks, steps=steps)


def owner(store: Store, tps: list[TopicPartition] | None = None, generation: int = 1, member: str = "m") -> Store:
    store.claim("g", tps or [TP], generation, member)
    return store


def values(store: SQLStore) -> list[int]:
    connection = store.connect()
    cursor = connection.cursor()
    cursor.execute("select value from results order by value")
    found = [value for (value,) in cursor.fetchall()]
    connection.close()
    return found


@pytest.fixture
def store(sql_factory: Callable[..., SQLStore]) -> SQLStore:
    """One with a table for results."""
    made = sql_factory()
    connection = made.connect()
    connection.cursor().execute("create table results (value integer)")
    connection.commit()
    connection.close()
    return made


def insert(handle: Any, batch: list[Message]) -> None:
    for message in batch:
        handle.execute(f"insert into results values ({message.offset})")


def test_result_and_offset_are_there_together(store: SQLStore) -> None:
    owner(store)
    with store.transaction(messages(0, 3)) as handle:
        insert(handle, messages(0, 3))
    assert values(store) == [0, 1, 2] and store.load("g", [TP, OTHER]) == {TP: 3}


def test_what_was_stored_is_not_stored_again(store: SQLStore) -> None:
    owner(store)
    store.save(messages(0, 3), insert)
    with pytest.raises(AlreadyStoredError) as raised, store.transaction(messages(2, 5)):
        raise AssertionError("the block must not run")
    assert raised.value.next_offsets == {TP: 3}
    store.save(messages(2, 5), insert)
    store.save(messages(0, 5), insert)
    assert values(store) == [0, 1, 2, 3, 4]


def test_nothing_is_passed_over_when_a_transaction_was_undone(store: SQLStore) -> None:
    owner(store, [TP, OTHER])
    with pytest.raises(ZeroDivisionError), store.transaction(messages(0, 3)):
        1 / 0  # noqa: B018
    with pytest.raises(IllegalStateError, match="would be lost"), store.transaction(messages(3, 5)):
        raise AssertionError("the block must not run")
    store.save(messages(0, 2, OTHER), insert)  # it is about its own partition only
    store.save(messages(0, 5), insert)
    assert store.load("g", [TP]) == {TP: 5}


def test_messages_without_a_partition_are_refused(store: SQLStore) -> None:
    """They have no offset that could be kept, so they would be stored again and again."""
    owner(store)
    with pytest.raises(FencedStoreError, match="not claimed"):
        store.save([Message(b"x")], insert)
    assert values(store) == []


def test_two_transactions_of_one_partition_are_refused(store: SQLStore) -> None:
    owner(store)
    with store.transaction(messages(0, 1)), pytest.raises(IllegalStateError, match="open already"):
        store.transaction(messages(1, 2)).__enter__()


def test_a_block_must_not_end_the_transaction(store: SQLStore) -> None:
    owner(store)
    ended = pytest.raises(IllegalStateError, match="has ended the store's transaction")
    with ended, store.transaction(messages(0, 1)) as handle:
        handle.commit()


def test_a_static_member_that_came_back_has_to_prove_itself(
    store: SQLStore, sql_factory: Callable[..., SQLStore]
) -> None:
    """It has the old generation and a new member id; Kafka fences the old one."""
    zombie, fresh = owner(store, generation=7, member="static-1"), sql_factory()
    with pytest.raises(FencedStoreError, match="generation 7"):
        owner(fresh, generation=7, member="static-2")
    asked: list[Any] = []
    fresh.claim("g", [TP], 7, "static-2", proof=asked.append)
    assert asked[0][TP].member == "static-1"
    with pytest.raises(FencedStoreError), zombie.transaction(messages(0, 1)):
        pass
    fresh.save(messages(0, 1), insert)


def test_a_group_that_begins_again_at_generation_1(store: SQLStore, sql_factory: Callable[..., SQLStore]) -> None:
    owner(store, generation=57).save(messages(0, 1), insert)
    fresh = sql_factory()
    fresh.claim("g", [TP], 1, "n", proof=lambda _: None)
    assert fresh.claimed("g") == {TP: 1}
    owner(sql_factory(), generation=2, member="o")  # from here on generations count again
    with pytest.raises(FencedStoreError), fresh.transaction(messages(1, 2)):
        pass


def test_a_proof_does_not_count_when_somebody_claimed_after_it(
    store: SQLStore, sql_factory: Callable[..., SQLStore]
) -> None:
    """Kafka confirmed the membership, then the member was evicted and another one claimed."""
    owner(store, generation=9)
    asked = []

    def proof(_: Any) -> None:
        asked.append(1)
        if len(asked) > 1:
            raise FencedStoreError("Kafka knows this member no more")
        owner(sql_factory(), generation=10, member="heir")

    with pytest.raises(FencedStoreError, match="knows this member no more"):
        sql_factory().claim("g", [TP], 3, "late", proof=proof)


def test_without_a_group_the_newer_claim_counts(store: SQLStore, sql_factory: Callable[..., SQLStore]) -> None:
    old, new = owner(store, generation=NO_GROUP), sql_factory()
    owner(new, generation=NO_GROUP, member="n")
    with pytest.raises(FencedStoreError), old.transaction(messages(0, 1)):
        pass
    owner(old, generation=3)
    with pytest.raises(FencedStoreError, match="outside of the group"):
        owner(new, generation=NO_GROUP, member="n")


def test_many_partitions_in_one_transaction(store: SQLStore) -> None:
    tps = [TopicPartition("orders", n) for n in range(250)]
    owner(store, tps)
    store.save([m for tp in tps for m in messages(0, 1, tp)], insert)
    assert store.load("g", tps) == dict.fromkeys(tps, 1)


def test_arrow_data(store: SQLStore) -> None:
    import pyarrow as pa

    owner(store)
    table = pa.table({"topic": ["orders"] * 4, "partition": [0] * 4, "offset": [0, 1, 2, 3]})
    store.save(table.slice(0, 2), lambda handle, rows: None)
    seen: list[Any] = []
    store.save(table, lambda handle, rows: seen.extend(rows.column("offset").to_pylist()))
    assert seen == [2, 3] and store.load("g", [TP]) == {TP: 4}


class Frame:
    """A data frame of Spark, as far as a store looks at it."""

    def __init__(self, first: int, end: int) -> None:
        import pyarrow as pa

        count = end - first
        self.data = {"topic": ["orders"] * count, "partition": [0] * count, "offset": list(range(first, end))}
        self.table = pa.table(self.data)

    def toArrow(self) -> Any:
        return self.table


def test_foreach_batch(store: SQLStore, sql_factory: Callable[..., SQLStore]) -> None:
    def write(handle: Any, table: Any) -> None:
        for offset in table.column("offset").to_pylist():
            handle.execute(f"insert into results values ({offset})")

    first, second = (each.foreach_batch(write, group="query") for each in (store, sql_factory()))
    first(Frame(0, 3), 0)
    second(Frame(0, 3), 0)  # after a restart the batch runs again
    second(Frame(3, 5), 1)
    first(Frame(2, 7), 1)  # another plan of the same offsets
    second(Frame(0, 0), 2)
    assert values(store) == [0, 1, 2, 3, 4, 5, 6]


def test_a_lock_is_waited_for(tmp_path: Any) -> None:
    import sqlite3

    store = SQLStore(lambda: sqlite3.connect(tmp_path / "db", timeout=0))
    owner(store)
    holder = sqlite3.connect(tmp_path / "db", isolation_level=None, check_same_thread=False)
    holder.execute("begin exclusive")
    timer = threading.Timer(0.3, holder.execute, ["commit"])
    timer.start()
    store.save(messages(0, 1), lambda handle, batch: None)
    timer.join()
    assert store.load("g", [TP]) == {TP: 1}
    holder.execute("begin exclusive")
    hasty = SQLStore(lambda: sqlite3.connect(tmp_path / "db", timeout=0), patience_ms=50)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        hasty.load("g", [TP])
    holder.close()
    store.close()


@pytest.mark.slow
def test_a_process_that_stands_still_keeps_no_locks(postgresql: Any, tmp_path: Any) -> None:
    """PostgreSQL ends its transaction: others can change what it has changed."""
    import psycopg

    uri = postgresql.get_uri()
    with psycopg.connect(uri, autocommit=True) as other:
        other.execute("create table total (n integer)")
        other.execute("insert into total values (0)")
        store = owner(SQLStore(lambda: psycopg.connect(uri), "postgresql", idle_ms=300))
        with pytest.raises(psycopg.Error, match="idle-in-transaction"), store.transaction(messages(0, 1)) as handle:
            handle.execute("update total set n = n + 1")
            other.execute("update total set n = n + 10")
            handle.execute("update total set n = n + 1")
        found = other.execute("select n from total").fetchone()
    store.close()
    assert found == (10,)


class LosesItsAnswer:
    """A connection whose commit arrives, but not its answer."""

    def __init__(self, connection: Any, lose: list[bool]) -> None:
        self.__dict__.update(connection=connection, lose=lose)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.connection, name, value)

    def execute(self, statement: str, *values: Any) -> Any:
        import sqlite3

        found = self.connection.execute(statement, *values)
        if statement == "commit" and self.lose and self.lose.pop():
            raise sqlite3.OperationalError("disk I/O error")
        return found


def test_a_commit_whose_answer_was_lost_counts_once(tmp_path: Any) -> None:
    import sqlite3

    lose: list[bool] = []
    store = SQLStore(lambda: LosesItsAnswer(sqlite3.connect(tmp_path / "db"), lose))
    first = store.connect()
    first.execute("create table results (value integer)")
    first.close()
    owner(store)
    lose.append(True)
    store.save(messages(0, 2), insert)
    lose.append(True)
    with store.transaction(messages(2, 4)) as handle:
        insert(handle, messages(2, 4))
    assert not lose and values(store) == [0, 1, 2, 3]
    store.close()


@pytest.mark.parametrize(("name", "package"), [("DeltaStore", "deltalake"), ("IcebergStore", "pyiceberg")])
def test_a_missing_package_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from managedconsumer import stores

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"pip install 'managedconsumer\["):
        getattr(stores, name)("somewhere")


@pytest.mark.slow
def test_a_delta_table_that_is_not_there_is_told_with_the_remedy(tmp_path: Any) -> None:
    pytest.importorskip("deltalake")
    from managedconsumer.stores import DeltaStore

    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigurationError, match=r"there is no Delta table.*schema=pyarrow\.schema\("):
            DeltaStore(path)
    assert list(tmp_path.iterdir()) == []
