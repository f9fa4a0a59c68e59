"""The programs of docs/howto/recipes.rst run as they stand there; those of web servers are in test_servers.py."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker, Record
from tests.interop.docskit import COUNT, buffered, headings, programs
from tests.interop.test_messages_page import avro_orders
from tests.registries import Registry
from tests.waiting import until

PAGE = "recipes.rst"
ELSEWHERE = {"A service on asyncio (FastAPI)", "gunicorn", "A command of Django"}
TYPED = "Columns of Avro, JSON or Protobuf"
HERE = {"Several processes", "In Kubernetes", "A notebook", "Logs as JSON", "Tables", "polars and pandas", TYPED}


def program(heading: str, broker: MemoryBroker, number: int = 0) -> str:
    return programs(PAGE, heading, broker.bootstrap)[number]


def test_every_program_has_a_test() -> None:
    assert set(headings(PAGE)) == HERE | ELSEWHERE


@pytest.mark.slow
def test_several_processes(broker: MemoryBroker, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program("Several processes", broker), encoding="utf-8")
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=buffered())
    assert (done.returncode, done.stderr) == (0, "")
    seen = [line.split() for line in done.stdout.splitlines()]
    assert {(partition, offset) for _, partition, offset in seen} == {
        (str(p), str(o)) for p in range(2) for o in range(COUNT)
    }
    assert list(broker.committed("billing").values()) == [COUNT] * 2


def test_in_kubernetes(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The probes answer while it runs; SIGTERM ends it, and everything is committed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers: dict[str, int] = {}

    def kubelet() -> None:
        def asked(path: str) -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                    answers[path] = answer.status
            except urllib.error.HTTPError as error:  # 503
                error.close()
                return False
            except OSError:  # not there yet
                return False
            return True

        try:
            until(lambda: asked("/live") and asked("/ready"), 60)
            until(all_printed, 60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    printed: list[str] = []

    def all_printed() -> bool:
        printed.append(capsys.readouterr().out)  # a line may come in pieces
        return "".join(printed).count("\n") == 2 * COUNT

    probes = threading.Thread(target=kubelet)
    probes.start()
    exec(program("In Kubernetes", broker).replace("8080", str(port)), {})
    probes.join()
    assert answers == {"/live": 200, "/ready": 200}
    assert list(broker.committed("billing").values()) == [COUNT] * 2
    assert not broker.members("billing")


def test_a_notebook(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    *lines, last = program("A notebook", broker).strip().splitlines()
    exec("\n".join(lines), names)
    with names["consumer"] as consumer:
        assert len(eval(capsys.readouterr().out)) == COUNT
        assert "<table" in consumer._repr_html_()
        assert "<table" in eval(last, names)._repr_html_()
    assert not broker.members("notebook-anna")


def test_logs_as_json(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers = []
    try:
        exec(program("Logs as JSON", broker), {})
    finally:
        root.handlers, root.level = before, level
    seen = capsys.readouterr()
    assert seen.out == f"{b'0'!r}\n"
    lines = [json.loads(line) for line in seen.err.splitlines()]
    assert lines
    assert all(line["logger"].startswith("managedconsumer.") and line["text"] for line in lines)
    assert {line["level"] for line in lines} == {"INFO"}
    last = [line for line in lines if "generation" in line][-1]
    assert last["group"] == "billing"
    assert last["member"]


@pytest.mark.slow
def test_tables(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    exec(program("Tables", broker), {})
    (row,) = eval(capsys.readouterr().out)
    assert row[1:] == (COUNT, COUNT - 1)
    assert sorted(broker.committed("billing").values()) == [0, COUNT]  # one batch is of one partition


@pytest.mark.slow
def test_polars(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    exec(program("polars and pandas", broker), {})
    assert eval(capsys.readouterr().out) == [(0, COUNT), (1, COUNT)]


@pytest.mark.slow
def test_typed_columns(capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry()
    records = avro_orders(registry)
    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [*records, Record(b"junk"), *records])
        code = program(TYPED, broker).replace("http://localhost:8081", registry.url)
        exec(code, {})
    registry.close()
    polars, duckdb = capsys.readouterr().out.splitlines()
    total, errors = polars.split(" ", 1)
    (error,) = eval(errors)
    assert (total, error["value"], eval(duckdb)) == ("2", b"junk", [(2,)])
    assert "does not begin with a schema's id" in error["error"]


@pytest.mark.soak
def test_pandas(tmp_path: Path) -> None:
    """Not in the ordinary run: PySpark uses pandas where it is installed, and all other tests must do without it."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path / "packages"), "pandas>=2"]
    subprocess.run(install, check=True, timeout=250)
    more = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "packages"), str(Path.cwd())])}

    with MemoryBroker({"orders": 1}) as typed:
        typed.produce("orders", [b'{"id": 1}', b"junk", b'{"id": 2}'])
        code = program(TYPED, typed, 1)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=more
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) == 3
