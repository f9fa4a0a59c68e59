"""The programs of docs/recipes.rst run as they stand there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker
from tests.waiting import until

TEXT = (Path(__file__).parents[2] / "docs" / "recipes.rst").read_text(encoding="utf-8")
HEADINGS = ["Several processes", "A service on asyncio", "Tables"]
COUNT = 5


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 2}) as made:
        for partition in range(2):
            made.produce("orders", [b"%d" % number for number in range(COUNT)], partition=partition)
        yield made


def program(heading: str, broker: MemoryBroker) -> str:
    below = TEXT.split(f"\n{heading}\n---", 1)[1].split(".. code-block:: python\n", 1)[1]
    return textwrap.dedent(re.split(r"\n\S", below)[0]).replace("localhost:9092", broker.bootstrap)


def test_every_program_has_a_test() -> None:
    assert TEXT.count("code-block:: python") == len(HEADINGS)


@pytest.mark.slow
def test_several_processes(broker: MemoryBroker, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program("Several processes", broker), encoding="utf-8")
    # Unbuffered, each process would write its lines in pieces, between those of the other.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=buffered)
    assert (done.returncode, done.stderr) == (0, "")
    seen = [line.split() for line in done.stdout.splitlines()]
    assert {(partition, offset) for _, partition, offset in seen} == {
        (str(p), str(o)) for p in range(2) for o in range(COUNT)
    }
    assert list(broker.committed("billing").values()) == [COUNT] * 2


def test_a_service(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(program("A service on asyncio", broker), names)

    async def serve() -> None:
        async with names["lifespan"](None) as state:
            held = {0: COUNT - 1, 1: COUNT - 1}
            await asyncio.to_thread(until, lambda: state["consumer"].held_offsets == held)

    asyncio.run(serve())
    assert len(capsys.readouterr().out.splitlines()) == 2 * COUNT
    assert not broker.members("billing")
    assert list(broker.committed("billing").values()) == [COUNT] * 2


@pytest.mark.slow
def test_tables(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    exec(program("Tables", broker), {})
    (row,) = eval(capsys.readouterr().out)
    assert row[1:] == (COUNT, COUNT - 1)
    assert sorted(broker.committed("billing").values()) == [0, COUNT]  # one batch is of one partition
