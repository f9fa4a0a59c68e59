"""The programs of docs/tutorial run as they stand there, and its table of extras is complete."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker
from tests.extras import declared
from tests.interop.docskit import COUNT, headings, programs
from tests.pages import text_of
from tests.waiting import until

FIRST, SECOND = "installation.rst", "production.rst"
STEPS = [
    *("1. Work side by side", "2. Decide what failure means", "3. Make the result exactly once"),
    *("4. Test it", "5. Run it"),
]


def run(code: str, names: dict[str, Any], done: Callable[[], object]) -> None:
    """Run a program that commits more often than by default; a SIGTERM ends it when ``done()`` is true."""

    def end() -> None:
        until(done, 60)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=end)
    watcher.start()
    try:
        exec(compile(often(code), "program", "exec"), names)
    finally:
        watcher.join(60)


def often(code: str) -> str:
    return code.replace("on_dead=bury", "on_dead=bury, commit_ms=20").replace(
        "workers=16)", "workers=16, commit_ms=20)"
    )


def all_committed(broker: MemoryBroker, group: str) -> Callable[[], bool]:
    return lambda: list(broker.committed(group).values()) == [COUNT] * 2


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The third step's program as ``worker.py``, in the current directory."""
    (code,) = programs(SECOND, STEPS[2])
    (tmp_path / "worker.py").write_text(often(code), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("worker", None)


def stored(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(value for (value,) in db.execute("select value from orders"))


def test_every_program_has_a_test() -> None:
    assert headings(FIRST) == ["The first messages, without a Kafka", "With a real Kafka"]
    assert headings(SECOND) == STEPS
    assert [len(programs(SECOND, step)) for step in STEPS] == [1] * 5


def test_the_first_messages(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = programs(FIRST, "The first messages, without a Kafka")
    exec(code.replace("timeout_ms=1000", "timeout_ms=100"), {})
    *messages, committed = capsys.readouterr().out.splitlines()
    assert messages == ["0 0 b'tea'", "0 1 b'cake'"]
    assert "partition=0" in committed and ": 2" in committed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of kafka-python's imports
def test_what_kafka_python_writes_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with MemoryBroker({"orders": 1}) as broker:
        write, read = programs(FIRST, "With a real Kafka", broker.bootstrap)
        exec(write, {})
        lines: list[str] = []

        def all_shown() -> bool:
            lines.extend(capsys.readouterr().out.splitlines())
            return len(lines) == 10

        run(read, {}, all_shown)
        assert lines[0] == "0 0 b'customer-0' b'order 0'"
        assert list(broker.committed("billing").values()) == [10]


def test_step_1(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = programs(SECOND, STEPS[0], broker.bootstrap)
    run(code, {}, all_committed(broker, "billing"))
    *charged, last = capsys.readouterr().out.splitlines()
    assert (len(charged), last) == (2 * COUNT, f"{2 * COUNT} charged, 0 left to the next start")


def test_step_2(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The messages of "orders" have no key: each of them is dead, and counts as processed."""
    (code,) = programs(SECOND, STEPS[1], broker.bootstrap)
    run(code, {}, all_committed(broker, "billing"))
    dead = capsys.readouterr().out.splitlines()
    assert sorted(dead) == sorted(f"dead: {p} {o} no customer" for p in range(2) for o in range(COUNT))


def test_step_3(broker: MemoryBroker, worker: Path) -> None:
    (code,) = programs(SECOND, STEPS[2], broker.bootstrap)
    run(code, {"__name__": "__main__"}, all_committed(broker, "shop"))
    assert stored(worker / "shop.db") == sorted(b"%d" % n for n in range(COUNT) for _ in range(2))


def test_step_4(worker: Path) -> None:
    (code,) = programs(SECOND, STEPS[3])
    names: dict[str, Any] = {}
    exec(code, names)
    names["test_orders_are_stored"](worker)


def test_step_5(broker: MemoryBroker, worker: Path) -> None:
    (code,) = programs(SECOND, STEPS[4], broker.bootstrap)
    code = code.replace("port=8080", "port=0").replace("logging.basicConfig(level=logging.INFO)", "")
    run(code, {}, all_committed(broker, "shop"))
    assert len(stored(worker / "shop.db")) == 2 * COUNT


def test_every_extra_is_in_the_table() -> None:
    rows = re.findall(r"^``([a-z]+)``,\S", text_of("extras.csv"), re.MULTILINE)
    assert sorted(rows) == sorted(declared())
