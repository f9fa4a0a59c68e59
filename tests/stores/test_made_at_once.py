"""Processes that start at the same moment, where there is no table yet: one makes it, and all of them use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import TopicPartition
from tests.stores.conftest import slow
from tests.stores.kinds import open_store

TPS = [TopicPartition("orders", number) for number in range(4)]


@pytest.fixture
def new_place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """``new_place(kind, round)``: where nothing was made yet."""

    def place(kind: str, number: int) -> str:
        if kind != "postgresql":
            return str(tmp_path / str(number))
        server = request.getfixturevalue("postgresql")
        server.psql("drop table if exists managedconsumer_offsets")
        return str(server.get_uri())

    yield place


@pytest.mark.parametrize("kind", [slow("sqlite"), "directory", slow("delta"), slow("postgresql")])
def test_stores_that_are_opened_at_once(new_place: Any, kind: str) -> None:
    problems: list[BaseException] = []
    for number in range(10):
        where, together = new_place(kind, number), threading.Barrier(len(TPS))

        def start(tp: TopicPartition, where: str = where, together: threading.Barrier = together) -> None:
            together.wait(60)
            try:
                store = open_store(kind, where)
                store.claim("g", [tp], 1, "m")
                store.close()
            except Exception as problem:  # noqa: BLE001 - the test's own thread looks at it
                problems.append(problem)

        threads = [threading.Thread(target=start, args=(tp,)) for tp in TPS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert problems == []
        store = open_store(kind, where)
        assert sorted(store.rows("g", TPS)) == TPS
        store.close()
