"""The programs of docs/stores.rst run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from docutils import core, nodes

from managedconsumer.stores import DirectoryStore
from managedconsumer.testing import MemoryBroker, Record

PAGE = Path(__file__).parents[2] / "docs" / "stores.rst"


def programs() -> list[str]:
    page = core.publish_doctree(PAGE.read_text(encoding="utf-8"), settings_overrides={"syntax_highlight": "none"})
    return [block.astext() for block in page.findall(nodes.literal_block) if "import" in block.astext()]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_a_program_of_the_page_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as connection:
        connection.execute("create table orders (key, value)")
        connection.execute("create table results (value)")
    connection.close()
    program = programs()[number].replace("timeout_ms=1000", "timeout_ms=50").replace("(500)", "(500, 200)")
    with MemoryBroker({"orders": 2}) as broker:
        broker.produce("orders", [Record(b"%d" % n, b"key") for n in range(20)])
        for _ in range(2):  # the second time there is nothing to do
            exec(program.replace("localhost:9092", broker.bootstrap), {})
    if "check_store" in program:
        return
    found = sqlite3.connect("shop.db")
    values = [value for (value,) in found.execute("select value from orders")]
    found.close()
    if "DirectoryStore" in program:
        values = [v for at in DirectoryStore("results").data() for v in (at / "orders.txt").read_bytes().split(b"\n")]
    assert sorted(values) == sorted(b"%d" % n for n in range(20))


def test_there_are_no_more_programs() -> None:
    assert len(programs()) == 4
