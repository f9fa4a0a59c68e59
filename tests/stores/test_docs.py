"""The programs of docs/stores.rst run."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest
from docutils import core, nodes

from managedconsumer.stores import DirectoryStore
from managedconsumer.testing import MemoryBroker, Record
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "stores.rst"


def programs() -> list[str]:
    page = core.publish_doctree(PAGE.read_text(encoding="utf-8"), settings_overrides={"syntax_highlight": "none"})
    return [block.astext() for block in page.findall(nodes.literal_block) if "import" in block.astext()]


def end_run() -> None:
    """As an operator does, when all is stored: ``run()`` watches for the signal."""
    connection = sqlite3.connect("shop.db")
    until(lambda: connection.execute("select count(*) from orders").fetchone()[0] >= 20, 60)
    connection.close()
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", range(5))
def test_a_program_of_the_page_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as connection:
        connection.execute("create table orders (key, value)")
        connection.execute("create table results (value)")
    connection.close()
    program = programs()[number].replace("timeout_ms=1000", "timeout_ms=50").replace("(500)", "(500, 200)")
    with MemoryBroker({"orders": 2}) as broker:
        broker.produce("orders", [Record(b"%d" % n, b"key") for n in range(20)])
        runs = "consumer.run(" in program
        ender = threading.Thread(target=end_run) if runs else None
        if ender is not None:
            ender.start()
        for _ in range(1 if runs else 2):  # the second time there is nothing to do
            exec(program.replace("localhost:9092", broker.bootstrap), {})
        if ender is not None:
            ender.join()
    if "check_store" in program:
        return
    found = sqlite3.connect("shop.db")
    values = [value for (value,) in found.execute("select value from orders")]
    found.close()
    if "DirectoryStore" in program:
        values = [v for at in DirectoryStore("results").data() for v in (at / "orders.txt").read_bytes().split(b"\n")]
    assert sorted(values) == sorted(b"%d" % n for n in range(20))


def test_there_are_no_more_programs() -> None:
    assert len(programs()) == 5
