"""Every recipe of docs/processing.rst runs as it stands there."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import Message
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.waiting import until

TEXT = (Path(__file__).parent.parent.parent / "docs" / "processing.rst").read_text(encoding="utf-8")
HEADINGS = ["Slow handlers", "Batches into a database", "Retries and dead letters", "Asyncio", "gevent"]
KEYS = [b"a", b"b", None] * 4


def recipe(heading: str) -> str:
    """The code below a heading; the new group begins at the beginning of the logs."""
    section = re.split(r"\n[^\n]+\n-{4,}\n", TEXT.split(f"\n{heading}\n", 1)[1])[0]
    code = textwrap.dedent(re.split(r"\n\n(?=\S)", section.split("::\n", 1)[1])[0])
    assert code.count('"billing"') == 1
    return code.replace('"billing"', '"billing", auto_offset_reset="earliest"')


def run(heading: str, done: Callable[[dict[str, Any]], bool], **names: Any) -> dict[str, Any]:
    """What the recipe's names are when it was ended by a signal, once all was committed and ``done``."""
    with MemoryBroker({"orders": 2}) as broker:
        for partition in range(2):
            records = [Record(b"%d" % n, key, 1, ()) for n, key in enumerate(KEYS)]
            broker.produce("orders", records, partition=partition)
        space = {"hosts": broker.bootstrap, **names}

        def end() -> None:
            until(lambda: list(broker.committed("billing").values()) == [len(KEYS)] * 2 and done(space), 60)
            os.kill(os.getpid(), signal.SIGTERM)

        watcher = threading.Thread(target=end, daemon=True)
        watcher.start()
        exec(compile(recipe(heading), heading, "exec"), space)
        watcher.join(60)
        assert broker.members("billing") == []
    return space


def test_every_recipe_has_a_test() -> None:
    assert [heading for heading in HEADINGS if f"\n{heading}\n----" in TEXT] == HEADINGS


@pytest.mark.slow
def test_slow_handlers(capsys: pytest.CaptureFixture[str]) -> None:
    paid: list[Any] = []
    run("Slow handlers", lambda _: len(paid) == 24, pay=lambda key, value: paid.append((key, value)))
    assert "24 charged, 0 left" in capsys.readouterr().out
    assert [value for key, value in paid if key == b"a"].count(b"0") == 2


@pytest.mark.slow
def test_batches_into_a_database(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    run("Batches into a database", lambda _: True, path=path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (24,)


@pytest.mark.slow
def test_retries_and_dead_letters() -> None:
    tries: dict[tuple[int, int], int] = {}

    def pay_for(message: Message) -> None:
        place = message.partition_id, message.offset
        tries[place] = tries.get(place, 0) + 1
        if message.offset == 1:
            raise ConnectionError("away")
        if message.offset == 5:
            raise ValueError("nonsense")

    letters: list[Any] = []
    run("Retries and dead letters", lambda _: True, pay_for=pay_for, dead_letters=letters)
    assert sorted(letter[1:3] for letter in letters) == [(0, 1), (0, 5), (1, 1), (1, 5)]
    assert (tries[0, 1], tries[0, 5], tries[0, 0]) == (5, 1, 1)


@pytest.mark.slow
def test_asyncio() -> None:
    sent: list[bytes] = []

    async def send(value: bytes) -> None:
        sent.append(value)

    space = run("Asyncio", lambda _: len(sent) == 24, send=send)
    assert space["summary"].done == 24
    assert space["summary"].reason == "signal"


@pytest.mark.gevent
@pytest.mark.slow
def test_gevent() -> None:
    pytest.importorskip("gevent")
    pages: list[int] = []
    run("gevent", lambda _: len(pages) == 24, fetch_page=lambda message: pages.append(message.offset))
