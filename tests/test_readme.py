"""The programs of the README that do something run as they stand there."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from managedconsumer.testing import MemoryBroker
from tests.interop.docskit import COUNT, orders, programs
from tests.waiting import until


def run(heading: str, group: str, broker: MemoryBroker) -> None:
    """The section's program, ended by a signal when the group has committed everything."""
    (program,) = programs("../README.rst", heading, broker.bootstrap)

    def end() -> None:
        until(lambda: list(broker.committed(group).values()) == [COUNT] * 2, 60)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=end)
    watcher.start()
    try:
        exec(compile(program, heading, "exec"), {"__name__": "__main__"})
    finally:
        watcher.join(60)


@pytest.mark.slow
def test_processing(capsys: pytest.CaptureFixture[str]) -> None:
    with orders() as broker:
        run("Process side by side", "billing", broker)
    *charged, last = capsys.readouterr().out.splitlines()
    assert last == "10 charged, 0 left to the next start"
    assert sorted(charged) == sorted(f"charging None {b'%d' % number!r}" for number in range(COUNT) for _ in range(2))


@pytest.mark.slow
def test_exactly_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with orders() as broker:
        run("Exactly once into your store", "shop", broker)
    with sqlite3.connect("shop.db") as db:
        assert db.execute("select count(*), count(distinct value) from orders").fetchone() == (10, 5)
