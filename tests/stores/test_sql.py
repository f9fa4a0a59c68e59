"""SQLStore: the user's connections, whatever they give and whenever their threads end; and blocks that commit."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.errors import IllegalStateError
from managedconsumer.stores import ConflictError, FencedStoreError, Move, Row, SQLStore
from managedconsumer.stores.dialects import DIALECTS
from tests.stores.conftest import TP, messages, slow

Open = Callable[[], SQLStore]


def insert(handle: Any, batch: list[Message]) -> None:
    handle.executemany("insert into results values (?)", [(message.offset,) for message in batch])


def stored(database: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [offset for (offset,) in connection.execute("select n from results order by n")]


class Counting:
    """Makes connections, and knows which are open."""

    def __init__(self, database: Path, **options: Any) -> None:
        self.database, self.options = database, options
        self.open: set[int] = set()
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("create table results (n)")

    def __call__(self) -> sqlite3.Connection:
        counting = self

        class Connection(sqlite3.Connection):
            def close(self) -> None:
                super().close()  # of another thread's it raises
                counting.open.discard(id(self))

        made = sqlite3.connect(self.database, factory=Connection, **{"timeout": 2, **self.options})
        self.open.add(id(made))
        return made


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)


def test_a_thread_that_ends_leaves_no_connection(database: Path) -> None:
    connect = Counting(database)
    store = SQLStore(connect)
    store.claim("g", [TP], 1, "m")
    for n in range(10):
        in_thread(lambda n=n: store.save(messages(n, n + 1), insert))  # type: ignore[misc]
        assert len(connect.open) == 1, "that of this thread"
    assert stored(database) == list(range(10))
    store.close()
    assert not connect.open


@pytest.mark.gevent
def test_a_greenlet_that_ends_leaves_no_connection(database: Path) -> None:
    gevent = pytest.importorskip("gevent")
    connect = Counting(database)
    store = SQLStore(connect, use_greenlets=True)
    store.claim("g", [TP], 1, "m")
    for n in range(5):
        gevent.spawn(lambda n=n: store.save(messages(n, n + 1), insert)).join()
        gevent.sleep(0)  # gevent clears up after the greenlet behind those that wait for its end
        assert len(connect.open) == 1
    store.close()


def test_a_connection_that_was_lost_is_made_again(database: Path) -> None:
    """And the one after it is not taken for it when that one goes."""
    connect = Counting(database)
    store = SQLStore(connect)
    store.claim("g", [TP], 1, "m")
    for n in range(3):
        store.close()
        store.save(messages(n, n + 1), insert)
        assert len(connect.open) == 1
        assert store.load("g", [TP]) == {TP: n + 1}
    store.close()


def test_a_connection_on_which_the_table_cannot_be_made_is_closed(database: Path) -> None:
    connect = Counting(database, timeout=0)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("begin exclusive")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            SQLStore(connect, patience_ms=50).load("g", [TP])
    assert not connect.open


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("row_factory", [as_dict, sqlite3.Row, lambda _cursor, row: list(reversed(row))])
def test_rows_of_the_user_s_own_kind(database: Path, row_factory: Any) -> None:
    Counting(database)

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(database)
        connection.row_factory = row_factory
        return connection

    for generation, first in ((1, 0), (2, 3)):
        store = SQLStore(connect)
        store.claim("g", [TP], generation, "m")
        store.save(messages(0, first + 3), insert)
        with store.transaction(messages(first + 3, first + 3) or {TP: (first + 3, first + 3)}) as handle:
            assert handle.row_factory is row_factory
        store.close()
    assert stored(database) == list(range(6))


@pytest.mark.slow
def test_rows_of_the_user_s_own_kind_in_postgresql(postgresql_database: str) -> None:
    import psycopg.rows

    uri = postgresql_database
    for generation in (1, 2):
        store = SQLStore(lambda: psycopg.connect(uri, row_factory=psycopg.rows.dict_row), "postgresql")
        store.claim("g", [TP], generation, "m")
        with store.transaction({TP: (generation, generation + 1)}) as handle:
            assert handle.execute("select 1 as one").fetchone() == {"one": 1}
        assert store.load("g", [TP]) == {TP: generation + 1}
        store.close()


def commits(handle: Any) -> None:
    insert(handle, messages(0, 1))
    handle.commit()


def commits_and_begins(handle: Any) -> None:
    commits(handle)
    handle.execute("begin")


def rolls_back_and_begins(handle: Any) -> None:
    handle.rollback()
    handle.execute("begin immediate")


def with_connection(handle: Any) -> None:
    with handle:
        insert(handle, messages(0, 1))


def script(handle: Any) -> None:
    handle.executescript("insert into results values (0);")


def script_that_begins(handle: Any) -> None:
    handle.executescript("insert into results values (0); begin;")


ENDING = [commits, commits_and_begins, rolls_back_and_begins, with_connection, script, script_that_begins]


@pytest.fixture
def open_store(database: Path) -> Open:
    connect = Counting(database)
    return lambda: SQLStore(connect)


@pytest.mark.parametrize("block", ENDING)
def test_a_block_that_ends_the_transaction_is_told(open_store: Open, block: Callable[[Any], None]) -> None:
    store = open_store()
    store.claim("g", [TP], 1, "m")
    with pytest.raises(IllegalStateError, match="has ended the store's transaction"):
        store.save(messages(0, 1), lambda handle, _: block(handle))
    assert store.load("g", [TP]) == {}
    store.save(messages(0, 2), insert)
    assert store.load("g", [TP]) == {TP: 2}
    store.close()


@pytest.mark.parametrize("block", ENDING)
def test_a_zombie_s_block_is_not_called(open_store: Open, database: Path, block: Callable[[Any], None]) -> None:
    zombie, heir = open_store(), open_store()
    zombie.claim("g", [TP], 1, "zombie")
    heir.claim("g", [TP], 2, "heir")
    with pytest.raises(FencedStoreError, match="claimed by heir"):
        zombie.save(messages(0, 1), lambda handle, _: block(handle))
    assert stored(database) == []
    zombie.close()
    heir.close()


@pytest.mark.parametrize("block", [commits, with_connection])
def test_what_a_block_has_committed_is_said_though_another_one_claimed_meanwhile(
    open_store: Open, block: Callable[[Any], None]
) -> None:
    """FencedStoreError would say that nothing was stored."""
    store, heir = open_store(), open_store()
    store.claim("g", [TP], 1, "m")

    def both(handle: Any, _: Any) -> None:
        block(handle)
        heir.claim("g", [TP], 2, "heir")

    with pytest.raises(IllegalStateError, match="has ended the store's transaction"):
        store.save(messages(0, 1), both)
    with pytest.raises(FencedStoreError):
        store.save(messages(0, 1), insert)
    store.close()
    heir.close()


def test_a_block_may_have_savepoints_of_its_own(open_store: Open, database: Path) -> None:
    store = open_store()
    store.claim("g", [TP], 1, "m")
    with store.transaction(messages(0, 2)) as handle:
        handle.execute("savepoint a")
        insert(handle, messages(5, 9))
        handle.execute("rollback to a")
        insert(handle, messages(0, 2))
        handle.execute("release a")
    assert stored(database) == [0, 1]
    store.close()


def test_a_connection_in_place_of_a_function(database: Path) -> None:
    """A connection of sqlite3 can be called, too."""
    connection = sqlite3.connect(database)
    with pytest.raises(TypeError, match="a function that makes a connection is needed"):
        SQLStore(connection)  # type: ignore[arg-type]
    connection.close()
    with pytest.raises(TypeError, match="a function that makes a connection"):
        SQLStore("shop.db")  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [None, 5, 20])
def test_a_move_is_made_from_the_offset_that_it_names(offset: int | None) -> None:
    """A commit that was still under way has moved it: the statement itself must see that, in every database."""
    dialect = DIALECTS["sqlite"]("offsets", 0)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        dialect.prepare(connection)
        dialect.create(connection)
        dialect.insert(connection, ("g", *TP), (1, 1, "m"))
        assert dialect.move(connection, "g", {TP: Move(Row(None, 1, 1, "m"), 10)}) == 1
        for row in (Row(offset, 1, 1, "m"), Row(10, 2, 1, "m"), Row(10, 1, 1, "another")):
            assert dialect.move(connection, "g", {TP: Move(row, 30)}) == 0
        assert dialect.move(connection, "g", {TP: Move(Row(10, 1, 1, "m"), 30)}) == 1


@pytest.mark.parametrize("count", [1, slow("1"), slow("3")])
def test_a_commit_that_is_still_under_way_counts_once(
    count: int | str, database: Path, request: pytest.FixtureRequest
) -> None:
    """The client has given its connection up and tries again; the server commits the first transaction meanwhile."""
    if isinstance(count, str):
        import psycopg

        uri = request.getfixturevalue("postgresql_database")
        store = SQLStore(lambda: psycopg.connect(uri), "postgresql")
    else:
        store = SQLStore(lambda: sqlite3.connect(database, timeout=5, check_same_thread=False))
    tps = [TopicPartition("orders", n) for n in range(int(count))]
    store.claim("g", tps, 1, "m")
    moves = {tp: Move(row, 5) for tp, row in store.rows("g", tps).items()}
    opened, refused = threading.Event(), []

    def again() -> None:
        opened.wait(60)
        try:
            with store.writing("g", moves):
                pass
        except ConflictError as error:
            refused.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    with store.writing("g", moves):
        opened.set()
    thread.join(60)
    assert len(refused) == 1
    assert store.load("g", tps) == dict.fromkeys(tps, 5)
    store.close()
