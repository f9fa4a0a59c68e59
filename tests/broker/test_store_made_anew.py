"""A topic of a real broker that is deleted and created again, under consumers that keep their offsets in a store."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.stores import SQLStore
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import write
from tests.processing.test_running import Going
from tests.waiting import until

OLD = [f"0-{n}" for n in range(9)]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], SQLStore]]:
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("create table results (value text)")
    connection.close()
    made: list[SQLStore] = []

    def make() -> SQLStore:
        made.append(SQLStore(lambda: sqlite3.connect(tmp_path / "db")))
        return made[-1]

    yield make
    for store in made:
        store.close()


def insert(handle: Any, batch: list[Any]) -> None:
    handle.executemany("insert into results values (?)", [(m.value.decode(),) for m in batch])


def results(store: SQLStore) -> list[str]:
    connection = store.connect()
    cursor = connection.cursor()
    cursor.execute("select value from results order by rowid")
    found = [value for (value,) in cursor.fetchall()]
    connection.close()
    return found


@pytest.mark.since("2.8")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_nothing_of_the_new_topic_is_passed_over(
    kafka44: DevBroker,
    topic: Callable[..., str],
    unique: Callable[[str], str],
    open_store: Callable[[], SQLStore],
    protocol: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, group = topic(kafka44, 1), unique("group")
    write(kafka44, name, 1, 9)

    def going_on(store: SQLStore) -> Going:
        consumer = ManagedBalancedConsumer(
            name, kafka44.bootstrap, group, group_protocol=protocol, auto_offset_reset="earliest", auto_start=False
        )
        store.attach(consumer)
        consumer.start()
        return Going(consumer, lambda batch: store.save(batch, insert), order="partition", batch=(4, 10))

    def make_anew(count: int, value: str) -> list[str]:
        """Between two looks at the metadata."""
        kafka44.delete_topic(name)
        kafka44.create_topic(name, 1)
        write(kafka44, name, 1, count, value=value)
        return [f"0-{n}{value}" for n in range(count)]

    store, wanted = open_store(), list(OLD)

    def done() -> bool:
        assert going.error is None, going.error
        return len(results(store)) >= len(wanted)

    going = going_on(store)
    try:
        until(done, 60, lambda: str(results(store)))
        wanted += make_anew(5, "while it runs")
        until(done, 60, lambda: str(results(store)))
    finally:
        going.stop()
    wanted += make_anew(3, "while nobody runs")
    store = open_store()
    going = going_on(store)
    try:
        with caplog.at_level(logging.WARNING):
            until(done, 60, lambda: str(results(store)))
    finally:
        going.stop()
    assert results(store) == wanted
    assert any("these offsets do not count. It is read from" in text for text in caplog.messages)
