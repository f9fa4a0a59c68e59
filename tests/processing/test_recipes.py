"""Every recipe of docs/howto/processing.rst runs as it stands there."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.pages import text_of
from tests.waiting import until

TEXT = text_of("processing.rst")
HEADINGS = ["Batches into a database", "Retries and dead letters", "Asyncio", "gevent"]
KEYS = [b"a", b"b", None] * 4


def recipe(heading: str, bootstrap: str) -> str:
    """The program below a heading, for the broker at ``bootstrap``; the new group begins at the logs' beginning."""
    section = re.split(r"\n[^\n]+\n-{4,}\n", TEXT.split(f"\n{heading}\n", 1)[1])[0]
    code = textwrap.dedent(re.split(r"\n\n(?=\S)", section.split("::\n", 1)[1])[0])
    assert code.count('"localhost:9092", "billing"') == 1
    return code.replace('"localhost:9092", "billing"', f'"{bootstrap}", "billing", auto_offset_reset="earliest"')


class Recipe:
    """Runs programs as they stand, with no name that they do not make; a signal ends them when all is committed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.names: dict[str, Any] = {}

    def run(self, heading: str) -> list[str]:
        """The lines that it prints."""
        with MemoryBroker({"orders": 2}) as broker:
            for partition in range(2):
                records = [Record(b"%d" % n, key, 1, ()) for n, key in enumerate(KEYS)]
                broker.produce("orders", records, partition=partition)

            def end() -> None:
                until(lambda: list(broker.committed("billing").values()) == [len(KEYS)] * 2, 60)
                os.kill(os.getpid(), signal.SIGTERM)

            watcher = threading.Thread(target=end, daemon=True)
            watcher.start()
            self.names = {"__name__": "__main__"}
            exec(compile(recipe(heading, broker.bootstrap), heading, "exec"), self.names)
            watcher.join(60)
            assert broker.members("billing") == []
        return self._capsys.readouterr().out.splitlines()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Recipe:
    """They may write into the present directory."""
    monkeypatch.chdir(tmp_path)
    return Recipe(capsys)


def test_every_recipe_has_a_test() -> None:
    assert [heading for heading in HEADINGS if f"\n{heading}\n----" in TEXT] == HEADINGS
    assert TEXT.count("from managedconsumer import ManagedBalancedConsumer") == len(HEADINGS)


@pytest.mark.slow
def test_batches_into_a_database(program: Recipe) -> None:
    program.run("Batches into a database")
    with sqlite3.connect("orders.db") as db:
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (24,)


@pytest.mark.slow
def test_retries_and_dead_letters(program: Recipe) -> None:
    lines = program.run("Retries and dead letters")
    attempts = {offset: lines.count(f"paying for 0 {offset}") for offset in range(len(KEYS))}
    assert (attempts.pop(1), set(attempts.values())) == (5, {1})
    letters = Path("dead_letters.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(" ".join(letter.split()[:3]) for letter in letters) == [
        f"orders {partition} {offset}" for partition in range(2) for offset in (1, 5)
    ]


@pytest.mark.slow
def test_asyncio(program: Recipe) -> None:
    assert len(program.run("Asyncio")) == 24
    assert (program.names["summary"].done, program.names["summary"].reason) == (24, "signal")


@pytest.mark.gevent
@pytest.mark.slow
def test_gevent(program: Recipe) -> None:
    pytest.importorskip("gevent")
    assert len(program.run("gevent")) == 24
